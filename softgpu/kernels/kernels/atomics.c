// SPDX-License-Identifier: MIT OR Apache-2.0
// Atomic operations of every width and kind, in global memory, in LDS and through flat addresses.
//
// Two questions each: what an operation leaves and returns on a cell of its own (`*_own`), and that nothing is lost when
// many items use one cell (`*_shared`; operations whose end does not depend on the order).
#include "dual.h"

#define RELAXED __ATOMIC_RELAXED
#define DEVICE __MEMORY_SCOPE_DEVICE

#ifdef __AMDGCN__
#define INC(p, v, bits) __builtin_amdgcn_atomic_inc##bits(p, v, RELAXED, "agent")
#define DEC(p, v, bits) __builtin_amdgcn_atomic_dec##bits(p, v, RELAXED, "agent")

// The float operations by their instructions: the compiler would make loops of some.
#define FLOAT_RETURNING(name, space, text)                                                          \
    INLINE float name(space float *p, float v) {                                                    \
        float old;                                                                                  \
        __asm__ volatile(text : "=v"(old) : "v"(p), "v"(v) : "memory");                             \
        return old;                                                                                 \
    }
FLOAT_RETURNING(add_global, GLOBAL, "global_atomic_add_f32 %0, %1, %2, off glc\n\ts_waitcnt vmcnt(0)")
FLOAT_RETURNING(min_global, GLOBAL, "global_atomic_min_f32 %0, %1, %2, off glc\n\ts_waitcnt vmcnt(0)")
FLOAT_RETURNING(max_global, GLOBAL, "global_atomic_max_f32 %0, %1, %2, off glc\n\ts_waitcnt vmcnt(0)")
FLOAT_RETURNING(add_flat, , "flat_atomic_add_f32 %0, %1, %2 glc\n\ts_waitcnt vmcnt(0) lgkmcnt(0)")
FLOAT_RETURNING(min_flat, , "flat_atomic_min_f32 %0, %1, %2 glc\n\ts_waitcnt vmcnt(0) lgkmcnt(0)")
FLOAT_RETURNING(max_flat, , "flat_atomic_max_f32 %0, %1, %2 glc\n\ts_waitcnt vmcnt(0) lgkmcnt(0)")
FLOAT_RETURNING(add_lds, SHARED, "ds_add_rtn_f32 %0, %1, %2\n\ts_waitcnt lgkmcnt(0)")
FLOAT_RETURNING(min_lds, SHARED, "ds_min_rtn_f32 %0, %1, %2\n\ts_waitcnt lgkmcnt(0)")
FLOAT_RETURNING(max_lds, SHARED, "ds_max_rtn_f32 %0, %1, %2\n\ts_waitcnt lgkmcnt(0)")

#define FLOAT_SILENT(name, space, text)                                                             \
    INLINE void name(space float *p, float v) {                                                     \
        __asm__ volatile(text : : "v"(p), "v"(v) : "memory");                                       \
    }
FLOAT_SILENT(add_global_, GLOBAL, "global_atomic_add_f32 %0, %1, off\n\ts_waitcnt_vscnt null, 0x0")
FLOAT_SILENT(min_global_, GLOBAL, "global_atomic_min_f32 %0, %1, off\n\ts_waitcnt_vscnt null, 0x0")
FLOAT_SILENT(max_global_, GLOBAL, "global_atomic_max_f32 %0, %1, off\n\ts_waitcnt_vscnt null, 0x0")
FLOAT_SILENT(add_flat_, , "flat_atomic_add_f32 %0, %1\n\ts_waitcnt_vscnt null, 0x0\n\ts_waitcnt lgkmcnt(0)")
FLOAT_SILENT(min_flat_, , "flat_atomic_min_f32 %0, %1\n\ts_waitcnt_vscnt null, 0x0\n\ts_waitcnt lgkmcnt(0)")
FLOAT_SILENT(max_flat_, , "flat_atomic_max_f32 %0, %1\n\ts_waitcnt_vscnt null, 0x0\n\ts_waitcnt lgkmcnt(0)")
FLOAT_SILENT(add_lds_, SHARED, "ds_add_f32 %0, %1\n\ts_waitcnt lgkmcnt(0)")
FLOAT_SILENT(min_lds_, SHARED, "ds_min_f32 %0, %1\n\ts_waitcnt lgkmcnt(0)")
FLOAT_SILENT(max_lds_, SHARED, "ds_max_f32 %0, %1\n\ts_waitcnt lgkmcnt(0)")

INLINE u32 csub(GLOBAL u32 *p, u32 v) {
    u32 old;
    __asm__ volatile("global_atomic_csub_u32 %0, %1, %2, off glc\n\ts_waitcnt vmcnt(0)"
                     : "=v"(old)
                     : "v"(p), "v"(v)
                     : "memory");
    return old;
}
#else
// Items are coroutines of one thread and none switches inside an operation.
#define UPDATE(name, type, next)                                                                    \
    INLINE type name(type *p, type v) {                                                             \
        type old = *p;                                                                              \
        *p = next;                                                                                  \
        return old;                                                                                 \
    }
#define FLOAT_OPS(space)                                                                            \
    UPDATE(add_##space, float, old + v)                                                             \
    UPDATE(min_##space, float, __builtin_fminf(old, v))                                             \
    UPDATE(max_##space, float, __builtin_fmaxf(old, v))
FLOAT_OPS(global)
FLOAT_OPS(lds)
FLOAT_OPS(flat)
#define add_global_ add_global
#define min_global_ min_global
#define max_global_ max_global
#define add_lds_ add_lds
#define min_lds_ min_lds
#define max_lds_ max_lds
#define add_flat_ add_flat
#define min_flat_ min_flat
#define max_flat_ max_flat
UPDATE(inc_32, u32, old >= v ? 0 : old + 1)
UPDATE(inc_64, u64, old >= v ? 0 : old + 1)
UPDATE(dec_32, u32, old == 0 || old > v ? v : old - 1)
UPDATE(dec_64, u64, old == 0 || old > v ? v : old - 1)
UPDATE(csub, u32, old < v ? 0 : old - v)
#define INC(p, v, bits) inc_##bits(p, v)
#define DEC(p, v, bits) dec_##bits(p, v)
#endif

#define OPERATIONS 14

// Cells and values of operation k lie at k * count; `cell(k)` is the address that is operated on.
#define OWN(bits, cell, v, old, stride)                                                             \
    do {                                                                                            \
        old[0 * stride] = __scoped_atomic_fetch_add(cell(0), v, RELAXED, DEVICE);                   \
        old[1 * stride] = __scoped_atomic_fetch_sub(cell(1), v, RELAXED, DEVICE);                   \
        old[2 * stride] = __scoped_atomic_fetch_and(cell(2), v, RELAXED, DEVICE);                   \
        old[3 * stride] = __scoped_atomic_fetch_or(cell(3), v, RELAXED, DEVICE);                    \
        old[4 * stride] = __scoped_atomic_fetch_xor(cell(4), v, RELAXED, DEVICE);                   \
        old[5 * stride] = __scoped_atomic_fetch_min(cell(5), v, RELAXED, DEVICE);                   \
        old[6 * stride] = __scoped_atomic_fetch_max(cell(6), v, RELAXED, DEVICE);                   \
        old[7 * stride] = (u##bits)__scoped_atomic_fetch_min(SIGNED(bits, cell(7)), (i##bits)v, RELAXED, DEVICE); \
        old[8 * stride] = (u##bits)__scoped_atomic_fetch_max(SIGNED(bits, cell(8)), (i##bits)v, RELAXED, DEVICE); \
        old[9 * stride] = __scoped_atomic_exchange_n(cell(9), v, RELAXED, DEVICE);                  \
        old[10 * stride] = INC(cell(10), v, bits);                                                  \
        old[11 * stride] = DEC(cell(11), v, bits);                                                  \
        u##bits expected = v | 1;                                                                   \
        __scoped_atomic_compare_exchange_n(cell(12), &expected, ~v, 0, RELAXED, RELAXED, DEVICE);   \
        old[12 * stride] = expected;                                                                \
        expected = v;                                                                               \
        old[13 * stride] = __scoped_atomic_compare_exchange_n(cell(13), &expected, v ^ 5, 0, RELAXED, \
                                                              RELAXED, DEVICE);                     \
    } while (0)

// Everybody on the same cells, nothing returned.
#define TOGETHER(bits, cell, v)                                                                     \
    do {                                                                                            \
        __scoped_atomic_fetch_add(cell(0), v, RELAXED, DEVICE);                                     \
        __scoped_atomic_fetch_sub(cell(1), v, RELAXED, DEVICE);                                     \
        __scoped_atomic_fetch_and(cell(2), v | 0xf0, RELAXED, DEVICE);                              \
        __scoped_atomic_fetch_or(cell(3), v & 0x5555, RELAXED, DEVICE);                             \
        __scoped_atomic_fetch_xor(cell(4), v, RELAXED, DEVICE);                                     \
        __scoped_atomic_fetch_min(cell(5), v, RELAXED, DEVICE);                                     \
        __scoped_atomic_fetch_max(cell(6), v, RELAXED, DEVICE);                                     \
        __scoped_atomic_fetch_min(SIGNED(bits, cell(7)), (i##bits)v, RELAXED, DEVICE);              \
        __scoped_atomic_fetch_max(SIGNED(bits, cell(8)), (i##bits)v, RELAXED, DEVICE);              \
        INC(cell(10), 37, bits);                                                                    \
        DEC(cell(11), 41, bits);                                                                    \
        u##bits seen = __scoped_atomic_load_n(cell(12), RELAXED, DEVICE);                           \
        while (!__scoped_atomic_compare_exchange_n(cell(12), &seen, seen * 3 + 1, 0, RELAXED, RELAXED, DEVICE)) \
            ;                                                                                       \
    } while (0)

#define SPACES(bits)                                                                                \
    KERNEL(atomics_global_##bits##_own, GLOBAL u##bits *cells; GLOBAL const u##bits *values;        \
           GLOBAL u##bits *old; u32 n;) {                                                           \
        u32 i = INDEX;                                                                              \
        u##bits v = arg.values[i];                                                                  \
        GLOBAL u##bits *old = arg.old + i;                                                          \
        OWN(bits, GLOBAL_CELL, v, old, arg.n);                                                      \
    }                                                                                               \
    KERNEL(atomics_flat_##bits##_own, GLOBAL u##bits *cells; GLOBAL const u##bits *values;          \
           GLOBAL u##bits *old; u32 n;) {                                                           \
        LDS u##bits room[OPERATIONS * 64];                                                          \
        u32 i = INDEX;                                                                              \
        for (u32 k = 0; k < OPERATIONS; k++)                                                        \
            room[k * 64 + ME] = arg.cells[k * arg.n + i];                                           \
        barrier();                                                                                  \
        /* Odd workgroups work in LDS by the same instructions. */                                  \
        u32 stride = GROUP(0) & 1 ? 64 : arg.n;                                                     \
        u##bits *mine = (u##bits *)HIDDEN(GROUP(0) & 1 ? (u64)(u##bits *)&room[ME] : (u64)&arg.cells[i]); \
        u##bits v = arg.values[i];                                                                  \
        GLOBAL u##bits *old = arg.old + i;                                                          \
        OWN(bits, FLAT_CELL, v, old, arg.n);                                                        \
        barrier();                                                                                  \
        if (GROUP(0) & 1)                                                                           \
            for (u32 k = 0; k < OPERATIONS; k++)                                                    \
                arg.cells[k * arg.n + i] = room[k * 64 + ME];                                       \
    }                                                                                               \
    KERNEL(atomics_lds_##bits##_own, GLOBAL u##bits *cells; GLOBAL const u##bits *values;           \
           GLOBAL u##bits *old; u32 n;) {                                                           \
        LDS u##bits room[OPERATIONS * 64];                                                          \
        u32 i = INDEX;                                                                              \
        for (u32 k = 0; k < OPERATIONS; k++)                                                        \
            room[k * 64 + ME] = arg.cells[k * arg.n + i];                                           \
        barrier();                                                                                  \
        u##bits v = arg.values[i];                                                                  \
        GLOBAL u##bits *old = arg.old + i;                                                          \
        OWN(bits, LDS_CELL, v, old, arg.n);                                                         \
        barrier();                                                                                  \
        for (u32 k = 0; k < OPERATIONS; k++)                                                        \
            arg.cells[k * arg.n + i] = room[k * 64 + ME];                                           \
    }                                                                                               \
    KERNEL(atomics_global_##bits##_shared, GLOBAL u##bits *cells; GLOBAL const u##bits *values;) {  \
        u##bits v = arg.values[INDEX];                                                              \
        TOGETHER(bits, GLOBAL_ONE, v);                                                              \
    }                                                                                               \
    KERNEL(atomics_flat_##bits##_shared, GLOBAL u##bits *cells; GLOBAL const u##bits *values;) {    \
        u##bits v = arg.values[INDEX];                                                              \
        u##bits *mine = (u##bits *)HIDDEN((u64)arg.cells);                                          \
        TOGETHER(bits, FLAT_ONE, v);                                                                \
    }                                                                                               \
    KERNEL(atomics_lds_##bits##_shared, GLOBAL u##bits *cells; GLOBAL const u##bits *values;) {     \
        LDS u##bits room[OPERATIONS];                                                               \
        if (ME < OPERATIONS)                                                                        \
            room[ME] = arg.cells[GROUP(0) * OPERATIONS + ME];                                       \
        barrier();                                                                                  \
        u##bits v = arg.values[INDEX];                                                              \
        TOGETHER(bits, LDS_ONE, v);                                                                 \
        barrier();                                                                                  \
        if (ME < OPERATIONS)                                                                        \
            arg.cells[GROUP(0) * OPERATIONS + ME] = room[ME];                                       \
    }
#define GLOBAL_CELL(k) (&arg.cells[(k) * arg.n + i])
#define FLAT_CELL(k) (mine + (k) * stride)
#define LDS_CELL(k) (&room[(k) * 64 + ME])
#define GLOBAL_ONE(k) (&arg.cells[k])
#define FLAT_ONE(k) (mine + (k))
#define LDS_ONE(k) (&room[k])
// Keeps the address space of the pointer that it casts.
#ifdef __AMDGCN__
#define SIGNED(bits, pointer)                                                                       \
    _Generic((pointer),                                                                             \
        GLOBAL u##bits *: (GLOBAL i##bits *)(pointer),                                              \
        SHARED u##bits *: (SHARED i##bits *)(pointer),                                              \
        u##bits *: (i##bits *)(pointer))
#else
#define SIGNED(bits, pointer) ((i##bits *)(pointer))
#endif
// An address whose space the compiler cannot see.
INLINE u64 HIDDEN(u64 address) {
#ifdef __AMDGCN__
    __asm__("" : "+v"(address));
#endif
    return address;
}

SPACES(32)
SPACES(64)

KERNEL(atomics_float_own, GLOBAL float *cells; GLOBAL const float *values; GLOBAL float *old; u32 n;) {
    LDS float room[4][64];
    u32 i = INDEX;
    float v = arg.values[i];
    for (u32 k = 0; k < 4; k++)
        room[k][ME] = arg.cells[(6 + k) * arg.n + i];
    barrier();
    arg.old[0 * arg.n + i] = add_global(&arg.cells[0 * arg.n + i], v);
    arg.old[1 * arg.n + i] = min_global(&arg.cells[1 * arg.n + i], v);
    arg.old[2 * arg.n + i] = max_global(&arg.cells[2 * arg.n + i], v);
    arg.old[3 * arg.n + i] = add_flat((float *)&arg.cells[3 * arg.n + i], v);
    arg.old[4 * arg.n + i] = min_flat((float *)&arg.cells[4 * arg.n + i], v);
    arg.old[5 * arg.n + i] = max_flat((float *)&arg.cells[5 * arg.n + i], v);
    arg.old[6 * arg.n + i] = add_lds(&room[0][ME], v);
    arg.old[7 * arg.n + i] = min_lds(&room[1][ME], v);
    arg.old[8 * arg.n + i] = max_lds(&room[2][ME], v);
    arg.old[9 * arg.n + i] = add_flat((float *)&room[3][ME], v);
    barrier();
    for (u32 k = 0; k < 4; k++)
        arg.cells[(6 + k) * arg.n + i] = room[k][ME];
}

// The values are small multiples of a power of two: sums are exact in any order.
KERNEL(atomics_float_shared, GLOBAL float *cells; GLOBAL const float *values;) {
    LDS float room[3];
    float v = arg.values[INDEX];
    if (ME < 3)
        room[ME] = 0;
    barrier();
    add_global_(&arg.cells[0], v);
    min_global_(&arg.cells[1], v);
    max_global_(&arg.cells[2], v);
    add_flat_((float *)&arg.cells[3], v);
    min_flat_((float *)&arg.cells[4], v);
    max_flat_((float *)&arg.cells[5], v);
    add_lds_(&room[0], v);
    min_lds_(&room[1], v);
    max_lds_(&room[2], v);
    barrier();
    if (ME == 0)
        add_global_(&arg.cells[6], room[0]);
    if (ME == 1)
        min_global_(&arg.cells[7], room[1]);
    if (ME == 2)
        max_global_(&arg.cells[8], room[2]);
}

KERNEL(atomics_csub, GLOBAL u32 *cells; GLOBAL const u32 *values; GLOBAL u32 *old;) {
    u32 i = INDEX;
    arg.old[i] = csub(&arg.cells[i], arg.values[i]);
}

// A lock of the whole grid around a plain update. Lanes take it one by one: while two of a wave want it, the holder might
// be the one that waits for the other to leave the loop.
KERNEL(spin_lock, GLOBAL u32 *lock; GLOBAL u32 *plain; u32 rounds;) {
    for (u32 k = 0; k < arg.rounds * WAVE; k++) {
        if (lane_id() != k % WAVE)
            continue;
        while (__scoped_atomic_exchange_n(arg.lock, 1, __ATOMIC_ACQUIRE, DEVICE) != 0)
            ;
        *(volatile GLOBAL u32 *)arg.plain = *(volatile GLOBAL u32 *)arg.plain * 3 + 1;
        __scoped_atomic_store_n(arg.lock, 0, __ATOMIC_RELEASE, DEVICE);
    }
}
