// SPDX-License-Identifier: MIT OR Apache-2.0
// The same model in f32, to compare with: products in tiles of 64 x 64 in LDS, attention a query a wave.

// out[row][column] = sum over k of a[row][k] * b[k][column], with an epilogue; b are weights transposed. Tiles of 64 x
// 64, 4 x 4 numbers a work-item, 16 of k at a time; rows after the last are computed too, into memory that is not read.
#define GEMM_F32(name, EPILOGUE)                                                                                    \
    KERNEL name(IN float *restrict b, IN float *restrict a, IN float *restrict bias, IN float *restrict residual,   \
        GLOBAL float *restrict out, u32 k, u32 width)                                                               \
    {                                                                                                               \
        SHARED float tile_a[16][64], tile_b[16][64];                                                                \
        const u32 t = X, x = t % 16, y = t / 16, first_column = GROUP_X * 64, first_row = GROUP_Y * 64;             \
        IN float *from_a = a + (first_row + t / 4) * k + t % 4 * 4;                                                 \
        IN float *from_b = b + t / 16 * width + first_column + t % 16 * 4;                                          \
        f4 sum[4] = {};                                                                                             \
        for (u32 at = 0; at < k; at += 16) {                                                                        \
            const f4 part_a = *(IN f4 *)from_a, part_b = *(IN f4 *)from_b;                                          \
            for (u32 i = 0; i < 4; i++)                                                                             \
                tile_a[t % 4 * 4 + i][t / 4] = part_a[i];                                                           \
            *(__attribute__((address_space(3))) f4 *)&tile_b[t / 16][t % 16 * 4] = part_b;                          \
            from_a += 16;                                                                                           \
            from_b += 16 * width;                                                                                   \
            barrier();                                                                                              \
            for (u32 j = 0; j < 16; j++) {                                                                          \
                const f4 by = *(__attribute__((address_space(3))) f4 *)&tile_a[j][y * 4];                           \
                const f4 bx = *(__attribute__((address_space(3))) f4 *)&tile_b[j][x * 4];                           \
                for (u32 r = 0; r < 4; r++)                                                                         \
                    sum[r] = __builtin_elementwise_fma((f4)by[r], bx, sum[r]);                                      \
            }                                                                                                       \
            barrier();                                                                                              \
        }                                                                                                           \
        const u32 column = first_column + x * 4;                                                                    \
        for (u32 r = 0; r < 4; r++) {                                                                               \
            const u32 row = first_row + y * 4 + r;                                                                  \
            f4 v = sum[r] + *(IN f4 *)&bias[column];                                                                \
            EPILOGUE                                                                                                \
            *(GLOBAL f4 *)&out[row * width + column] = v;                                                           \
        }                                                                                                           \
    }

GEMM_F32(gemm_bias_f32, (void)residual;)
GEMM_F32(gemm_gelu_f32, (void)residual; for (u32 i = 0; i < 4; i++) v[i] = gelu(v[i]);)
GEMM_F32(gemm_residual_f32, v += *(IN f4 *)&residual[row * width + column];)

// One wave per query and head. Scores: one lane per key; context: one lane per number. A row has queries, keys and
// values; queries contain the factor as in f16. Grid: rows, heads; bounds are those of each row's sentence.
typedef struct {
    u32 begin, end;
} Bounds;

KERNEL attention_f32(IN Bounds *restrict bounds, IN float *restrict qkv, GLOBAL float *restrict out)
{
    const u32 lane = X, row = GROUP_X, head = GROUP_Y;
    const Bounds sentence = bounds[row];
    IN float *q = qkv + row * (3 * HIDDEN) + head * HEAD;
    float context = 0, most = -__builtin_inff(), total = 0;
    for (u32 first = sentence.begin; first < sentence.end; first += 32) {
        const u32 keys = sentence.end - first < 32 ? sentence.end - first : 32;
        // Lanes after the last key compute the last key's score and drop it.
        IN f4 *key = (IN f4 *)(qkv + (first + (lane < keys ? lane : keys - 1)) * (3 * HIDDEN) + HIDDEN + head * HEAD);
        f4 sum = 0;
        for (u32 d = 0; d < HEAD / 4; d++)
            sum = __builtin_elementwise_fma(((IN f4 *)q)[d], key[d], sum);
        const float s = lane < keys ? sum_of(sum) : -__builtin_inff();
        const float top = __builtin_fmaxf(most, wave_max(s));
        const float fade = __builtin_amdgcn_exp2f(most - top), p = __builtin_amdgcn_exp2f(s - top);
        most = top;
        total = __builtin_fmaf(total, fade, wave_sum(p));
        context *= fade;
        IN float *value = qkv + first * (3 * HIDDEN) + 2 * HIDDEN + head * HEAD + lane;
        for (u32 n = 0; n < keys; n++, value += 3 * HIDDEN) {
            const u32 weight = __builtin_amdgcn_readlane(__builtin_bit_cast(u32, p), n);
            context = __builtin_fmaf(__builtin_bit_cast(float, weight), *value, context);
        }
    }
    out[row * HIDDEN + head * HEAD + lane] = context / total;
}
