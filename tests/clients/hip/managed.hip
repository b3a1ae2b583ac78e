// SPDX-License-Identifier: MIT OR Apache-2.0
// Rounds of work on managed and registered memory of the program's own until a file is there: `managed FILE`. Where the kernel has shared
// virtual memory kernels use both at the program's addresses. Every round is checked, and what was said of the memory stays said.
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

const unsigned N = 50000, KEPT = 300000;

__global__ void step(unsigned *values, unsigned n, unsigned round) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 1664525u + (i ^ round);
}

static void run(unsigned *device, volatile unsigned *host, unsigned round, const char *what) {
    for (unsigned i = 0; i < N; i++)
        host[i] = i * 7 + round;
    for (unsigned pass = 0; pass < 3; pass++)
        step<<<(N + 255) / 256, 256>>>(device, N, round);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < N; i++) {
        unsigned wanted = i * 7 + round;
        for (unsigned pass = 0; pass < 3; pass++)
            wanted = wanted * 1664525u + (i ^ round);
        REQUIRE(host[i] == wanted, "%s, item %u of round %u: %#x, %#x", what, i, round, host[i], wanted);
    }
}

static int attribute(hipMemRangeAttribute which, const void *values, size_t bytes) {
    int answer = 4711;
    CHECK(hipMemRangeGetAttribute(&answer, sizeof answer, which, values, bytes));
    return answer;
}

int main(int, char **arguments) {
    const size_t bytes = N * sizeof(unsigned), registered_bytes = (bytes + 4095) / 4096 * 4096;
    unsigned *managed, *kept, *advised, *device;
    CHECK(hipMallocManaged(&managed, bytes));
    CHECK(hipMallocManaged(&kept, KEPT * sizeof(unsigned)));
    CHECK(hipMallocManaged(&advised, bytes));
    for (unsigned i = 0; i < KEPT; i++)
        kept[i] = i * 2654435761u;
    CHECK(hipMemAdvise(advised, bytes, hipMemAdviseSetReadMostly, 0));
    CHECK(hipMemAdvise(advised, bytes, hipMemAdviseSetPreferredLocation, 0));
    CHECK(hipMemPrefetchAsync(advised, bytes, 0, 0));
    CHECK(hipDeviceSynchronize());
    void *place = mmap(nullptr, 2 * registered_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED, "mmap");
    CHECK(hipHostRegister(place, registered_bytes, hipHostRegisterDefault));
    CHECK(hipHostGetDevicePointer(reinterpret_cast<void **>(&device), place, 0));
    REQUIRE(device == place, "its own address");
    // Of memory that was shared and is gone, or has become other memory, nothing is said any more.
    for (size_t at = 0; at < 2; at++) {
        void *gone;
        CHECK(hipMallocManaged(&gone, bytes));
        CHECK(hipFree(gone));
    }
    for (size_t at = 0; at < 2; at++) {
        void *gone = mmap(nullptr, registered_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(gone != MAP_FAILED, "mmap");
        CHECK(hipHostRegister(gone, registered_bytes, hipHostRegisterDefault));
        // Unregistered first, or not at all.
        if (at == 0)
            CHECK(hipHostUnregister(gone));
        REQUIRE(munmap(gone, registered_bytes) == 0, "munmap");
    }
    for (unsigned round = 1; access(arguments[1], F_OK) != 0; round++) {
        run(managed, managed, round, "managed");
        run(advised, advised, round, "advised");
        run(device, static_cast<unsigned *>(place), round, "registered");
        for (unsigned i = 0; i < KEPT; i++)
            REQUIRE(kept[i] == i * 2654435761u, "kept item %u in round %u: %#x", i, round, kept[i]);
        REQUIRE(attribute(hipMemRangeAttributeReadMostly, advised, bytes) == 1, "round %u", round);
        REQUIRE(attribute(hipMemRangeAttributePreferredLocation, advised, bytes) == 0, "round %u", round);
        REQUIRE(attribute(hipMemRangeAttributeLastPrefetchLocation, advised, bytes) == 0, "round %u", round);
        REQUIRE(attribute(hipMemRangeAttributeReadMostly, managed, bytes) == 0, "round %u", round);
        std::printf("round %u\n", round);
        std::fflush(stdout);
    }
    CHECK(hipHostUnregister(place));
    CHECK(hipFree(managed));
    return passed("managed");
}
