// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transcendental functions of the f32 unit, without libm: the exponential in f32 arithmetic, the others in f64.
//!
//! INVARIANT: this module uses only +, -, *, / and fused multiply-add in a fixed order, so every host computes
//! the same bits; the error in f64 is below 1e-10. All results are within 1 ulp of f32.

use super::fp::flush_f32;
use super::nan;

/// 1.5 * 2^52: adding it to an f64 rounds the f64 to an integer, which is in the low bits of the sum.
pub(crate) const SHIFT: f64 = 6_755_399_441_055_744.0;
/// Bits of the f64 square root of 1/2, the least mantissa of a logarithm's argument.
pub(crate) const ROOT_HALF: u64 = 0x3FE6_A09E_667F_3BCD;
/// From the series of the logarithm to base 2.
pub(crate) const LOG2_FACTOR: f64 = 2.0 / core::f64::consts::LN_2;
/// 2^23: an f32 from here on is a whole number of turns.
pub(crate) const WHOLE_TURNS: f64 = 8_388_608.0;
/// 1.5 * 2^23: the same for f32.
pub(crate) const SHIFT_F32: f32 = 12_582_912.0;
/// The least argument of an exponential whose result is no denormal, and the first whose result is infinite.
pub(crate) const LEAST_EXPONENT: f32 = -126.0;
pub(crate) const GREATEST_EXPONENT: f32 = 128.0;
/// 2^r for |r| <= 1/2, as bits of f32: the polynomial of degree 7 with the least relative error (0.004 * 2^-24) whose first coefficient
/// is 1, its others rounded.
pub(crate) const EXP2: [u32; 8] =
    [0x3F80_0000, 0x3F31_7218, 0x3E75_FDF0, 0x3D63_582B, 0x3C1D_950E, 0x3AAE_E029, 0x3922_1FCB, 0x3760_2404];
/// Series of log((1 + t) / (1 - t)) / (2t) in t^2.
pub(crate) const LOG2: [f64; 9] =
    [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0];
/// Series of sin(y) / y in y^2.
pub(crate) const SINE: [f64; 7] = [
    1.0,
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
];
/// Series of cos(y) in y^2.
pub(crate) const COSINE: [f64; 8] = [
    1.0,
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
];

#[inline(always)]
fn poly<const N: usize>(x: f64, c: &[f64; N]) -> f64 {
    let mut r = c[N - 1];
    for i in (0..N - 1).rev() {
        r = r.mul_add(x, c[i]);
    }
    r
}

/// `2^x` without denormal support, as v_exp_f32, by reduction to |r| <= 1/2. In f32: its error is below 0.78 ulp, over all arguments,
/// and hardware's is 1 ulp.
#[inline(always)]
pub(crate) fn exp2(bits: u32) -> u32 {
    let x = f32::from_bits(bits);
    let low = if x < GREATEST_EXPONENT { x } else { GREATEST_EXPONENT };
    let t = low + SHIFT_F32;
    let r = low - (t - SHIFT_F32);
    let [first @ .., last] = EXP2.map(f32::from_bits);
    let p = first.iter().rev().fold(last, |p, k| p.mul_add(r, *k));
    // The low bits of `t` hold the integer in two's complement.
    let y = p.to_bits().wrapping_add(t.to_bits() << 23);
    let y = if x >= LEAST_EXPONENT { y } else { 0 };
    if x.is_nan() { bits | 0x0040_0000 } else { y }
}

/// log2 of a positive normal f64.
#[inline(always)]
fn log2_core(x: f64) -> f64 {
    let bits = x.to_bits();
    let shifted = bits.wrapping_sub(ROOT_HALF);
    let e = (shifted as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((e as u64) << 52));
    let t = (m - 1.0) / (m + 1.0);
    let q = t * t;
    let series = poly(q, &LOG2) * t;
    series.mul_add(LOG2_FACTOR, e as i32 as f64)
}

/// log2 without denormal support, as v_log_f32.
#[inline(always)]
pub(crate) fn log2(bits: u32) -> u32 {
    let b = flush_f32(bits);
    let x = f32::from_bits(b);
    let safe = if x > 0.0 && b < 0x7F80_0000 { x } else { 1.0 };
    let y = (log2_core(f64::from(safe)) as f32).to_bits();
    let r = if b & 0x7FFF_FFFF == 0 { 0xFF80_0000 } else { y };
    let r = if b == 0x7F80_0000 { b } else { r };
    let r = if x < 0.0 { 0xFFC0_0000 } else { r };
    if x.is_nan() { bits | 0x0040_0000 } else { r }
}

/// sin and cos of 2*pi*x.
#[inline(always)]
fn turn(bits: u32) -> (f64, f64) {
    let x = f64::from(f32::from_bits(bits));
    // Beyond 2^23 an f32 is a whole number of turns.
    let big = x.abs() >= WHOLE_TURNS;
    let x = if big { 0.0 } else { x };
    let t = x.mul_add(4.0, SHIFT);
    let q = t - SHIFT;
    let y = q.mul_add(-0.25, x) * core::f64::consts::TAU;
    let z = y * y;
    let s = poly(z, &SINE) * y;
    let c = poly(z, &COSINE);
    let quadrant = t.to_bits() & 3;
    let (a, b) = if quadrant & 1 == 0 { (s, c) } else { (c, s) };
    let sin = if quadrant & 2 == 0 { a } else { -a };
    let cos = if quadrant == 0 || quadrant == 3 { b } else { -b };
    // A zero is positive in every quadrant: cos(0.25) is +0.
    (sin + 0.0, cos + 0.0)
}

#[inline(always)]
fn periodic(bits: u32, y: f64) -> u32 {
    let r = (y as f32).to_bits();
    let r = if bits & 0x7FFF_FFFF == 0x7F80_0000 { 0xFFC0_0000 } else { r };
    if bits & 0x7FFF_FFFF > 0x7F80_0000 { bits | 0x0040_0000 } else { r }
}

/// sin(2*pi*x).
#[inline(always)]
pub(crate) fn sin(bits: u32) -> u32 {
    let r = periodic(bits, turn(bits).0);
    // sin keeps the sign of a zero argument.
    if bits & 0x7FFF_FFFF == 0 { bits } else { r }
}

/// cos(2*pi*x).
#[inline(always)]
pub(crate) fn cos(bits: u32) -> u32 {
    periodic(bits, turn(bits).1)
}

/// Correctly rounded 1/x, denormals flushed in and out.
#[inline(always)]
pub(crate) fn rcp(bits: u32) -> u32 {
    flush_f32((1.0 / f32::from_bits(flush_f32(bits))).to_bits())
}

/// 1/sqrt(x) rounded from f64, denormals flushed in.
#[inline(always)]
pub(crate) fn rsq(bits: u32) -> u32 {
    let x = f64::from(f32::from_bits(flush_f32(bits)));
    let r = (1.0 / x.sqrt()) as f32;
    nan::of1_32(bits, flush_f32(r.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ulps(got: u32, want: f64) -> f64 {
        let g = f64::from(f32::from_bits(got));
        let w = want as f32;
        if w.is_infinite() || w == 0.0 || !w.is_normal() {
            return if g == f64::from(w) || (g - want).abs() < 1.2e-38 { 0.0 } else { 9.0 };
        }
        let ulp = f64::from(f32::from_bits((w.abs().to_bits()) + 1) - w.abs());
        (g - want).abs() / ulp
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20000))]
        #[test]
        fn exp2_is_within_one_ulp(x in -130f32..130.0) {
            prop_assert!(ulps(exp2(x.to_bits()), f64::from(x).exp2()) <= 0.78);
        }
        #[test]
        fn log2_is_within_one_ulp(b in 0x0080_0000u32..0x7F80_0000) {
            prop_assert!(ulps(log2(b), f64::from(f32::from_bits(b)).log2()) <= 0.51);
        }
        #[test]
        fn log2_near_one_is_within_one_ulp(b in 0x3F7F_0000u32..0x3F81_0000) {
            prop_assert!(ulps(log2(b), f64::from(f32::from_bits(b)).log2()) <= 0.51);
        }
        #[test]
        fn sin_and_cos_are_within_one_ulp(x in -0.25f32..0.25) {
            let a = f64::from(x) * core::f64::consts::TAU;
            prop_assert!(ulps(sin(x.to_bits()), a.sin()) <= 0.51);
            prop_assert!((f64::from(f32::from_bits(cos(x.to_bits()))) - a.cos()).abs() < 6e-8);
        }
        #[test]
        fn sin_of_any_turn_is_close(x in -300f32..300.0) {
            let r = f64::from(x) - f64::from(x).round();
            let a = r * core::f64::consts::TAU;
            prop_assert!((f64::from(f32::from_bits(sin(x.to_bits()))) - a.sin()).abs() < 6e-8);
            prop_assert!((f64::from(f32::from_bits(cos(x.to_bits()))) - a.cos()).abs() < 6e-8);
        }
        #[test]
        fn rsq_is_within_one_ulp(b in 0x0080_0000u32..0x7F80_0000) {
            prop_assert!(ulps(rsq(b), 1.0 / f64::from(f32::from_bits(b)).sqrt()) <= 0.51);
        }
    }

    #[test]
    fn specials_follow_ieee() {
        assert_eq!(exp2(0x7F80_0000), 0x7F80_0000);
        assert_eq!(exp2(0xFF80_0000), 0);
        let exp2_of = |x: f32| f32::from_bits(exp2(x.to_bits()));
        assert_eq!(
            [-126.0, -126.000_01, 0.0, 1e-40, 128.0, 1e30].map(exp2_of),
            [f32::MIN_POSITIVE, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY]
        );
        assert!(exp2_of(127.999_99).is_finite());
        assert_eq!(log2(0), 0xFF80_0000);
        assert_eq!(log2(0x8000_0001), 0xFF80_0000);
        assert_eq!(log2(0x7F80_0000), 0x7F80_0000);
        assert_eq!(log2(0xBF80_0000), 0xFFC0_0000);
        assert_eq!(rcp(0), 0x7F80_0000);
        assert_eq!(rcp(0x8000_0000), 0xFF80_0000);
        assert_eq!(rcp(0x7F00_0001), 0);
        assert_eq!(sin(0x8000_0000), 0x8000_0000);
        assert_eq!(cos(0x7F00_0000), 0x3F80_0000);
    }
}
