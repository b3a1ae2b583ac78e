// SPDX-License-Identifier: MIT OR Apache-2.0 Kernels that fail, or that do not end.
#include "device.h"

KERNEL read_at(GLOBAL u32 *out, u64 address) { out[0] = *(GLOBAL volatile u32 *)address; }

KERNEL write_at(u64 address, u32 value) { *(GLOBAL volatile u32 *)address = value; }

// SOPP opcode 127 is not an instruction of any target.
KERNEL illegal(GLOBAL u32 *out)
{
    out[0] = 1;
    __asm__ volatile(".long 0xbfff0000");
    out[0] = 2;
}

// Ends when `*flag` is no longer 0.
KERNEL spin(GLOBAL u32 *flag)
{
    while (__scoped_atomic_load_n(flag, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == 0)
        __builtin_amdgcn_s_sleep(1);
}

KERNEL store(GLOBAL u32 *out, u32 value) { out[LOCAL_X] = value; }

// Counts in memory until told to stop, and keeps the count in a register beside it: `out` is {counts[n], kept[n], broken[n]}
// for n items.
KERNEL tally(GLOBAL u32 *out, GLOBAL u32 *stop, u32 items)
{
    u32 item = __builtin_amdgcn_workgroup_id_x() * 64 + LOCAL_X, count = 0, wrong = 0;
    while (__scoped_atomic_load_n(stop, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == 0) {
        wrong += __scoped_atomic_load_n(&out[item], __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) != count;
        __scoped_atomic_store_n(&out[item], ++count, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
    }
    out[items + item] = count;
    out[2 * items + item] = wrong;
}
