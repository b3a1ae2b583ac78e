// SPDX-License-Identifier: MIT OR Apache-2.0
// Shared virtual memory: managed memory with advice, prefetches and attributes; registered memory at its own address; the
// same addresses with other memory.
#include "check.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

__global__ void triple(unsigned *values, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 3 + 1;
}

static void run(unsigned *device, volatile unsigned *host, unsigned n, const char *what) {
    for (unsigned i = 0; i < n; i++)
        host[i] = i * 5;
    triple<<<(n + 63) / 64, 64>>>(device, n);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < n; i++)
        REQUIRE(host[i] == i * 15 + 1, "%s, item %u: %u", what, i, host[i]);
}

static int attribute(hipMemRangeAttribute which, const void *values, size_t bytes) {
    int answer = 4711;
    CHECK(hipMemRangeGetAttribute(&answer, sizeof answer, which, values, bytes));
    return answer;
}

static void advised() {
    const unsigned n = 8192;
    const size_t bytes = n * sizeof(unsigned);
    unsigned *values;
    CHECK(hipMallocManaged(&values, bytes));
    run(values, values, n, "managed");
    REQUIRE(attribute(hipMemRangeAttributePreferredLocation, values, bytes) == hipInvalidDeviceId);
    REQUIRE(attribute(hipMemRangeAttributeReadMostly, values, bytes) == 0);
    CHECK(hipMemAdvise(values, bytes, hipMemAdviseSetReadMostly, 0));
    REQUIRE(attribute(hipMemRangeAttributeReadMostly, values, bytes) == 1);
    CHECK(hipMemAdvise(values, bytes, hipMemAdviseUnsetReadMostly, 0));
    REQUIRE(attribute(hipMemRangeAttributeReadMostly, values, bytes) == 0);
    CHECK(hipMemAdvise(values, bytes, hipMemAdviseSetPreferredLocation, 0));
    REQUIRE(attribute(hipMemRangeAttributePreferredLocation, values, bytes) == 0);
    CHECK(hipMemAdvise(values, bytes, hipMemAdviseSetPreferredLocation, hipCpuDeviceId));
    REQUIRE(attribute(hipMemRangeAttributePreferredLocation, values, bytes) == hipCpuDeviceId);
    CHECK(hipMemAdvise(values, bytes, hipMemAdviseSetAccessedBy, 0));
    run(values, values, n, "advised");
    // Half of it goes elsewhere, so that the whole is nowhere.
    CHECK(hipMemAdvise(values, bytes / 2, hipMemAdviseSetPreferredLocation, 0));
    REQUIRE(attribute(hipMemRangeAttributePreferredLocation, values, bytes) == hipInvalidDeviceId);
    CHECK(hipMemPrefetchAsync(values, bytes, 0, 0));
    CHECK(hipDeviceSynchronize());
    REQUIRE(attribute(hipMemRangeAttributeLastPrefetchLocation, values, bytes) == 0);
    run(values, values, n, "prefetched");
    CHECK(hipMemPrefetchAsync(values, bytes, hipCpuDeviceId, 0));
    CHECK(hipDeviceSynchronize());
    REQUIRE(attribute(hipMemRangeAttributeLastPrefetchLocation, values, bytes) == hipCpuDeviceId);
    run(values, values, n, "prefetched back");
    CHECK(hipFree(values));
}

// Memory that is given back to the system and taken again is other memory, at whatever address.
static void again_and_again() {
    const unsigned n = 3000;
    for (unsigned round = 0; round < 8; round++) {
        unsigned *values;
        CHECK(hipMallocManaged(&values, n * sizeof(unsigned)));
        run(values, values, n, "another managed");
        CHECK(hipFree(values));
    }
}

static void registered() {
    const unsigned n = 20000;
    const size_t size = 128 * 1024;
    void *place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    for (unsigned round = 0; round < 3; round++) {
        CHECK(hipHostRegister(place, size, hipHostRegisterMapped));
        void *device = nullptr;
        CHECK(hipHostGetDevicePointer(&device, place, 0));
        REQUIRE(device == place, "its own address");
        run((unsigned *)device, (unsigned *)place, n, "registered");
        CHECK(hipHostUnregister(place));
        // The same address, other pages.
        REQUIRE(munmap(place, size) == 0);
        void *same = mmap(place, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        REQUIRE(same == place && *(unsigned *)place == 0);
    }
    REQUIRE(munmap(place, size) == 0);
}

// Memory of the C library, which gives it back to the system, moves it, and takes it again without a word.
static void copied() {
    const size_t size = 3 << 20;
    char *device, *host = (char *)malloc(size);
    CHECK(hipMalloc(&device, 2 * size));
    for (unsigned round = 0; round < 4; round++) {
        size_t bytes = round % 2 ? 2 * size : size;
        host = (char *)realloc(host, bytes);
        memset(host, 'a' + round, bytes);
        CHECK(hipMemcpy(device, host, bytes, hipMemcpyHostToDevice));
        memset(host, 0, bytes);
        CHECK(hipMemcpy(host, device, bytes, hipMemcpyDeviceToHost));
        for (size_t i = 0; i < bytes; i += 4096)
            REQUIRE(host[i] == (char)('a' + round), "round %u, byte %zu: %d", round, i, host[i]);
        if (round == 1) {
            free(host);
            host = (char *)malloc(size);
        }
    }
    free(host);
    CHECK(hipFree(device));
}

// Registered memory that is enlarged as `realloc` does it: by a system call of the C library's own, and by copying where the
// kernel refuses that.
static void grown() {
    const size_t size = 3 << 20;
    char *place = (char *)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    memset(place, 'g', size);
    CHECK(hipHostRegister(place, size, hipHostRegisterMapped));
    char *larger = (char *)syscall(SYS_mremap, place, size, 2 * size, MREMAP_MAYMOVE);
    if (larger == MAP_FAILED) {
        larger = (char *)mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(larger != MAP_FAILED);
        memcpy(larger, place, size);
        REQUIRE(munmap(place, size) == 0);
    }
    for (size_t i = 0; i < 2 * size; i += 4096)
        REQUIRE(larger[i] == (i < size ? 'g' : 0), "byte %zu: %d", i, larger[i]);
    memset(larger, 'h', 2 * size);
    CHECK(hipHostUnregister(place));
    for (size_t i = 0; i < 2 * size; i += 4096)
        REQUIRE(larger[i] == 'h', "byte %zu: %d", i, larger[i]);
    REQUIRE(munmap(larger, 2 * size) == 0);
}

int main() {
    int managed = 0;
    CHECK(hipDeviceGetAttribute(&managed, hipDeviceAttributeManagedMemory, 0));
    REQUIRE(managed == 1);
    advised();
    again_and_again();
    registered();
    copied();
    grown();
    return passed("svm");
}
