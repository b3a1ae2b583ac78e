// SPDX-License-Identifier: MIT OR Apache-2.0
// Streams that wait for the program and for each other, again and again until a file is there: `waits FILE ROUNDS`. They wait for a
// value that it writes, or for a function of the host that ends, when the file ROUNDS has as many bytes as there were rounds. What is
// behind a wait runs once, and not before.
#include "check.h"

#include <cstdint>
#include <sys/stat.h>
#include <unistd.h>

const unsigned N = 256;

__global__ void step(unsigned *values, unsigned by) { values[threadIdx.x] = values[threadIdx.x] * 5 + by; }

static const char *rounds_file;

static void wait_for(long round) {
    struct stat rounds = {};
    while (stat(rounds_file, &rounds) != 0 || rounds.st_size < round)
        usleep(1000);
}

static void function(void *round) { wait_for((long)(intptr_t)round); }

int main(int, char **arguments) {
    rounds_file = arguments[2];
    hipStream_t first, second;
    CHECK(hipStreamCreate(&first));
    CHECK(hipStreamCreate(&second));
    unsigned *values, found[N];
    uint64_t *gate;
    CHECK(hipMalloc(&values, sizeof found));
    CHECK(hipMemset(values, 0, sizeof found));
    CHECK(hipExtMallocWithFlags((void **)&gate, sizeof *gate, hipMallocSignalMemory));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    CHECK(hipDeviceSynchronize());
    hipEvent_t half, end;
    CHECK(hipEventCreateWithFlags(&half, hipEventDisableTiming));
    CHECK(hipEventCreateWithFlags(&end, hipEventDisableTiming));
    unsigned wanted = 0;
    for (unsigned round = 1; access(arguments[1], F_OK) != 0; round++) {
        if (round % 2 != 0)
            CHECK(hipStreamWaitValue64(first, gate, round, hipStreamWaitValueGte));
        else
            CHECK(hipLaunchHostFunc(first, function, (void *)(intptr_t)round));
        for (unsigned n = 0; n < 5; n++)
            step<<<1, N, 0, first>>>(values, round + n);
        CHECK(hipEventRecord(half, first));
        CHECK(hipStreamWaitEvent(second, half, 0));
        step<<<1, N, 0, second>>>(values, 7);
        CHECK(hipEventRecord(end, second));
        std::printf("round %u\n", round);
        std::fflush(stdout);
        if (round % 2 != 0) {
            wait_for(round);
            REQUIRE(hipEventQuery(end) == hipErrorNotReady, "round %u: it did not wait", round);
        }
        __atomic_store_n(gate, round, __ATOMIC_RELEASE);
        CHECK(hipStreamSynchronize(second));
        for (unsigned n = 0; n < 5; n++)
            wanted = wanted * 5 + round + n;
        wanted = wanted * 5 + 7;
        CHECK(hipMemcpy(found, values, sizeof found, hipMemcpyDeviceToHost));
        for (unsigned value : found)
            REQUIRE(value == wanted, "round %u: %#x, not %#x", round, value, wanted);
    }
    return passed("waits");
}
