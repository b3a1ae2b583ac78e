// SPDX-License-Identifier: MIT OR Apache-2.0
// One source for two machines: what a kernel needs of the language, on gfx1100 and on the host CPU.
//
// A kernel is `KERNEL(name, fields of its argument block) { body }`; the body reads its arguments as `arg.field`. On the
// GPU that is the kernel `name`; on the host it is `host_name`, which runs the items of each workgroup as coroutines
// (host.c). INVARIANT: every lane of a wave that is still running reaches the same wave operation, and every item of a
// workgroup that is still running the same barrier(); the host stops the program where that is broken.
// WAVE (32 or 64) is set by the build on both sides.
#ifndef DUAL_H
#define DUAL_H

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef _Float16 f16;

#define VECTOR(type, count) __attribute__((ext_vector_type(count))) type
typedef VECTOR(float, 2) float2;
typedef VECTOR(float, 4) float4;
typedef VECTOR(u32, 2) uint2;
typedef VECTOR(u32, 4) uint4;
typedef VECTOR(f16, 2) half2;
typedef VECTOR(f16, 16) half16;
typedef VECTOR(i16, 2) short2;
typedef VECTOR(u16, 2) ushort2;
typedef VECTOR(i16, 16) short16;
typedef VECTOR(i32, 2) int2;
typedef VECTOR(i32, 4) int4;

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

INLINE float as_float(u32 x) {
    float y;
    __builtin_memcpy(&y, &x, 4);
    return y;
}
INLINE u32 as_u32(float x) {
    u32 y;
    __builtin_memcpy(&y, &x, 4);
    return y;
}

#ifdef __AMDGCN__
#include "dual_gpu.h"
#else
#include "dual_host.h"
#endif

// Items, groups and sizes along the first axis, which most kernels are laid out on.
#define ME ITEM(0)
#define INDEX (GROUP(0) * GROUP_SIZE(0) + ITEM(0))

#define FMA __builtin_fmaf
#endif
