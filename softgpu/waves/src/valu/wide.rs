// SPDX-License-Identifier: MIT OR Apache-2.0
//! f64 arithmetic.

use super::fp;
use super::shapes64::*;
use super::{div, soft};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

const ONE: u64 = 0x3FF0_0000_0000_0000;
const SIGN: u64 = 1 << 63;

lane_table! {
    /// f64 handlers.
    table:
    V_ADD_F64 = da2 { |a, b| a + b, |a, b| [a, ONE, b] };
    V_MUL_F64 = da2 { |a, b| a * b, |a, b| [a, b, (a ^ b) & SIGN] };
    V_FMA_F64 = fma64;
    V_MIN_F64 = min;
    V_MAX_F64 = max;
    V_LDEXP_F64 = d2w { |a, b| fp::ldexp64(f64::from_bits(a), b as i32).to_bits() };
    V_FLOOR_F64 = d1 { |a| f64::from_bits(a).floor().to_bits() };
    V_CEIL_F64 = d1 { |a| f64::from_bits(a).ceil().to_bits() };
    V_TRUNC_F64 = d1 { |a| f64::from_bits(a).trunc().to_bits() };
    V_RNDNE_F64 = d1 { |a| f64::from_bits(a).round_ties_even().to_bits() };
    V_FRACT_F64 = d1 { fract };
    V_RCP_F64 = d1 { |a| (1.0 / f64::from_bits(a)).to_bits() };
    V_RSQ_F64 = d1 { |a| (1.0 / f64::from_bits(a).sqrt()).to_bits() };
    V_SQRT_F64 = d1 { |a| f64::from_bits(a).sqrt().to_bits() };
    V_FREXP_MANT_F64 = d1 { frexp_mant };
    V_FREXP_EXP_I32_F64 = dw1 { frexp_exp };
    V_DIV_SCALE_F64 = div::scale64;
    V_DIV_FMAS_F64 = div::fmas64;
    V_DIV_FIXUP_F64 = div::fixup64;
    V_CVT_I32_F64 = dw1 { |a| f64::from_bits(a) as i32 as u32 };
    V_CVT_U32_F64 = dw1 { |a| f64::from_bits(a) as u32 };
    V_CVT_F64_I32 = wd1 { |a| f64::from(a as i32).to_bits() };
    V_CVT_F64_U32 = wd1 { |a| f64::from(a).to_bits() };
    V_CVT_F64_F32 = widen;
    V_CVT_F32_F64 = narrow;
}

#[inline(always)]
fn min(w: &mut Wave, s: &Step) {
    let (ieee, m) = (w.ieee(), w.mode);
    d2(w, s, |a, b| fp::min_f64(fp::flush_in_f64(a, m), fp::flush_in_f64(b, m), ieee));
}

#[inline(always)]
fn max(w: &mut Wave, s: &Step) {
    let (ieee, m) = (w.ieee(), w.mode);
    d2(w, s, |a, b| fp::max_f64(fp::flush_in_f64(a, m), fp::flush_in_f64(b, m), ieee));
}

#[inline(always)]
fn fract(a: u64) -> u64 {
    let x = f64::from_bits(a);
    let r = x - x.floor();
    if x.is_nan() {
        a | 1 << 51
    } else if r >= 1.0 {
        ONE - 1
    } else {
        r.to_bits()
    }
}

#[inline(always)]
fn frexp_mant(a: u64) -> u64 {
    let special = a & 0x7FF0_0000_0000_0000 == 0x7FF0_0000_0000_0000 || a & !SIGN == 0;
    let denormal = a & 0x7FF0_0000_0000_0000 == 0;
    let scaled = if denormal { (f64::from_bits(a) * 18_446_744_073_709_551_616.0).to_bits() } else { a };
    if special { a } else { scaled & 0x800F_FFFF_FFFF_FFFF | 0x3FE0_0000_0000_0000 }
}

#[inline(always)]
fn frexp_exp(a: u64) -> u32 {
    let denormal = a & 0x7FF0_0000_0000_0000 == 0;
    let scaled = if denormal { (f64::from_bits(a) * 18_446_744_073_709_551_616.0).to_bits() } else { a };
    let e = (scaled >> 52 & 0x7FF) as i32 - 1022 - if denormal { 64 } else { 0 };
    let special = a & 0x7FF0_0000_0000_0000 == 0x7FF0_0000_0000_0000 || a & !SIGN == 0;
    if special { 0 } else { e as u32 }
}

#[inline(always)]
fn widen(w: &mut Wave, s: &Step) {
    let m = w.mode;
    wd1(w, s, |a| f64::from(f32::from_bits(fp::flush_in_f32(a, m))).to_bits());
}

#[inline(always)]
fn narrow(w: &mut Wave, s: &Step) {
    if w.f32_default() && w.f16_64_default() {
        df1(w, s, |a| (f64::from_bits(a) as f32).to_bits());
    } else {
        let m = w.mode;
        let flush_in = m & 0x40 == 0;
        df1(w, s, |a| {
            soft::convert(soft::Format::F64, soft::Format::F32, a, flush_in, soft::Env::f32(m)) as u32
        });
    }
}
