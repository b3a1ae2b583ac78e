// SPDX-License-Identifier: MIT OR Apache-2.0
// Recursion, large arrays of a work-item and calls by pointer: scratch, whose need the compiler does not know.
#include "check.h"

#include <vector>

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0)
        return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ unsigned long long fibonacci(unsigned n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__global__ void recurse(unsigned long long *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = fibonacci(i % 9) << 16 | ackermann(i % 3, i % 4);
}

// An array that is indexed by values: it has to be in scratch.
__global__ void arrays(unsigned *out, unsigned rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned bins[1024];
    for (unsigned bin = 0; bin < 1024; bin++)
        bins[bin] = bin;
    unsigned at = i;
    for (unsigned round = 0; round < rounds; round++) {
        at = at * 1664525u + 1013904223u;
        unsigned one = at >> 22, other = at >> 10 & 1023, kept = bins[one];
        bins[one] = bins[other];
        bins[other] = kept + round;
    }
    unsigned sum = 0;
    for (unsigned bin = 0; bin < 1024; bin++)
        sum = sum * 31 + bins[bin];
    out[i] = sum;
}

__device__ __noinline__ unsigned doubles(unsigned x) { return 2 * x; }
__device__ __noinline__ unsigned squares(unsigned x) { return x * x; }
__device__ unsigned (*const functions[])(unsigned) = {doubles, squares};

__global__ void by_pointer(unsigned *out) { out[threadIdx.x] = functions[threadIdx.x % 2](threadIdx.x); }

static unsigned long long host_fibonacci(unsigned n) {
    return n < 2 ? n : host_fibonacci(n - 1) + host_fibonacci(n - 2);
}

static unsigned host_ackermann(unsigned m, unsigned n) {
    if (m == 0)
        return n + 1;
    return n == 0 ? host_ackermann(m - 1, 1) : host_ackermann(m - 1, host_ackermann(m, n - 1));
}

static unsigned host_array(unsigned i, unsigned rounds) {
    unsigned bins[1024], at = i, sum = 0;
    for (unsigned bin = 0; bin < 1024; bin++)
        bins[bin] = bin;
    for (unsigned round = 0; round < rounds; round++) {
        at = at * 1664525u + 1013904223u;
        unsigned one = at >> 22, other = at >> 10 & 1023, kept = bins[one];
        bins[one] = bins[other];
        bins[other] = kept + round;
    }
    for (unsigned bin = 0; bin < 1024; bin++)
        sum = sum * 31 + bins[bin];
    return sum;
}

int main() {
    CHECK(hipDeviceSetLimit(hipLimitStackSize, 16 * 1024));
    const unsigned n = 512, rounds = 100;
    unsigned long long *wide;
    unsigned *narrow;
    CHECK(hipMalloc(&wide, n * sizeof *wide));
    CHECK(hipMalloc(&narrow, n * sizeof *narrow));
    recurse<<<n / 64, 64>>>(wide);
    CHECK(hipGetLastError());
    std::vector<unsigned long long> values(n);
    CHECK(hipMemcpy(values.data(), wide, n * sizeof *wide, hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) {
        unsigned long long wanted = host_fibonacci(i % 9) << 16 | host_ackermann(i % 3, i % 4);
        REQUIRE(values[i] == wanted, "recursion %u: %#llx, not %#llx", i, values[i], wanted);
    }
    arrays<<<n / 64, 64>>>(narrow, rounds);
    CHECK(hipGetLastError());
    std::vector<unsigned> sums(n);
    CHECK(hipMemcpy(sums.data(), narrow, n * sizeof *narrow, hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++)
        REQUIRE(sums[i] == host_array(i, rounds), "array %u: %#x, not %#x", i, sums[i], host_array(i, rounds));
    by_pointer<<<1, 64>>>(narrow);
    CHECK(hipMemcpy(sums.data(), narrow, 64 * sizeof *narrow, hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < 64; i++)
        REQUIRE(sums[i] == (i % 2 ? i * i : 2 * i), "call %u: %u", i, sums[i]);
    return passed("recursion");
}
