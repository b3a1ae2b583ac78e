// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels whose results the tests compute again in Rust.
#include "device.h"

// One work-item an element; workgroups of 256.
KERNEL axpy(GLOBAL const float *x, GLOBAL float *y, float a, u32 n)
{
    const u32 i = GROUP_X * 256 + LOCAL_X;
    if (i < n)
        y[i] = __builtin_fmaf(a, x[i], y[i]);
}

// Five points, edges kept; workgroups of 32x8.
KERNEL stencil(GLOBAL const float *from, GLOBAL float *to, u32 width, u32 height)
{
    const u32 x = GROUP_X * 32 + LOCAL_X, y = GROUP_Y * 8 + LOCAL_Y;
    if (x >= width || y >= height)
        return;
    const u32 i = y * width + x;
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1)
        to[i] = from[i];
    else
        to[i] = 0.25f * ((from[i - 1] + from[i + 1]) + (from[i - width] + from[i + width]));
}

// c = a * b, n a multiple of 16; workgroups of 16x16.
KERNEL gemm(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c, u32 n)
{
    LDS float tile_a[16][16], tile_b[16][16];
    const u32 x = LOCAL_X, y = LOCAL_Y, row = GROUP_Y * 16 + y, column = GROUP_X * 16 + x;
    float sum = 0;
    for (u32 k = 0; k < n; k += 16) {
        tile_a[y][x] = a[row * n + k + x];
        tile_b[y][x] = b[(k + y) * n + column];
        BARRIER();
        for (u32 j = 0; j < 16; j++)
            sum = __builtin_fmaf(tile_a[y][j], tile_b[j][x], sum);
        BARRIER();
    }
    c[row * n + column] = sum;
}

// Sums in LDS, one atomic a workgroup of 256.
KERNEL reduce(GLOBAL const u32 *from, GLOBAL u32 *sum, u32 n)
{
    LDS u32 part[256];
    const u32 i = GROUP_X * 256 + LOCAL_X;
    part[LOCAL_X] = i < n ? from[i] : 0;
    for (u32 half = 128; half > 0; half /= 2) {
        BARRIER();
        if (LOCAL_X < half)
            part[LOCAL_X] += part[LOCAL_X + half];
    }
    if (LOCAL_X == 0)
        ADD(sum, part[0]);
}

// Atomics on addresses that all workgroups share.
KERNEL atomics(GLOBAL const u32 *from, GLOBAL u32 *bins, GLOBAL u32 *highest, GLOBAL u64 *sum, GLOBAL u32 *swapped)
{
    const u32 value = from[GROUP_X * 64 + LOCAL_X];
    ADD(&bins[value % 16], 1);
    ADD(sum, (u64)value << 20);
    __scoped_atomic_fetch_max(highest, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    u32 seen = 0;
    do {
        seen = __scoped_atomic_load_n(swapped, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    } while (!__scoped_atomic_compare_exchange_n(swapped, &seen, seen ^ value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                 __MEMORY_SCOPE_DEVICE));
}

KERNEL increment(GLOBAL u32 *counter) { ADD(counter, 1); }

// Not atomic: right only if dispatches do not overlap.
KERNEL append(GLOBAL u32 *log, u32 value)
{
    log[0] = log[0] + 1;
    log[log[0]] = value;
}

// LDS of the size the dispatch gives.
extern __attribute__((address_space(3), aligned(16))) u32 dynamic[];

// What the hidden arguments and the packet say of the launch.
KERNEL shape(GLOBAL u32 *out)
{
    const __attribute__((address_space(4))) u8 *implicit = __builtin_amdgcn_implicitarg_ptr();
    const __attribute__((address_space(4))) u32 *counts = (const __attribute__((address_space(4))) u32 *)implicit;
    const __attribute__((address_space(4))) u16 *sizes =
        (const __attribute__((address_space(4))) u16 *)(implicit + 12);
    if (GROUP_X || GROUP_Y || LOCAL_X || LOCAL_Y || __builtin_amdgcn_workgroup_id_z()
        || __builtin_amdgcn_workitem_id_z())
        return;
    out[0] = __builtin_amdgcn_workgroup_size_x();
    out[1] = __builtin_amdgcn_workgroup_size_y();
    out[2] = __builtin_amdgcn_workgroup_size_z();
    out[3] = __builtin_amdgcn_grid_size_x();
    out[4] = __builtin_amdgcn_grid_size_y();
    out[5] = __builtin_amdgcn_grid_size_z();
    for (u32 axis = 0; axis < 3; axis++) {
        out[6 + axis] = counts[axis];
        out[9 + axis] = sizes[axis];
        out[12 + axis] = sizes[3 + axis];
    }
    out[15] = *(const __attribute__((address_space(4))) u16 *)(implicit + 64);
    out[16] = *(const __attribute__((address_space(4))) u32 *)(implicit + 120);
    // Its size is passed only to kernels that use it.
    *(volatile __attribute__((address_space(3))) u32 *)dynamic = 1;
}

// The same without hidden arguments of one version or another.
KERNEL sizes(GLOBAL u32 *out)
{
    out[0] = __builtin_amdgcn_workgroup_size_x();
    out[1] = __builtin_amdgcn_workgroup_size_y();
    out[2] = __builtin_amdgcn_workgroup_size_z();
    out[3] = __builtin_amdgcn_grid_size_x();
    out[4] = __builtin_amdgcn_grid_size_y();
    out[5] = __builtin_amdgcn_grid_size_z();
}

// Every kind of argument by value.
typedef struct {
    u32 a[3];
    u8 b;
} Mixed;
KERNEL arguments(GLOBAL u64 *out, u8 byte, u16 word, float single, double wide, Mixed mixed, long negative)
{
    out[0] = byte;
    out[1] = word;
    out[2] = (u64)(single * 4.0f);
    out[3] = (u64)(wide * 8.0);
    out[4] = mixed.a[0] + mixed.a[1] + mixed.a[2];
    out[5] = mixed.b;
    out[6] = (u64)negative;
}

// Uses only the x id in a workgroup that has y and z, too.
KERNEL columns(GLOBAL u32 *out) { out[LOCAL_X] = LOCAL_X; }

// Each work-item reads what its mirror wrote. Workgroups of 64.
KERNEL mirror(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    const u32 i = GROUP_X * 64 + LOCAL_X;
    dynamic[LOCAL_X] = from[i];
    BARRIER();
    to[i] = dynamic[63 - LOCAL_X];
}

// Keeps an array in scratch.
KERNEL scratch(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    volatile u32 array[48];
    const u32 i = GROUP_X * 64 + LOCAL_X;
    for (u32 k = 0; k < 48; k++)
        array[k] = from[i] + k * k;
    u32 sum = 0;
    for (u32 k = 0; k < 48; k++)
        sum = sum * 31 + array[(from[i] + k * 7) % 48];
    to[i] = sum;
}

// One step of a generator a work-item, and the buffer's own address: what a worker checks on the CPU.
KERNEL step(GLOBAL u32 *cells, GLOBAL u64 *own_address, u32 n, u32 salt)
{
    const u32 i = GROUP_X * 256 + LOCAL_X;
    if (i < n)
        cells[i] = cells[i] * 1664525u + 1013904223u + (i ^ salt);
    if (i == 0)
        *own_address = (u64)cells;
}

// A table in the code object's own memory, found through relocations, and a variable beside it.
static GLOBAL u32 first = 11, second = 22;
__attribute__((visibility("protected"))) GLOBAL u32 tally = 100;
typedef GLOBAL u32 *Place;
__attribute__((visibility("protected"))) GLOBAL Place places[2] = {&first, &second};
KERNEL globals(GLOBAL u32 *out)
{
    out[0] = *places[0];
    out[1] = *places[1];
    out[2] = ADD(&tally, 1);
}

// What a kernel does that enqueues: it publishes a packet whose body is in another queue's ring, and rings that queue's
// doorbell, which it finds as the device library does, by the queue's structure (HSA 1.2, hsa_queue_t and amd_signal_t). With
// `wait` it stays until the packet has completed its signal.
KERNEL enqueue(GLOBAL u32 *packet, u32 header, u32 wait, GLOBAL const u64 *queue, GLOBAL const u64 *value)
{
    GLOBAL const u64 *signal = (GLOBAL const u64 *)queue[2];
    GLOBAL u64 *doorbell = (GLOBAL u64 *)signal[1];
    __scoped_atomic_store_n(packet, header, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
    // The index behind the packet is there already.
    __scoped_atomic_store_n(doorbell, queue[7] - 1, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
    while (wait && __scoped_atomic_load_n(value, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM) != 0)
        __builtin_amdgcn_s_sleep(1);
}

// A word and where the next one stands.
struct link {
    u64 next;
    u64 value;
};

// Follows links from one to the next and adds their words; one work-item.
KERNEL chase(GLOBAL const struct link *at, GLOBAL u64 *sum, u32 steps)
{
    u64 total = 0;
    for (u32 step = 0; step < steps; step++) {
        total += at->value;
        at = (GLOBAL const struct link *)at->next;
    }
    *sum = total;
}

// Has the last of `steps` links be followed by the one at `to`; one work-item.
KERNEL relink(GLOBAL struct link *at, GLOBAL const struct link *to, u32 steps)
{
    for (u32 step = 1; step < steps; step++)
        at = (GLOBAL struct link *)at->next;
    at->next = (u64)to;
}
