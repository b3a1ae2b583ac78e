// SPDX-License-Identifier: MIT OR Apache-2.0 The functions that the kernels use: names for the machine's builtins, sums
// and maxima over a wave of 32 lanes.
typedef unsigned int u32;
typedef unsigned short u16;
typedef _Float16 f16;
typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f8 __attribute__((ext_vector_type(8)));
typedef f16 h4 __attribute__((ext_vector_type(4)));
typedef f16 h8 __attribute__((ext_vector_type(8)));
typedef f16 h16 __attribute__((ext_vector_type(16)));

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define GLOBAL __attribute__((address_space(1)))
#define IN GLOBAL const
#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((address_space(3), loader_uninitialized, aligned(16)))
#define X __builtin_amdgcn_workitem_id_x()
#define GROUP_X __builtin_amdgcn_workgroup_id_x()
#define GROUP_Y __builtin_amdgcn_workgroup_id_y()

INLINE void barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The value of another lane: lane ^ mask for masks below 16, and lane ^ 16.
#define WITHIN(v, mask) \
    __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, v), 0x160 + (mask), 15, 15, 1))

INLINE u32 across_u32(u32 v)
{
    return __builtin_amdgcn_permlanex16(0, v, 0x76543210, 0xfedcba98, 0, 0);
}

INLINE float across(float v)
{
    return __builtin_bit_cast(float, across_u32(__builtin_bit_cast(u32, v)));
}

INLINE float wave_sum(float v)
{
    v += WITHIN(v, 1);
    v += WITHIN(v, 2);
    v += WITHIN(v, 4);
    v += WITHIN(v, 8);
    return v + across(v);
}

INLINE float wave_max(float v)
{
    v = __builtin_fmaxf(v, WITHIN(v, 1));
    v = __builtin_fmaxf(v, WITHIN(v, 2));
    v = __builtin_fmaxf(v, WITHIN(v, 4));
    v = __builtin_fmaxf(v, WITHIN(v, 8));
    return __builtin_fmaxf(v, across(v));
}

INLINE float sum_of(f4 v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}
