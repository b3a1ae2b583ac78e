// SPDX-License-Identifier: MIT OR Apache-2.0
// Sums of two vectors: a grid with a partial last work-group, and one of three dimensions.
#include "check.h"

#include <vector>

__global__ void add(float *sum, const float *a, const float *b, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        sum[i] = a[i] + b[i];
}

__global__ void coordinates(unsigned *out) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
    unsigned wide = gridDim.x * blockDim.x, high = gridDim.y * blockDim.y;
    out[(z * high + y) * wide + x] = x | y << 8 | z << 16;
}

static void vectors() {
    const unsigned n = 100003;
    std::vector<float> a(n), b(n), sum(n, -1);
    for (unsigned i = 0; i < n; i++) {
        a[i] = 0.5f * i;
        b[i] = 1.0f - 3.0f * i;
    }
    float *device[3];
    for (auto &pointer : device)
        CHECK(hipMalloc(&pointer, n * sizeof(float)));
    CHECK(hipMemcpy(device[1], a.data(), n * sizeof(float), hipMemcpyHostToDevice));
    CHECK(hipMemcpy(device[2], b.data(), n * sizeof(float), hipMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(device[0], device[1], device[2], n);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(sum.data(), device[0], n * sizeof(float), hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++)
        REQUIRE(sum[i] == a[i] + b[i], "sum %u is %g, not %g", i, sum[i], a[i] + b[i]);
    for (auto pointer : device)
        CHECK(hipFree(pointer));
}

static void dimensions() {
    const dim3 grid(3, 5, 2), block(8, 4, 3);
    const unsigned wide = grid.x * block.x, high = grid.y * block.y, deep = grid.z * block.z;
    unsigned *device;
    CHECK(hipMalloc(&device, wide * high * deep * sizeof(unsigned)));
    coordinates<<<grid, block>>>(device);
    std::vector<unsigned> out(wide * high * deep);
    CHECK(hipMemcpy(out.data(), device, out.size() * sizeof(unsigned), hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < out.size(); i++) {
        unsigned wanted = i % wide | i / wide % high << 8 | i / wide / high << 16;
        REQUIRE(out[i] == wanted, "item %u is %#x, not %#x", i, out[i], wanted);
    }
    CHECK(hipFree(device));
}

int main() {
    vectors();
    dimensions();
    return passed("vector_add");
}
