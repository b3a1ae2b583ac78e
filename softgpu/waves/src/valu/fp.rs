// SPDX-License-Identifier: MIT OR Apache-2.0
//! Floating-point helpers on bit patterns, written without branches so that loops over them vectorise.
//!
//! INVARIANT: results do not depend on the host or its libm.

use crate::wave::mode;

const QUIET32: u32 = 0x0040_0000;

#[inline(always)]
pub(crate) fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

#[inline(always)]
pub(crate) fn is_nan32(x: u32) -> bool {
    x & 0x7FFF_FFFF > 0x7F80_0000
}

#[inline(always)]
pub(crate) fn is_nan16(x: u32) -> bool {
    x & 0x7FFF > 0x7C00
}

#[inline(always)]
pub(crate) fn is_nan64(x: u64) -> bool {
    x & (u64::MAX >> 1) > 0x7FF0_0000_0000_0000
}

/// f32 denormal to signed zero when MODE flushes inputs.
#[inline(always)]
pub(crate) fn flush_in_f32(x: u32, m: u32) -> u32 {
    if m & 0x10 == 0 && x & 0x7F80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// f16 denormal to signed zero when MODE flushes inputs.
#[inline(always)]
pub(crate) fn flush_in_f16(x: u32, m: u32) -> u32 {
    if m & 0x40 == 0 && x & 0x7C00 == 0 { x & 0x8000 } else { x }
}

/// f64 denormal to signed zero when MODE flushes inputs.
#[inline(always)]
pub(crate) fn flush_in_f64(x: u64, m: u32) -> u64 {
    if m & 0x40 == 0 && x & 0x7FF0_0000_0000_0000 == 0 { x & (1 << 63) } else { x }
}

/// Denormal to signed zero regardless of MODE (rcp, rsq, exp, log of f32).
#[inline(always)]
pub(crate) fn flush_f32(x: u32) -> u32 {
    if x & 0x7F80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// Exact widening.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u32) -> f32 {
    let em = h & 0x7FFF;
    let denormal = (em as i32 as f32) * f32::from_bits(0x3380_0000);
    let normal = (em << 13) + (112 << 23);
    let special = (em << 13) | 0x7F80_0000 | if em > 0x7C00 { QUIET32 } else { 0 };
    let bits = if em < 0x400 {
        denormal.to_bits()
    } else if em < 0x7C00 {
        normal
    } else {
        special
    };
    f32::from_bits(bits | (h & 0x8000) << 16)
}

/// Round to nearest even.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let abs = bits & 0x7FFF_FFFF;
    let normal = (abs.wrapping_add(0xFFF + (abs >> 13 & 1)).wrapping_sub(112 << 23)) >> 13;
    let denormal = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0x3F00_0000);
    let r = if abs > 0x7F80_0000 {
        0x7E00 | (abs >> 13 & 0x3FF)
    } else if abs >= 0x477F_F000 {
        0x7C00
    } else if abs >= 0x3880_0000 {
        normal
    } else {
        denormal
    };
    r | (bits >> 16 & 0x8000)
}

/// Toward zero (v_cvt_pkrtz): finite values stay finite.
#[inline(always)]
pub(crate) fn f32_to_f16_rtz(x: f32) -> u32 {
    let bits = x.to_bits();
    let abs = bits & 0x7FFF_FFFF;
    let normal = abs.wrapping_sub(112 << 23) >> 13;
    let denormal = (f32::from_bits(abs) * 16_777_216.0) as i32 as u32;
    let r = if abs > 0x7F80_0000 {
        0x7E00 | (abs >> 13 & 0x3FF)
    } else if abs == 0x7F80_0000 {
        0x7C00
    } else if abs >= 0x4780_0000 {
        0x7BFF
    } else if abs >= 0x3880_0000 {
        normal
    } else {
        denormal
    };
    r | (bits >> 16 & 0x8000)
}

/// Round to nearest even from f64.
#[inline(always)]
pub(crate) fn f64_to_f16(x: f64) -> u32 {
    let bits = x.to_bits();
    let abs = bits & (u64::MAX >> 1);
    let normal = (abs.wrapping_add((1 << 41) - 1 + (abs >> 42 & 1)).wrapping_sub(1008 << 52)) >> 42;
    let denormal = (f64::from_bits(abs) + 268_435_456.0).to_bits() & 0xFFFF;
    let r = if abs > 0x7FF0_0000_0000_0000 {
        0x7E00
    } else if abs >= 0x40EF_FE00_0000_0000 {
        0x7C00
    } else if abs >= 0x3F10_0000_0000_0000 {
        normal
    } else {
        denormal
    };
    r as u32 | ((bits >> 48) as u32 & 0x8000)
}

/// Fused multiply-add of f16: the f64 sum is rounded to odd, so that narrowing it rounds once.
#[inline(always)]
pub(crate) fn fma_f16(a: u32, b: u32, c: u32) -> u32 {
    let p = f64::from(f16_to_f32(a)) * f64::from(f16_to_f32(b));
    let r = f64_to_f16(add_to_odd(p, f64::from(f16_to_f32(c))));
    super::nan::of3_16(a, b, c, r)
}

/// `a + b` rounded to odd: inexact sums get an odd last bit.
#[inline(always)]
pub(crate) fn add_to_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    let t = s - a;
    let e = (a - (s - t)) + (b - t);
    let bits = s.to_bits();
    // The error is away from zero if it has the sum's sign; then the truncated value is the sum itself.
    let inexact = e != 0.0 && bits & 1 == 0 && s.is_finite();
    let outward = (e > 0.0) == (s > 0.0);
    let odd = if outward { bits | 1 } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact { odd } else { bits })
}

#[inline(always)]
fn key32(x: u32) -> i32 {
    (x ^ (((x as i32) >> 31) as u32 >> 1)) as i32
}

#[inline(always)]
fn pick32(a: u32, b: u32, first: bool, ieee: bool) -> u32 {
    let r = if first { a } else { b };
    let r = if is_nan32(a) { b } else { r };
    let r = if is_nan32(b) { a } else { r };
    let r = if is_nan32(r) { r | QUIET32 } else { r };
    let snan = |x: u32| is_nan32(x) && x & QUIET32 == 0;
    let r = if ieee && snan(b) { b | QUIET32 } else { r };
    if ieee && snan(a) { a | QUIET32 } else { r }
}

/// IEEE maxNum: of a NaN and a number the number, of +0 and -0 the +0; with IEEE set a signalling NaN is the result.
#[inline(always)]
pub(crate) fn max_f32(a: u32, b: u32, ieee: bool) -> u32 {
    pick32(a, b, key32(a) >= key32(b), ieee)
}

/// IEEE minNum.
#[inline(always)]
pub(crate) fn min_f32(a: u32, b: u32, ieee: bool) -> u32 {
    pick32(a, b, key32(a) < key32(b), ieee)
}

/// Median; with a NaN among the sources the minimum.
#[inline(always)]
pub(crate) fn med3_f32(a: u32, b: u32, c: u32, ieee: bool) -> u32 {
    let least = min_f32(min_f32(a, b, ieee), c, ieee);
    let (lo, hi) = (min_f32(a, b, ieee), max_f32(a, b, ieee));
    let median = max_f32(lo, min_f32(hi, c, ieee), ieee);
    if is_nan32(a) || is_nan32(b) || is_nan32(c) { least } else { median }
}

#[inline(always)]
fn pick16(a: u32, b: u32, first: bool, ieee: bool) -> u32 {
    let r = if first { a } else { b };
    let r = if is_nan16(a) { b } else { r };
    let r = if is_nan16(b) { a } else { r };
    let r = if is_nan16(r) { r | 0x200 } else { r };
    let snan = |x: u32| is_nan16(x) && x & 0x200 == 0;
    let r = if ieee && snan(b) { b | 0x200 } else { r };
    if ieee && snan(a) { a | 0x200 } else { r }
}

#[inline(always)]
fn key16(x: u32) -> i32 {
    key32(x << 16)
}

/// f16 maxNum on low halves.
#[inline(always)]
pub(crate) fn max_f16(a: u32, b: u32, ieee: bool) -> u32 {
    pick16(a & 0xFFFF, b & 0xFFFF, key16(a) >= key16(b), ieee)
}

/// f16 minNum on low halves.
#[inline(always)]
pub(crate) fn min_f16(a: u32, b: u32, ieee: bool) -> u32 {
    pick16(a & 0xFFFF, b & 0xFFFF, key16(a) < key16(b), ieee)
}

/// f16 median.
#[inline(always)]
pub(crate) fn med3_f16(a: u32, b: u32, c: u32, ieee: bool) -> u32 {
    let least = min_f16(min_f16(a, b, ieee), c, ieee);
    let median = max_f16(min_f16(a, b, ieee), min_f16(max_f16(a, b, ieee), c, ieee), ieee);
    if is_nan16(a) || is_nan16(b) || is_nan16(c) { least } else { median }
}

#[inline(always)]
fn key64(x: u64) -> i64 {
    (x ^ (((x as i64) >> 63) as u64 >> 1)) as i64
}

#[inline(always)]
fn pick64(a: u64, b: u64, first: bool, ieee: bool) -> u64 {
    const QUIET: u64 = 1 << 51;
    let r = if first { a } else { b };
    let r = if is_nan64(a) { b } else { r };
    let r = if is_nan64(b) { a } else { r };
    let r = if is_nan64(r) { r | QUIET } else { r };
    let snan = |x: u64| is_nan64(x) && x & QUIET == 0;
    let r = if ieee && snan(b) { b | QUIET } else { r };
    if ieee && snan(a) { a | QUIET } else { r }
}

/// f64 maxNum.
#[inline(always)]
pub(crate) fn max_f64(a: u64, b: u64, ieee: bool) -> u64 {
    pick64(a, b, key64(a) >= key64(b), ieee)
}

/// f64 minNum.
#[inline(always)]
pub(crate) fn min_f64(a: u64, b: u64, ieee: bool) -> u64 {
    pick64(a, b, key64(a) < key64(b), ieee)
}

fn omod_factor(omod: u8) -> f64 {
    match omod {
        1 => 2.0,
        2 => 4.0,
        3 => 0.5,
        _ => 1.0,
    }
}

/// Output modifiers work only with IEEE off and output denormals flushed (RDNA3 ISA, on OMOD).
fn omod_on(omod: u8, m: u32, keep_denormals: u32) -> bool {
    omod != 0 && m & mode::IEEE == 0 && m & keep_denormals == 0
}

/// Omod, clamp and output flushing of an f32 result.
pub(crate) fn finish_f32(x: u32, clamp: bool, omod: u8, m: u32) -> u32 {
    let mut v = f32::from_bits(x);
    if omod_on(omod, m, 0x20) {
        v *= omod_factor(omod) as f32;
    }
    if clamp {
        v = if v.is_nan() {
            if super::shapes::dx10(m) { 0.0 } else { v }
        } else if v > 0.0 {
            v.min(1.0)
        } else {
            0.0
        };
    }
    let r = v.to_bits();
    if m & 0x20 == 0 { flush_f32(r) } else { r }
}

/// Omod, clamp and output flushing of an f16 result.
pub(crate) fn finish_f16(x: u32, clamp: bool, omod: u8, m: u32) -> u32 {
    let mut r = x;
    if omod_on(omod, m, 0x80) {
        r = f32_to_f16(f16_to_f32(r) * omod_factor(omod) as f32);
    }
    if clamp {
        r = if is_nan16(r) {
            if super::shapes::dx10(m) { 0 } else { r }
        } else if r & 0x8000 != 0 {
            0
        } else {
            r.min(0x3C00)
        };
    }
    if m & 0x80 == 0 && r & 0x7C00 == 0 { r & 0x8000 } else { r }
}

/// Omod, clamp and output flushing of an f64 result.
pub(crate) fn finish_f64(x: u64, clamp: bool, omod: u8, m: u32) -> u64 {
    let mut v = f64::from_bits(x);
    if omod_on(omod, m, 0x80) {
        v *= omod_factor(omod);
    }
    if clamp {
        v = if v.is_nan() {
            if super::shapes::dx10(m) { 0.0 } else { v }
        } else if v > 0.0 {
            v.min(1.0)
        } else {
            0.0
        };
    }
    let r = v.to_bits();
    if m & 0x80 == 0 && r & 0x7FF0_0000_0000_0000 == 0 { r & (1 << 63) } else { r }
}

/// The class bits of v_cmp_class: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
#[inline(always)]
pub(crate) fn class_bit(
    nan: bool,
    quiet: bool,
    negative: bool,
    infinite: bool,
    zero: bool,
    denormal: bool,
) -> u32 {
    let magnitude = if infinite {
        0
    } else if zero {
        3
    } else if denormal {
        2
    } else {
        1
    };
    let bit = if nan {
        u32::from(quiet)
    } else if negative {
        2 + magnitude
    } else {
        9 - magnitude
    };
    1 << bit
}

/// Class bit of an f32.
#[inline(always)]
pub(crate) fn class32(x: u32) -> u32 {
    let a = x & 0x7FFF_FFFF;
    class_bit(a > 0x7F80_0000, x & QUIET32 != 0, x >> 31 != 0, a == 0x7F80_0000, a == 0, a < 0x0080_0000)
}

/// Class bit of an f16.
#[inline(always)]
pub(crate) fn class16(x: u32) -> u32 {
    let a = x & 0x7FFF;
    class_bit(a > 0x7C00, x & 0x200 != 0, x & 0x8000 != 0, a == 0x7C00, a == 0, a < 0x400)
}

/// Class bit of an f64.
#[inline(always)]
pub(crate) fn class64(x: u64) -> u32 {
    let a = x & (u64::MAX >> 1);
    let inf = 0x7FF0_0000_0000_0000;
    class_bit(a > inf, x & 1 << 51 != 0, x >> 63 != 0, a == inf, a == 0, a < 1 << 52)
}

/// `x * 2^e`, rounded once to nearest even.
#[inline(always)]
pub(crate) fn ldexp32(x: f32, e: i32) -> f32 {
    // Within +-300 the f64 product is exact, and narrowing rounds once; beyond +-300 the result is the same as at 300.
    let e = e.clamp(-300, 300);
    (f64::from(x) * f64::from_bits(((1023 + e) as u64) << 52)) as f32
}

/// `x * 2^e` for f64, rounded once.
#[inline(always)]
pub(crate) fn ldexp64(x: f64, e: i32) -> f64 {
    let env = super::soft::Env { round: 0, flush_in: false, flush_out: false };
    f64::from_bits(super::soft::ldexp(super::soft::Format::F64, x.to_bits(), e, env))
}
