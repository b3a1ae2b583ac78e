// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels that keep arrays of several sizes in scratch. Workgroups of 64; one sum of its array a work-item.
#include "device.h"

static inline u32 sum_up(volatile u32 *array, u32 length, u32 seed)
{
    u32 sum = 0;
    for (u32 k = 0; k < length; k++)
        sum = sum * 31 + array[(seed + k * 7) % length];
    return sum;
}

#define ARRAY(length)                                   \
    volatile u32 array[length];                         \
    const u32 i = GROUP_X * 64 + LOCAL_X, seed = from[i]; \
    for (u32 k = 0; k < length; k++)                    \
        array[k] = seed + k * k;

KERNEL shallow(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    ARRAY(50)
    to[i] = sum_up(array, 50, seed);
}

KERNEL deep(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    ARRAY(1000)
    to[i] = sum_up(array, 1000, seed);
}

#ifndef WAVE64
// 240000 bytes a lane: near the most that a wave of 32 can have, and more than one of 64.
KERNEL bottomless(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    ARRAY(60000)
    to[i] = sum_up(array, 60000, seed);
}
#endif

// Says in `state[1]` how many work-items have filled their arrays, and goes on when `state[0]` is no longer 0.
KERNEL held(GLOBAL const u32 *from, GLOBAL u32 *to, GLOBAL u32 *state)
{
    ARRAY(50)
    __scoped_atomic_fetch_add(&state[1], 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
    while (__scoped_atomic_load_n(&state[0], __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == 0)
        __builtin_amdgcn_s_sleep(1);
    to[i] = sum_up(array, 50, seed);
}
