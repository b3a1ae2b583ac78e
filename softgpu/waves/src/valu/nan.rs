// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which NaN an operation gives: the first NaN among its operands, made quiet, or the host's default NaN.
//!
//! INVARIANT: no result depends on how the compiler orders the operands of a host instruction. The order is that of the
//! host's own `vaddps a, b`, `vsubps a, b`, `vmulps a, b` and `vfmadd231ps c, a, b` (first NaN of a, b, c), so generated
//! code that uses those instructions agrees bit for bit.

use super::fp::{f16_to_f32, f32_to_f16, is_nan16, is_nan32, is_nan64};

const QUIET16: u32 = 0x200;
const QUIET32: u32 = 0x0040_0000;
const QUIET64: u64 = 1 << 51;
/// The result of x86 for an invalid operation without NaN operands.
const DEFAULT16: u32 = 0xFE00;
const DEFAULT32: u32 = 0xFFC0_0000;
const DEFAULT64: u64 = 0xFFF8_0000_0000_0000;

macro_rules! nan_rules {
    ($one:ident $two:ident $three:ident $ty:ty, $is_nan:ident, $quiet:ident, $default:ident) => {
        /// `r`, or the quieted NaN `a`.
        #[inline(always)]
        pub(crate) fn $one(a: $ty, r: $ty) -> $ty {
            let r = if $is_nan(r) { $default } else { r };
            if $is_nan(a) { a | $quiet } else { r }
        }

        /// `r`, or the first NaN of `a`, `b`, quieted.
        #[inline(always)]
        pub(crate) fn $two(a: $ty, b: $ty, r: $ty) -> $ty {
            let r = if $is_nan(r) { $default } else { r };
            let r = if $is_nan(b) { b | $quiet } else { r };
            if $is_nan(a) { a | $quiet } else { r }
        }

        /// `r`, or the first NaN of `a`, `b`, `c`, quieted.
        #[inline(always)]
        pub(crate) fn $three(a: $ty, b: $ty, c: $ty, r: $ty) -> $ty {
            let r = if $is_nan(r) { $default } else { r };
            let r = if $is_nan(c) { c | $quiet } else { r };
            let r = if $is_nan(b) { b | $quiet } else { r };
            if $is_nan(a) { a | $quiet } else { r }
        }
    };
}

nan_rules!(of1_16 of2_16 of3_16 u32, is_nan16, QUIET16, DEFAULT16);
nan_rules!(of1_32 of2_32 of3_32 u32, is_nan32, QUIET32, DEFAULT32);
nan_rules!(of1_64 of2_64 of3_64 u64, is_nan64, QUIET64, DEFAULT64);

#[inline(always)]
fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

/// f32 sum, to nearest even.
#[inline(always)]
pub(crate) fn add32(a: u32, b: u32) -> u32 {
    of2_32(a, b, (f(a) + f(b)).to_bits())
}

/// f32 difference, to nearest even.
#[inline(always)]
pub(crate) fn sub32(a: u32, b: u32) -> u32 {
    of2_32(a, b, (f(a) - f(b)).to_bits())
}

/// f32 product, to nearest even.
#[inline(always)]
pub(crate) fn mul32(a: u32, b: u32) -> u32 {
    of2_32(a, b, (f(a) * f(b)).to_bits())
}

/// f32 fused multiply-add, to nearest even.
#[inline(always)]
pub(crate) fn fma32(a: u32, b: u32, c: u32) -> u32 {
    of3_32(a, b, c, f(a).mul_add(f(b), f(c)).to_bits())
}

/// f16 sum, to nearest even. The f32 sum of two f16 narrows without a second error.
#[inline(always)]
pub(crate) fn add16(a: u32, b: u32) -> u32 {
    of2_16(a, b, f32_to_f16(f16_to_f32(a) + f16_to_f32(b)))
}

/// f16 difference, to nearest even.
#[inline(always)]
pub(crate) fn sub16(a: u32, b: u32) -> u32 {
    of2_16(a, b, f32_to_f16(f16_to_f32(a) - f16_to_f32(b)))
}

/// f16 product, to nearest even.
#[inline(always)]
pub(crate) fn mul16(a: u32, b: u32) -> u32 {
    of2_16(a, b, f32_to_f16(f16_to_f32(a) * f16_to_f32(b)))
}

/// f64 sum, to nearest even.
#[inline(always)]
pub(crate) fn add64(a: u64, b: u64) -> u64 {
    of2_64(a, b, (f64::from_bits(a) + f64::from_bits(b)).to_bits())
}

/// f64 product, to nearest even.
#[inline(always)]
pub(crate) fn mul64(a: u64, b: u64) -> u64 {
    of2_64(a, b, (f64::from_bits(a) * f64::from_bits(b)).to_bits())
}

/// f64 fused multiply-add, to nearest even.
#[inline(always)]
pub(crate) fn fma64(a: u64, b: u64, c: u64) -> u64 {
    of3_64(a, b, c, f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits())
}
