// SPDX-License-Identifier: MIT OR Apache-2.0
// out[y][x] = sum over k of xs[x][k] * ys[y][k] in f32, with an epilogue; operands f16, both with k numbers a row.
//
// One wave computes 64 features of 32 tokens, 4 x 2 products of 16 x 16. Of a 16 x 16 product, lane l has column y = l
// % 16, and in register r the row x = 2 r + l / 16. Two adjacent products in x are exchanged between the lanes l and l
// ^ 16; then each lane has 16 numbers that are adjacent in memory.
#define LANE_Y (X % 16)
#define HIGH (X / 16)
#define FEATURES 64
#define TOKENS 32

#define UNROLL _Pragma("unroll")

// Sums of XT x YT products. Rows are k numbers apart; xs and ys point to a lane's own first row.
#define PRODUCTS(XT, YT)                                                                                        \
    for (u32 at = 0; at < k; at += 16) {                                                                        \
        h16 a[XT];                                                                                              \
        UNROLL for (u32 i = 0; i < XT; i++)                                                                     \
            a[i] = *(IN h16 *)&xs[i * 16 * k + at];                                                             \
        UNROLL for (u32 j = 0; j < YT; j++) {                                                                   \
            const h16 b = *(IN h16 *)&ys[j * 16 * k + at];                                                      \
            UNROLL for (u32 i = 0; i < XT; i++)                                                                 \
                sum[i][j] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a[i], b, sum[i][j]);                     \
        }                                                                                                       \
    }

// A lane's 16 numbers of two adjacent products, in their order: those of the first for the lower lanes, of the second
// for the upper ones. Even numbers are the lower lane's, odd ones the upper lane's.
INLINE void side_by_side(f8 first, f8 second, float line[16])
{
    for (u32 r = 0; r < 8; r++) {
        const float kept = HIGH ? second[r] : first[r], given = across(HIGH ? first[r] : second[r]);
        line[2 * r] = HIGH ? given : kept;
        line[2 * r + 1] = HIGH ? kept : given;
    }
}

// The compiler may fuse a product with the conversion of its result, which is then rounded once instead of twice, in
// one copy of a block and not in another. A sentence's bits must not depend on its block.
INLINE f16 half_of(float v)
{
    __asm__("" : "+v"(v));
    return (f16)v;
}

INLINE void store_halves(GLOBAL f16 *out, const float line[16])
{
    h16 halves;
    for (u32 i = 0; i < 16; i++)
        halves[i] = half_of(line[i]);
    *(GLOBAL h16 *)out = halves;
}

// Epilogues: x is the first of the lane's 16 numbers.
#define PLAIN(v) (v)
#define BIASED(ACT)                                   \
    {                                                 \
        (void)residual;                               \
        UNROLL for (u32 i = 0; i < 16; i++)           \
            line[i] = ACT(line[i] + bias[x + i]);     \
        store_halves(&out[y * width + x], line);      \
    }
#define WITH_RESIDUAL                                                                 \
    {                                                                                 \
        UNROLL for (u32 i = 0; i < 16; i++)                                           \
            line[i] = line[i] + bias[x + i] + residual[y * width + x + i];            \
        UNROLL for (u32 i = 0; i < 16; i++)                                           \
            out[y * width + x + i] = line[i];                                         \
    }

// The whole work of a wave for YT x 16 tokens: xs are weights (features), ys activations (tokens).
#define BLOCK(YT, EPILOGUE)                                                                      \
    {                                                                                            \
        f8 sum[4][YT] = {};                                                                      \
        PRODUCTS(4, YT)                                                                          \
        UNROLL for (u32 j = 0; j < YT; j++)                                                      \
            UNROLL for (u32 i = 0; i < 4; i += 2) {                                              \
                const u32 x = first_x + (i + HIGH) * 16, y = first_y + j * 16 + LANE_Y;          \
                float line[16];                                                                  \
                side_by_side(sum[i][j], sum[i + 1][j], line);                                    \
                EPILOGUE                                                                         \
            }                                                                                    \
    }

// Grid: blocks of 64 features, blocks of 32 tokens, of which the last may have 16.
#define GEMM(name, out_type, EPILOGUE)                                                                               \
    KERNEL name(IN f16 *restrict weights, IN f16 *restrict h, IN float *restrict bias, IN float *restrict residual,  \
        GLOBAL out_type *restrict out, u32 k, u32 width, u32 rows)                                                   \
    {                                                                                                                \
        const u32 first_x = GROUP_X * FEATURES, first_y = GROUP_Y * TOKENS;                                          \
        IN f16 *xs = weights + (first_x + LANE_Y) * k;                                                               \
        IN f16 *ys = h + (first_y + LANE_Y) * k;                                                                     \
        if (rows - first_y >= TOKENS)                                                                                \
            BLOCK(2, EPILOGUE)                                                                                       \
        else                                                                                                         \
            BLOCK(1, EPILOGUE)                                                                                       \
    }

GEMM(gemm_bias_f16, f16, BIASED(PLAIN))
GEMM(gemm_gelu_f16, f16, BIASED(gelu))
GEMM(gemm_residual_f16, float, WITH_RESIDUAL)

// The same with the operands exchanged, so that the result is transposed: xs are activations, ys weights, and the bias
// is y's. Attention multiplies with values transposed.
KERNEL gemm_transposed_f16(IN f16 *restrict weights, IN f16 *restrict h, IN float *restrict bias,
    GLOBAL f16 *restrict out, u32 k, u32 width, u32 rows)
{
    const u32 first_y = GROUP_X * FEATURES, first_x = GROUP_Y * TOKENS;
    IN f16 *xs = h + (first_x + LANE_Y) * k;
    IN f16 *ys = weights + (first_y + LANE_Y) * k;
    if (rows - first_x >= TOKENS) {
        f8 sum[2][4] = {};
        PRODUCTS(2, 4)
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 x = first_x + HIGH * 16, y = first_y + j * 16 + LANE_Y;
            float line[16];
            side_by_side(sum[0][j], sum[1][j], line);
            UNROLL for (u32 n = 0; n < 16; n++)
                line[n] += bias[y];
            store_halves(&out[y * width + x], line);
        }
    } else {
        f8 sum[1][4] = {};
        PRODUCTS(1, 4)
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 y = first_y + j * 16 + LANE_Y;
            UNROLL for (u32 r = 0; r < 8; r++)
                out[y * width + first_x + 2 * r + HIGH] = half_of(sum[0][j][r] + bias[y]);
        }
    }
}
