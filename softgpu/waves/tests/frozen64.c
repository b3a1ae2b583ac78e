// SPDX-License-Identifier: MIT OR Apache-2.0
// As frozen.c, compiled for waves of 64.
typedef unsigned int u32;
#define LOCAL __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))

__attribute__((amdgpu_kernel, visibility("protected"), used)) void frozen_wave64(GLOBAL u32 *data, u32 rounds) {
    static LOCAL __attribute__((loader_uninitialized)) u32 ring[256];
    const __attribute__((address_space(4))) unsigned short *hidden =
        (const __attribute__((address_space(4))) unsigned short *)__builtin_amdgcn_implicitarg_ptr();
    u32 me = __builtin_amdgcn_workitem_id_x(), n = hidden[6], at = __builtin_amdgcn_workgroup_id_x() * n + me;
    u32 value = data[at];
    for (u32 k = 0; k < rounds + (me & 3); k++)
        value = (value & 64) != 0 ? value * 9 + me : value + k;
    ring[me] = value;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    data[at] = ring[(me + 65) % n] + value;
}
