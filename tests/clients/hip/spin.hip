// SPDX-License-Identifier: MIT OR Apache-2.0
// A kernel without end: `spin FILE`. Says `spinning` when a block of it runs, stores the flag that ends them when the file is there,
// and recomputes on the host what each thread had in its registers and in LDS.
#include "check.h"

#include <unistd.h>

#include <vector>

const unsigned BLOCKS = 6, BLOCK = 96, THREADS = BLOCKS * BLOCK, STEPS = 16;

struct Result {
    unsigned state, rounds, neighbour;
};

__host__ __device__ static unsigned step(unsigned state) { return state * 1664525u + 1013904223u; }

__global__ void spin(const unsigned *flag, unsigned *begun, Result *results) {
    __shared__ unsigned stop, turns[BLOCK];
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    unsigned state = i, rounds = 0, stopped;
    turns[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        atomicAdd_system(begun, 1u);
    do {
        for (unsigned n = 0; n < STEPS; n++)
            state = step(state);
        turns[threadIdx.x] += 1;
        rounds += 1;
        if (threadIdx.x == 0)
            stop = __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
        __syncthreads();
        stopped = stop;
        __syncthreads();
    } while (!stopped);
    results[i] = {state, rounds, turns[(threadIdx.x + 1) % BLOCK]};
}

int main(int, char **arguments) {
    unsigned *shared;
    CHECK(hipHostMalloc(&shared, 2 * sizeof(unsigned), hipHostMallocCoherent));
    unsigned *flag = &shared[0], *begun = &shared[1];
    *flag = *begun = 0;
    Result *device;
    CHECK(hipMalloc(&device, THREADS * sizeof(Result)));
    spin<<<BLOCKS, BLOCK>>>(flag, begun, device);
    CHECK(hipGetLastError());
    while (__atomic_load_n(begun, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    std::printf("spinning\n");
    std::fflush(stdout);
    while (access(arguments[1], F_OK) != 0)
        usleep(1000);
    __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
    CHECK(hipDeviceSynchronize());
    std::vector<Result> results(THREADS);
    CHECK(hipMemcpy(results.data(), device, THREADS * sizeof(Result), hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < THREADS; i++) {
        const Result &result = results[i], &first = results[i / BLOCK * BLOCK];
        REQUIRE(result.rounds == first.rounds, "thread %u: %u, %u", i, result.rounds, first.rounds);
        REQUIRE(result.neighbour == result.rounds, "thread %u: %u, %u", i, result.neighbour, result.rounds);
        unsigned state = i;
        for (unsigned long long n = 0; n < (unsigned long long)result.rounds * STEPS; n++)
            state = step(state);
        REQUIRE(result.state == state, "thread %u after %u rounds: %#x, %#x", i, result.rounds, result.state, state);
    }
    CHECK(hipFree(device));
    CHECK(hipHostFree(shared));
    return passed("spin");
}
