// SPDX-License-Identifier: MIT OR Apache-2.0
// Rounds of work on four streams of each device at once until a file is there: `rounds FILE`. A product of matrices by tiles in LDS, atomic
// operations in LDS, device and host memory, kernels whose order shows, and copies both ways. Every round is checked.
#include "check.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

const unsigned N = 160, TILE = 16, BLOCKS = 8, BLOCK = 128, PASSES = 800, LINKS = 12, STEPS = 20000, COPIED = 100000;

// The sums are of small integers, so that every order of them gives the same bits.
__global__ void product(float *c, const float *a, const float *b) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const unsigned x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0;
    for (unsigned at = 0; at < N; at += TILE) {
        tile_a[y][x] = a[row * N + at + x];
        tile_b[y][x] = b[(at + y) * N + column];
        __syncthreads();
        for (unsigned k = 0; k < TILE; k++)
            sum += tile_a[y][k] * tile_b[k][x];
        __syncthreads();
    }
    c[row * N + column] = sum;
}

__global__ void count(unsigned *histogram, unsigned long long *sum, unsigned *host) {
    __shared__ unsigned bins[16];
    if (threadIdx.x < 16)
        bins[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned pass = 0; pass < PASSES; pass++)
        atomicAdd(&bins[(threadIdx.x + pass) % 16], 1u);
    __syncthreads();
    if (threadIdx.x < 16)
        atomicAdd(&histogram[threadIdx.x], bins[threadIdx.x]);
    atomicAdd(sum, (unsigned long long)threadIdx.x << 20);
    atomicAdd_system(host, 1u);
}

// Only in its place in the order does it make the right value of the one before.
__global__ void link(unsigned *value, unsigned number) {
    unsigned is = *value;
    for (unsigned n = 0; n < STEPS; n++)
        is = is * 1664525u + number;
    *value = is;
}

static unsigned linked(unsigned seed) {
    for (unsigned number = 0; number < LINKS; number++)
        for (unsigned n = 0; n < STEPS; n++)
            seed = seed * 1664525u + number;
    return seed;
}

struct Work {
    int device;
    hipStream_t streams[4];
    std::vector<float> a, b, c, wanted;
    float *matrices[3];
    unsigned *histogram, *host, *chain, *source, *target, *copies;
    unsigned long long *sum;

    explicit Work(int device) : device(device), a(N * N), b(N * N), c(N * N), wanted(N * N) {
        CHECK(hipSetDevice(device));
        for (auto &stream : streams)
            CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
        for (auto &matrix : matrices)
            CHECK(hipMalloc(&matrix, N * N * sizeof(float)));
        CHECK(hipMalloc(&histogram, 16 * sizeof(unsigned)));
        CHECK(hipMalloc(&sum, sizeof *sum));
        CHECK(hipHostMalloc(&host, sizeof *host, hipHostMallocCoherent));
        CHECK(hipMalloc(&chain, sizeof *chain));
        CHECK(hipHostMalloc(&source, COPIED * sizeof(unsigned)));
        CHECK(hipHostMalloc(&target, COPIED * sizeof(unsigned)));
        CHECK(hipMalloc(&copies, COPIED * sizeof(unsigned)));
        for (unsigned i = 0; i < N * N; i++) {
            a[i] = (float)(i * 7 % 19) - 9;
            b[i] = (float)(i * 11 % 23) - 11;
        }
        for (unsigned row = 0; row < N; row++)
            for (unsigned k = 0; k < N; k++)
                for (unsigned column = 0; column < N; column++)
                    wanted[row * N + column] += a[row * N + k] * b[k * N + column];
        CHECK(hipMemcpy(matrices[1], a.data(), N * N * sizeof(float), hipMemcpyHostToDevice));
        CHECK(hipMemcpy(matrices[2], b.data(), N * N * sizeof(float), hipMemcpyHostToDevice));
    }

    void begin(unsigned round) {
        CHECK(hipSetDevice(device));
        CHECK(hipMemsetAsync(matrices[0], 0xff, N * N * sizeof(float), streams[0]));
        product<<<dim3(N / TILE, N / TILE), dim3(TILE, TILE), 0, streams[0]>>>(matrices[0], matrices[1], matrices[2]);
        *host = round;
        CHECK(hipMemsetAsync(histogram, 0, 16 * sizeof(unsigned), streams[1]));
        CHECK(hipMemsetAsync(sum, 0, sizeof *sum, streams[1]));
        count<<<BLOCKS, BLOCK, 0, streams[1]>>>(histogram, sum, host);
        CHECK(hipMemcpyAsync(chain, &round, sizeof round, hipMemcpyHostToDevice, streams[2]));
        for (unsigned number = 0; number < LINKS; number++)
            link<<<1, 1, 0, streams[2]>>>(chain, number);
        for (unsigned i = 0; i < COPIED; i++)
            source[i] = i * 2654435761u + round;
        std::memset(target, 0, COPIED * sizeof(unsigned));
        CHECK(hipMemcpyAsync(copies, source, COPIED * sizeof(unsigned), hipMemcpyHostToDevice, streams[3]));
        CHECK(hipMemcpyAsync(target, copies, COPIED * sizeof(unsigned), hipMemcpyDeviceToHost, streams[3]));
        CHECK(hipGetLastError());
    }

    void check(unsigned round) {
        CHECK(hipSetDevice(device));
        for (auto stream : streams)
            CHECK(hipStreamSynchronize(stream));
        CHECK(hipMemcpy(c.data(), matrices[0], N * N * sizeof(float), hipMemcpyDeviceToHost));
        REQUIRE(c == wanted, "the product of round %u", round);
        unsigned bins[16], value;
        unsigned long long total;
        CHECK(hipMemcpy(bins, histogram, sizeof bins, hipMemcpyDeviceToHost));
        CHECK(hipMemcpy(&total, sum, sizeof total, hipMemcpyDeviceToHost));
        for (unsigned bin = 0; bin < 16; bin++)
            REQUIRE(bins[bin] == BLOCKS * BLOCK * PASSES / 16, "bin %u of round %u: %u", bin, round, bins[bin]);
        REQUIRE(total == (unsigned long long)BLOCKS * (BLOCK * (BLOCK - 1) / 2) << 20, "round %u: %llu", round, total);
        REQUIRE(*host == round + BLOCKS * BLOCK, "round %u: %u", round, *host);
        CHECK(hipMemcpy(&value, chain, sizeof value, hipMemcpyDeviceToHost));
        REQUIRE(value == linked(round), "the chain of round %u: %#x, %#x", round, value, linked(round));
        for (unsigned i = 0; i < COPIED; i++)
            REQUIRE(target[i] == i * 2654435761u + round, "item %u of round %u: %#x", i, round, target[i]);
    }

    // Takes the product from another device.
    void fetch(const Work &from, unsigned round) {
        CHECK(hipSetDevice(device));
        const size_t bytes = N * N * sizeof(float);
        CHECK(hipMemset(matrices[0], 0xff, bytes));
        CHECK(hipMemcpyPeer(matrices[0], device, from.matrices[0], from.device, bytes));
        CHECK(hipMemcpy(c.data(), matrices[0], bytes, hipMemcpyDeviceToHost));
        REQUIRE(c == wanted, "the product of device %d in round %u", from.device, round);
    }
};

int main(int, char **arguments) {
    int devices;
    CHECK(hipGetDeviceCount(&devices));
    std::vector<std::unique_ptr<Work>> all;
    for (int device = 0; device < devices; device++)
        all.emplace_back(new Work(device));
    for (unsigned round = 1; access(arguments[1], F_OK) != 0; round++) {
        for (auto &work : all)
            work->begin(round);
        for (auto &work : all)
            work->check(round);
        for (int device = 1; device < devices; device++)
            all[device]->fetch(*all[device - 1], round);
        std::printf("round %u\n", round);
        std::fflush(stdout);
    }
    return passed("rounds");
}
