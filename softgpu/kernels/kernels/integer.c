// SPDX-License-Identifier: MIT OR Apache-2.0
// Integer arithmetic of every width: whole, packed, saturating, and by single bits.
#include "dual.h"

// Results of item i lie at i, i + n, ...
#define PUT(...) (out[k++ * arg.n] = (__VA_ARGS__))

// Odd, and not the -1 by which the lowest number cannot be divided.
INLINE i64 divisor(i64 x) { return (x | 1) == -1 ? 3 : x | 1; }

KERNEL(hash, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    u32 h = arg.in[INDEX];
    for (u32 k = 0; k < 16; k++) {
        h ^= h >> 16;
        h *= 0x7feb352d;
        h = h << 13 | h >> 19;
        h ^= h >> 15;
        h += k * 0x846ca68b;
    }
    arg.out[INDEX] = h;
}

KERNEL(int32, GLOBAL const u32 *x; GLOBAL const u32 *y; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, k = 0, a = arg.x[i], b = arg.y[i], nonzero = b | 1;
    i32 sa = (i32)a, sb = (i32)b, snonzero = (i32)divisor(sb >> 8);
    GLOBAL u32 *out = arg.out + i;
    PUT(a + b * 3);
    PUT(a - (b << 3) - i);
    PUT((u32)((u64)a * b >> 32));
    PUT((u32)((i64)sa * sb >> 32));
    PUT(a / nonzero);
    PUT(a % nonzero);
    PUT((u32)(sa / snonzero));
    PUT((u32)(sa % snonzero));
    PUT(a / 7 + a % 10 + (u32)(sa / 13));
    PUT(a << (b & 31) | a >> (b >> 8 & 31));
    PUT((u32)(sa >> (b & 31)));
    PUT(a < b ? a : b);
    PUT(sa < sb ? a : b);
    PUT(a > 1000 && sb < 77 ? ~a : a ^ b);
    PUT((u32)__builtin_abs(sa & 0x7fffffff) + (sa < 0));
    PUT((a & 0xffffff) * (b & 0xffffff) + i);
    PUT((u32)((i64)(sa << 8 >> 8) * (sb << 8 >> 8) >> 32));
    PUT((a & b) | (~a & i * 0x01010101u));
    PUT((a ^ b) + (a & b) + (a | b));
    PUT(a < b ? b - a : a - b);
    u32 sum;
    PUT((u32)__builtin_add_overflow(a, b, &sum) + sum);
    PUT((u32)__builtin_sub_overflow(a, b, &sum) + sum);
    PUT((u32)__builtin_mul_overflow(sa, sb, (i32 *)&sum) + sum);
    i32 low = sa < sb ? sa : sb, high = sa < sb ? sb : sa, middle = (i32)(i * 0x9e3779b9);
    PUT((u32)(middle < low ? low : middle > high ? high : middle));
}

KERNEL(int64, GLOBAL const u64 *x; GLOBAL const u64 *y; GLOBAL u64 *out; u32 n;) {
    u32 i = INDEX, k = 0, by = (u32)arg.y[i] & 63;
    u64 a = arg.x[i], b = arg.y[i], nonzero = b | 1;
    i64 sa = (i64)a, sb = (i64)b, snonzero = divisor(sb >> 20);
    GLOBAL u64 *out = arg.out + i;
    PUT(a + b);
    PUT(a - b);
    PUT(a * b);
    PUT(a * 0x9E3779B97F4A7C15ul + 12345);
    PUT(a / nonzero);
    PUT(a % nonzero);
    PUT((u64)(sa / snonzero));
    PUT((u64)(sa % snonzero));
    PUT(a / ((b & 0xffff) + 1));
    PUT(a % 1000000007);
    PUT(a << by);
    PUT(a >> by);
    PUT((u64)(sa >> by));
    PUT(a << by | a >> (64 - by & 63));
    PUT((u64)(a < b) | (u64)(a <= b) << 1 | (u64)(a == b) << 2 | (u64)(a != b) << 3);
    PUT((u64)(sa < sb) | (u64)(sa <= sb) << 1 | (u64)(sa > sb) << 2 | (u64)(sa >= sb) << 3);
    PUT(a < b ? a : b);
    PUT(sa < sb ? b : a);
    PUT((a & b) ^ (a | ~b));
    PUT((u64)__builtin_popcountl(a) + (a ? (u64)__builtin_clzl(a) << 8 | (u64)__builtin_ctzl(a) << 16 : 0));
    PUT((u64)sa * (u64)(i64)(i32)b + (u64)(i64)(i16)a);
    u64 sum;
    PUT((u64)__builtin_add_overflow(a, b, &sum) ^ sum);
    PUT((u64)__builtin_sub_overflow(a, b, &sum) ^ sum);
    PUT((u64)((unsigned __int128)a * b >> 64));
    PUT((u64)((__int128)sa * sb >> 64));
    PUT(__builtin_bswap64(a) + __builtin_bitreverse64(b));
}

KERNEL(bits, GLOBAL const u32 *x; GLOBAL const u32 *y; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, k = 0, a = arg.x[i], b = arg.y[i], by = b & 31;
    GLOBAL u32 *out = arg.out + i;
    PUT((u32)__builtin_popcount(a) + b);
    PUT(a ? (u32)__builtin_clz(a) : 32);
    PUT(a ? (u32)__builtin_ctz(a) : 99);
    PUT((u32)__builtin_clrsb((i32)a));
    PUT(__builtin_bitreverse32(a));
    PUT(__builtin_bswap32(a));
    PUT((u32)__builtin_ffs((i32)(a << by)));
    PUT(a >> 5 & 0x3ff);
    PUT((u32)((i32)(a << 7) >> 19));
    PUT((a & 0x00fff000) | (b & ~0x00fff000u));
    PUT(a << by | a >> (32 - by & 31));
    PUT((u32)(((u64)a << 32 | b) >> by));
    PUT((a >> 8 & 0xff) | (b >> 24) << 8 | (a & 0xff) << 16 | (b & 0xff00) << 16);
    PUT((1u << by) - 1);
    PUT(a & ((1u << by) - 1));
    PUT(a & (0u - a));
    PUT((a & (a - 1)) == 0);
    PUT((u32)__builtin_parity(a) | (u32)(a >> by & 1) << 1);
    PUT((a | b) ^ (a & ~b));
    PUT(~(a ^ b) & ~(a | 7));
    PUT((u32)(u8)(a >> 8) * (u8)b + (u16)(a >> 16));
    PUT(a + (b << 4));
    PUT((a << 3) + b + 7);
    PUT((a & 255) << 24 | (b | 5));
    PUT((a ^ b) + 99);
    PUT(a | b | (i << 20));
    PUT((a ^ b) ^ i);
}

KERNEL(bytes_and_shorts, GLOBAL const u8 *bytes; GLOBAL const i8 *signed_bytes; GLOBAL const u16 *shorts;
       GLOBAL const i16 *signed_shorts; GLOBAL u8 *out8; GLOBAL u16 *out16; GLOBAL i32 *out32; u32 n;) {
    u32 i = INDEX;
    if (i >= arg.n)
        return;
    LDS u8 near_bytes[256];
    LDS i16 near_shorts[256];
    u32 other = (i * 7 + 3) % arg.n;
    u8 a = arg.bytes[i], b = arg.bytes[other];
    i8 c = arg.signed_bytes[i];
    u16 d = arg.shorts[i];
    i16 e = arg.signed_shorts[other];
    near_bytes[ME] = (u8)(a + 3);
    near_shorts[ME] = (i16)(e - c);
    arg.out8[i] = (u8)(a > b ? a - b : (a ^ b) + 1);
    arg.out16[i] = (u16)((a * b) >> (b & 7)) ^ d;
    arg.out8[arg.n + i] = (u8)(d >> 8);
    arg.out16[arg.n + i] = (u16)(e / (c | 1) + (e % 77));
    arg.out32[i] = c * e + a - d;
    arg.out32[arg.n + i] = (i32)near_bytes[ME] * near_shorts[ME];
    // Halves of one register, the bytes of one word.
    ushort2 both = {arg.bytes[other], arg.shorts[other]};
    arg.out16[2 * arg.n + i] = (u16)(both.x * both.y);
    arg.out8[2 * arg.n + i] = (u8)(both.y >> 8) + (u8)(a << 3) + (u8)(c >> 2);
}

// Packed 16-bit arithmetic.
KERNEL(packed_shorts, GLOBAL const short2 *x; GLOBAL const short2 *y; GLOBAL short2 *out; u32 n;) {
    u32 i = INDEX, k = 0;
    short2 a = arg.x[i], b = arg.y[i];
    ushort2 ua = __builtin_bit_cast(ushort2, a), ub = __builtin_bit_cast(ushort2, b);
    GLOBAL short2 *out = arg.out + i;
#define PUT_UNSIGNED(value) PUT(__builtin_bit_cast(short2, (ushort2)(value)))
    PUT(a + b);
    PUT(a - b);
    PUT(a * b);
    PUT(a * b + a);
    PUT_UNSIGNED(ua * ub - ua);
    PUT(a << (b & (short2)15));
    PUT(a >> (b & (short2)15));
    PUT_UNSIGNED(ua >> (ub & (ushort2)15));
    PUT(__builtin_elementwise_min(a, b));
    PUT(__builtin_elementwise_max(a, b));
    PUT_UNSIGNED(__builtin_elementwise_min(ua, ub));
    PUT_UNSIGNED(__builtin_elementwise_max(ua, ub));
    PUT(__builtin_elementwise_add_sat(a, b));
    PUT(__builtin_elementwise_sub_sat(a, b));
    PUT_UNSIGNED(__builtin_elementwise_add_sat(ua, ub));
    PUT_UNSIGNED(__builtin_elementwise_sub_sat(ua, ub));
    PUT((short2){a.y, b.x} + (short2){b.y, a.x});
    PUT((short2){(i16)(a.x * b.y), (i16)(a.y / (b.x | 1))});
    PUT((a < b) & (short2)7);
#undef PUT_UNSIGNED
}

KERNEL(saturating, GLOBAL const u32 *x; GLOBAL const u32 *y; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, k = 0, a = arg.x[i], b = arg.y[i];
    i32 sa = (i32)a, sb = (i32)b;
    i16 ha = (i16)a, hb = (i16)b;
    u16 ua = (u16)a, ub = (u16)b;
    GLOBAL u32 *out = arg.out + i;
    PUT(__builtin_elementwise_add_sat(a, b));
    PUT(__builtin_elementwise_sub_sat(a, b));
    PUT((u32)__builtin_elementwise_add_sat(sa, sb));
    PUT((u32)__builtin_elementwise_sub_sat(sa, sb));
    PUT((u16)__builtin_elementwise_add_sat(ha, hb));
    PUT((u16)__builtin_elementwise_sub_sat(ha, hb));
    PUT(__builtin_elementwise_add_sat(ua, ub));
    PUT(__builtin_elementwise_sub_sat(ua, ub));
    PUT((u32)__builtin_elementwise_min(__builtin_elementwise_max(sa, -128), 127));
    PUT((u32)(u8)(sa < 0 ? 0 : sa > 255 ? 255 : sa) << 8);
    PUT((u16)(ha < hb ? ha : hb));
    PUT((u32)(ua > ub ? ua : ub));
    PUT((u16)(ha * hb + 17));
    PUT((u16)(ua << (b & 15)) | (u32)(u16)(ha >> (b & 15)) << 16);
}

// What only the GPU has an instruction for, against its definition.
#ifdef __AMDGCN__
#define SAD_U8 __builtin_amdgcn_sad_u8
#define SAD_U16 __builtin_amdgcn_sad_u16
#define MSAD_U8 __builtin_amdgcn_msad_u8
#define PERM __builtin_amdgcn_perm
#define ALIGN_BYTE __builtin_amdgcn_alignbyte
#define BFE_U __builtin_amdgcn_ubfe
#define BFE_S(x, at, width) ((u32)__builtin_amdgcn_sbfe((i32)(x), at, width))
#define CVT_PK_U8(x, at, old) __builtin_amdgcn_cvt_pk_u8_f32(x, at, old)
#define LERP __builtin_amdgcn_lerp
#else
INLINE u32 byte_of(u32 x, u32 k) { return x >> 8 * k & 255; }
INLINE u32 apart(u32 a, u32 b) { return a > b ? a - b : b - a; }
INLINE u32 SAD_U8(u32 a, u32 b, u32 sum) {
    for (u32 k = 0; k < 4; k++)
        sum += apart(byte_of(a, k), byte_of(b, k));
    return sum;
}
INLINE u32 MSAD_U8(u32 a, u32 b, u32 sum) {
    for (u32 k = 0; k < 4; k++)
        sum += byte_of(b, k) == 0 ? 0 : apart(byte_of(a, k), byte_of(b, k));
    return sum;
}
INLINE u32 SAD_U16(u32 a, u32 b, u32 sum) { return sum + apart(a & 0xffff, b & 0xffff) + apart(a >> 16, b >> 16); }
INLINE u32 PERM(u32 a, u32 b, u32 select) {
    u64 both = (u64)a << 32 | b;
    u32 result = 0;
    for (u32 k = 0; k < 4; k++) {
        u32 s = byte_of(select, k), byte;
        if (s >= 13)
            byte = 255;
        else if (s == 12)
            byte = 0;
        else if (s >= 8)
            byte = both >> (16 * (s - 8) + 15) & 1 ? 255 : 0;
        else
            byte = (u32)(both >> 8 * s) & 255;
        result |= byte << 8 * k;
    }
    return result;
}
INLINE u32 ALIGN_BYTE(u32 a, u32 b, u32 by) { return (u32)(((u64)a << 32 | b) >> 8 * (by & 3)); }
INLINE u32 BFE_U(u32 x, u32 at, u32 width) { return x >> (at & 31) & ((1u << (width & 31)) - 1); }
INLINE u32 BFE_S(u32 x, u32 at, u32 width) {
    width &= 31;
    if (width == 0)
        return 0;
    u32 field = BFE_U((u32)((i32)x >> (at & 31)), 0, width);
    return (field ^ 1u << (width - 1)) - (1u << (width - 1));
}
INLINE u32 CVT_PK_U8(float x, u32 at, u32 old) {
    // The rounding mode is to nearest even.
    float whole = __builtin_rintf(x);
    u32 byte = whole >= 255 ? 255 : whole > 0 ? (u32)whole : 0;
    return (old & ~(255u << 8 * (at & 3))) | byte << 8 * (at & 3);
}
INLINE u32 LERP(u32 a, u32 b, u32 round) {
    u32 result = 0;
    for (u32 k = 0; k < 4; k++)
        result |= (byte_of(a, k) + byte_of(b, k) + (byte_of(round, k) & 1)) >> 1 << 8 * k;
    return result;
}
#endif

KERNEL(byte_instructions, GLOBAL const u32 *x; GLOBAL const u32 *y; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, k = 0, a = arg.x[i], b = arg.y[i];
    GLOBAL u32 *out = arg.out + i;
    PUT(SAD_U8(a, b, i));
    PUT(SAD_U16(a, b, i));
    PUT(MSAD_U8(a, b & 0xff00ffff, i));
    PUT(PERM(a, b, 0x00070c02));
    PUT(PERM(a, b, i * 0x01050309));
    PUT(PERM(a, b, 0x0d0b0a08));
    PUT(ALIGN_BYTE(a, b, i));
    PUT(BFE_U(a, b, b >> 8));
    PUT(BFE_S(a, b, b >> 8));
    PUT(CVT_PK_U8((float)(i32)(a % 600) * 0.75f - 60, b, a));
    PUT(LERP(a, b, a ^ i));
    PUT(as_u32((float)(a & 255)));
    PUT(as_u32((float)(a >> 8 & 255)));
    PUT(as_u32((float)(b >> 16 & 255)));
    PUT(as_u32((float)(b >> 24)));
}
