// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that use device memory by pointers all the time, until a file is there: `pointers FILE`. One counts in pinned memory, one in
// memory of the device that the host sees, and the main one has kernels add to both and compares all with what it counted.
#include "check.h"

#include <atomic>
#include <thread>

#include <unistd.h>

__global__ void add(volatile unsigned *pinned, volatile unsigned *own, unsigned by) {
    pinned[0] += by;
    own[0] += by;
}

// Counts in a word that only this thread writes, and looks at each count again.
static void count(volatile unsigned long long *word, std::atomic<bool> *stop, unsigned long long *counted) {
    unsigned long long expected = 0;
    while (!stop->load()) {
        REQUIRE(*word == expected, "%llu, not %llu", *word, expected);
        *word = ++expected;
    }
    *counted = expected;
}

int main(int, char **arguments) {
    unsigned *pinned, *own;
    volatile unsigned long long *words, *device_words;
    CHECK(hipHostMalloc((void **)&pinned, 4096, 0));
    CHECK(hipHostMalloc((void **)&words, 4096, 0));
    CHECK(hipMalloc((void **)&own, 4096));
    CHECK(hipMalloc((void **)&device_words, 4096));
    CHECK(hipMemset(own, 0, 4096));
    CHECK(hipMemset((void *)device_words, 0, 4096));
    CHECK(hipDeviceSynchronize());
    pinned[0] = 0;
    words[0] = 0;
    std::atomic<bool> stop{false};
    unsigned long long counted[2] = {0, 0};
    std::thread host(count, words, &stop, &counted[0]), device(count, device_words, &stop, &counted[1]);
    unsigned sum = 0;
    for (unsigned round = 1; access(arguments[1], F_OK) != 0; round++) {
        add<<<1, 1>>>(pinned, own, round);
        CHECK(hipDeviceSynchronize());
        sum += round;
        unsigned found;
        CHECK(hipMemcpy(&found, own, sizeof found, hipMemcpyDeviceToHost));
        REQUIRE(pinned[0] == sum && found == sum, "round %u: %u and %u, not %u", round, pinned[0], found, sum);
        if (round % 64 == 0) {
            std::printf("round %u\n", round);
            std::fflush(stdout);
        }
    }
    stop = true;
    host.join();
    device.join();
    REQUIRE(words[0] == counted[0] && device_words[0] == counted[1], "%llu and %llu", words[0], device_words[0]);
    REQUIRE(counted[0] > 1000 && counted[1] > 1000, "%llu and %llu counts", counted[0], counted[1]);
    return passed("pointers");
}
