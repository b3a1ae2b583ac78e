// SPDX-License-Identifier: MIT OR Apache-2.0
// What `bench isa` runs as gfx1100 machine code, written as kernels for such a GPU are: wave32, tiles in LDS, registers
// blocked. Shapes are fixed here and in src/isa/cases.rs; kernels/isa.cl and native/isa.c do the same jobs.
#ifdef __GFX11__
// The other peers round as written, so this does too.
#pragma STDC FP_CONTRACT OFF
typedef unsigned int u32;
typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f8 __attribute__((ext_vector_type(8)));
typedef _Float16 h16 __attribute__((ext_vector_type(16)));

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define GLOBAL __attribute__((address_space(1)))
#define LDS __attribute__((address_space(3)))
#define SHARED static LDS __attribute__((loader_uninitialized))
#define IN GLOBAL const
#define INLINE static inline __attribute__((always_inline))
#define X __builtin_amdgcn_workitem_id_x()
#define Y __builtin_amdgcn_workitem_id_y()
#define GROUP_X __builtin_amdgcn_workgroup_id_x()
#define GROUP_Y __builtin_amdgcn_workgroup_id_y()
#define ITEM (GROUP_X * 256 + X)
#define FMA __builtin_fmaf
#define LOG2E 1.44269504f

INLINE void barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// c = a * b for n x n matrices, one work-item an element; workgroups of 32x8.
KERNEL gemm_naive(IN float *restrict a, IN float *restrict b, GLOBAL float *restrict c, u32 n)
{
    const u32 row = GROUP_Y * 8 + Y, column = GROUP_X * 32 + X;
    float sum = 0;
    for (u32 k = 0; k < n; k++)
        sum = FMA(a[row * n + k], b[k * n + column], sum);
    c[row * n + column] = sum;
}

// The same in tiles of 16x16 in LDS; workgroups of 16x16.
KERNEL gemm_lds16(IN float *restrict a, IN float *restrict b, GLOBAL float *restrict c, u32 n)
{
    SHARED float tile_a[16][16], tile_b[16][16];
    const u32 x = X, y = Y, row = GROUP_Y * 16 + y, column = GROUP_X * 16 + x;
    float sum = 0;
    for (u32 k = 0; k < n; k += 16) {
        tile_a[y][x] = a[row * n + k + x];
        tile_b[y][x] = b[(k + y) * n + column];
        barrier();
        for (u32 j = 0; j < 16; j++)
            sum = FMA(tile_a[y][j], tile_b[j][x], sum);
        barrier();
    }
    c[row * n + column] = sum;
}

// The same in tiles of 64x64, 4x4 elements a work-item, 16 of k at a time; workgroups of 256.
KERNEL gemm_4x4(IN float *restrict a, IN float *restrict b, GLOBAL float *restrict c, u32 n)
{
    SHARED __attribute__((aligned(16))) float tile_a[16][64], tile_b[16][64];
    const u32 t = X, x = t % 16, y = t / 16;
    IN float *from_a = a + (GROUP_Y * 64 + t / 4) * n + t % 4 * 4;
    IN float *from_b = b + t / 16 * n + GROUP_X * 64 + t % 16 * 4;
    f4 sum[4] = {};
    for (u32 k = 0; k < n; k += 16) {
        const f4 part_a = *(IN f4 *)from_a, part_b = *(IN f4 *)from_b;
        for (u32 i = 0; i < 4; i++)
            tile_a[t % 4 * 4 + i][t / 4] = part_a[i];
        *(LDS f4 *)&tile_b[t / 16][t % 16 * 4] = part_b;
        from_a += 16;
        from_b += 16 * n;
        barrier();
        for (u32 j = 0; j < 16; j++) {
            const f4 by = *(LDS f4 *)&tile_a[j][y * 4], bx = *(LDS f4 *)&tile_b[j][x * 4];
            for (u32 r = 0; r < 4; r++)
                sum[r] = __builtin_elementwise_fma((f4)by[r], bx, sum[r]);
        }
        barrier();
    }
    for (u32 r = 0; r < 4; r++)
        *(GLOBAL f4 *)&c[(GROUP_Y * 64 + y * 4 + r) * n + GROUP_X * 64 + x * 4] = sum[r];
}

// The same in tiles of 128x128, 8x8 elements a work-item (two by two blocks of 4x4), 8 of k at a time; workgroups of 256.
KERNEL gemm_8x8(IN float *restrict a, IN float *restrict b, GLOBAL float *restrict c, u32 n)
{
    SHARED __attribute__((aligned(16))) float tile_a[8][128], tile_b[8][128];
    const u32 t = X, x = t % 16, y = t / 16;
    IN float *from_a = a + (GROUP_Y * 128 + t / 2) * n + t % 2 * 4;
    IN float *from_b = b + t / 32 * n + GROUP_X * 128 + t % 32 * 4;
    f4 sum[8][2] = {};
    for (u32 k = 0; k < n; k += 8) {
        const f4 part_a = *(IN f4 *)from_a, part_b = *(IN f4 *)from_b;
        for (u32 i = 0; i < 4; i++)
            tile_a[t % 2 * 4 + i][t / 2] = part_a[i];
        *(LDS f4 *)&tile_b[t / 32][t % 32 * 4] = part_b;
        from_a += 8;
        from_b += 8 * n;
        barrier();
        for (u32 j = 0; j < 8; j++) {
            f4 by[2], bx[2];
            for (u32 half = 0; half < 2; half++) {
                by[half] = *(LDS f4 *)&tile_a[j][half * 64 + y * 4];
                bx[half] = *(LDS f4 *)&tile_b[j][half * 64 + x * 4];
            }
            for (u32 r = 0; r < 8; r++)
                for (u32 half = 0; half < 2; half++)
                    sum[r][half] = __builtin_elementwise_fma((f4)by[r / 4][r % 4], bx[half], sum[r][half]);
        }
        barrier();
    }
    for (u32 r = 0; r < 8; r++)
        for (u32 half = 0; half < 2; half++) {
            const u32 row = GROUP_Y * 128 + r / 4 * 64 + y * 4 + r % 4;
            *(GLOBAL f4 *)&c[row * n + GROUP_X * 128 + half * 64 + x * 4] = sum[r][half];
        }
}

// c = a * transposed b, f16 into f32, 64x64 elements a wave as 4x4 matrix instructions; workgroups of 128, 128x128 each.
KERNEL gemm_wmma(IN _Float16 *restrict a, IN _Float16 *restrict b, GLOBAL float *restrict c, u32 n)
{
    const u32 lane = X % 32, wave = X / 32;
    const u32 row = GROUP_Y * 128 + wave / 2 * 64, column = GROUP_X * 128 + wave % 2 * 64;
    IN _Float16 *from_a = a + (row + lane % 16) * n;
    IN _Float16 *from_b = b + (column + lane % 16) * n;
    f8 sum[4][4] = {};
    for (u32 k = 0; k < n; k += 16) {
        h16 part_a[4], part_b[4];
        for (u32 i = 0; i < 4; i++) {
            part_a[i] = *(IN h16 *)&from_a[i * 16 * n + k];
            part_b[i] = *(IN h16 *)&from_b[i * 16 * n + k];
        }
        for (u32 i = 0; i < 4; i++)
            for (u32 j = 0; j < 4; j++)
                sum[i][j] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(part_a[i], part_b[j], sum[i][j]);
    }
    // Register r of a lane is row 2 r + lane / 16 of a product, its column lane % 16.
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++)
            for (u32 r = 0; r < 8; r++)
                c[(row + i * 16 + r * 2 + lane / 16) * n + column + j * 16 + lane % 16] = sum[i][j][r];
}

// x[i] goes through 256 rounds of shifts, exclusive ors and multiplications.
KERNEL hash(IN u32 *restrict x, GLOBAL u32 *restrict y)
{
    u32 h = x[ITEM];
    for (u32 k = 0; k < 256; k++) {
        h ^= h >> 16;
        h *= 0x7feb352d;
        h ^= h >> 15;
        h *= 0x846ca68b;
        h ^= h >> 16;
    }
    y[ITEM] = h;
}

// How long each of side x side points stays within 2, at most 256 turns: every lane its own number of turns.
KERNEL mandelbrot(GLOBAL u32 *restrict out, u32 side)
{
    const u32 i = ITEM;
    const float step = 2.5f / (float)side;
    const float cx = FMA((float)(i % side), step, -2.0f), cy = FMA((float)(i / side), step, -1.25f);
    float x = 0, y = 0;
    u32 n = 0;
    for (; n < 256; n++) {
        const float xx = x * x, yy = y * y;
        if (!(xx + yy < 4.0f))
            break;
        y = FMA(x + x, y, cy);
        x = (xx - yy) + cx;
    }
    out[i] = n;
}

// 64 fused multiplications and additions, each of which needs the one before.
KERNEL poly(IN float *restrict x, GLOBAL float *restrict y)
{
    const float v = x[ITEM];
    float p = v;
    for (u32 k = 0; k < 16; k++) {
        p = FMA(p, v, 0.75f);
        p = FMA(p, v, -0.5f);
        p = FMA(p, v, 0.375f);
        p = FMA(p, v, -0.3125f);
    }
    y[ITEM] = p;
}

// y += 0.001 * x.
KERNEL axpy(IN float *restrict x, GLOBAL float *restrict y, u32 n)
{
    if (ITEM < n)
        y[ITEM] = FMA(0.001f, x[ITEM], y[ITEM]);
}

// y = x, four elements a work-item.
KERNEL copy(IN f4 *restrict x, GLOBAL f4 *restrict y)
{
    y[ITEM] = x[ITEM];
}

// y = x / (1 + exp(-1.702 x)), the quick form of GELU.
KERNEL gelu(IN float *restrict x, GLOBAL float *restrict y, u32 n)
{
    if (ITEM >= n)
        return;
    const float v = x[ITEM];
    y[ITEM] = v * __builtin_amdgcn_rcpf(1.0f + __builtin_amdgcn_exp2f(v * (-1.702f * LOG2E)));
}

// What another lane has: lane ^ mask for masks below 16, and lane ^ 16.
#define WITHIN(v, mask) \
    __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, v), 0x160 + (mask), 15, 15, 1))
#define ACROSS(v) \
    __builtin_bit_cast(float, __builtin_amdgcn_permlanex16(0, __builtin_bit_cast(u32, v), 0x76543210, 0xfedcba98, 0, 0))

INLINE float wave_max(float v)
{
    v = __builtin_fmaxf(v, WITHIN(v, 1));
    v = __builtin_fmaxf(v, WITHIN(v, 2));
    v = __builtin_fmaxf(v, WITHIN(v, 4));
    v = __builtin_fmaxf(v, WITHIN(v, 8));
    return __builtin_fmaxf(v, ACROSS(v));
}

INLINE float wave_sum(float v)
{
    v += WITHIN(v, 1);
    v += WITHIN(v, 2);
    v += WITHIN(v, 4);
    v += WITHIN(v, 8);
    return v + ACROSS(v);
}

INLINE float sum_of(f4 v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}

// Softmax of rows of 1024, one wave a row; workgroups of 256.
KERNEL softmax(IN f4 *restrict x, GLOBAL f4 *restrict y)
{
    const u32 at = ITEM / 32 * 256 + X % 32;
    f4 v[8], most, sum = 0;
    for (u32 k = 0; k < 8; k++)
        v[k] = x[at + k * 32];
    most = v[0];
    for (u32 k = 1; k < 8; k++)
        most = __builtin_elementwise_max(most, v[k]);
    const float top = wave_max(__builtin_fmaxf(__builtin_fmaxf(most[0], most[1]), __builtin_fmaxf(most[2], most[3])));
    for (u32 k = 0; k < 8; k++) {
        for (u32 i = 0; i < 4; i++)
            v[k][i] = __builtin_amdgcn_exp2f((v[k][i] - top) * LOG2E);
        sum += v[k];
    }
    const float scale = __builtin_amdgcn_rcpf(wave_sum(sum_of(sum)));
    for (u32 k = 0; k < 8; k++)
        y[at + k * 32] = v[k] * scale;
}

// Layer normalisation of rows of 1024, one wave a row; workgroups of 256.
KERNEL layernorm(IN f4 *restrict x, IN f4 *restrict gamma, IN f4 *restrict beta, GLOBAL f4 *restrict y)
{
    const u32 lane = X % 32, at = ITEM / 32 * 256 + lane;
    f4 v[8], sum = 0, squares = 0;
    for (u32 k = 0; k < 8; k++) {
        v[k] = x[at + k * 32];
        sum += v[k];
    }
    const float mean = wave_sum(sum_of(sum)) * (1.0f / 1024);
    for (u32 k = 0; k < 8; k++) {
        v[k] -= mean;
        squares = __builtin_elementwise_fma(v[k], v[k], squares);
    }
    const float scale = __builtin_amdgcn_rsqf(FMA(wave_sum(sum_of(squares)), 1.0f / 1024, 1e-5f));
    for (u32 k = 0; k < 8; k++)
        y[at + k * 32] = __builtin_elementwise_fma(v[k] * scale, gamma[lane + k * 32], beta[lane + k * 32]);
}
#endif
