// SPDX-License-Identifier: MIT OR Apache-2.0
// Items working together: reductions, scans, histograms, sorting, and moving data about.
#include "dual.h"

#define ITEMS 256
#define ROW_MIRROR 0x140
#define HALF_MIRROR 0x141
#define ROW_SHIFT_RIGHT(n) (0x110 + (n))
#define ROW_SHIFT_LEFT(n) (0x100 + (n))
#define ROW_ROTATE(n) (0x120 + (n))
#define ROW_SHARE(n) (0x150 + (n))
#define ROW_XMASK(n) (0x160 + (n))
#define QUAD(a, b, c, d) ((a) | (b) << 2 | (c) << 4 | (d) << 6)
#define DPP(control, value) wave_dpp(0, value, control, 15, 15, 1)

INLINE float plus_dpp(float value, float other) { return value + other; }
#define STEP(control) value = plus_dpp(value, as_float(DPP(control, as_u32(value))))

// Sum of the wave: within rows of 16 by DPP, across them by permlanex16 and, of wave64, readlane.
INLINE float wave_sum(float value) {
    STEP(QUAD(1, 0, 3, 2));
    STEP(QUAD(2, 3, 0, 1));
    STEP(HALF_MIRROR);
    STEP(ROW_MIRROR);
    value += as_float(wave_permlanex16(as_u32(value), 0x76543210, 0xfedcba98));
    if (WAVE == 64)
        value = as_float(wave_readlane(as_u32(value), 0)) + as_float(wave_readlane(as_u32(value), WAVE - 1));
    return value;
}

// One sum a workgroup: waves by DPP, their sums through LDS.
KERNEL(reduce_dpp, GLOBAL const float *in; GLOBAL float *sums; u32 per_group;) {
    LDS float of_waves[ITEMS / WAVE];
    float value = 0;
    for (u32 k = ME; k < arg.per_group; k += ITEMS)
        value += arg.in[GROUP(0) * arg.per_group + k];
    value = wave_sum(value);
    if (lane_id() == 0)
        of_waves[ME / WAVE] = value;
    barrier();
    if (ME == 0) {
        float all = 0;
        for (u32 k = 0; k < ITEMS / WAVE; k++)
            all += of_waves[k];
        arg.sums[GROUP(0)] = all;
    }
}

// Maximum and its place, by bpermute in each 32 lanes, then one 64-bit atomic.
KERNEL(argmax_bpermute, GLOBAL const u32 *in; GLOBAL u64 *best;) {
    u32 value = arg.in[INDEX], at = INDEX;
    for (u32 step = 16; step > 0; step /= 2) {
        u32 other = wave_bpermute(lane_id() ^ step, value), there = wave_bpermute(lane_id() ^ step, at);
        if (other > value || (other == value && there < at)) {
            value = other;
            at = there;
        }
    }
    if (lane_id() % 32 == 0)
        __scoped_atomic_fetch_max(arg.best, (u64)value << 32 | ~at, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

KERNEL(reduce_lds, GLOBAL const u32 *in; GLOBAL u32 *sums;) {
    LDS u32 room[ITEMS];
    room[ME] = arg.in[INDEX];
    barrier();
    for (u32 half = ITEMS / 2; half > 0; half /= 2) {
        if (ME < half)
            room[ME] += room[ME + half];
        barrier();
    }
    if (ME == 0)
        arg.sums[GROUP(0)] = room[0];
}

// Every way lanes read one another, one result each; waves may be partial.
KERNEL(lane_exchanges, GLOBAL const u32 *in; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, v = arg.in[i], lane = lane_id();
    GLOBAL u32 *out = arg.out + i;
    u32 k = 0;
#define PUT(value)                                                                                  \
    do {                                                                                            \
        out[k++ * arg.n] = (value);                                                                 \
    } while (0)
    PUT(DPP(QUAD(3, 1, 2, 0), v));
    PUT(DPP(ROW_SHIFT_LEFT(1), v));
    PUT(DPP(ROW_SHIFT_LEFT(11), v));
    PUT(DPP(ROW_SHIFT_RIGHT(3), v));
    PUT(DPP(ROW_SHIFT_RIGHT(15), v));
    PUT(DPP(ROW_ROTATE(5), v));
    PUT(DPP(ROW_MIRROR, v));
    PUT(DPP(HALF_MIRROR, v));
    PUT(DPP(ROW_SHARE(9), v));
    PUT(DPP(ROW_XMASK(6), v));
    PUT(wave_dpp(7, v, ROW_SHIFT_RIGHT(2), 15, 15, 0));
    PUT(wave_dpp(8, v, ROW_SHIFT_LEFT(2), 0xa, 15, 0));
    PUT(wave_dpp(9, v, QUAD(1, 1, 1, 1), 15, 0x6, 0));
    PUT(wave_dpp(v, v, ROW_XMASK(1), 0x5, 0x9, 1));
    PUT(wave_bpermute(lane * 7 + 3, v));
    PUT(wave_permute(lane ^ 5, v));
    PUT(wave_readlane(v, arg.n & 7) + wave_readlane(v, 3));
    PUT(wave_first(v));
    PUT(wave_permlane16(v, 0x01234567, 0x89abcdef));
    PUT(wave_permlanex16(v, 0x02468ace, 0x13579bdf));
    PUT(wave_swizzle(v, 0x1f, 0, 0x0a));
    PUT(wave_swizzle(v, 0x18, 0x03, 0x00));
    u64 odd = wave_ballot(v & 1);
    PUT((u32)odd);
    PUT((u32)(odd >> 32));
    PUT((u32)__builtin_popcountl(odd & ~(~0ul << lane)));
    // Fused into the operation that reads them.
    PUT(v + DPP(ROW_SHIFT_RIGHT(1), v));
    PUT((DPP(ROW_ROTATE(1), v) ^ v) & DPP(QUAD(0, 0, 2, 2), v));
    PUT(as_u32((float)v * (float)DPP(ROW_MIRROR, v)));
    float f = (float)(v & 0xffff);
    PUT(as_u32(FMA(as_float(DPP(ROW_SHARE(0), as_u32(f))), f, 1.5f)));
    PUT(as_u32(__builtin_fmaxf(as_float(DPP(ROW_SHIFT_LEFT(4), as_u32(f))), f)));
    PUT(DPP(ROW_SHIFT_RIGHT(4), v) > v ? 1 : 2);
#undef PUT
}

// A lane written from outside, and the halves of a wave64 exchanged; waves are full.
KERNEL(write_lanes, GLOBAL const u32 *in; GLOBAL u32 *out; u32 n; u32 lane;) {
    u32 v = arg.in[INDEX], uniform = wave_first(v), k = 0;
    GLOBAL u32 *out = arg.out + INDEX;
    out[k++ * arg.n] = wave_writelane(uniform, arg.lane, v);
    out[k++ * arg.n] = wave_writelane(arg.n, 0, v * 3);
    out[k++ * arg.n] = wave_other_half(v) + 1;
    out[k++ * arg.n] = wave_readlane(v, WAVE - 1 - arg.lane) ^ v;
}

// A workgroup's histogram in LDS, added to the whole.
KERNEL(histogram, GLOBAL const u8 *in; GLOBAL u32 *bins; u32 n;) {
    LDS u32 local[256];
    local[ME] = 0;
    barrier();
    for (u32 k = INDEX; k < arg.n; k += 4 * ITEMS)
        __scoped_atomic_fetch_add(&local[arg.in[k]], 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
    barrier();
    if (local[ME] != 0)
        __scoped_atomic_fetch_add(&arg.bins[ME], local[ME], __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

// 32x32 tiles by 32x8 items; the padding keeps columns in different banks.
KERNEL(transpose, GLOBAL const float *in; GLOBAL float *out; u32 width; u32 height;) {
    LDS float tile[32][33];
    u32 x = ITEM(0), y = ITEM(1);
    for (u32 k = y; k < 32; k += 8)
        tile[k][x] = arg.in[(GROUP(1) * 32 + k) * arg.width + GROUP(0) * 32 + x];
    barrier();
    for (u32 k = y; k < 32; k += 8)
        arg.out[(GROUP(0) * 32 + k) * arg.height + GROUP(1) * 32 + x] = tile[x][k];
}

// Inclusive scan of a workgroup's items: waves by DPP row shifts, rows and waves by what lies before them.
KERNEL(scan, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    LDS u32 of_waves[ITEMS / WAVE];
    u32 v = arg.in[INDEX], lane = lane_id();
    v += DPP(ROW_SHIFT_RIGHT(1), v);
    v += DPP(ROW_SHIFT_RIGHT(2), v);
    v += DPP(ROW_SHIFT_RIGHT(4), v);
    v += DPP(ROW_SHIFT_RIGHT(8), v);
    u32 before = wave_permlanex16(v, ~0u, ~0u);
    if (lane & 16)
        v += before;
    u32 low = wave_readlane(v, 31);
    if (lane >= 32)
        v += low;
    if (lane == WAVE - 1)
        of_waves[ME / WAVE] = v;
    barrier();
    for (u32 k = 0; k < ME / WAVE; k++)
        v += of_waves[k];
    arg.out[INDEX] = v;
}

// The classic scan in LDS: steps of doubling distance, two buffers.
KERNEL(scan_lds, GLOBAL const u64 *in; GLOBAL u64 *out;) {
    LDS u64 room[2][ITEMS];
    u32 side = 0;
    room[0][ME] = arg.in[INDEX];
    barrier();
    for (u32 step = 1; step < ITEMS; step *= 2) {
        u64 v = room[side][ME];
        if (ME >= step)
            v += room[side][ME - step];
        room[side ^ 1][ME] = v;
        side ^= 1;
        barrier();
    }
    arg.out[INDEX] = room[side][ME];
}

// Sorts each workgroup's 512 keys.
KERNEL(bitonic_sort, GLOBAL u32 *keys;) {
    LDS u32 room[2 * ITEMS];
    GLOBAL u32 *keys = arg.keys + GROUP(0) * 2 * ITEMS;
    room[ME] = keys[ME];
    room[ME + ITEMS] = keys[ME + ITEMS];
    for (u32 size = 2; size <= 2 * ITEMS; size *= 2)
        for (u32 step = size / 2; step > 0; step /= 2) {
            barrier();
            u32 low = ME / step * 2 * step + ME % step, high = low + step;
            u32 a = room[low], b = room[high];
            if ((a > b) == ((low & size) == 0)) {
                room[low] = b;
                room[high] = a;
            }
        }
    barrier();
    keys[ME] = room[ME];
    keys[ME + ITEMS] = room[ME + ITEMS];
}

// `index` is a permutation; values of 4, 8, 12 (three words) and 16 bytes.
KERNEL(gather_scatter, GLOBAL const u32 *index; GLOBAL const uint4 *in; GLOBAL u32 *gathered; GLOBAL u64 *wide;
       GLOBAL u32 *triples; GLOBAL uint4 *scattered;) {
    u32 i = INDEX, at = arg.index[i];
    uint4 v = arg.in[at];
    arg.gathered[i] = v.y;
    arg.wide[at] = (u64)v.x << 32 | v.w;
    for (u32 k = 0; k < 3; k++)
        arg.triples[3 * i + k] = v[k + 1];
    arg.scattered[at] = arg.in[i] + (uint4)i;
}

// Keeps what is not zero, in any order: a wave counts by ballot and takes its room with one atomic.
KERNEL(compact, GLOBAL const u32 *in; GLOBAL u32 *out; GLOBAL u32 *count;) {
    u32 v = arg.in[INDEX], lane = lane_id();
    u64 kept = wave_ballot(v != 0);
    u32 first = 0;
    if (lane == 0)
        first = __scoped_atomic_fetch_add(arg.count, (u32)__builtin_popcountl(kept), __ATOMIC_RELAXED,
                                          __MEMORY_SCOPE_DEVICE);
    first = wave_first(first);
    if (v != 0)
        arg.out[first + (u32)__builtin_popcountl(kept & ~(~0ul << lane))] = v;
}
