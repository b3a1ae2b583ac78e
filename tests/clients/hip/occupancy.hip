// SPDX-License-Identifier: MIT OR Apache-2.0
// What HIP knows of the device and computes from it: properties, attributes of kernels, occupancy.
#include "check.h"

#include <cstring>

__global__ void light(float *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }

__global__ void __launch_bounds__(256) heavy(float *out) {
    __shared__ float lds[8192];
    lds[threadIdx.x * 31 % 8192] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = lds[(255 - threadIdx.x) * 31 % 8192];
}

int main() {
    hipDeviceProp_t is;
    CHECK(hipGetDeviceProperties(&is, 0));
    REQUIRE(std::strcmp(is.gcnArchName, "gfx1100") == 0, "%s", is.gcnArchName);
    REQUIRE(is.warpSize == 32 && is.maxThreadsPerBlock == 1024, "%d, %d", is.warpSize, is.maxThreadsPerBlock);
    REQUIRE(is.sharedMemPerBlock == 65536, "%zu", is.sharedMemPerBlock);
    REQUIRE(is.multiProcessorCount > 0 && is.maxThreadsPerMultiProcessor > 0 && is.clockRate > 0);
    int value = 0;
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, 0));
    REQUIRE(value == is.multiProcessorCount, "%d", value);
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeClockRate, 0));
    REQUIRE(value == is.clockRate, "%d", value);
    char bus[32];
    int found = -1;
    CHECK(hipDeviceGetPCIBusId(bus, sizeof bus, 0));
    CHECK(hipDeviceGetByPCIBusId(&found, bus));
    REQUIRE(found == 0, "%s is device %d", bus, found);

    hipFuncAttributes of;
    CHECK(hipFuncGetAttributes(&of, (const void *)heavy));
    REQUIRE(of.sharedSizeBytes == 32768 && of.maxThreadsPerBlock == 256, "%zu, %d", of.sharedSizeBytes,
            of.maxThreadsPerBlock);
    REQUIRE(of.numRegs > 0, "%d", of.numRegs);
    int blocks = 0, limited = 0, smallest = 0, size = 0;
    CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, light, 256, 0));
    CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&limited, light, 256, 32768));
    REQUIRE(blocks > 0 && blocks * 256 <= is.maxThreadsPerMultiProcessor, "%d", blocks);
    REQUIRE(limited > 0 && limited <= blocks, "%d, with LDS %d", blocks, limited);
    REQUIRE(limited <= (int)(is.maxSharedMemoryPerMultiProcessor / 32768), "%d", limited);
    CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&limited, heavy, 256, 0));
    REQUIRE(limited > 0 && limited < blocks, "%d, without LDS %d", limited, blocks);
    CHECK(hipOccupancyMaxPotentialBlockSize(&smallest, &size, light, 0, 0));
    REQUIRE(size > 0 && size <= 1024 && size % 32 == 0, "%d", size);
    REQUIRE(smallest > 0 && smallest % is.multiProcessorCount == 0, "%d", smallest);
    // The suggestion can be launched.
    float *out, first[2];
    CHECK(hipMalloc(&out, (size_t)smallest * size * sizeof(float)));
    light<<<smallest, size>>>(out);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(first, out + (size_t)smallest * size - 2, sizeof first, hipMemcpyDeviceToHost));
    REQUIRE(first[0] == size - 2 && first[1] == size - 1, "%g, %g", first[0], first[1]);
    heavy<<<1, 256>>>(out);
    CHECK(hipMemcpy(first, out, sizeof first, hipMemcpyDeviceToHost));
    REQUIRE(first[0] == 255 && first[1] == 254, "%g, %g", first[0], first[1]);
    return passed("occupancy");
}
