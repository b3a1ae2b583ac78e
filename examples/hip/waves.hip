// SPDX-License-Identifier: MIT OR Apache-2.0
// Waves on a membrane, in plain HIP: `waves STEPS` prints a line for each step, with the sum of all heights in its bits. It knows nothing of
// checkpoints; `cargo xtask demo --hip` freezes it in the middle of its loop.
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

const unsigned SIDE = 256, BLOCK = 16, SUBSTEPS = 8;

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        hipError_t answer = (call);                                                                                    \
        if (answer != hipSuccess) {                                                                                    \
            std::fprintf(stderr, "%s: %s\n", #call, hipGetErrorString(answer));                                        \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

// The next heights from the last two, by a work-group's tile in LDS.
__global__ void advance(float *next, const float *now, const float *before) {
    __shared__ float tile[BLOCK + 2][BLOCK + 2];
    const int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y * BLOCK + threadIdx.y;
    for (int row = threadIdx.y; row < (int)BLOCK + 2; row += BLOCK)
        for (int column = threadIdx.x; column < (int)BLOCK + 2; column += BLOCK) {
            const int from_x = blockIdx.x * BLOCK + column - 1, from_y = blockIdx.y * BLOCK + row - 1;
            const bool inside = from_x >= 0 && from_y >= 0 && from_x < (int)SIDE && from_y < (int)SIDE;
            tile[row][column] = inside ? now[from_y * SIDE + from_x] : 0.0f;
        }
    __syncthreads();
    const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    const float bend =
        tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1] - 4.0f * tile[ty][tx];
    next[y * SIDE + x] = 2.0f * tile[ty][tx] - before[y * SIDE + x] + 0.2f * bend;
}

int main(int count, char **arguments) {
    const unsigned steps = count > 1 ? std::atoi(arguments[1]) : 100;
    const size_t bytes = SIDE * SIDE * sizeof(float);
    float *heights[3], *shown;
    for (float *&height : heights) {
        CHECK(hipMalloc(&height, bytes));
        CHECK(hipMemset(height, 0, bytes));
    }
    CHECK(hipHostMalloc(&shown, bytes, 0));
    std::memset(shown, 0, bytes);
    for (unsigned i = 0; i < 20; i++)
        shown[(60 + i) * SIDE + 90 + i] = 1.0f;
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    CHECK(hipMemcpyAsync(heights[1], shown, bytes, hipMemcpyHostToDevice, stream));
    const dim3 grid(SIDE / BLOCK, SIDE / BLOCK), block(BLOCK, BLOCK);
    for (unsigned step = 1; step <= steps; step++) {
        for (unsigned substep = 0; substep < SUBSTEPS; substep++) {
            advance<<<grid, block, 0, stream>>>(heights[2], heights[1], heights[0]);
            float *oldest = heights[0];
            heights[0] = heights[1];
            heights[1] = heights[2];
            heights[2] = oldest;
        }
        CHECK(hipMemcpyAsync(shown, heights[1], bytes, hipMemcpyDeviceToHost, stream));
        CHECK(hipStreamSynchronize(stream));
        double sum = 0;
        for (unsigned i = 0; i < SIDE * SIDE; i++)
            sum += shown[i] * (i % 7 + 1.0);
        unsigned long long bits;
        std::memcpy(&bits, &sum, sizeof bits);
        std::printf("step %u %.6f %016llx\n", step, sum, bits);
        std::fflush(stdout);
    }
    std::printf("done\n");
    return 0;
}
