// SPDX-License-Identifier: MIT OR Apache-2.0
// What networks run besides matrix products: normalisations, activations, attention, convolution.
#include "dual.h"

#define LOG2_E 1.4426950408889634f
#define ITEMS 64

// Sum or maximum over the workgroup's ITEMS items by halving in LDS; everybody gets it.
#define REDUCE(name, combine)                                                                       \
    INLINE float name(SHARED float *room, float value) {                                            \
        room[ME] = value;                                                                           \
        barrier();                                                                                  \
        for (u32 half = ITEMS / 2; half > 0; half /= 2) {                                           \
            if (ME < half)                                                                          \
                room[ME] = combine(room[ME], room[ME + half]);                                      \
            barrier();                                                                              \
        }                                                                                           \
        float all = room[0];                                                                        \
        barrier();                                                                                  \
        return all;                                                                                 \
    }
#define PLUS(a, b) ((a) + (b))
REDUCE(sum_over_group, PLUS)
REDUCE(max_over_group, __builtin_fmaxf)

// One row a workgroup.
KERNEL(softmax, GLOBAL const float *in; GLOBAL float *out; u32 columns;) {
    LDS float room[ITEMS];
    GLOBAL const float *in = arg.in + GROUP(0) * arg.columns;
    GLOBAL float *out = arg.out + GROUP(0) * arg.columns;
    float highest = -__builtin_inff(), sum = 0;
    for (u32 k = ME; k < arg.columns; k += ITEMS)
        highest = __builtin_fmaxf(highest, in[k]);
    highest = max_over_group(room, highest);
    for (u32 k = ME; k < arg.columns; k += ITEMS)
        sum += EXP2((in[k] - highest) * LOG2_E);
    sum = sum_over_group(room, sum);
    for (u32 k = ME; k < arg.columns; k += ITEMS)
        out[k] = EXP2((in[k] - highest) * LOG2_E) / sum;
}

// The sum over each 32 lanes by a butterfly of permutes.
INLINE float sum_over_lanes(float value) {
    for (u32 step = 1; step < 32; step *= 2)
        value += as_float(wave_bpermute(lane_id() ^ step, as_u32(value)));
    return value;
}

// One row per 32 lanes.
KERNEL(layernorm, GLOBAL const float *in; GLOBAL const float *scale; GLOBAL const float *shift; GLOBAL float *out;
       u32 columns;) {
    u32 row = INDEX / 32, first = ME % 32;
    GLOBAL const float *in = arg.in + row * arg.columns;
    float sum = 0, squares = 0;
    for (u32 k = first; k < arg.columns; k += 32)
        sum += in[k];
    float mean = sum_over_lanes(sum) / (float)arg.columns;
    for (u32 k = first; k < arg.columns; k += 32)
        squares = FMA(in[k] - mean, in[k] - mean, squares);
    float factor = RSQ(sum_over_lanes(squares) / (float)arg.columns + 1e-5f);
    for (u32 k = first; k < arg.columns; k += 32)
        arg.out[row * arg.columns + k] = FMA((in[k] - mean) * factor, arg.scale[k], arg.shift[k]);
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + EXP2(-x * LOG2_E)); }

// gelu by the usual tanh fit, and silu(x) * gate.
KERNEL(activations, GLOBAL const float *in; GLOBAL const float *gate; GLOBAL float *gelu; GLOBAL float *silu; u32 n;) {
    u32 i = INDEX;
    if (i >= arg.n)
        return;
    float x = arg.in[i];
    float inner = 0.7978845608f * FMA(0.044715f * x * x, x, x);
    arg.gelu[i] = x * sigmoid(2 * inner);
    arg.silu[i] = x * sigmoid(x) * arg.gate[i];
}

// Rotary positions: pairs turn by an angle that falls with their index.
KERNEL(rope, GLOBAL const float2 *in; GLOBAL float2 *out; u32 pairs;) {
    u32 i = INDEX, position = i / arg.pairs, pair = i % arg.pairs;
    float turns = (float)position * EXP2(-13.287712f * (float)pair / (float)arg.pairs) * 0.15915494f;
    turns -= __builtin_floorf(turns);
    float s = SIN_TURNS(turns), c = COS_TURNS(turns);
    float2 v = arg.in[i];
    arg.out[i] = (float2){v.x * c - v.y * s, v.x * s + v.y * c};
}

// Attention of one head, causal: a workgroup per query, ITEMS keys and ITEMS values of WIDTH elements.
#define WIDTH 32
KERNEL(attention, GLOBAL const float *q; GLOBAL const float *k; GLOBAL const float *v; GLOBAL float *out;) {
    LDS float query[WIDTH];
    LDS float weights[ITEMS];
    LDS float room[ITEMS];
    u32 row = GROUP(0);
    if (ME < WIDTH)
        query[ME] = arg.q[row * WIDTH + ME];
    barrier();
    float score = 0;
    for (u32 k = 0; k < WIDTH; k++)
        score = FMA(query[k], arg.k[ME * WIDTH + k], score);
    score = ME <= row ? score * 0.17677669f : -__builtin_inff();
    float highest = max_over_group(room, score);
    float weight = EXP2((score - highest) * LOG2_E);
    float sum = sum_over_group(room, weight);
    weights[ME] = weight / sum;
    barrier();
    if (ME < WIDTH) {
        float mixed = 0;
        for (u32 k = 0; k <= row; k++)
            mixed = FMA(weights[k], arg.v[k * WIDTH + ME], mixed);
        arg.out[row * WIDTH + ME] = mixed;
    }
}

// 3x3 over `channels` planes with a zero border; one value an item, grid z is the output plane.
KERNEL(conv2d, GLOBAL const float *in; GLOBAL const float *weights; GLOBAL float *out; u32 width; u32 height;
       u32 channels;) {
    i32 x = (i32)(GROUP(0) * GROUP_SIZE(0) + ITEM(0)), y = (i32)(GROUP(1) * GROUP_SIZE(1) + ITEM(1));
    i32 plane = (i32)(GROUP(2) * GROUP_SIZE(2) + ITEM(2)), width = (i32)arg.width, height = (i32)arg.height;
    float sum = 0;
    for (i32 c = 0; c < (i32)arg.channels; c++)
        for (i32 dy = -1; dy <= 1; dy++)
            for (i32 dx = -1; dx <= 1; dx++) {
                if (x + dx < 0 || x + dx >= width || y + dy < 0 || y + dy >= height)
                    continue;
                float w = arg.weights[((plane * (i32)arg.channels + c) * 3 + dy + 1) * 3 + dx + 1];
                sum = FMA(arg.in[(c * height + y + dy) * width + x + dx], w, sum);
            }
    arg.out[(plane * height + y) * width + x] = __builtin_fmaxf(sum, 0);
}
