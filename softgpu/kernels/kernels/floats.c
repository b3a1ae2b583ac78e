// SPDX-License-Identifier: MIT OR Apache-2.0
// Floating point of every width: what must be exact, and what is within a tolerance.
#include "dual.h"

#define PUT(...) (out[k++ * arg.n] = (__VA_ARGS__))

#ifdef __AMDGCN__
#define MED3 __builtin_amdgcn_fmed3f
#define FRACT __builtin_amdgcn_fractf
#define LDEXP __builtin_amdgcn_ldexpf
#define FREXP_MANT __builtin_amdgcn_frexp_mantf
#define FREXP_EXP __builtin_amdgcn_frexp_expf
#define CLASS __builtin_amdgcn_classf
#define PKRTZ(a, b) __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(a, b))
#define CVT_NORM_I16(a, b) __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pknorm_i16(a, b))
#define CVT_NORM_U16(a, b) __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pknorm_u16(a, b))
#define CVT_PK_I16(a, b) __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pk_i16(a, b))
#define CVT_PK_U16(a, b) __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pk_u16(a, b))
#define CANONICAL __builtin_canonicalizef
#else
#include <math.h>
INLINE float MED3(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }
// Below one even where the subtraction rounds up to it.
INLINE float FRACT(float x) { return fminf(x - floorf(x), 0x1.fffffep-1f); }
#define LDEXP ldexpf
INLINE float FREXP_MANT(float x) {
    int e;
    return frexpf(x, &e);
}
INLINE int FREXP_EXP(float x) {
    int e = 0;
    return isfinite(x) ? (frexpf(x, &e), e) : 0;
}
// Bits: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
INLINE int CLASS(float x, int mask) {
    u32 b = as_u32(x), exponent = b >> 23 & 255, fraction = b & 0x7fffff, minus = b >> 31, at;
    if (exponent == 255)
        at = fraction != 0 ? fraction >> 22 : minus ? 2 : 9;
    else if (exponent != 0)
        at = minus ? 3 : 8;
    else
        at = fraction != 0 ? (minus ? 4 : 7) : minus ? 5 : 6;
    return mask >> at & 1;
}
// Towards zero: the half nearest, or the one before it where that is farther out.
INLINE u32 half_rtz(float x) {
    f16 half = (f16)x;
    u16 bits = __builtin_bit_cast(u16, half);
    return fabsf((float)half) > fabsf(x) ? bits - 1u : bits;
}
INLINE u32 PKRTZ(float a, float b) { return half_rtz(a) | half_rtz(b) << 16; }
INLINE u32 clamped(float x, float low, float high) { return (u32)(i32)fminf(fmaxf(x, low), high) & 0xffff; }
INLINE u32 CVT_NORM_I16(float a, float b) {
    return clamped(rintf(fminf(fmaxf(a, -1), 1) * 32767), -32767, 32767) |
           clamped(rintf(fminf(fmaxf(b, -1), 1) * 32767), -32767, 32767) << 16;
}
INLINE u32 CVT_NORM_U16(float a, float b) {
    return clamped(rintf(fminf(fmaxf(a, 0), 1) * 65535), 0, 65535) |
           clamped(rintf(fminf(fmaxf(b, 0), 1) * 65535), 0, 65535) << 16;
}
INLINE u32 CVT_PK_I16(i32 a, i32 b) {
    return ((u32)(a < -32768 ? -32768 : a > 32767 ? 32767 : a) & 0xffff) |
           (u32)(b < -32768 ? -32768 : b > 32767 ? 32767 : b) << 16;
}
INLINE u32 CVT_PK_U16(u32 a, u32 b) { return (a > 65535 ? 65535 : a) | (b > 65535 ? 65535 : b) << 16; }
#define CANONICAL(x) (x)
#endif

KERNEL(float32, GLOBAL const float *x; GLOBAL const float *y; GLOBAL float *out; u32 n;) {
    u32 i = INDEX, k = 0;
    float a = arg.x[i], b = arg.y[i];
    GLOBAL float *out = arg.out + i;
    PUT(a + b);
    PUT(a - b);
    PUT(a * b);
    PUT(FMA(a, b, 1.25f));
    PUT(FMA(-a, b, a));
    PUT(a / b);
    PUT(1.0f / a);
    PUT(__builtin_sqrtf(__builtin_fabsf(a)));
    PUT(__builtin_floorf(a) + __builtin_ceilf(b));
    PUT(__builtin_truncf(a));
    PUT(__builtin_rintf(b));
    PUT(__builtin_roundf(a));
    PUT(a < b ? a : b);
    PUT(a >= b || a != a ? __builtin_fabsf(a) : -b);
    PUT(__builtin_copysignf(a, b));
    PUT(CANONICAL(a) * 2.0f);
    PUT(FMA(a, 0.5f, FMA(b, 0.25f, -4.0f)));
    PUT(a * a * a - b * 0.15915494f);
}

// Of finite values only: how the order of zeroes and of NaNs falls is not the question here.
KERNEL(float32_finite, GLOBAL const float *x; GLOBAL const float *y; GLOBAL float *out; GLOBAL u32 *words; u32 n;) {
    u32 i = INDEX, k = 0;
    float a = arg.x[i], b = arg.y[i];
    {
        GLOBAL float *out = arg.out + i;
        PUT(__builtin_fminf(a, b));
        PUT(__builtin_fmaxf(a, b));
        PUT(__builtin_fmaxf(__builtin_fmaxf(a, b), 3.0f) - __builtin_fminf(__builtin_fminf(a, b), -3.0f));
        PUT(__builtin_fmaxf(__builtin_fminf(a, 10.0f), -b));
        PUT(MED3(a, b, 1.0f));
        PUT(MED3(a, 0.0f, 1.0f));
        PUT(__builtin_fminf(__builtin_fmaxf(a * b, 0.0f), 1.0f));
        PUT(FRACT(a));
        PUT(LDEXP(a, (i32)(i % 40) - 20));
        PUT(FREXP_MANT(b));
        PUT((float)(i32)a);
        PUT((float)(u32)__builtin_fabsf(b));
        PUT((float)(i64)(a * 1048576.0f));
        PUT((float)(u64)__builtin_fabsf(b * 16777216.0f));
        PUT((float)(as_u32(a) * 3));
        PUT((float)(i32)(as_u32(b) * 5));
        PUT((float)(i64)((u64)as_u32(a) * as_u32(b)));
        PUT((float)(double)(a - b * 0.5f));
        PUT((float)((double)a * 1.1));
    }
    k = 0;
    GLOBAL u32 *out = arg.words + i;
    PUT((u32)FREXP_EXP(a));
    PUT((u32)CLASS(a, 0x108) + (u32)CLASS(b, 0x3ff));
    PUT(PKRTZ(a, b));
    PUT(CVT_NORM_I16(a, b));
    PUT(CVT_NORM_U16(a, b));
    PUT(CVT_PK_I16((i32)as_u32(a) >> 9, (i32)(as_u32(b) << 16) >> 12));
    PUT(CVT_PK_U16(as_u32(a) >> 12, as_u32(b) >> 14));
    PUT((u32)(i32)(a * 1000.0f) ^ (u32)(i16)(b * 10.0f));
    PUT((u32)(a < b) | (u32)(a <= b) << 1 | (u32)(a > b) << 2 | (u32)(a >= b) << 3 | (u32)(a == b) << 4 |
        (u32)(a != b) << 5 | (u32)__builtin_isunordered(a, b) << 6 | (u32)(__builtin_fabsf(a) < -b) << 7);
    PUT((u32)CLASS(a, (int)(i & 0x3ff)));
}

// Smallest and largest where NaN loses and -0 is below 0, as the GPU has it and C leaves it open.
#ifdef __AMDGCN__
#define LEAST(a, b, type) __builtin_elementwise_min(a, b)
#define MOST(a, b, type) __builtin_elementwise_max(a, b)
#else
#define LESS(a, b) ((a) < (b) || ((a) == (b) && signbit((double)(a))))
#define LEAST(a, b, type) ((type)((a) != (a) ? (b) : (b) != (b) || LESS(a, b) ? (a) : (b)))
#define MOST(a, b, type) ((type)((a) != (a) ? (b) : (b) != (b) || !LESS(a, b) ? (a) : (b)))
#endif

KERNEL(extremes, GLOBAL const float *x; GLOBAL const float *y; GLOBAL float *out; u32 n;) {
    u32 i = INDEX, k = 0;
    float a = arg.x[i], b = arg.y[i], c = arg.y[arg.n - 1 - i];
    GLOBAL float *out = arg.out + i;
    PUT(LEAST(a, b, float));
    PUT(MOST(a, b, float));
    PUT(LEAST(LEAST(a, b, float), c, float));
    PUT(MOST(MOST(a, b, float), c, float));
    PUT(MOST(LEAST(a, b, float), c, float));
    PUT(LEAST(MOST(a, b, float), -c, float));
    PUT(LEAST(__builtin_fabsf(a), -__builtin_fabsf(b), float));
    double da = a, db = b;
    PUT((float)LEAST(da, db, double));
    PUT((float)MOST(da, -db, double));
    f16 ha = (f16)a, hb = (f16)b, hc = (f16)c;
    PUT((float)LEAST(ha, hb, f16));
    PUT((float)MOST(ha, hb, f16));
    PUT((float)MOST(MOST(ha, hb, f16), hc, f16));
    PUT((float)a < b ? 1.0f : !(a >= b) ? 2.0f : a == b ? 3.0f : 4.0f);
    PUT(!(a < b) ? (!(a > c) ? a : b) : (!(b <= c) ? c : -b));
    PUT((float)((u32)CLASS(a, 0x3) + (u32)CLASS(b, 0x60) * 2 + (u32)CLASS(c, 0x204) * 4 + (u32)CLASS(a, 0x90) * 8));
}

// One-instruction functions, whose last bit is the machine's.
KERNEL(transcendental, GLOBAL const float *x; GLOBAL float *out; u32 n;) {
    u32 i = INDEX, k = 0;
    float a = arg.x[i], positive = __builtin_fabsf(a) + 0.001f;
    GLOBAL float *out = arg.out + i;
    PUT(EXP2(a));
    PUT(LOG2(positive));
    PUT(RCP(a));
    PUT(RSQ(positive));
    PUT(SIN_TURNS(a));
    PUT(COS_TURNS(a));
    PUT(__builtin_expf(a));
    PUT(__builtin_logf(positive));
    PUT(__builtin_exp2f(a * 0.3f) * __builtin_log2f(positive));
    PUT(__builtin_log10f(positive));
    PUT(1.0f / __builtin_sqrtf(positive));
}

KERNEL(float64, GLOBAL const double *x; GLOBAL const double *y; GLOBAL double *out; GLOBAL u64 *words; u32 n;) {
    u32 i = INDEX, k = 0;
    double a = arg.x[i], b = arg.y[i];
    {
        GLOBAL double *out = arg.out + i;
        PUT(a + b);
        PUT(a - b * 3.0);
        PUT(a * b);
        PUT(__builtin_fma(a, b, -a));
        PUT(a / b);
        PUT(1.0 / a);
        PUT(__builtin_sqrt(__builtin_fabs(a)));
        PUT(1.0 / __builtin_sqrt(__builtin_fabs(b)));
        PUT(__builtin_floor(a) + __builtin_ceil(b));
        PUT(__builtin_trunc(b));
        PUT(__builtin_rint(a));
        PUT(__builtin_fmin(a, b));
        PUT(__builtin_fmax(a, b));
        PUT(__builtin_ldexp(a, (i32)(i % 100) - 50));
        PUT(a < b ? -a : __builtin_fabs(b));
        PUT(__builtin_copysign(a, b) * 0.5);
        PUT((double)(i32)a + (double)(u32)__builtin_fabs(b));
        PUT((double)(i64)(a * 4096.0));
        PUT((double)(u64)__builtin_fabs(b * 1e12));
        PUT((double)(float)(a * b));
        PUT((double)(i64)(__builtin_bit_cast(u64, a) * 3));
        PUT((double)__builtin_bit_cast(u64, b));
        double p = 1.0;
        for (u32 j = 1; j < 12; j++)
            p = __builtin_fma(p, a / (double)(j + 900), 1.0 / (double)j);
        PUT(p);
    }
    k = 0;
    GLOBAL u64 *out = arg.words + i;
    PUT((u64)(i64)(a * 1e6));
    PUT((u64)(a < b) | (u64)(a <= b) << 1 | (u64)(a > b) << 2 | (u64)(a >= b) << 3 | (u64)(a == b) << 4 |
        (u64)(a != b) << 5 | (u64)(__builtin_fabs(a) < -b) << 6);
}

// Halves one at a time. The host rounds after every operation too.
KERNEL(float16, GLOBAL const f16 *x; GLOBAL const f16 *y; GLOBAL f16 *out; GLOBAL float *wide; u32 n;) {
    u32 i = INDEX, k = 0;
    f16 a = arg.x[i], b = arg.y[i];
    {
        GLOBAL f16 *out = arg.out + i;
        PUT(a + b);
        PUT(a - b);
        PUT(a * b);
        PUT(fma_f16(a, b, (f16)0.75));
        PUT(fma_f16(-a, a, b));
        PUT((f16)__builtin_floorf16(a) + __builtin_ceilf16(b));
        PUT(__builtin_truncf16(a));
        PUT(__builtin_rintf16(b));
        PUT(a < b ? a : b);
        PUT(a >= b ? -a : __builtin_fabsf16(b));
        PUT(__builtin_elementwise_max(a, b));
        PUT(__builtin_elementwise_min(a, (f16)1));
        PUT((f16)(i16)a);
        PUT((f16)(u16)__builtin_fabsf16(b));
        PUT((f16)(float)((float)a * (float)b));
        PUT((f16)(i16)(i * 37));
        PUT((f16)((float)i * 0.37f));
        PUT(__builtin_copysignf16(a, b));
    }
    k = 0;
    GLOBAL float *out = arg.wide + i;
    PUT((float)a * 2);
    // Fused with the conversion of its operands.
    PUT(FMA((float)a, (float)b, 0.1f));
    PUT(FMA((float)a, 0.3f, (float)b));
    PUT((float)(double)b + (float)(a > b));
}

KERNEL(float16_near, GLOBAL const f16 *x; GLOBAL const f16 *y; GLOBAL f16 *out; u32 n;) {
    u32 i = INDEX, k = 0;
    f16 a = arg.x[i], b = arg.y[i];
    GLOBAL f16 *out = arg.out + i;
    PUT(a / b);
    PUT((f16)1 / a);
#ifdef __AMDGCN__
    PUT(__builtin_sqrtf16(__builtin_fabsf16(a)));
    PUT(__builtin_amdgcn_rcph(b));
    PUT(__builtin_amdgcn_rsqh(__builtin_fabsf16(b)));
    PUT(__builtin_amdgcn_sinh(a));
    PUT(__builtin_amdgcn_cosh(b));
    PUT(__builtin_exp2f16(a));
    PUT(__builtin_log2f16(__builtin_fabsf16(b)));
#else
    PUT((f16)sqrtf(__builtin_fabsf((float)a)));
    PUT((f16)(1.0f / (float)b));
    PUT((f16)RSQ(__builtin_fabsf((float)b)));
    PUT((f16)SIN_TURNS((float)a));
    PUT((f16)COS_TURNS((float)b));
    PUT((f16)exp2f((float)a));
    PUT((f16)log2f(__builtin_fabsf((float)b)));
#endif
}

INLINE half2 fma_pair(half2 a, half2 b, half2 c) {
#ifdef __AMDGCN__
    return __builtin_elementwise_fma(a, b, c);
#else
    return (half2){fma_f16(a.x, b.x, c.x), fma_f16(a.y, b.y, c.y)};
#endif
}

KERNEL(packed_halves, GLOBAL const half2 *x; GLOBAL const half2 *y; GLOBAL half2 *out; u32 n;) {
    u32 i = INDEX, k = 0;
    half2 a = arg.x[i], b = arg.y[i];
    GLOBAL half2 *out = arg.out + i;
    PUT(a + b);
    PUT(a - b);
    PUT(a * b);
    PUT(fma_pair(a, b, a));
    PUT(fma_pair(-a, b.yx, (half2){b.x, -a.y}));
    PUT(a.yx + b);
    PUT(a.xx * -b.yx);
    PUT(__builtin_elementwise_min(a, b));
    PUT(__builtin_elementwise_max(a, b.yx));
    PUT(__builtin_elementwise_abs(a) + (half2)1.5);
    PUT(a * (half2)(f16)0.5 + (half2){1, 2});
    // One of the pair from each.
    PUT((half2){(f16)((float)a.x * 1.5f), b.y});
    PUT((half2){a.y, (f16)__builtin_fmaf((float)a.x, (float)b.y, 1.0f)});
    half2 sum = a;
    for (u32 j = 0; j < 6; j++)
        sum = fma_pair(sum, (half2)(f16)0.5, b);
    PUT(sum);
}

// Bytes to floats and back, as quantised weights are stored.
KERNEL(quantise, GLOBAL const float *x; GLOBAL const float *scale; GLOBAL i8 *packed; GLOBAL float *back; u32 n;) {
    u32 i = INDEX;
    float s = arg.scale[i / 32];
    float q = __builtin_rintf(arg.x[i] / s);
    i8 small = (i8)__builtin_fmaxf(__builtin_fminf(q, 127), -127);
    arg.packed[i] = small;
    arg.back[i] = (float)small * s;
}
