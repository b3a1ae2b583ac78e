// SPDX-License-Identifier: MIT OR Apache-2.0
// A product of matrices by tiles in LDS, static and dynamic. The values are small integers, so that every order of the
// sums gives the same bits.
#include "check.h"

#include <vector>

const unsigned TILE = 16;

template <typename Element>
__device__ void product(Element *c, const Element *a, const Element *b, unsigned n, Element *tile_a, Element *tile_b) {
    unsigned x = threadIdx.x, y = threadIdx.y;
    unsigned column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    Element sum = 0;
    for (unsigned at = 0; at < n; at += TILE) {
        tile_a[y * TILE + x] = row < n && at + x < n ? a[row * n + at + x] : 0;
        tile_b[y * TILE + x] = column < n && at + y < n ? b[(at + y) * n + column] : 0;
        __syncthreads();
        for (unsigned k = 0; k < TILE; k++)
            sum += tile_a[y * TILE + k] * tile_b[k * TILE + x];
        __syncthreads();
    }
    if (row < n && column < n)
        c[row * n + column] = sum;
}

__global__ void with_static(float *c, const float *a, const float *b, unsigned n) {
    __shared__ float tiles[2][TILE * TILE];
    product(c, a, b, n, tiles[0], tiles[1]);
}

__global__ void with_dynamic(double *c, const double *a, const double *b, unsigned n) {
    extern __shared__ double lds[];
    product(c, a, b, n, lds, lds + TILE * TILE);
}

template <typename Element, typename Kernel>
static void multiply(unsigned n, unsigned lds, Kernel kernel) {
    std::vector<Element> a(n * n), b(n * n), c(n * n);
    for (unsigned i = 0; i < n * n; i++) {
        a[i] = (Element)(int)(i * 7 % 19) - 9;
        b[i] = (Element)(int)(i * 11 % 23) - 11;
    }
    const size_t bytes = n * n * sizeof(Element);
    Element *device[3];
    for (auto &pointer : device)
        CHECK(hipMalloc(&pointer, bytes));
    CHECK(hipMemcpy(device[1], a.data(), bytes, hipMemcpyHostToDevice));
    CHECK(hipMemcpy(device[2], b.data(), bytes, hipMemcpyHostToDevice));
    const unsigned tiles = (n + TILE - 1) / TILE;
    kernel<<<dim3(tiles, tiles), dim3(TILE, TILE), lds>>>(device[0], device[1], device[2], n);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(c.data(), device[0], bytes, hipMemcpyDeviceToHost));
    for (unsigned row = 0; row < n; row++)
        for (unsigned column = 0; column < n; column++) {
            Element sum = 0;
            for (unsigned k = 0; k < n; k++)
                sum += a[row * n + k] * b[k * n + column];
            Element is = c[row * n + column];
            REQUIRE(is == sum, "%u,%u of %u is %g, not %g", row, column, n, (double)is, (double)sum);
        }
    for (auto pointer : device)
        CHECK(hipFree(pointer));
}

int main() {
    multiply<float>(64, 0, with_static);
    multiply<float>(50, 0, with_static);
    multiply<double>(40, 2 * TILE * TILE * sizeof(double), with_dynamic);
    return passed("matmul");
}
