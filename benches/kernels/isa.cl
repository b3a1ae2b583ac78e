// SPDX-License-Identifier: MIT OR Apache-2.0
// The jobs of isa.c in OpenCL C, for PoCL: the same tiles, blocks and shapes; reductions over 32 work-items go through
// local memory, since PoCL has no sub-groups of 32.
#pragma OPENCL FP_CONTRACT OFF
#define ITEM get_global_id(0)
#define LOG2E 1.44269504f
#define FENCE barrier(CLK_LOCAL_MEM_FENCE)

kernel __attribute__((reqd_work_group_size(32, 8, 1))) void gemm_naive(
    global const float *restrict a, global const float *restrict b, global float *restrict c, uint n)
{
    const uint row = get_global_id(1), column = get_global_id(0);
    float sum = 0;
    for (uint k = 0; k < n; k++)
        sum = fma(a[row * n + k], b[k * n + column], sum);
    c[row * n + column] = sum;
}

kernel __attribute__((reqd_work_group_size(16, 16, 1))) void gemm_lds16(
    global const float *restrict a, global const float *restrict b, global float *restrict c, uint n)
{
    local float tile_a[16][16], tile_b[16][16];
    const uint x = get_local_id(0), y = get_local_id(1), row = get_global_id(1), column = get_global_id(0);
    float sum = 0;
    for (uint k = 0; k < n; k += 16) {
        tile_a[y][x] = a[row * n + k + x];
        tile_b[y][x] = b[(k + y) * n + column];
        FENCE;
        for (uint j = 0; j < 16; j++)
            sum = fma(tile_a[y][j], tile_b[j][x], sum);
        FENCE;
    }
    c[row * n + column] = sum;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void gemm_4x4(
    global const float *restrict a, global const float *restrict b, global float *restrict c, uint n)
{
    local float tile_a[16][64] __attribute__((aligned(16))), tile_b[16][64] __attribute__((aligned(16)));
    const uint t = get_local_id(0), x = t % 16, y = t / 16, row = get_group_id(1) * 64, column = get_group_id(0) * 64;
    float4 sum[4] = {0, 0, 0, 0};
    for (uint k = 0; k < n; k += 16) {
        const float4 part = *(global const float4 *)&a[(row + t / 4) * n + k + t % 4 * 4];
        tile_a[t % 4 * 4][t / 4] = part.x;
        tile_a[t % 4 * 4 + 1][t / 4] = part.y;
        tile_a[t % 4 * 4 + 2][t / 4] = part.z;
        tile_a[t % 4 * 4 + 3][t / 4] = part.w;
        *(local float4 *)&tile_b[t / 16][t % 16 * 4] =
            *(global const float4 *)&b[(k + t / 16) * n + column + t % 16 * 4];
        FENCE;
        for (uint j = 0; j < 16; j++) {
            const float4 by = *(local float4 *)&tile_a[j][y * 4], bx = *(local float4 *)&tile_b[j][x * 4];
            sum[0] = fma((float4)by.x, bx, sum[0]);
            sum[1] = fma((float4)by.y, bx, sum[1]);
            sum[2] = fma((float4)by.z, bx, sum[2]);
            sum[3] = fma((float4)by.w, bx, sum[3]);
        }
        FENCE;
    }
    for (uint r = 0; r < 4; r++)
        *(global float4 *)&c[(row + y * 4 + r) * n + column + x * 4] = sum[r];
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void gemm_8x8(
    global const float *restrict a, global const float *restrict b, global float *restrict c, uint n)
{
    local float tile_a[8][128] __attribute__((aligned(16))), tile_b[8][128] __attribute__((aligned(16)));
    const uint t = get_local_id(0), x = t % 16, y = t / 16, row = get_group_id(1) * 128, column = get_group_id(0) * 128;
    float4 sum[8][2];
    for (uint r = 0; r < 8; r++)
        sum[r][0] = sum[r][1] = 0;
    for (uint k = 0; k < n; k += 8) {
        const float4 part = *(global const float4 *)&a[(row + t / 2) * n + k + t % 2 * 4];
        tile_a[t % 2 * 4][t / 2] = part.x;
        tile_a[t % 2 * 4 + 1][t / 2] = part.y;
        tile_a[t % 2 * 4 + 2][t / 2] = part.z;
        tile_a[t % 2 * 4 + 3][t / 2] = part.w;
        *(local float4 *)&tile_b[t / 32][t % 32 * 4] =
            *(global const float4 *)&b[(k + t / 32) * n + column + t % 32 * 4];
        FENCE;
        for (uint j = 0; j < 8; j++) {
            float4 bx[2];
            for (uint part = 0; part < 2; part++)
                bx[part] = *(local float4 *)&tile_b[j][part * 64 + x * 4];
            for (uint r = 0; r < 8; r++)
                for (uint part = 0; part < 2; part++)
                    sum[r][part] = fma((float4)tile_a[j][r / 4 * 64 + y * 4 + r % 4], bx[part], sum[r][part]);
        }
        FENCE;
    }
    for (uint r = 0; r < 8; r++)
        for (uint part = 0; part < 2; part++)
            *(global float4 *)&c[(row + r / 4 * 64 + y * 4 + r % 4) * n + column + part * 64 + x * 4] = sum[r][part];
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void hash(global const uint *restrict x, global uint *restrict y)
{
    uint h = x[ITEM];
    for (uint k = 0; k < 256; k++) {
        h ^= h >> 16;
        h *= 0x7feb352d;
        h ^= h >> 15;
        h *= 0x846ca68b;
        h ^= h >> 16;
    }
    y[ITEM] = h;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void mandelbrot(global uint *restrict out, uint side)
{
    const uint i = ITEM;
    const float step = 2.5f / (float)side;
    const float cx = fma((float)(i % side), step, -2.0f), cy = fma((float)(i / side), step, -1.25f);
    float x = 0, y = 0;
    uint n = 0;
    for (; n < 256; n++) {
        const float xx = x * x, yy = y * y;
        if (!(xx + yy < 4.0f))
            break;
        y = fma(x + x, y, cy);
        x = (xx - yy) + cx;
    }
    out[i] = n;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void poly(global const float *restrict x, global float *restrict y)
{
    const float v = x[ITEM];
    float p = v;
    for (uint k = 0; k < 16; k++) {
        p = fma(p, v, 0.75f);
        p = fma(p, v, -0.5f);
        p = fma(p, v, 0.375f);
        p = fma(p, v, -0.3125f);
    }
    y[ITEM] = p;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void axpy(
    global const float *restrict x, global float *restrict y, uint n)
{
    if (ITEM < n)
        y[ITEM] = fma(0.001f, x[ITEM], y[ITEM]);
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void copy(
    global const float4 *restrict x, global float4 *restrict y)
{
    y[ITEM] = x[ITEM];
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void gelu(
    global const float *restrict x, global float *restrict y, uint n)
{
    if (ITEM >= n)
        return;
    const float v = x[ITEM];
    y[ITEM] = native_divide(v, 1.0f + native_exp2(v * (-1.702f * LOG2E)));
}

// The 32 work-items of a row; 8 rows a workgroup.
#define FOLD(by)                                       \
    for (uint mask = 1; mask < 32; mask *= 2) {        \
        FENCE;                                         \
        shared[get_local_id(0)] = v;                   \
        FENCE;                                         \
        v = by(v, shared[get_local_id(0) ^ mask]);     \
    }                                                  \
    return v;
#define PLUS(a, b) ((a) + (b))

float row_max(local float *shared, float v)
{
    FOLD(fmax)
}

float row_sum(local float *shared, float v)
{
    FOLD(PLUS)
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void softmax(
    global const float4 *restrict x, global float4 *restrict y)
{
    local float shared[256];
    const uint at = ITEM / 32 * 256 + get_local_id(0) % 32;
    float4 v[8], sum = 0;
    for (uint k = 0; k < 8; k++)
        v[k] = x[at + k * 32];
    float4 most = v[0];
    for (uint k = 1; k < 8; k++)
        most = fmax(most, v[k]);
    const float top = row_max(shared, fmax(fmax(most.x, most.y), fmax(most.z, most.w)));
    for (uint k = 0; k < 8; k++) {
        v[k] = native_exp2((v[k] - top) * LOG2E);
        sum += v[k];
    }
    const float scale = native_recip(row_sum(shared, (sum.x + sum.y) + (sum.z + sum.w)));
    for (uint k = 0; k < 8; k++)
        y[at + k * 32] = v[k] * scale;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void layernorm(
    global const float4 *restrict x, global const float4 *restrict gamma, global const float4 *restrict beta,
    global float4 *restrict y)
{
    local float shared[256];
    const uint lane = get_local_id(0) % 32, at = ITEM / 32 * 256 + lane;
    float4 v[8], sum = 0, squares = 0;
    for (uint k = 0; k < 8; k++) {
        v[k] = x[at + k * 32];
        sum += v[k];
    }
    const float mean = row_sum(shared, (sum.x + sum.y) + (sum.z + sum.w)) * (1.0f / 1024);
    for (uint k = 0; k < 8; k++) {
        v[k] -= mean;
        squares = fma(v[k], v[k], squares);
    }
    const float all = row_sum(shared, (squares.x + squares.y) + (squares.z + squares.w));
    const float scale = native_rsqrt(fma(all, 1.0f / 1024, 1e-5f));
    for (uint k = 0; k < 8; k++)
        y[at + k * 32] = fma(v[k] * scale, gamma[lane + k * 32], beta[lane + k * 32]);
}
