// SPDX-License-Identifier: MIT OR Apache-2.0
//! f64 arithmetic.

use super::fp;
use super::shapes64::*;
use super::{div, nan, soft, trig};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

const ONE: u64 = 0x3FF0_0000_0000_0000;
const SIGN: u64 = 1 << 63;

lane_table! {
    /// f64 handlers.
    table:
    V_ADD_F64 = da2 { nan::add64, |a, b, e| soft::add(soft::Format::F64, a, b, e) };
    V_MUL_F64 = da2 { nan::mul64, |a, b, e| soft::mul(soft::Format::F64, a, b, e) };
    V_FMA_F64 = fma64;
    V_MIN_F64 = min;
    V_MAX_F64 = max;
    V_LDEXP_F64 = ldexp;
    V_FLOOR_F64 = one { |a| nan::of1_64(a, f64::from_bits(a).floor().to_bits()) };
    V_CEIL_F64 = one { |a| nan::of1_64(a, f64::from_bits(a).ceil().to_bits()) };
    V_TRUNC_F64 = one { |a| nan::of1_64(a, f64::from_bits(a).trunc().to_bits()) };
    V_RNDNE_F64 = one { |a| nan::of1_64(a, f64::from_bits(a).round_ties_even().to_bits()) };
    V_FRACT_F64 = one { fract };
    V_RCP_F64 = one { |a| nan::of1_64(a, (1.0 / f64::from_bits(a)).to_bits()) };
    V_RSQ_F64 = one { |a| nan::of1_64(a, (1.0 / f64::from_bits(a).sqrt()).to_bits()) };
    V_SQRT_F64 = one { |a| nan::of1_64(a, f64::from_bits(a).sqrt().to_bits()) };
    V_FREXP_MANT_F64 = one { frexp_mant };
    V_FREXP_EXP_I32_F64 = dw1 { frexp_exp };
    V_DIV_SCALE_F64 = div::scale64;
    V_DIV_FMAS_F64 = div::fmas64;
    V_DIV_FIXUP_F64 = div::fixup64;
    V_TRIG_PREOP_F64 = d2w { trig::preop };
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

/// f64 unary operation whose rounding does not depend on MODE; denormals are flushed as MODE says.
#[inline(always)]
fn one(w: &mut Wave, s: &Step, f: impl Fn(u64) -> u64) {
    let m = w.mode;
    if w.f16_64_default() {
        d1(w, s, f);
    } else {
        d1(w, s, |a| f(fp::flush_in_f64(a, m)));
    }
}

#[inline(always)]
fn ldexp(w: &mut Wave, s: &Step) {
    let env = soft::Env::f16_64(w.mode);
    d2w(w, s, |a, b| soft::ldexp(soft::Format::F64, a, b as i32, env));
}

#[inline(always)]
fn fract(a: u64) -> u64 {
    let x = f64::from_bits(a);
    let r = x - x.floor();
    nan::of1_64(a, if r >= 1.0 { ONE - 1 } else { r.to_bits() })
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
    wd1(w, s, |a| {
        let quiet = u64::from(a & 0x8000_0000) << 32 | 0x7FF8_0000_0000_0000 | u64::from(a & 0x3F_FFFF) << 29;
        let exact = f64::from(f32::from_bits(fp::flush_in_f32(a, m))).to_bits();
        if fp::is_nan32(a) { quiet } else { exact }
    });
}

#[inline(always)]
fn narrow(w: &mut Wave, s: &Step) {
    if w.f32_default() && w.f16_64_default() {
        df1(w, s, |a| {
            let quiet = (a >> 32) as u32 & 0x8000_0000 | 0x7FC0_0000 | (a >> 29) as u32 & 0x3F_FFFF;
            if fp::is_nan64(a) { quiet } else { (f64::from_bits(a) as f32).to_bits() }
        });
    } else {
        let m = w.mode;
        let flush_in = m & 0x40 == 0;
        df1(w, s, |a| {
            soft::convert(soft::Format::F64, soft::Format::F32, a, flush_in, soft::Env::f32(m)) as u32
        });
    }
}
