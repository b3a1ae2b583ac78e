// SPDX-License-Identifier: MIT OR Apache-2.0
// C = A B of square row-major f32 matrices in the usual stages of tiling, and on the matrix and dot units.
#include "dual.h"

KERNEL(gemm_naive, GLOBAL const float *a; GLOBAL const float *b; GLOBAL float *c; u32 n;) {
    u32 column = GROUP(0) * 16 + ITEM(0), row = GROUP(1) * 16 + ITEM(1);
    float sum = 0;
    for (u32 k = 0; k < arg.n; k++)
        sum = FMA(arg.a[row * arg.n + k], arg.b[k * arg.n + column], sum);
    arg.c[row * arg.n + column] = sum;
}

KERNEL(gemm_lds, GLOBAL const float *a; GLOBAL const float *b; GLOBAL float *c; u32 n;) {
    LDS float ta[16][16];
    LDS float tb[16][16];
    u32 x = ITEM(0), y = ITEM(1), column = GROUP(0) * 16 + x, row = GROUP(1) * 16 + y;
    float sum = 0;
    for (u32 k = 0; k < arg.n; k += 16) {
        ta[y][x] = arg.a[row * arg.n + k + x];
        tb[y][x] = arg.b[(k + y) * arg.n + column];
        barrier();
        for (u32 j = 0; j < 16; j++)
            sum = FMA(ta[y][j], tb[j][x], sum);
        barrier();
    }
    arg.c[row * arg.n + column] = sum;
}

#define PER_ITEM 4
#define DEPTH 16
KERNEL(gemm_4x4, GLOBAL const float *a; GLOBAL const float *b; GLOBAL float *c; u32 n;)
#include "gemm_tile.inc"
#undef PER_ITEM
#undef DEPTH

#define PER_ITEM 8
#define DEPTH 8
KERNEL(gemm_8x8, GLOBAL const float *a; GLOBAL const float *b; GLOBAL float *c; u32 n;)
#include "gemm_tile.inc"
#undef PER_ITEM
#undef DEPTH

// One wave computes a 16x16 tile; B is given transposed, so that a lane's 16 values of either are contiguous. A lane
// holds 256 / WAVE results: of row i * WAVE / 16 + lane / 16, column lane % 16.
#define RESULTS (256 / WAVE)
typedef VECTOR(float, RESULTS) results_f32;
typedef VECTOR(i32, RESULTS) results_i32;
// Results of 16 bits take a register each, of which they fill the lower half.
typedef VECTOR(f16, 2 * RESULTS) results_f16;
typedef VECTOR(i16, 2 * RESULTS) results_bf16;

#ifdef __AMDGCN__
#if WAVE == 64
#define WMMA_F16 __builtin_amdgcn_wmma_f32_16x16x16_f16_w64
#define WMMA_BF16 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w64
#define WMMA_F16_F16(a, b, c) __builtin_amdgcn_wmma_f16_16x16x16_f16_w64(a, b, c, 0)
#define WMMA_BF16_BF16(a, b, c) __builtin_amdgcn_wmma_bf16_16x16x16_bf16_w64(a, b, c, 0)
#define WMMA_IU8(a, b, c) __builtin_amdgcn_wmma_i32_16x16x16_iu8_w64(1, a, 0, b, c, 0)
#define WMMA_IU4(a, b, c) __builtin_amdgcn_wmma_i32_16x16x16_iu4_w64(0, a, 1, b, c, 0)
#else
#define WMMA_F16 __builtin_amdgcn_wmma_f32_16x16x16_f16_w32
#define WMMA_BF16 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32
#define WMMA_F16_F16(a, b, c) __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(a, b, c, 0)
#define WMMA_BF16_BF16(a, b, c) __builtin_amdgcn_wmma_bf16_16x16x16_bf16_w32(a, b, c, 0)
#define WMMA_IU8(a, b, c) __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(1, a, 0, b, c, 0)
#define WMMA_IU4(a, b, c) __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32(0, a, 1, b, c, 0)
#endif
#define DOT4_SIGNED(a, b, c) __builtin_amdgcn_sudot4(1, a, 1, b, c, 0)
#define DOT4_UNSIGNED(a, b, c) __builtin_amdgcn_udot4(a, b, c, 0)
#define DOT4_MIXED(a, b, c) __builtin_amdgcn_sudot4(1, a, 0, b, c, 0)
#define DOT4_CLAMPED(a, b, c) __builtin_amdgcn_sudot4(1, a, 1, b, c, 1)
#define DOT8_SIGNED(a, b, c) __builtin_amdgcn_sudot8(1, a, 1, b, c, 0)
#define DOT8_UNSIGNED(a, b, c) __builtin_amdgcn_udot8(a, b, c, 0)
#define DOT2_F16(a, b, c) __builtin_amdgcn_fdot2(a, b, c, 0)
#else
struct operands {
    u32 a[8], b[8];
};
// Gives this lane's operands to the wave, each of `bytes`, and returns everybody's.
static const struct host_slot *give(const void *a, const void *b, u32 bytes) {
    struct operands mine = {0};
    __builtin_memcpy(mine.a, a, bytes);
    __builtin_memcpy(mine.b, b, bytes);
    return host_exchange(&mine, sizeof mine);
}
// Result i lies in element i * step of the results, read by `load` and written by `store`.
#define MATRIX_STORED(name, vector, results, step, sum_type, value_of_a, value_of_b, load, store)   \
    static results name(vector a, vector b, results c) {                                            \
        const struct host_slot *wave = give(&a, &b, sizeof a);                                      \
        for (u32 i = 0; i < RESULTS; i++) {                                                         \
            u32 row = i * (WAVE / 16) + lane_id() / 16, column = lane_id() % 16;                    \
            const u32 *left = wave[row].words, *right = wave[column].words + 8;                     \
            sum_type sum = load(c[i * step]);                                                       \
            for (u32 k = 0; k < 16; k++)                                                            \
                sum += (sum_type)value_of_a(left, k) * (sum_type)value_of_b(right, k);              \
            c[i * step] = store(sum);                                                               \
        }                                                                                           \
        return c;                                                                                   \
    }
#define BITS(words, k, width) ((words)[(k) * (width) / 32] >> (k) * (width) % 32 & ((1u << (width)) - 1))
static float half_at(const u32 *words, u32 k) {
    u16 bits = (u16)BITS(words, k, 16);
    f16 value;
    __builtin_memcpy(&value, &bits, 2);
    return (float)value;
}
static float bfloat_at(const u32 *words, u32 k) { return as_float(BITS(words, k, 16) << 16); }
static i32 signed_byte(const u32 *words, u32 k) { return (i8)BITS(words, k, 8); }
static i32 byte(const u32 *words, u32 k) { return (i32)BITS(words, k, 8); }
static i32 signed_nibble(const u32 *words, u32 k) { return (i32)(BITS(words, k, 4) ^ 8) - 8; }
static i32 nibble(const u32 *words, u32 k) { return (i32)BITS(words, k, 4); }
#define MATRIX(name, vector, results, sum_type, value_of_a, value_of_b)                             \
    MATRIX_STORED(name, vector, results, 1, sum_type, value_of_a, value_of_b, , )
static float from_bf16(i16 x) { return as_float((u32)(u16)x << 16); }
// The sums of the catalogue's problem are exact in bf16, so nothing is rounded away.
static i16 to_bf16(float x) { return (i16)(as_u32(x) >> 16); }
MATRIX_STORED(WMMA_F16_F16, half16, results_f16, 2, float, half_at, half_at, (float), (f16))
MATRIX_STORED(WMMA_BF16_BF16, short16, results_bf16, 2, float, bfloat_at, bfloat_at, from_bf16, to_bf16)
MATRIX(WMMA_F16, half16, results_f32, float, half_at, half_at)
MATRIX(WMMA_BF16, short16, results_f32, float, bfloat_at, bfloat_at)
MATRIX(WMMA_IU8, int4, results_i32, i32, signed_byte, byte)
MATRIX(WMMA_IU4, int2, results_i32, i32, nibble, signed_nibble)

#define DOT(name, count, value_of_a, value_of_b, finish)                                            \
    static i32 name(u32 a, u32 b, i32 c) {                                                          \
        i64 sum = c;                                                                                \
        for (u32 k = 0; k < count; k++)                                                             \
            sum += value_of_a(&a, k) * value_of_b(&b, k);                                           \
        return (i32)finish(sum);                                                                    \
    }
static i64 clamp_i32(i64 x) { return x > 0x7fffffff ? 0x7fffffff : x < -0x80000000l ? -0x80000000l : x; }
DOT(DOT4_SIGNED, 4, signed_byte, signed_byte, )
DOT(DOT4_UNSIGNED, 4, byte, byte, )
DOT(DOT4_MIXED, 4, signed_byte, byte, )
DOT(DOT4_CLAMPED, 4, signed_byte, signed_byte, clamp_i32)
DOT(DOT8_SIGNED, 8, signed_nibble, signed_nibble, )
DOT(DOT8_UNSIGNED, 8, nibble, nibble, )
static float DOT2_F16(half2 a, half2 b, float c) { return (float)a.x * (float)b.x + (float)a.y * (float)b.y + c; }
#endif

// `width` is the bits of an element of A and B; result i is element i * step.
#define WMMA_KERNEL(name, width, vector, results, step, result, multiply)                                 \
    KERNEL(name, GLOBAL const u8 *a; GLOBAL const u8 *b_transposed; GLOBAL result *c; u32 n;) {     \
        u32 lane = lane_id(), row = GROUP(1) * 16, column = GROUP(0) * 16, n = arg.n;               \
        results sums = {0};                                                                         \
        for (u32 k = 0; k < n; k += 16) {                                                           \
            u32 left = ((row + lane % 16) * n + k) * width / 8;                                     \
            u32 right = ((column + lane % 16) * n + k) * width / 8;                                 \
            vector x = *(GLOBAL const vector *)(arg.a + left);                                      \
            vector y = *(GLOBAL const vector *)(arg.b_transposed + right);                          \
            sums = multiply(x, y, sums);                                                            \
        }                                                                                           \
        for (u32 i = 0; i < RESULTS; i++)                                                           \
            arg.c[(row + i * (WAVE / 16) + lane / 16) * n + column + lane % 16] = sums[i * step];          \
    }
WMMA_KERNEL(gemm_wmma_f16, 16, half16, results_f32, 1, float, WMMA_F16)
WMMA_KERNEL(gemm_wmma_bf16, 16, short16, results_f32, 1, float, WMMA_BF16)
WMMA_KERNEL(gemm_wmma_f16_f16, 16, half16, results_f16, 2, f16, WMMA_F16_F16)
WMMA_KERNEL(gemm_wmma_bf16_bf16, 16, short16, results_bf16, 2, i16, WMMA_BF16_BF16)
WMMA_KERNEL(gemm_wmma_iu8, 8, int4, results_i32, 1, i32, WMMA_IU8)
WMMA_KERNEL(gemm_wmma_iu4, 4, int2, results_i32, 1, i32, WMMA_IU4)

// Four (eight) products an instruction; B transposed.
KERNEL(gemm_dot4, GLOBAL const u32 *a; GLOBAL const u32 *b_transposed; GLOBAL i32 *c; u32 n;) {
    u32 column = GROUP(0) * 16 + ITEM(0), row = GROUP(1) * 16 + ITEM(1), words = arg.n / 4;
    i32 sum = 0;
    for (u32 k = 0; k < words; k++)
        sum = DOT4_SIGNED((i32)arg.a[row * words + k], (i32)arg.b_transposed[column * words + k], sum);
    arg.c[row * arg.n + column] = sum;
}

KERNEL(dot_products, GLOBAL const u32 *a; GLOBAL const u32 *b; GLOBAL const i32 *c; GLOBAL i32 *out; u32 n;) {
    u32 i = INDEX, a = arg.a[i], b = arg.b[i];
    i32 c = arg.c[i];
    GLOBAL i32 *out = arg.out + i;
    out[0 * arg.n] = DOT4_SIGNED((i32)a, (i32)b, c);
    out[1 * arg.n] = (i32)DOT4_UNSIGNED(a, b, (u32)c);
    out[2 * arg.n] = DOT4_MIXED((i32)a, (i32)b, c);
    out[3 * arg.n] = DOT4_CLAMPED((i32)a, (i32)b, c);
    out[4 * arg.n] = DOT8_SIGNED((i32)a, (i32)b, c);
    out[5 * arg.n] = (i32)DOT8_UNSIGNED(a, b, (u32)c);
}

// Dot products of half pairs, row by column of B transposed.
KERNEL(gemm_dot2, GLOBAL const half2 *a; GLOBAL const half2 *b_transposed; GLOBAL float *c; u32 n;) {
    u32 column = GROUP(0) * 16 + ITEM(0), row = GROUP(1) * 16 + ITEM(1), pairs = arg.n / 2;
    float sum = 0;
    for (u32 k = 0; k < pairs; k++)
        sum = DOT2_F16(arg.a[row * pairs + k], arg.b_transposed[column * pairs + k], sum);
    arg.c[row * arg.n + column] = sum;
}
