// SPDX-License-Identifier: MIT OR Apache-2.0
// Registered memory of which the program unmaps, replaces or moves pages: what is left can be unregistered and registered
// again, and other memory stays the device's. At the end a kernel stores to an object that has lost a page, for which ROCm ends
// the process by SIGABRT.
#include "check.h"

#include <sys/mman.h>

static const size_t page = 4096, pages = 8, words = page / sizeof(unsigned);

// Adds 1 to the first word of each page of the mask.
__global__ void touch(unsigned *memory, unsigned mask) {
    if (mask >> threadIdx.x & 1)
        memory[threadIdx.x * words] += 1;
}

static unsigned *new_memory() {
    void *memory = mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    for (unsigned i = 0; i < pages; i++)
        ((unsigned *)memory)[i * words] = 100 * i;
    return (unsigned *)memory;
}

static unsigned *registered(unsigned *memory, size_t count = pages) {
    void *device = nullptr;
    CHECK(hipHostRegister(memory, count * page, hipHostRegisterMapped));
    CHECK(hipHostGetDevicePointer(&device, memory, 0));
    return (unsigned *)device;
}

static void touched(unsigned *memory, unsigned *device, unsigned mask, unsigned times) {
    touch<<<1, 32>>>(device, mask);
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < pages; i++)
        if (mask >> i & 1)
            REQUIRE(memory[i * words] == 100 * i + times, "page %u: %u", i, memory[i * words]);
}

static void unmapped() {
    unsigned *memory = new_memory(), *device = registered(memory);
    unsigned *other = new_memory(), *other_device = registered(other);
    touched(memory, device, 0xff, 1);
    REQUIRE(munmap(memory + 2 * words, 3 * page) == 0);
    touched(other, other_device, 0xff, 1);
    CHECK(hipHostUnregister(memory));
    touched(memory, registered(memory, 2), 0x03, 2);
    CHECK(hipHostUnregister(memory));
    CHECK(hipHostUnregister(other));
    REQUIRE(munmap(memory, pages * page) == 0 && munmap(other, pages * page) == 0);
}

static void replaced() {
    unsigned *memory = new_memory();
    touched(memory, registered(memory), 0xff, 1);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    unsigned *fourth = memory + 4 * words;
    REQUIRE(mmap(fourth, page, PROT_READ | PROT_WRITE, flags, -1, 0) == fourth);
    REQUIRE(*fourth == 0);
    CHECK(hipHostUnregister(memory));
    // The new page can be registered with the others.
    *fourth = 401;
    touched(memory, registered(memory), 0xff, 2);
    CHECK(hipHostUnregister(memory));
    REQUIRE(munmap(memory, pages * page) == 0);
}

static void moved() {
    unsigned *memory = new_memory();
    touched(memory, registered(memory), 0xff, 1);
    // The second half moves, and grows there.
    unsigned *half = memory + 4 * words;
    void *there = mremap(half, 4 * page, 16 * page, MREMAP_MAYMOVE);
    REQUIRE(there != MAP_FAILED && there != half);
    for (unsigned i = 0; i < 16; i++)
        REQUIRE(((unsigned *)there)[i * words] == (i < 4 ? 401 + 100 * i : 0), "page %u", i);
    CHECK(hipHostUnregister(memory));
    touched(memory, registered(memory, 4), 0x0f, 2);
    CHECK(hipHostUnregister(memory));
    REQUIRE(munmap(memory, 4 * page) == 0 && munmap(there, 16 * page) == 0);
}

int main(int argc, char **argv) {
    unmapped();
    replaced();
    moved();
    unsigned *memory = new_memory(), *device = registered(memory);
    REQUIRE(munmap(memory + 5 * words, page) == 0);
    // The page that is gone, or another one: without it the driver has none of the object's pages.
    unsigned which = argc > 1 ? std::atoi(argv[1]) : 5;
    std::printf("gone: %p\n", (void *)(device + which * words));
    std::fflush(stdout);
    touch<<<1, 32>>>(device, 1 << which);
    hipError_t answer = hipDeviceSynchronize();
    std::printf("the store is answered by %s\n", hipGetErrorName(answer));
    return 1;
}
