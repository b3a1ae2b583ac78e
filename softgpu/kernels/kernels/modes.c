// SPDX-License-Identifier: MIT OR Apache-2.0
// What the MODE register changes: the direction of rounding and what becomes of denormals.
//
// Every operation stands in one assembly statement with the change before and the default after it, so that nothing else
// is computed in the other mode.
#include "dual.h"

#define PUT(...) (out[k++ * arg.n] = (__VA_ARGS__))

#ifdef __AMDGCN__
#define IN_MODE(type, set, reset, text, ...)                                                        \
    ({                                                                                              \
        type got;                                                                                   \
        __asm__ volatile(set "\n\t" text "\n\t" reset : "=&v"(got) : __VA_ARGS__);                  \
        got;                                                                                        \
    })
#define ROUNDED(type, mode, text, expression, ...)                                                  \
    IN_MODE(type, "s_round_mode " #mode, "s_round_mode 0x0", text, __VA_ARGS__)
// Flushes f32 (bits 1:0) and keeps the others.
#define FLUSHED(text, expression, ...) IN_MODE(float, "s_denorm_mode 0xc", "s_denorm_mode 0xf", text, __VA_ARGS__)
#define IN(x) "v"(x)
#else
#include <fenv.h>
#include <math.h>
static const int directions[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
// The operands are read after the change and the result is there before the next: they are volatile.
#define ROUNDED(type, mode, text, expression, ...)                                                  \
    ({                                                                                              \
        fesetround(directions[(mode) & 3]);                                                         \
        volatile type got = (type)(expression);                                                     \
        fesetround(FE_TONEAREST);                                                                   \
        got;                                                                                        \
    })
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
#define FLUSHED(text, expression, ...) (expression)
#define IN(x) x
#endif

#define DIRECTION(mode)                                                                             \
    do {                                                                                            \
        PUT(ROUNDED(float, mode, "v_add_f32 %0, %1, %2", a + b, IN(a), IN(b)));                     \
        PUT(ROUNDED(float, mode, "v_mul_f32 %0, %1, %2", a * b, IN(a), IN(b)));                     \
        PUT(ROUNDED(float, mode, "v_fma_f32 %0, %1, %2, %3", fmaf(a, b, c), IN(a), IN(b), IN(c)));  \
        PUT(ROUNDED(float, mode, "v_cvt_f32_f64 %0, %1", d, IN(d)));                                \
        PUT(ROUNDED(float, mode, "v_cvt_f32_i32 %0, %1", whole, IN(whole)));                        \
        PUT(ROUNDED(float, mode, "v_rndne_f32 %0, %1", roundeven_of(a), IN(a)));                    \
        /* Of f64 only what the direction changed fits a float. */                                  \
        PUT((float)(ROUNDED(double, mode, "v_add_f64 %0, %1, %2", d + e, IN(d), IN(e)) - (d0 + e0)));\
        PUT((float)(ROUNDED(double, mode, "v_mul_f64 %0, %1, %2", d * e, IN(d), IN(e)) - d0 * e0)); \
        PUT((float)(ROUNDED(double, mode, "v_fma_f64 %0, %1, %2, %2", fma(d, e, e), IN(d), IN(e)) - \
                    __builtin_fma(d0, e0, e0)));                                                    \
        PUT((float)ROUNDED(f16, mode, "v_cvt_f16_f32 %0, %1", a, IN(a)));                           \
        PUT((float)ROUNDED(f16, mode, "v_add_f16 %0, %1, %2", g + h, IN(g), IN(h)));                \
        PUT((float)ROUNDED(f16, mode, "v_mul_f16 %0, %1, %2", g * h, IN(g), IN(h)));                \
    } while (0)

#ifndef __AMDGCN__
// Whatever the direction.
static float roundeven_of(float x) {
    int direction = fegetround();
    fesetround(FE_TONEAREST);
    volatile float whole = rintf(x);
    fesetround(direction);
    return whole;
}
#endif

KERNEL(rounding_modes, GLOBAL const float *x; GLOBAL const float *y; GLOBAL float *out; u32 n;) {
    u32 i = INDEX, k = 0;
    volatile float a = arg.x[i], b = arg.y[i], c = arg.x[arg.n - 1 - i] * 0.01f;
    volatile double d = (double)a * 1.000000119, e = (double)b * 0.3;
    volatile i32 whole = (i32)as_u32(b);
    volatile f16 g = (f16)a, h = (f16)(b * 0.01f);
    double d0 = d, e0 = e;
    GLOBAL float *out = arg.out + i;
    DIRECTION(0x0);
    DIRECTION(0x5);
    DIRECTION(0xa);
    DIRECTION(0xf);
    // The direction is back where it was.
    PUT(a + b);
}

// Of tiny numbers.
KERNEL(denormal_modes, GLOBAL const float *x; GLOBAL const float *y; GLOBAL float *out; u32 n;) {
    u32 i = INDEX, k = 0;
    float a = arg.x[i], b = arg.y[i];
    GLOBAL float *out = arg.out + i;
    PUT(a + b);
    PUT(a * 0.25f);
    PUT(FMA(a, 0.5f, b));
    PUT(FLUSHED("v_add_f32 %0, %1, %2", flushed(flushed(a) + flushed(b)), IN(a), IN(b)));
    PUT(FLUSHED("v_mul_f32 %0, %1, %2", flushed(flushed(a) * flushed(b)), IN(a), IN(b)));
    PUT(FLUSHED("v_fma_f32 %0, %1, 0.5, %2", flushed(FMA(flushed(a), 0.5f, flushed(b))), IN(a), IN(b)));
    PUT(FLUSHED("v_max_f32 %0, %1, %1", flushed(a), IN(a)));
    // Moves and bits are not arithmetic.
    PUT(FLUSHED("v_mov_b32 %0, %1", a, IN(a)));
    PUT(a - b);
}
