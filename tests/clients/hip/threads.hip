// SPDX-License-Identifier: MIT OR Apache-2.0
// Several threads, each with memory, a stream and events of its own, at once.
#include "check.h"

#include <thread>
#include <vector>

__global__ void mix(unsigned *values, unsigned by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = (values[i] ^ by) * 2654435761u + i;
}

static void work(unsigned thread) {
    const unsigned N = 512, ROUNDS = 12;
    hipStream_t stream;
    CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    std::vector<unsigned> wanted(N, thread), values(N);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned *device, by = thread * 1000 + round;
        CHECK(hipMalloc(&device, N * sizeof(unsigned)));
        CHECK(hipMemcpyAsync(device, wanted.data(), N * sizeof(unsigned), hipMemcpyHostToDevice, stream));
        mix<<<N / 64, 64, 0, stream>>>(device, by);
        CHECK(hipGetLastError());
        CHECK(hipMemcpyAsync(values.data(), device, N * sizeof(unsigned), hipMemcpyDeviceToHost, stream));
        CHECK(hipStreamSynchronize(stream));
        for (unsigned i = 0; i < N; i++) {
            wanted[i] = (wanted[i] ^ by) * 2654435761u + i;
            REQUIRE(values[i] == wanted[i], "thread %u, round %u, item %u", thread, round, i);
        }
        CHECK(hipFree(device));
    }
    CHECK(hipStreamDestroy(stream));
}

int main() {
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 6; thread++)
        threads.emplace_back(work, thread);
    for (auto &thread : threads)
        thread.join();
    return passed("threads");
}
