// SPDX-License-Identifier: MIT OR Apache-2.0
// The GPU's half of dual.h: clang's builtins for amdgcn.
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3)))
// Before a definition at function scope: an array of the workgroup, not initialised.
#define LDS static __attribute__((address_space(3), loader_uninitialized))

#define KERNEL(name, ...)                                                                           \
    struct name##_args {                                                                            \
        __VA_ARGS__                                                                                 \
    };                                                                                              \
    __attribute__((amdgpu_kernel, visibility("protected"), used)) void name(struct name##_args arg)

#define ITEM_0 __builtin_amdgcn_workitem_id_x()
#define ITEM_1 __builtin_amdgcn_workitem_id_y()
#define ITEM_2 __builtin_amdgcn_workitem_id_z()
#define GROUP_0 __builtin_amdgcn_workgroup_id_x()
#define GROUP_1 __builtin_amdgcn_workgroup_id_y()
#define GROUP_2 __builtin_amdgcn_workgroup_id_z()
#define GROUP_SIZE_0 ((u32)__builtin_amdgcn_workgroup_size_x())
#define GROUP_SIZE_1 ((u32)__builtin_amdgcn_workgroup_size_y())
#define GROUP_SIZE_2 ((u32)__builtin_amdgcn_workgroup_size_z())
#define ITEM(axis) ITEM_##axis
#define GROUP(axis) GROUP_##axis
#define GROUP_SIZE(axis) GROUP_SIZE_##axis

INLINE void barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

INLINE u32 lane_id(void) {
    u32 low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
    return WAVE == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}

#define wave_dpp(old, value, control, rows, banks, bound)                                           \
    ((u32)__builtin_amdgcn_update_dpp((int)(old), (int)(value), control, rows, banks, bound))
#define wave_bpermute(lane, value) ((u32)__builtin_amdgcn_ds_bpermute((int)((lane) * 4), (int)(value)))
#define wave_permute(lane, value) ((u32)__builtin_amdgcn_ds_permute((int)((lane) * 4), (int)(value)))
#define wave_readlane(value, lane) ((u32)__builtin_amdgcn_readlane((int)(value), (int)(lane)))
// Of wave32 the value itself (the instruction does nothing there).
#define wave_other_half(value) (WAVE == 64 ? __builtin_amdgcn_permlane64(value) : (value))
#define wave_first(value) ((u32)__builtin_amdgcn_readfirstlane((int)(value)))
// clang 19 sinks a permlane into a branch that alone uses it, where the lanes it should read are off; a volatile use
// keeps it where it was written.
INLINE u32 pinned(u32 value) {
    __asm__ volatile("" : "+v"(value));
    return value;
}
// clang 19 has no builtin for it.
INLINE u32 wave_writelane(u32 value, u32 lane, u32 old) {
    __asm__("v_writelane_b32 %0, %1, %2" : "+v"(old) : "s"(value), "s"(lane));
    return old;
}
#define wave_permlane16(value, low, high)                                                           \
    pinned(__builtin_amdgcn_permlane16(value, value, low, high, 0, 0))
#define wave_permlanex16(value, low, high)                                                          \
    pinned(__builtin_amdgcn_permlanex16(value, value, low, high, 0, 0))
// Bit-mask mode of ds_swizzle: lane = ((lane & and) | or) ^ xor in each 32.
#define wave_swizzle(value, and, or, xor)                                                           \
    ((u32)__builtin_amdgcn_ds_swizzle((int)(value), (and) | (or) << 5 | (xor) << 10))
#if WAVE == 64
#define wave_ballot(condition) __builtin_amdgcn_ballot_w64(condition)
#else
#define wave_ballot(condition) ((u64)__builtin_amdgcn_ballot_w32(condition))
#endif

#define EXP2 __builtin_amdgcn_exp2f
#define LOG2 __builtin_amdgcn_logf
#define RCP __builtin_amdgcn_rcpf
#define RSQ __builtin_amdgcn_rsqf
// Of an angle in turns.
#define SIN_TURNS __builtin_amdgcn_sinf
#define COS_TURNS __builtin_amdgcn_cosf

INLINE f16 fma_f16(f16 a, f16 b, f16 c) { return __builtin_fmaf16(a, b, c); }
