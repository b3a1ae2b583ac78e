// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels need of the language and of the device: no headers, no library, no hidden arguments.
//
// Compiled for a CPU (by the tests), a kernel is a function that the harness calls once for every work-item.
#ifndef STASIS_DEVICE_H
#define STASIS_DEVICE_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;
typedef u32 wide __attribute__((ext_vector_type(4)));
// On these targets an unaligned 16-byte load is one instruction.
typedef wide wide_unaligned __attribute__((aligned(1)));

#ifdef __AMDGCN__
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected")))
#define LANE __builtin_amdgcn_workitem_id_x()
#define GROUP __builtin_amdgcn_workgroup_id_x()
#else
extern u32 host_lane, host_group;
#define GLOBAL
#define KERNEL
#define LANE host_lane
#define GROUP host_group
#endif

// The same numbers are in lib.rs.
#define WIDE 16u
#define WORKGROUP 256u
#define UNROLL 4u
#define STEP (WORKGROUP * WIDE)
#define TILE (STEP * UNROLL)

// How a range of bytes is cut: `head` bytes up to a 16-byte boundary, `body` bytes in 16-byte pieces, `tail` bytes.
struct cut {
    u64 head, body, tail;
};

static inline struct cut cut_at(u64 address, u64 bytes) {
    struct cut cut;
    cut.head = -address & (WIDE - 1);
    if (cut.head > bytes)
        cut.head = bytes;
    cut.tail = (bytes - cut.head) & (WIDE - 1);
    cut.body = bytes - cut.head - cut.tail;
    return cut;
}

#endif
