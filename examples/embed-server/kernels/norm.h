// SPDX-License-Identifier: MIT OR Apache-2.0
// A token's 384 numbers in one wave, 12 a lane: looked up, normalised, pooled. Workgroups of 128, four tokens each; the
// last group's waves beyond `rows` do nothing.
#define HIDDEN 384
#define PARTS 3
#define EPSILON 1e-12f
// The place of a lane's part k of a row.
#define AT(row, k) ((row) * (HIDDEN / 4) + (k) * 32 + lane)

INLINE f4 widen(f4 v) { return v; }
INLINE f4 widen_h(h4 v) { return __builtin_convertvector(v, f4); }

// The row has mean 0 and variance 1 afterwards, then gets the layer's weight and bias.
INLINE void normalise(f4 v[PARTS], IN f4 *weight, IN f4 *bias, u32 lane)
{
    f4 sum = v[0] + v[1] + v[2], squares = 0;
    const float mean = wave_sum(sum_of(sum)) * (1.0f / HIDDEN);
    for (u32 k = 0; k < PARTS; k++) {
        v[k] -= mean;
        squares = __builtin_elementwise_fma(v[k], v[k], squares);
    }
    const float variance = wave_sum(sum_of(squares)) * (1.0f / HIDDEN);
    const float scale = 1.0f / __builtin_sqrtf(variance + EPSILON);
    for (u32 k = 0; k < PARTS; k++)
        v[k] = __builtin_elementwise_fma(v[k] * scale, weight[lane + k * 32], bias[lane + k * 32]);
}

// A row of x, and in f16 of the next matrix product's operand h, too.
INLINE void store_row(f4 v[PARTS], GLOBAL f4 *x, GLOBAL h4 *h, u32 row, u32 lane, u32 half_too)
{
    for (u32 k = 0; k < PARTS; k++) {
        x[AT(row, k)] = v[k];
        if (half_too)
            h[AT(row, k)] = __builtin_convertvector(v[k], h4);
    }
}

// x = normalise(words[ids[row]] + places[positions[row]]); places has the token type's embedding added.
#define EMBED(name, word_type, wide, half_too)                                                                          \
    KERNEL name(IN u32 *restrict ids, IN u32 *restrict positions, IN word_type *restrict words, IN f4 *restrict places, \
        IN f4 *restrict weight, IN f4 *restrict bias, GLOBAL f4 *restrict x, GLOBAL h4 *restrict h, u32 rows)           \
    {                                                                                                                   \
        const u32 lane = X % 32, row = __builtin_amdgcn_readfirstlane(GROUP_X * 4 + X / 32);                            \
        if (row >= rows)                                                                                                \
            return;                                                                                                     \
        const u32 id = ids[row], position = positions[row];                                                             \
        f4 v[PARTS];                                                                                                    \
        for (u32 k = 0; k < PARTS; k++)                                                                                 \
            v[k] = wide(words[AT(id, k)]) + places[AT(position, k)];                                                    \
        normalise(v, weight, bias, lane);                                                                               \
        store_row(v, x, h, row, lane, half_too);                                                                        \
    }

EMBED(embed_f16, h4, widen_h, 1)
EMBED(embed_f32, f4, widen, 0)

// x = normalise(y), where y is a product with its bias and x added already.
#define NORM(name, half_too)                                                                            \
    KERNEL name(IN f4 *restrict y, IN f4 *restrict weight, IN f4 *restrict bias, GLOBAL f4 *restrict x, \
        GLOBAL h4 *restrict h, u32 rows)                                                                \
    {                                                                                                   \
        const u32 lane = X % 32, row = __builtin_amdgcn_readfirstlane(GROUP_X * 4 + X / 32);            \
        if (row >= rows)                                                                                \
            return;                                                                                     \
        f4 v[PARTS];                                                                                    \
        for (u32 k = 0; k < PARTS; k++)                                                                 \
            v[k] = y[AT(row, k)];                                                                       \
        normalise(v, weight, bias, lane);                                                               \
        store_row(v, x, h, row, lane, half_too);                                                        \
    }

NORM(norm_f16, 1)
NORM(norm_f32, 0)

// out[s] = the mean of sentence s's rows, of length 1. Sentence s has rows bounds[s] to bounds[s + 1].
KERNEL pool(IN u32 *restrict bounds, IN f4 *restrict x, GLOBAL f4 *restrict out)
{
    const u32 lane = X, sentence = GROUP_X, begin = bounds[sentence], end = bounds[sentence + 1];
    f4 v[PARTS] = {}, squares = 0;
    for (u32 row = begin; row < end; row++)
        for (u32 k = 0; k < PARTS; k++)
            v[k] += x[AT(row, k)];
    for (u32 k = 0; k < PARTS; k++) {
        v[k] *= 1.0f / (float)(end - begin);
        squares = __builtin_elementwise_fma(v[k], v[k], squares);
    }
    const float scale = 1.0f / __builtin_fmaxf(__builtin_sqrtf(wave_sum(sum_of(squares))), EPSILON);
    for (u32 k = 0; k < PARTS; k++)
        out[AT(sentence, k)] = v[k] * scale;
}
