// SPDX-License-Identifier: MIT OR Apache-2.0
// Atomic operations of every width, in device memory, in LDS and in host memory, with and without a returned value.
#include "check.h"

#include <set>
#include <vector>

const unsigned BLOCKS = 8, BLOCK = 128, THREADS = BLOCKS * BLOCK;

struct Results {
    int add, smallest, largest;
    unsigned sum, umin, umax, conjunction, ors, xors, wraps, falls, exchanged, by_cas;
    unsigned long long wide, wide_max, wide_min, wide_or, wide_by_cas;
    float single, single_by_cas;
    double twice;
};

__global__ void all(Results *at, unsigned *before) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    int number = (int)(i * 37 % 1009) - 500;
    before[i] = atomicAdd(&at->sum, 1u);
    atomicAdd(&at->add, number);
    atomicMin(&at->smallest, number);
    atomicMax(&at->largest, number);
    atomicMin(&at->umin, i + 5);
    atomicMax(&at->umax, i + 5);
    atomicAnd(&at->conjunction, ~(1u << i % 29));
    atomicOr(&at->ors, 1u << i % 30);
    atomicXor(&at->xors, i * 2654435761u);
    atomicInc(&at->wraps, 99);
    atomicDec(&at->falls, 49);
    atomicExch(&at->exchanged, i);
    for (unsigned seen = at->by_cas, old; (old = atomicCAS(&at->by_cas, seen, seen + 3)) != seen;)
        seen = old;
    atomicAdd(&at->wide, 0x100000001ull * i);
    atomicMax(&at->wide_max, (unsigned long long)i << 32);
    atomicMin(&at->wide_min, (unsigned long long)i << 32 | 7);
    atomicOr(&at->wide_or, 1ull << i % 64);
    for (unsigned long long seen = at->wide_by_cas, old; (old = atomicCAS(&at->wide_by_cas, seen, seen + (1ull << 33))) != seen;)
        seen = old;
    atomicAdd(&at->single, 0.5f);
    unsigned *word = (unsigned *)&at->single_by_cas;
    for (unsigned seen = *word, old;
         (old = atomicCAS(word, seen, __float_as_uint(__uint_as_float(seen) + 0.25f))) != seen;)
        seen = old;
    atomicAdd(&at->twice, 0.125);
}

__global__ void in_lds(unsigned *histogram, unsigned long long *wide, float *single) {
    __shared__ unsigned bins[16];
    __shared__ unsigned long long sum;
    __shared__ float half;
    if (threadIdx.x < 16)
        bins[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        sum = 0, half = 0;
    __syncthreads();
    atomicAdd(&bins[threadIdx.x * 5 % 16], threadIdx.x);
    atomicAdd(&sum, (unsigned long long)threadIdx.x << 20);
    atomicAdd(&half, 0.5f);
    __syncthreads();
    if (threadIdx.x < 16)
        atomicAdd(&histogram[threadIdx.x], bins[threadIdx.x]);
    if (threadIdx.x == 0)
        atomicAdd(wide, sum), atomicAdd(single, half);
}

__global__ void to_host(unsigned *counter, unsigned long long *wide) {
    atomicAdd_system(counter, 1u);
    atomicAdd_system(wide, 1ull << 32);
}

static Results begin() {
    Results values = {};
    values.umin = values.conjunction = ~0u;
    values.wide_min = ~0ull;
    return values;
}

static void device_memory() {
    Results values = begin(), wanted = begin(), *at;
    unsigned *before;
    CHECK(hipMalloc(&at, sizeof values));
    CHECK(hipMalloc(&before, THREADS * sizeof(unsigned)));
    CHECK(hipMemcpy(at, &values, sizeof values, hipMemcpyHostToDevice));
    all<<<BLOCKS, BLOCK>>>(at, before);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(&values, at, sizeof values, hipMemcpyDeviceToHost));
    std::vector<unsigned> olds(THREADS);
    CHECK(hipMemcpy(olds.data(), before, THREADS * sizeof(unsigned), hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < THREADS; i++) {
        int number = (int)(i * 37 % 1009) - 500;
        wanted.add += number;
        wanted.smallest = std::min(wanted.smallest, number);
        wanted.largest = std::max(wanted.largest, number);
        wanted.conjunction &= ~(1u << i % 29);
        wanted.ors |= 1u << i % 30;
        wanted.xors ^= i * 2654435761u;
        wanted.wraps = wanted.wraps >= 99 ? 0 : wanted.wraps + 1;
        wanted.falls = wanted.falls == 0 || wanted.falls > 49 ? 49 : wanted.falls - 1;
        wanted.wide += 0x100000001ull * i;
        wanted.wide_or |= 1ull << i % 64;
    }
    REQUIRE(std::set<unsigned>(olds.begin(), olds.end()).size() == THREADS, "a value was returned twice");
    REQUIRE(values.sum == THREADS, "%u", values.sum);
    REQUIRE(values.add == wanted.add, "%d, %d", values.add, wanted.add);
    REQUIRE(values.smallest == wanted.smallest && values.largest == wanted.largest);
    REQUIRE(values.umin == 5 && values.umax == THREADS + 4, "%u, %u", values.umin, values.umax);
    REQUIRE(values.conjunction == wanted.conjunction && values.ors == wanted.ors && values.xors == wanted.xors);
    REQUIRE(values.wraps == wanted.wraps, "%u, %u", values.wraps, wanted.wraps);
    REQUIRE(values.falls == wanted.falls, "%u, %u", values.falls, wanted.falls);
    REQUIRE(values.exchanged < THREADS);
    REQUIRE(values.by_cas == 3 * THREADS, "%u", values.by_cas);
    REQUIRE(values.wide == wanted.wide, "%#llx, %#llx", values.wide, wanted.wide);
    REQUIRE(values.wide_max == (THREADS - 1ull) << 32 && values.wide_min == 7);
    REQUIRE(values.wide_or == ~0ull, "%#llx", values.wide_or);
    REQUIRE(values.wide_by_cas == (unsigned long long)THREADS << 33, "%#llx", values.wide_by_cas);
    REQUIRE(values.single == THREADS * 0.5f && values.single_by_cas == THREADS * 0.25f, "%g", values.single);
    REQUIRE(values.twice == THREADS * 0.125, "%g", values.twice);
    CHECK(hipFree(at));
    CHECK(hipFree(before));
}

static void lds() {
    struct {
        unsigned histogram[16];
        unsigned long long wide;
        float single;
    } values = {}, *at;
    CHECK(hipMalloc(&at, sizeof values));
    CHECK(hipMemset(at, 0, sizeof values));
    in_lds<<<BLOCKS, BLOCK>>>(at->histogram, &at->wide, &at->single);
    CHECK(hipMemcpy(&values, at, sizeof values, hipMemcpyDeviceToHost));
    unsigned histogram[16] = {}, sum = 0;
    for (unsigned i = 0; i < BLOCK; i++) {
        histogram[i * 5 % 16] += i * BLOCKS;
        sum += i * BLOCKS;
    }
    for (unsigned bin = 0; bin < 16; bin++)
        REQUIRE(values.histogram[bin] == histogram[bin], "bin %u: %u, %u", bin, values.histogram[bin], histogram[bin]);
    REQUIRE(values.wide == (unsigned long long)sum << 20, "%#llx", values.wide);
    REQUIRE(values.single == THREADS * 0.5f, "%g", values.single);
    CHECK(hipFree(at));
}

static void host_memory() {
    struct Shared {
        unsigned counter;
        unsigned long long wide;
    } *shared;
    CHECK(hipHostMalloc(&shared, sizeof *shared, hipHostMallocCoherent));
    shared->counter = 7;
    shared->wide = 1;
    to_host<<<BLOCKS, BLOCK>>>(&shared->counter, &shared->wide);
    // The host adds while the device does.
    for (unsigned i = 0; i < 1000; i++)
        __atomic_fetch_add(&shared->counter, 1, __ATOMIC_SEQ_CST);
    CHECK(hipDeviceSynchronize());
    REQUIRE(shared->counter == 7 + THREADS + 1000, "%u", shared->counter);
    REQUIRE(shared->wide == ((unsigned long long)THREADS << 32 | 1), "%#llx", shared->wide);
    CHECK(hipHostFree(shared));
}

int main() {
    device_memory();
    lds();
    host_memory();
    return passed("atomics");
}
