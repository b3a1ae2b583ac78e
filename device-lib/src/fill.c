// SPDX-License-Identifier: MIT OR Apache-2.0
// Fills a range with a pattern whose length divides 16, given repeated to 16 bytes (`low` first).
//
// Every workgroup fills tiles of TILE bytes, `groups` tiles apart, so that any grid fills everything.
#include "device.h"

static inline u8 pattern_byte(u64 low, u64 high, u32 index) {
    return (u8)((index & 8 ? high : low) >> ((index & 7) * 8));
}

KERNEL void stasis_fill(GLOBAL u8 *destination, u64 bytes, u64 low, u64 high, u64 groups) {
    u32 lane = LANE;
    struct cut cut = cut_at((u64)destination, bytes);

    // The body starts in the middle of the pattern: turn the pattern by `head` bytes.
    u64 first = cut.head & 8 ? high : low, second = cut.head & 8 ? low : high;
    u32 turn = (u32)(cut.head & 7) * 8;
    if (turn != 0) {
        u64 carried = first;
        first = first >> turn | second << (64 - turn);
        second = second >> turn | carried << (64 - turn);
    }
    wide value = {(u32)first, (u32)(first >> 32), (u32)second, (u32)(second >> 32)};

    GLOBAL u8 *body = destination + cut.head;
    for (u64 at = (u64)GROUP * TILE; at < cut.body; at += groups * TILE) {
        GLOBAL u8 *tile = body + at;
        u64 left = cut.body - at;
        if (left >= TILE) {
#pragma unroll
            for (u32 step = 0; step < UNROLL; step++)
                *(GLOBAL wide *)(tile + (lane * WIDE + step * STEP)) = value;
        } else {
            for (u32 offset = lane * WIDE; offset < (u32)left; offset += STEP)
                *(GLOBAL wide *)(tile + offset) = value;
        }
    }

    if (GROUP == 0) {
        if (lane < (u32)cut.head)
            destination[lane] = pattern_byte(low, high, lane);
        if (lane < (u32)cut.tail)
            body[cut.body + lane] = pattern_byte(first, second, lane);
    }
}
