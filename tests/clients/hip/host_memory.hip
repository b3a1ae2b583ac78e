// SPDX-License-Identifier: MIT OR Apache-2.0
// Host memory that a kernel uses in place: managed, pinned, and registered (heap, ranges that overlap, the stack in use).
#include "check.h"

#include <sys/mman.h>

#include <vector>

__global__ void triple(unsigned *values, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 3 + 1;
}

__managed__ unsigned counters[4] = {5, 6, 7, 8};

__global__ void count() { counters[threadIdx.x] += 100; }

static void run(unsigned *device, volatile unsigned *host, unsigned n, const char *what) {
    for (unsigned i = 0; i < n; i++)
        host[i] = i * 5;
    triple<<<(n + 63) / 64, 64>>>(device, n);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < n; i++)
        REQUIRE(host[i] == i * 15 + 1, "%s, item %u: %u", what, i, host[i]);
}

static unsigned *device_pointer(void *host) {
    void *device = nullptr;
    CHECK(hipHostGetDevicePointer(&device, host, 0));
    return (unsigned *)device;
}

static void managed() {
    const unsigned n = 5000;
    unsigned *values;
    CHECK(hipMallocManaged(&values, n * sizeof(unsigned)));
    run(values, values, n, "managed");
    hipPointerAttribute_t attributes;
    CHECK(hipPointerGetAttributes(&attributes, values));
    REQUIRE(attributes.isManaged == 1);
    CHECK(hipFree(values));
    count<<<1, 4>>>();
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < 4; i++)
        REQUIRE(counters[i] == 105 + i, "managed variable %u: %u", i, counters[i]);
}

static void pinned() {
    const unsigned n = 3000;
    for (unsigned flags : {0u + hipHostMallocDefault, 0u + hipHostMallocCoherent, 0u + hipHostMallocNonCoherent,
                           0u + hipHostMallocMapped | hipHostMallocWriteCombined, 0u + hipHostMallocPortable}) {
        unsigned *values;
        CHECK(hipHostMalloc(&values, n * sizeof(unsigned), flags));
        run(device_pointer(values), values, n, "pinned");
        CHECK(hipHostFree(values));
    }
}

static void registered() {
    // The heap, from inside a page, and again when it was given back.
    std::vector<unsigned> heap(20000);
    for (unsigned round = 0; round < 2; round++) {
        CHECK(hipHostRegister(&heap[3], 9000 * sizeof(unsigned), hipHostRegisterMapped));
        run(device_pointer(&heap[3]), &heap[3], 9000, "heap");
        CHECK(hipHostUnregister(&heap[3]));
    }
    // Memory that other processes could share.
    const size_t size = 64 * 1024;
    void *shared = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    CHECK(hipHostRegister(shared, size, hipHostRegisterMapped));
    run(device_pointer(shared), (unsigned *)shared, size / 4, "shared");
    CHECK(hipHostUnregister(shared));
    REQUIRE(munmap(shared, size) == 0);
}

static void overlapping() {
    std::vector<unsigned> heap(40000);
    unsigned *first = &heap[100], *second = &heap[8000];
    CHECK(hipHostRegister(first, 16000 * sizeof(unsigned), hipHostRegisterMapped));
    CHECK(hipHostRegister(second, 16000 * sizeof(unsigned), hipHostRegisterMapped));
    run(device_pointer(first), first, 16000, "the first of two");
    run(device_pointer(second), second, 16000, "the second of two");
    CHECK(hipHostUnregister(first));
    run(device_pointer(second), second, 16000, "the second alone");
    CHECK(hipHostUnregister(second));
}

static void on_the_stack() {
    unsigned array[3000];
    CHECK(hipHostRegister(array, sizeof array, hipHostRegisterMapped));
    run(device_pointer(array), array, 3000, "stack");
    CHECK(hipHostUnregister(array));
}

int main() {
    managed();
    pinned();
    registered();
    overlapping();
    on_the_stack();
    return passed("host_memory");
}
