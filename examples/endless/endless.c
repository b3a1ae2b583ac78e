// SPDX-License-Identifier: MIT OR Apache-2.0 A kernel that does not end by itself: every work-item counts until the
// host stops it.
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))

// `counts[i]` follows a count that item i keeps in a register. `kept[i]` gets the register's value at the end, and
// `broken[i]` says how often memory did not have the value that was stored from the register: this detects a wave that
// was restarted, and a wave that goes on with registers and memory of different moments.
__attribute__((amdgpu_kernel, visibility("protected"), used)) void endless(
    GLOBAL u32 *counts, GLOBAL u32 *kept, GLOBAL u32 *broken, GLOBAL const u32 *stop) {
    u32 item = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    u32 count = 0, wrong = 0;
    while (__atomic_load_n(stop, __ATOMIC_RELAXED) == 0) {
        wrong += __atomic_load_n(&counts[item], __ATOMIC_RELAXED) != count;
        count++;
        __atomic_store_n(&counts[item], count, __ATOMIC_RELAXED);
    }
    kept[item] = count;
    broken[item] = wrong;
}
