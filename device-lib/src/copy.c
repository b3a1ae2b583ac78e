// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies a range to another that does not overlap it.
//
// Stores are always aligned to 16 bytes. Where source and destination are aligned alike so are the loads, and both
// move whole cache lines; otherwise the loads straddle lines, which costs bandwidth but no instructions.
// Every workgroup copies tiles of TILE bytes, `groups` tiles apart, so that any grid copies everything.
#include "device.h"

KERNEL void stasis_copy(GLOBAL u8 *destination, GLOBAL const u8 *source, u64 bytes, u64 groups) {
    u32 lane = LANE;
    struct cut cut = cut_at((u64)destination, bytes);
    GLOBAL u8 *to = destination + cut.head;
    GLOBAL const u8 *from = source + cut.head;

    for (u64 at = (u64)GROUP * TILE; at < cut.body; at += groups * TILE) {
        u64 left = cut.body - at;
        if (left >= TILE) {
            // All loads before the first store: the device then waits once for all of them.
            wide value[UNROLL];
#pragma unroll
            for (u32 step = 0; step < UNROLL; step++)
                value[step] = *(GLOBAL const wide_unaligned *)(from + at + (lane * WIDE + step * STEP));
#pragma unroll
            for (u32 step = 0; step < UNROLL; step++)
                *(GLOBAL wide *)(to + at + (lane * WIDE + step * STEP)) = value[step];
        } else {
            for (u32 offset = lane * WIDE; offset < (u32)left; offset += STEP)
                *(GLOBAL wide *)(to + at + offset) = *(GLOBAL const wide_unaligned *)(from + at + offset);
        }
    }

    if (GROUP == 0) {
        if (lane < (u32)cut.head)
            destination[lane] = source[lane];
        if (lane < (u32)cut.tail)
            to[cut.body + lane] = from[cut.body + lane];
    }
}
