// SPDX-License-Identifier: MIT OR Apache-2.0
//! f32 arithmetic.

use super::fp::{self, f};
use super::shapes::*;
use super::{div, nan, soft, trans};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

const F32: soft::Format = soft::Format::F32;
const SIGN: u32 = 0x8000_0000;

lane_table! {
    /// f32 handlers.
    table:
    V_ADD_F32 = fa2 { nan::add32, |a, b, e| soft::add(F32, a.into(), b.into(), e) as u32 };
    V_SUB_F32 = fa2 { nan::sub32, |a, b, e| soft::sub(F32, a.into(), b.into(), e) as u32 };
    V_SUBREV_F32 = fa2 { |a, b| nan::sub32(b, a), |a, b, e| soft::sub(F32, b.into(), a.into(), e) as u32 };
    V_MUL_F32 = fa2 { nan::mul32, soft_mul };
    V_MUL_DX9_ZERO_F32 = mul_dx9;
    V_FMA_F32 = fma32;
    V_FMAC_F32 = fma32;
    V_FMAMK_F32 = fma32;
    V_FMAAK_F32 = fma32;
    V_FMA_DX9_ZERO_F32 = fma_dx9;
    V_FMAC_DX9_ZERO_F32 = fma_dx9;
    V_MIN_F32 = min;
    V_MAX_F32 = max;
    V_MIN3_F32 = min3;
    V_MAX3_F32 = max3;
    V_MED3_F32 = med3;
    V_MAXMIN_F32 = maxmin;
    V_MINMAX_F32 = minmax;
    V_FLOOR_F32 = f1 { |a| nan::of1_32(a, f(a).floor().to_bits()) };
    V_CEIL_F32 = f1 { |a| nan::of1_32(a, f(a).ceil().to_bits()) };
    V_TRUNC_F32 = f1 { |a| nan::of1_32(a, f(a).trunc().to_bits()) };
    V_RNDNE_F32 = f1 { |a| nan::of1_32(a, f(a).round_ties_even().to_bits()) };
    V_FRACT_F32 = f1 { fract };
    V_RCP_F32 = f1 { trans::rcp };
    V_RCP_IFLAG_F32 = f1 { trans::rcp };
    V_RSQ_F32 = f1 { trans::rsq };
    V_SQRT_F32 = f1 { |a| nan::of1_32(a, f(a).sqrt().to_bits()) };
    V_EXP_F32 = f1 { trans::exp2 };
    V_LOG_F32 = f1 { trans::log2 };
    V_SIN_F32 = f1 { trans::sin };
    V_COS_F32 = f1 { trans::cos };
    V_FREXP_MANT_F32 = f1 { frexp_mant };
    V_FREXP_EXP_I32_F32 = u1 { frexp_exp };
    V_LDEXP_F32 = ldexp;
    V_DIV_SCALE_F32 = div::scale32;
    V_DIV_FMAS_F32 = div::fmas32;
    V_DIV_FIXUP_F32 = f3 { div::fixup32 };
    V_CUBEID_F32 = f3 { cube_id };
    V_CUBEMA_F32 = f3 { cube_ma };
    V_CUBESC_F32 = f3 { cube_sc };
    V_CUBETC_F32 = f3 { cube_tc };
    V_MULLIT_F32 = f3 { mullit };
}

#[inline(always)]
fn soft_mul(a: u32, b: u32, env: soft::Env) -> u32 {
    soft::mul(F32, a.into(), b.into(), env) as u32
}

/// A zero factor makes the product +0 for any other factor.
#[inline(always)]
fn mul_dx9(w: &mut Wave, s: &Step) {
    let m = w.mode;
    fa2(
        w,
        s,
        |a, b| if zero(a) || zero(b) { 0 } else { nan::mul32(a, b) },
        |a, b, env| {
            let [a, b] = [a, b].map(|x| fp::flush_in_f32(x, m));
            if zero(a) || zero(b) { 0 } else { soft_mul(a, b, env) }
        },
    );
}

#[inline(always)]
fn fma_dx9(w: &mut Wave, s: &Step) {
    let m = w.mode;
    fa3(
        w,
        s,
        |a, b, c| if zero(a) || zero(b) { c } else { nan::fma32(a, b, c) },
        |a, b, c, env| {
            let [a, b, c] = [a, b, c].map(|x| fp::flush_in_f32(x, m));
            let fma = || soft::fma(F32, a.into(), b.into(), c.into(), 0, env) as u32;
            if zero(a) || zero(b) { c } else { fma() }
        },
    );
}

#[inline(always)]
fn zero(x: u32) -> bool {
    x & !SIGN == 0
}

#[inline(always)]
fn min(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f2(w, s, |a, b| fp::min_f32(a, b, ieee));
}

#[inline(always)]
fn max(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f2(w, s, |a, b| fp::max_f32(a, b, ieee));
}

#[inline(always)]
fn min3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f3(w, s, |a, b, c| fp::min_f32(fp::min_f32(a, b, ieee), c, ieee));
}

#[inline(always)]
fn max3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f3(w, s, |a, b, c| fp::max_f32(fp::max_f32(a, b, ieee), c, ieee));
}

#[inline(always)]
fn med3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f3(w, s, |a, b, c| fp::med3_f32(a, b, c, ieee));
}

#[inline(always)]
fn maxmin(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f3(w, s, |a, b, c| fp::min_f32(fp::max_f32(a, b, ieee), c, ieee));
}

#[inline(always)]
fn minmax(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    f3(w, s, |a, b, c| fp::max_f32(fp::min_f32(a, b, ieee), c, ieee));
}

#[inline(always)]
fn fract(a: u32) -> u32 {
    let x = f(a);
    let r = x - x.floor();
    // The largest f32 below 1: a tiny negative x must not give 1.
    let r = if r >= 1.0 { 0x3F7F_FFFF } else { r.to_bits() };
    nan::of1_32(a, r)
}

#[inline(always)]
fn frexp_mant(a: u32) -> u32 {
    let special = a & 0x7F80_0000 == 0x7F80_0000 || zero(a);
    // Denormals are scaled up by 2^32 first; the mantissa does not depend on the scale.
    let scaled = if a & 0x7F80_0000 == 0 { (f(a) * 4_294_967_296.0).to_bits() } else { a };
    if special { a } else { scaled & 0x807F_FFFF | 0x3F00_0000 }
}

#[inline(always)]
fn frexp_exp(a: u32) -> u32 {
    let denormal = a & 0x7F80_0000 == 0;
    let scaled = if denormal { (f(a) * 4_294_967_296.0).to_bits() } else { a };
    let e = (scaled >> 23 & 0xFF) as i32 - 126 - if denormal { 32 } else { 0 };
    if a & 0x7F80_0000 == 0x7F80_0000 || zero(a) { 0 } else { e as u32 }
}

#[inline(always)]
fn ldexp(w: &mut Wave, s: &Step) {
    fa2(
        w,
        s,
        |a, b| nan::of1_32(a, fp::ldexp32(f(a), b as i32).to_bits()),
        |a, b, env| soft::ldexp(F32, a.into(), b as i32, env) as u32,
    );
}

#[inline(always)]
fn cube_id(x: u32, y: u32, z: u32) -> u32 {
    let (ax, ay, az) = (f(x).abs(), f(y).abs(), f(z).abs());
    let r: f32 = if az >= ax && az >= ay {
        if f(z) < 0.0 { 5.0 } else { 4.0 }
    } else if ay >= ax {
        if f(y) < 0.0 { 3.0 } else { 2.0 }
    } else if f(x) < 0.0 {
        1.0
    } else {
        0.0
    };
    r.to_bits()
}

#[inline(always)]
fn cube_ma(x: u32, y: u32, z: u32) -> u32 {
    let (ax, ay, az) = (f(x).abs(), f(y).abs(), f(z).abs());
    let major = if az >= ax && az >= ay {
        f(z)
    } else if ay >= ax {
        f(y)
    } else {
        f(x)
    };
    nan::of1_32(major.to_bits(), (major * 2.0).to_bits())
}

#[inline(always)]
fn cube_sc(x: u32, y: u32, z: u32) -> u32 {
    let (ax, ay, az) = (f(x).abs(), f(y).abs(), f(z).abs());
    if az >= ax && az >= ay {
        if f(z) < 0.0 { x ^ SIGN } else { x }
    } else if ay >= ax {
        x
    } else if f(x) < 0.0 {
        z
    } else {
        z ^ SIGN
    }
}

#[inline(always)]
fn cube_tc(x: u32, y: u32, z: u32) -> u32 {
    let (ax, ay, az) = (f(x).abs(), f(y).abs(), f(z).abs());
    if az >= ax && az >= ay {
        y ^ SIGN
    } else if ay >= ax {
        if f(y) < 0.0 { z ^ SIGN } else { z }
    } else {
        y ^ SIGN
    }
}

#[inline(always)]
fn mullit(a: u32, b: u32, c: u32) -> u32 {
    let lowest = (-f32::MAX).to_bits();
    if b == lowest || f(b) == f32::NEG_INFINITY || f(b).is_nan() || f(c) <= 0.0 || f(c).is_nan() {
        lowest
    } else {
        nan::mul32(a, b)
    }
}
