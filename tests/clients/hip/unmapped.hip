// SPDX-License-Identifier: MIT OR Apache-2.0
// Registered memory of which the program unmaps, replaces or moves pages: the other pages stay the device's, and what is left
// can be unregistered. At the end a kernel stores to a page that is gone, for which ROCm ends the process by SIGABRT.
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

static unsigned *registered(unsigned *memory) {
    void *device = nullptr;
    CHECK(hipHostRegister(memory, pages * page, hipHostRegisterMapped));
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
    touched(memory, device, 0xff, 1);
    REQUIRE(munmap(memory + 2 * words, 3 * page) == 0);
    touched(memory, device, 0xe3, 2);
    CHECK(hipHostUnregister(memory));
    REQUIRE(munmap(memory, pages * page) == 0);
}

static void replaced() {
    unsigned *memory = new_memory(), *device = registered(memory);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    unsigned *fourth = memory + 4 * words;
    REQUIRE(mmap(fourth, page, PROT_READ | PROT_WRITE, flags, -1, 0) == fourth);
    REQUIRE(*fourth == 0);
    touched(memory, device, 0xef, 1);
    REQUIRE(*fourth == 0);
    CHECK(hipHostUnregister(memory));
    // The new page can be registered with the others.
    *fourth = 400;
    for (unsigned i = 0; i < pages; i++)
        memory[i * words] = 100 * i;
    device = registered(memory);
    touched(memory, device, 0xff, 1);
    CHECK(hipHostUnregister(memory));
    REQUIRE(munmap(memory, pages * page) == 0);
}

static void moved() {
    unsigned *memory = new_memory(), *device = registered(memory);
    touched(memory, device, 0xff, 1);
    // The second half moves, and grows there.
    unsigned *half = memory + 4 * words;
    void *there = mremap(half, 4 * page, 16 * page, MREMAP_MAYMOVE);
    REQUIRE(there != MAP_FAILED && there != half);
    for (unsigned i = 0; i < 16; i++)
        REQUIRE(((unsigned *)there)[i * words] == (i < 4 ? 401 + 100 * i : 0), "page %u", i);
    touched(memory, device, 0x0f, 2);
    CHECK(hipHostUnregister(memory));
    REQUIRE(munmap(memory, 4 * page) == 0 && munmap(there, 16 * page) == 0);
}

int main() {
    unmapped();
    replaced();
    moved();
    unsigned *memory = new_memory(), *device = registered(memory);
    REQUIRE(munmap(memory + 5 * words, page) == 0);
    touched(memory, device, 0xdf, 1);
    std::printf("gone: %p\n", (void *)(device + 5 * words));
    std::fflush(stdout);
    touch<<<1, 32>>>(device, 1 << 5);
    hipError_t answer = hipDeviceSynchronize();
    std::printf("the store is answered by %s\n", hipGetErrorName(answer));
    return 1;
}
