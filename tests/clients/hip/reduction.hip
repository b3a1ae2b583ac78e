// SPDX-License-Identifier: MIT OR Apache-2.0
// Sums and prefix sums of a wave by shuffles, ballots and votes, and of a work-group by way of LDS.
#include "check.h"

#include <vector>

const unsigned WAVE = 32, BLOCK = 256;

__device__ unsigned wave_sum(unsigned value) {
    for (unsigned step = warpSize / 2; step; step /= 2)
        value += __shfl_down(value, step);
    return value;
}

__global__ void block_sums(unsigned *sums, const unsigned *values) {
    __shared__ unsigned waves[BLOCK / WAVE];
    unsigned sum = wave_sum(values[blockIdx.x * BLOCK + threadIdx.x]);
    if (threadIdx.x % WAVE == 0)
        waves[threadIdx.x / WAVE] = sum;
    __syncthreads();
    if (threadIdx.x < WAVE) {
        sum = wave_sum(threadIdx.x < BLOCK / WAVE ? waves[threadIdx.x] : 0);
        if (threadIdx.x == 0)
            sums[blockIdx.x] = sum;
    }
}

struct Lane {
    unsigned prefix, exchanged, rotated, broadcast, ballot, votes, half;
    double wide;
};

__global__ void lanes(Lane *out, const unsigned *values) {
    unsigned lane = threadIdx.x, value = values[lane], prefix = value;
    for (unsigned step = 1; step < WAVE; step *= 2) {
        unsigned below = __shfl_up(prefix, step);
        prefix += lane >= step ? below : 0;
    }
    Lane mine;
    mine.prefix = prefix;
    mine.exchanged = __shfl_xor(value, 5);
    mine.rotated = __shfl(value, (lane + 7) % WAVE);
    mine.broadcast = __shfl(value, 3, 8);
    mine.ballot = (unsigned)__ballot(value & 1);
    mine.votes = (__any(value == values[9]) != 0) | (__all(value < 1000) != 0) << 1 | (__all(value & 1) != 0) << 2;
    mine.half = 0;
    if (lane % 2) // with some of the lanes only
        mine.half = (unsigned)__ballot(1);
    mine.wide = __shfl(value * 0.25, WAVE - 1 - lane);
    out[lane] = mine;
}

int main() {
    int wave = 0;
    CHECK(hipDeviceGetAttribute(&wave, hipDeviceAttributeWarpSize, 0));
    REQUIRE(wave == WAVE, "a wave has %d lanes", wave);
    const unsigned blocks = 37;
    std::vector<unsigned> values(blocks * BLOCK), sums(blocks);
    for (unsigned i = 0; i < values.size(); i++)
        values[i] = i * 2654435761u >> 23;
    unsigned *in, *out;
    Lane *lane_out;
    CHECK(hipMalloc(&in, values.size() * sizeof(unsigned)));
    CHECK(hipMalloc(&out, blocks * sizeof(unsigned)));
    CHECK(hipMalloc(&lane_out, WAVE * sizeof(Lane)));
    CHECK(hipMemcpy(in, values.data(), values.size() * sizeof(unsigned), hipMemcpyHostToDevice));
    block_sums<<<blocks, BLOCK>>>(out, in);
    CHECK(hipMemcpy(sums.data(), out, blocks * sizeof(unsigned), hipMemcpyDeviceToHost));
    for (unsigned block = 0; block < blocks; block++) {
        unsigned sum = 0;
        for (unsigned i = 0; i < BLOCK; i++)
            sum += values[block * BLOCK + i];
        REQUIRE(sums[block] == sum, "sum %u is %u, not %u", block, sums[block], sum);
    }
    lanes<<<1, WAVE>>>(lane_out, in);
    Lane found[WAVE];
    CHECK(hipMemcpy(found, lane_out, sizeof found, hipMemcpyDeviceToHost));
    unsigned prefix = 0, ballot = 0, all_odd = 1;
    for (unsigned i = 0; i < WAVE; i++) {
        ballot |= (values[i] & 1) << i;
        all_odd &= values[i] & 1;
    }
    for (unsigned i = 0; i < WAVE; i++) {
        const Lane &is = found[i];
        prefix += values[i];
        REQUIRE(is.prefix == prefix, "lane %u: %u, not %u", i, is.prefix, prefix);
        REQUIRE(is.exchanged == values[i ^ 5], "lane %u", i);
        REQUIRE(is.rotated == values[(i + 7) % WAVE], "lane %u", i);
        REQUIRE(is.broadcast == values[i / 8 * 8 + 3], "lane %u", i);
        REQUIRE(is.ballot == ballot, "lane %u: %#x, not %#x", i, is.ballot, ballot);
        REQUIRE(is.votes == (3 | all_odd << 2), "lane %u: %#x", i, is.votes);
        REQUIRE(is.half == (i % 2 ? 0xaaaaaaaau : 0), "lane %u: %#x", i, is.half);
        REQUIRE(is.wide == values[WAVE - 1 - i] * 0.25, "lane %u: %g", i, is.wide);
    }
    return passed("reduction");
}
