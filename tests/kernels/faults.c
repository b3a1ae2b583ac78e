// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels that go wrong, or do not end.
#include "device.h"

KERNEL read_at(GLOBAL u32 *out, u64 address) { out[0] = *(GLOBAL volatile u32 *)address; }

KERNEL write_at(u64 address, u32 value) { *(GLOBAL volatile u32 *)address = value; }

// SOPP opcode 127 is no instruction of any target.
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
