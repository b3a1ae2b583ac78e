// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads and stores of every width, aligned and not, and the scalar unit that feeds on constant memory.
#include "dual.h"

#define PUT(...) (out[k++ * arg.n] = (__VA_ARGS__))

struct triple {
    u32 x, y, z;
};
typedef u64 __attribute__((aligned(4))) u64_by_4;
typedef uint4 __attribute__((aligned(4))) uint4_by_4;
typedef u32 __attribute__((aligned(1))) u32_by_1;
typedef u16 __attribute__((aligned(1))) u16_by_1;

// The same reads and writes on any kind of memory; `space` is its address space.
#define WIDTHS(name, space)                                                                         \
    INLINE u32 name(space u8 *at, u32 i) {                                                          \
        u32 sum = *(space u8 *)(at + (i & 63)) + (u32)(i32) * (space i8 *)(at + 64 + (i & 63));     \
        sum = sum * 5 + *(space u16 *)(at + 2 * (i & 31)) + (u32)(i32) * (space i16 *)(at + 2 * (i & 15)); \
        sum = sum * 5 + *(space u32 *)(at + 4 * (i & 15)) + *(space u32_by_1 *)(at + (i & 63));     \
        u64 wide = *(space u64 *)(at + 8 * (i & 7)) + *(space u64_by_4 *)(at + 4 * (i & 15));       \
        struct triple three = *(space struct triple *)(at + 4 * (i & 15));                          \
        uint4 four = *(space uint4 *)(at + 16 * (i & 7)) + *(space uint4_by_4 *)(at + 4 * (i & 15)); \
        sum = sum * 5 + (u32)wide + (u32)(wide >> 32) * 3 + three.x + three.y * 3 + three.z * 7;    \
        sum = sum * 5 + four.x + four.y * 3 + four.z * 5 + four.w * 9;                              \
        /* Two halves of a register from two places, and two words at a fixed distance. */          \
        short2 pair = {*(space i16 *)(at + 2 * (i & 7)), *(space i16 *)(at + 62 - 2 * (i & 7))};    \
        ushort2 bytes = {*(space u8 *)(at + (i & 7)), *(space u8 *)(at + 62 - (i & 7))};            \
        pair = pair * (short2)3 + __builtin_bit_cast(short2, bytes);                                \
        space u32 *words = (space u32 *)at + (i & 7);                                               \
        return sum * 5 + __builtin_bit_cast(u32, pair) + words[2] * words[9] + words[20];           \
    }                                                                                               \
    INLINE void name##_back(space u8 *at, u32 v) {                                                  \
        *(space u8 *)(at + 1) = (u8)v;                                                              \
        *(space u8 *)(at + 2) = (u8)(v >> 16);                                                      \
        *(space u16 *)(at + 4) = (u16)v;                                                            \
        *(space u16 *)(at + 6) = (u16)(v >> 16);                                                    \
        *(space u16_by_1 *)(at + 9) = (u16)(v * 3);                                                 \
        *(space u32_by_1 *)(at + 13) = v * 5;                                                       \
        *(space struct triple *)(at + 20) = (struct triple){v, v * 7, v * 9};                       \
        *(space u64 *)(at + 32) = (u64)v << 20;                                                     \
        *(space u64_by_4 *)(at + 44) = (u64)v * v;                                                  \
        *(space uint4_by_4 *)(at + 52) = (uint4){v, v + 1, v + 2, v + 3};                           \
        *(space uint4 *)(at + 80) = (uint4){~v, v ^ 1, v ^ 2, v ^ 3};                               \
        *(space u32 *)(at + 96) = v;                                                                \
        *(space u32 *)(at + 112) = v * 11;                                                          \
    }
WIDTHS(any_global, GLOBAL)
WIDTHS(any_shared, SHARED)

#define PIECE 128
KERNEL(memory_widths, GLOBAL u8 *in; GLOBAL u8 *written; GLOBAL u8 *by_lds; GLOBAL u32 *out; u32 n;) {
    LDS __attribute__((aligned(16))) u8 room[64 * PIECE];
    u32 i = INDEX, k = 0;
    GLOBAL u32 *out = arg.out + i;
    PUT(any_global(arg.in + i * PIECE, i));
    any_global_back(arg.written + i * PIECE, i * 0x9e3779b9);
    for (u32 j = 0; j < PIECE; j++)
        room[ME * PIECE + j] = arg.in[i * PIECE + j];
    barrier();
    PUT(any_shared(room + (63 - ME) * PIECE, i));
    barrier();
    any_shared_back(room + ME * PIECE, i * 0x85ebca6b);
    barrier();
    for (u32 j = 0; j < PIECE; j++)
        arg.by_lds[i * PIECE + j] = room[ME * PIECE + j];
}

// Nothing here depends on the item: it is the scalar unit's, but for the stores.
KERNEL(uniform, GLOBAL const u32 *table; GLOBAL u32 *out; u32 n; u32 a; u32 b; u32 rounds;) {
    u32 group = GROUP(0), k = 0, a = arg.a + group * 0x01000193, b = arg.b ^ group << 7, by = b & 31;
    i32 sa = (i32)a, sb = (i32)b;
    u64 wide = (u64)a << 32 | b, other = (u64)b * 0x9E3779B97F4A7C15ull;
    GLOBAL u32 *out = arg.out + INDEX;
    PUT(a + b * 4 - (group << 1));
    PUT((u32)((u64)a * b >> 32) ^ (u32)((i64)sa * sb >> 32));
    PUT(a << by | b >> by);
    PUT((u32)(sa >> by) + (a >> 7 & 0x1ff) + (u32)((i32)(b << 5) >> 20));
    PUT(~(a & b) ^ ~(a | b) ^ ~(a ^ 0x55aa));
    PUT((a & ~b) | (b | ~a) >> 3);
    PUT((sa < sb ? a : b) + (u32)(sa > 77 ? sa : 77) + (a < b ? 3 : 5));
    PUT((u32)__builtin_popcount(a) + (u32)__builtin_popcountll(wide) * 64);
    PUT((u32)__builtin_clz(a | 1) + (u32)__builtin_ctz(b | 0x80000000u) * 64 + (u32)__builtin_clrsb(sa) * 4096);
    PUT(__builtin_bitreverse32(a) + __builtin_bswap32(b));
    PUT((u32)(i32)(i8)a + (u32)(i32)(i16)b);
    PUT((a & 0xffff) | b << 16);
    PUT((a >> 16) | (b & 0xffff0000u));
    PUT((a << 1) + b);
    PUT((a << 3) + 12345);
    PUT(a > b ? a - b : b - a);
    PUT((u32)__builtin_abs(sa & 0x7fffffff) | 1u << by);
    PUT((a | 1u << by) - (b & ~(1u << by)));
    PUT((u32)(wide + other) ^ (u32)((wide - other) >> 32));
    PUT((u32)(wide * other >> 32));
    PUT((u32)(wide << by >> 16) ^ (u32)((i64)other >> by));
    PUT((u32)(wide & other) + (u32)((wide | ~other) >> 32) + (u32)(wide ^ other));
    PUT(wide == other ? 1 : wide < other ? 2 : 3);
    PUT((u32)(wide >> 13 & 0xfffff) + (u32)((i64)(other << 9) >> 40));
    PUT((u32)__builtin_clzll(wide | 1) + (u32)__builtin_ctzll(other | 1ull << 63) * 64);
    PUT((u32)__builtin_bitreverse64(wide));
    PUT(a / (b | 1) + a % 1000);
    u32 sum = 0;
    for (u32 j = 0; j < arg.rounds; j++) {
        sum = sum * 31 + arg.table[j] + (arg.table[(sum ^ j) & 63] >> 3);
        if (sum % 5 == 2)
            sum ^= a;
        else if ((i32)sum < 0)
            sum += arg.table[j + 1] & b;
    }
    PUT(sum);
    // Sixteen words at once.
    for (u32 j = 0; j < 16; j++)
        sum = sum * 3 + arg.table[group * 16 + j];
    PUT(sum);
}
