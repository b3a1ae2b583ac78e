// SPDX-License-Identifier: MIT OR Apache-2.0
// The jobs of kernels/isa.c as the host's own code: what `bench isa` compares with. build.rs compiles this with -O3, once
// for each width of vectors, which SUFFIX makes part of the functions' names. Vectors are as wide as the registers, and as many as keep both multipliers busy; what the compiler
// does not vectorise by itself is written with vectors. b: the kernel's buffers; n: elements, or rows, or a side.
#include <stddef.h>
#include <string.h>

typedef unsigned int u32;

#define JOIN(name, suffix) name##suffix
#define JOINED(name, suffix) JOIN(name, suffix)
#define NAME(name) JOINED(name, SUFFIX)

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES (BYTES / 4)
typedef float floats __attribute__((vector_size(BYTES)));
typedef u32 u32s __attribute__((vector_size(BYTES)));
typedef int ints __attribute__((vector_size(BYTES)));
// The same without a claim to alignment.
typedef float loose_floats __attribute__((vector_size(BYTES), aligned(4)));
typedef u32 loose_u32s __attribute__((vector_size(BYTES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))
#define FMA __builtin_fmaf
#define FMAS __builtin_elementwise_fma
#define UNROLL _Pragma("clang loop unroll(full)")
#define VECTORISE _Pragma("clang loop vectorize(enable)")
#define LOG2E 1.44269504f

// Multiplications and additions of one turn of isa_peak.
u32 NAME(isa_peak_operations)(void)
{
    return 12 * LANES * 2 * 16;
}

// Nothing but fused multiplications and additions, 12 chains of them.
float NAME(isa_peak)(u32 turns, float by)
{
    floats chain[12];
    UNROLL
    for (u32 i = 0; i < 12; i++)
        chain[i] = (floats){} + (float)i;
    const floats factor = (floats){} + by, term = (floats){} + 0.25f;
    for (u32 turn = 0; turn < turns; turn++) {
        UNROLL
        for (u32 k = 0; k < 16; k++) {
            UNROLL
            for (u32 i = 0; i < 12; i++)
                chain[i] = FMAS(chain[i], factor, term);
        }
    }
    floats sum = {};
    UNROLL
    for (u32 i = 0; i < 12; i++)
        sum += chain[i];
    float all = 0;
    for (u32 lane = 0; lane < LANES; lane++)
        all += sum[lane];
    return all;
}

// c = a * b for n x n matrices, n a multiple of 64: 8 rows of two vectors of c stay in registers. A panel of b, two
// vectors wide, is packed, so that it is read in order and stays in the second cache. For machines without OpenBLAS.
#define HIGH 8
#define WIDE (2 * LANES)
#define DEEP 1024
void NAME(isa_gemm)(void *const *b, u32 n)
{
    static _Alignas(BYTES) float panel[DEEP][WIDE];
    const float *from_a = b[0], *from_b = b[1];
    float *to = b[2];
    memset(to, 0, (size_t)n * n * sizeof *to);
    for (u32 deep = 0; deep < n; deep += DEEP) {
        const u32 depth = n - deep < DEEP ? n - deep : DEEP;
        for (u32 column = 0; column < n; column += WIDE) {
            for (u32 k = 0; k < depth; k++)
                memcpy(panel[k], &from_b[(deep + k) * n + column], sizeof panel[k]);
            for (u32 row = 0; row < n; row += HIGH) {
                floats sum[HIGH][2] = {};
                for (u32 k = 0; k < depth; k++) {
                    const floats left = *(const floats *)panel[k], right = *(const floats *)&panel[k][LANES];
                    UNROLL
                    for (u32 r = 0; r < HIGH; r++) {
                        const floats factor = (floats){} + from_a[(row + r) * n + deep + k];
                        sum[r][0] = FMAS(factor, left, sum[r][0]);
                        sum[r][1] = FMAS(factor, right, sum[r][1]);
                    }
                }
                UNROLL
                for (u32 r = 0; r < HIGH; r++) {
                    float *out = &to[(row + r) * n + column];
                    *(loose_floats *)out += sum[r][0];
                    *(loose_floats *)(out + LANES) += sum[r][1];
                }
            }
        }
    }
}

// The algorithm of gemm_lds16: tiles of 16x16 are copied, and every element is a sum of 16 products a tile.
void NAME(isa_gemm_lds16)(void *const *b, u32 n)
{
    const float *from_a = b[0], *from_b = b[1];
    float *to = b[2];
    for (u32 row = 0; row < n; row += 16)
        for (u32 column = 0; column < n; column += 16) {
            _Alignas(64) float tile_a[16][16], tile_b[16][16], sum[16][16] = {};
            for (u32 k = 0; k < n; k += 16) {
                for (u32 y = 0; y < 16; y++) {
                    memcpy(tile_a[y], &from_a[(row + y) * n + k], sizeof tile_a[y]);
                    memcpy(tile_b[y], &from_b[(k + y) * n + column], sizeof tile_b[y]);
                }
                for (u32 y = 0; y < 16; y++)
                    for (u32 j = 0; j < 16; j++) {
                        VECTORISE
                        for (u32 x = 0; x < 16; x++)
                            sum[y][x] = FMA(tile_a[y][j], tile_b[j][x], sum[y][x]);
                    }
            }
            for (u32 y = 0; y < 16; y++)
                memcpy(&to[(row + y) * n + column], sum[y], sizeof sum[y]);
        }
}

// c = a * transposed b, f16 into f32: only what gemm_wmma's result is compared with.
void NAME(isa_gemm_f16)(void *const *b, u32 n)
{
    const _Float16 *from_a = b[0], *from_b = b[1];
    float *to = b[2];
    for (u32 row = 0; row < n; row++)
        for (u32 column = 0; column < n; column++) {
            float sum = 0;
            {
#pragma clang fp reassociate(on)
                for (u32 k = 0; k < n; k++)
                    sum += (float)from_a[row * n + k] * (float)from_b[column * n + k];
            }
            to[row * n + column] = sum;
        }
}

// n numbers to f16.
void NAME(isa_halves)(const float *from, _Float16 *to, u32 n)
{
    for (u32 i = 0; i < n; i++)
        to[i] = (_Float16)from[i];
}

// n is a multiple of the elements of a turn.
#define CHAINS 8
void NAME(isa_hash)(void *const *b, u32 n)
{
    const u32 *x = b[0];
    u32 *y = b[1];
    for (u32 i = 0; i < n; i += CHAINS * LANES) {
        u32s h[CHAINS];
        UNROLL
        for (u32 j = 0; j < CHAINS; j++)
            h[j] = *(const loose_u32s *)&x[i + j * LANES];
        for (u32 k = 0; k < 256; k++) {
            UNROLL
            for (u32 j = 0; j < CHAINS; j++) {
                h[j] ^= h[j] >> 16;
                h[j] *= 0x7feb352d;
                h[j] ^= h[j] >> 15;
                h[j] *= 0x846ca68b;
                h[j] ^= h[j] >> 16;
            }
        }
        UNROLL
        for (u32 j = 0; j < CHAINS; j++)
            *(loose_u32s *)&y[i + j * LANES] = h[j];
    }
}

void NAME(isa_poly)(void *const *b, u32 n)
{
    const float *x = b[0];
    float *y = b[1];
    const floats one = (floats){} + 0.75f, two = (floats){} - 0.5f, three = (floats){} + 0.375f,
                 four = (floats){} - 0.3125f;
    for (u32 i = 0; i < n; i += CHAINS * LANES) {
        floats v[CHAINS], p[CHAINS];
        UNROLL
        for (u32 j = 0; j < CHAINS; j++)
            p[j] = v[j] = *(const loose_floats *)&x[i + j * LANES];
        for (u32 k = 0; k < 16; k++) {
            UNROLL
            for (u32 j = 0; j < CHAINS; j++)
                p[j] = FMAS(p[j], v[j], one);
            UNROLL
            for (u32 j = 0; j < CHAINS; j++)
                p[j] = FMAS(p[j], v[j], two);
            UNROLL
            for (u32 j = 0; j < CHAINS; j++)
                p[j] = FMAS(p[j], v[j], three);
            UNROLL
            for (u32 j = 0; j < CHAINS; j++)
                p[j] = FMAS(p[j], v[j], four);
        }
        UNROLL
        for (u32 j = 0; j < CHAINS; j++)
            *(loose_floats *)&y[i + j * LANES] = p[j];
    }
}

// Points of a row together, as many vectors as hide the chain's latency; lanes that are done stop counting.
#define POINTS 4
void NAME(isa_mandelbrot)(void *const *b, u32 side)
{
    u32 *out = b[0];
    const float step = 2.5f / (float)side;
    ints index;
    for (u32 lane = 0; lane < LANES; lane++)
        index[lane] = (int)lane;
    for (u32 i = 0; i < side * side; i += POINTS * LANES) {
        const floats cy = (floats){} + FMA((float)(i / side), step, -1.25f);
        floats cx[POINTS], x[POINTS], y[POINTS];
        ints n[POINTS], live[POINTS];
        UNROLL
        for (u32 j = 0; j < POINTS; j++) {
            const floats column = __builtin_convertvector(index + (int)(i % side + j * LANES), floats);
            cx[j] = FMAS(column, (floats){} + step, (floats){} - 2.0f);
            x[j] = y[j] = (floats){};
            n[j] = (ints){};
            live[j] = (ints){} - 1;
        }
        for (u32 turn = 0; turn < 256; turn++) {
            ints any = {};
            UNROLL
            for (u32 j = 0; j < POINTS; j++) {
                const floats xx = x[j] * x[j], yy = y[j] * y[j];
                live[j] &= (ints)(xx + yy < 4.0f);
                n[j] -= live[j];
                any |= live[j];
                y[j] = FMAS(x[j] + x[j], y[j], cy);
                x[j] = (xx - yy) + cx[j];
            }
            if (__builtin_reduce_or(any) == 0)
                break;
        }
        UNROLL
        for (u32 j = 0; j < POINTS; j++)
            *(loose_u32s *)&out[i + j * LANES] = (u32s)n[j];
    }
}

void NAME(isa_axpy)(void *const *b, u32 n)
{
    const float *restrict x = b[0];
    float *restrict y = b[1];
    for (u32 i = 0; i < n; i++)
        y[i] = FMA(0.001f, x[i], y[i]);
}

void NAME(isa_copy)(void *const *b, u32 n)
{
    memcpy(b[1], b[0], (size_t)n * sizeof(float));
}

// 2 to the power of x, x within [-126, 126] after clamping; off by some units in the last place.
INLINE float exp2_of(float x)
{
    x = x < -126.0f ? -126.0f : x > 126.0f ? 126.0f : x;
    const float whole = __builtin_rintf(x), part = x - whole;
    float p = 1.8775767e-3f;
    p = FMA(p, part, 8.9893397e-3f);
    p = FMA(p, part, 5.5826318e-2f);
    p = FMA(p, part, 2.4015361e-1f);
    p = FMA(p, part, 6.9315308e-1f);
    p = FMA(p, part, 9.9999994e-1f);
    return p * __builtin_bit_cast(float, ((int)whole + 127) << 23);
}

void NAME(isa_gelu)(void *const *b, u32 n)
{
    const float *restrict x = b[0];
    float *restrict y = b[1];
    VECTORISE
    for (u32 i = 0; i < n; i++)
        y[i] = x[i] / (1.0f + exp2_of(x[i] * (-1.702f * LOG2E)));
}

// Row by row in three passes; a row stays in the first cache. Sums and maxima are kept in SPREAD vectors.
#define COLUMNS 1024
#define SPREAD 4
#define STEP (SPREAD * LANES)

INLINE float sum_of(const floats *parts)
{
    const floats all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    float sum = 0;
    for (u32 lane = 0; lane < LANES; lane++)
        sum += all[lane];
    return sum;
}

void NAME(isa_softmax)(void *const *b, u32 rows)
{
    for (u32 row = 0; row < rows; row++) {
        const float *restrict x = (const float *)b[0] + row * COLUMNS;
        float *restrict y = (float *)b[1] + row * COLUMNS;
        floats most[SPREAD], sums[SPREAD] = {};
        UNROLL
        for (u32 j = 0; j < SPREAD; j++)
            most[j] = (floats){} - __builtin_inff();
        for (u32 i = 0; i < COLUMNS; i += STEP) {
            UNROLL
            for (u32 j = 0; j < SPREAD; j++)
                most[j] = __builtin_elementwise_max(most[j], (floats) * (const loose_floats *)&x[i + j * LANES]);
        }
        most[0] = __builtin_elementwise_max(__builtin_elementwise_max(most[0], most[1]),
                                            __builtin_elementwise_max(most[2], most[3]));
        float top = most[0][0];
        for (u32 lane = 1; lane < LANES; lane++)
            top = most[0][lane] > top ? most[0][lane] : top;
        _Alignas(BYTES) float e[COLUMNS];
        VECTORISE
        for (u32 i = 0; i < COLUMNS; i++)
            e[i] = exp2_of((x[i] - top) * LOG2E);
        for (u32 i = 0; i < COLUMNS; i += STEP) {
            UNROLL
            for (u32 j = 0; j < SPREAD; j++)
                sums[j] += *(const floats *)&e[i + j * LANES];
        }
        const float scale = 1.0f / sum_of(sums);
        VECTORISE
        for (u32 i = 0; i < COLUMNS; i++)
            y[i] = e[i] * scale;
    }
}

void NAME(isa_layernorm)(void *const *b, u32 rows)
{
    const float *restrict gamma = b[1], *restrict beta = b[2];
    for (u32 row = 0; row < rows; row++) {
        const float *restrict x = (const float *)b[0] + row * COLUMNS;
        float *restrict y = (float *)b[3] + row * COLUMNS;
        floats sums[SPREAD] = {}, squares[SPREAD] = {};
        for (u32 i = 0; i < COLUMNS; i += STEP) {
            UNROLL
            for (u32 j = 0; j < SPREAD; j++)
                sums[j] += *(const loose_floats *)&x[i + j * LANES];
        }
        const float mean = sum_of(sums) * (1.0f / COLUMNS);
        for (u32 i = 0; i < COLUMNS; i += STEP) {
            UNROLL
            for (u32 j = 0; j < SPREAD; j++) {
                const floats v = *(const loose_floats *)&x[i + j * LANES] - mean;
                squares[j] = FMAS(v, v, squares[j]);
            }
        }
        const float scale = 1.0f / __builtin_sqrtf(sum_of(squares) * (1.0f / COLUMNS) + 1e-5f);
        VECTORISE
        for (u32 i = 0; i < COLUMNS; i++)
            y[i] = FMA((x[i] - mean) * scale, gamma[i], beta[i]);
    }
}
