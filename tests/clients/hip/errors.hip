// SPDX-License-Identifier: MIT OR Apache-2.0
// What HIP answers when memory is short, a pointer is wrong or a launch cannot be; and that work goes on after it.
#include "check.h"

#include <vector>

__global__ void fill(unsigned *out, unsigned value) { out[threadIdx.x] = value; }

__global__ void __launch_bounds__(64) small(unsigned *out) { out[threadIdx.x] = 1; }

static void works(unsigned *device, unsigned value) {
    unsigned values[64];
    fill<<<1, 64>>>(device, value);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(values, device, sizeof values, hipMemcpyDeviceToHost));
    for (unsigned found : values)
        REQUIRE(found == value, "%u, not %u", found, value);
}

int main() {
    // What HIP makes when it is first used (queues, code, a copy's buffers) stays.
    unsigned *device;
    CHECK(hipMalloc(&device, 4096));
    works(device, 0);
    CHECK(hipFree(device));
    size_t free_before = 0, total = 0, free = 0, other = 0;
    CHECK(hipMemGetInfo(&free_before, &total));
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    REQUIRE(total == properties.totalGlobalMem, "%zu, %zu", total, properties.totalGlobalMem);
    REQUIRE(free_before > 0 && free_before <= total, "%zu of %zu", free_before, total);
    // The free memory falls by what is held, and comes back.
    const size_t large = 256 << 20;
    CHECK(hipMalloc(&device, large));
    CHECK(hipMemGetInfo(&free, &other));
    REQUIRE(other == total && free + large <= free_before, "%zu, before %zu", free, free_before);
    works(device, 1);
    CHECK(hipFree(device));
    CHECK(hipMemGetInfo(&free, &other));
    REQUIRE(free == free_before, "%zu, before %zu", free, free_before);

    // More than there is: the error is remembered once, and what is smaller still fits.
    void *none = &free;
    EXPECT(hipErrorOutOfMemory, hipMalloc(&none, total + (1 << 20)));
    EXPECT(hipErrorOutOfMemory, hipPeekAtLastError());
    EXPECT(hipErrorOutOfMemory, hipGetLastError());
    CHECK(hipGetLastError());
    std::vector<void *> blocks;
    const size_t block = total / 8;
    for (void *one; hipMalloc(&one, block) == hipSuccess;) {
        blocks.push_back(one);
        REQUIRE(blocks.size() < 9, "%zu blocks of an eighth of the memory", blocks.size());
    }
    EXPECT(hipErrorOutOfMemory, hipGetLastError());
    REQUIRE(blocks.size() >= 6, "%zu blocks of an eighth of the memory", blocks.size());
    for (void *one : blocks)
        CHECK(hipFree(one));
    CHECK(hipMalloc(&device, 4096));
    works(device, 2);

    // Wrong pointers.
    unsigned local = 0;
    EXPECT(hipErrorInvalidValue, hipFree(&local));
    EXPECT(hipErrorInvalidValue, hipMemcpy(nullptr, device, 4, hipMemcpyDeviceToHost));
    EXPECT(hipErrorInvalidValue, hipMemset(nullptr, 0, 4));
    EXPECT(hipErrorInvalidValue, hipMemset(device, 0, 8192));
    EXPECT(hipErrorInvalidValue, hipMalloc(nullptr, 4));
    hipPointerAttribute_t attributes;
    EXPECT(hipErrorInvalidValue, hipPointerGetAttributes(&attributes, &local));
    EXPECT(hipErrorHostMemoryNotRegistered, hipHostUnregister(&local));
    EXPECT(hipErrorInvalidDevice, hipSetDevice(99));
    (void)hipGetLastError();
    works(device, 3);

    // Launches that no device can run.
    fill<<<1, 1025>>>(device, 9);
    EXPECT(hipErrorInvalidValue, hipGetLastError());
    fill<<<0, 64>>>(device, 9);
    EXPECT(hipErrorInvalidValue, hipGetLastError());
    small<<<1, 128>>>(device);
    EXPECT(hipErrorLaunchFailure, hipGetLastError());
    fill<<<1, 64, 65537>>>(device, 9);
    EXPECT(hipErrorInvalidValue, hipGetLastError());
    hipModule_t module;
    EXPECT(hipErrorInvalidKernelFile, hipModuleLoadData(&module, "this is no code object"));
    (void)hipGetLastError();
    works(device, 4);
    CHECK(hipFree(device));
    // A second release.
    EXPECT(hipErrorInvalidValue, hipFree(device));
    return passed("errors");
}
