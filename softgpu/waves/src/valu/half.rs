// SPDX-License-Identifier: MIT OR Apache-2.0
//! 16-bit operations: f16 arithmetic and 16-bit integers; the untouched half of the destination is kept.

use super::fp::{self, f16_to_f32, f32_to_f16};
use super::int::med3;
use super::shapes::*;
use super::{div, nan, soft, trans};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

const F16: soft::Format = soft::Format::F16;

lane_table! {
    /// 16-bit handlers.
    table:
    V_ADD_F16 = ha2 { nan::add16, soft_add };
    V_SUB_F16 = ha2 { nan::sub16, soft_sub };
    V_SUBREV_F16 = ha2 { |a, b| nan::sub16(b, a), |a, b, e| soft_sub(b, a, e) };
    V_MUL_F16 = ha2 { nan::mul16, soft_mul };
    V_FMA_F16 = fma16;
    V_FMAC_F16 = fma16;
    V_FMAMK_F16 = fma16;
    V_FMAAK_F16 = fma16;
    V_MIN_F16 = min;
    V_MAX_F16 = max;
    V_MIN3_F16 = min3;
    V_MAX3_F16 = max3;
    V_MED3_F16 = med3_f;
    V_MAXMIN_F16 = maxmin;
    V_MINMAX_F16 = minmax;
    V_FLOOR_F16 = one { |a| f32_to_f16(f16_to_f32(a).floor()) };
    V_CEIL_F16 = one { |a| f32_to_f16(f16_to_f32(a).ceil()) };
    V_TRUNC_F16 = one { |a| f32_to_f16(f16_to_f32(a).trunc()) };
    V_RNDNE_F16 = one { |a| f32_to_f16(f16_to_f32(a).round_ties_even()) };
    V_FRACT_F16 = one { fract };
    V_RCP_F16 = one { |a| fp::f64_to_f16(1.0 / f64::from(f16_to_f32(a))) };
    V_SQRT_F16 = one { |a| f32_to_f16(f16_to_f32(a).sqrt()) };
    V_RSQ_F16 = one { |a| fp::f64_to_f16(1.0 / f64::from(f16_to_f32(a)).sqrt()) };
    V_EXP_F16 = one { |a| f32_to_f16(fp::f(trans::exp2(f16_to_f32(a).to_bits()))) };
    V_LOG_F16 = one { |a| f32_to_f16(fp::f(trans::log2(f16_to_f32(a).to_bits()))) };
    V_SIN_F16 = one { |a| f32_to_f16(fp::f(trans::sin(f16_to_f32(a).to_bits()))) };
    V_COS_F16 = one { |a| f32_to_f16(fp::f(trans::cos(f16_to_f32(a).to_bits()))) };
    V_LDEXP_F16 = ha2 { ldexp, |a, b, e| soft::ldexp(F16, a.into(), sx(b), e) as u32 };
    V_FREXP_MANT_F16 = one { frexp_mant };
    V_FREXP_EXP_I16_F16 = h1 { frexp_exp };
    V_DIV_FIXUP_F16 = flushed3 { div::fixup16 };
    V_MOV_B16 = h1 { |a| a };
    V_NOT_B16 = h1 { |a| !a };
    V_AND_B16 = h2 { |a, b| a & b };
    V_OR_B16 = h2 { |a, b| a | b };
    V_XOR_B16 = h2 { |a, b| a ^ b };
    V_LSHLREV_B16 = h2 { |a, b| b << (a & 15) };
    V_LSHRREV_B16 = h2 { |a, b| (b & 0xFFFF) >> (a & 15) };
    V_ASHRREV_I16 = h2 { |a, b| (sx(b) >> (a & 15)) as u32 };
    V_ADD_NC_U16 = add_u16;
    V_SUB_NC_U16 = sub_u16;
    V_ADD_NC_I16 = add_i16;
    V_SUB_NC_I16 = sub_i16;
    V_MUL_LO_U16 = h2 { |a, b| a.wrapping_mul(b) };
    V_MAD_U16 = mad_u16;
    V_MAD_I16 = mad_i16;
    V_MAX_U16 = h2 { |a, b| (a & 0xFFFF).max(b & 0xFFFF) };
    V_MIN_U16 = h2 { |a, b| (a & 0xFFFF).min(b & 0xFFFF) };
    V_MAX_I16 = h2 { |a, b| sx(a).max(sx(b)) as u32 };
    V_MIN_I16 = h2 { |a, b| sx(a).min(sx(b)) as u32 };
    V_MAX3_U16 = h3 { |a, b, c| (a & 0xFFFF).max(b & 0xFFFF).max(c & 0xFFFF) };
    V_MIN3_U16 = h3 { |a, b, c| (a & 0xFFFF).min(b & 0xFFFF).min(c & 0xFFFF) };
    V_MED3_U16 = h3 { |a, b, c| med3(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) };
    V_MAX3_I16 = h3 { |a, b, c| sx(a).max(sx(b)).max(sx(c)) as u32 };
    V_MIN3_I16 = h3 { |a, b, c| sx(a).min(sx(b)).min(sx(c)) as u32 };
    V_MED3_I16 = h3 { |a, b, c| med3(sx(a), sx(b), sx(c)) as u32 };
    V_MAD_U32_U16 = mad_u32_u16;
    V_MAD_I32_I16 = mad_i32_i16;
}

/// Sign-extends the low half.
#[inline(always)]
pub(crate) fn sx(x: u32) -> i32 {
    i32::from(x as u16 as i16)
}

/// f16 ternary operation that never rounds, with denormals flushed as MODE says.
#[inline(always)]
fn flushed3(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) {
    let m = w.mode;
    hf3(w, s, |a, b, c| {
        let [a, b, c] = [a, b, c].map(|x| fp::flush_in_f16(x & 0xFFFF, m));
        f(a, b, c)
    });
}

#[inline(always)]
fn min(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    let m = w.mode;
    hf2(w, s, |a, b| fp::min_f16(fp::flush_in_f16(a & 0xFFFF, m), fp::flush_in_f16(b & 0xFFFF, m), ieee));
}

#[inline(always)]
fn max(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    let m = w.mode;
    hf2(w, s, |a, b| fp::max_f16(fp::flush_in_f16(a & 0xFFFF, m), fp::flush_in_f16(b & 0xFFFF, m), ieee));
}

#[inline(always)]
fn min3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    flushed3(w, s, |a, b, c| fp::min_f16(fp::min_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn max3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    flushed3(w, s, |a, b, c| fp::max_f16(fp::max_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn med3_f(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    flushed3(w, s, |a, b, c| fp::med3_f16(a, b, c, ieee));
}

#[inline(always)]
fn maxmin(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    flushed3(w, s, |a, b, c| fp::min_f16(fp::max_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn minmax(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    flushed3(w, s, |a, b, c| fp::max_f16(fp::min_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn soft_add(a: u32, b: u32, env: soft::Env) -> u32 {
    soft::add(F16, a.into(), b.into(), env) as u32
}

#[inline(always)]
fn soft_sub(a: u32, b: u32, env: soft::Env) -> u32 {
    soft::sub(F16, a.into(), b.into(), env) as u32
}

#[inline(always)]
fn soft_mul(a: u32, b: u32, env: soft::Env) -> u32 {
    soft::mul(F16, a.into(), b.into(), env) as u32
}

/// f16 unary operation whose rounding does not depend on MODE; denormals are flushed as MODE says.
#[inline(always)]
fn one(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32) {
    let m = w.mode;
    ha1(w, s, |a| nan::of1_16(a, f(a)), |a, _| nan::of1_16(a, f(fp::flush_in_f16(a, m))));
}

#[inline(always)]
fn fract(a: u32) -> u32 {
    let x = f16_to_f32(a);
    // A tiny negative x must not round up to 1.
    let r = f32_to_f16(x - x.floor());
    if fp::is_nan16(r) { r } else { r.min(0x3BFF) }
}

#[inline(always)]
fn ldexp(a: u32, e: u32) -> u32 {
    let scale = f64::from_bits(((1023 + sx(e).clamp(-80, 80)) as u64) << 52);
    nan::of1_16(a, fp::f64_to_f16(f64::from(f16_to_f32(a)) * scale))
}

#[inline(always)]
fn frexp_mant(a: u32) -> u32 {
    let a = a & 0xFFFF;
    let special = a & 0x7C00 == 0x7C00 || a & 0x7FFF == 0;
    let scaled = if a & 0x7C00 == 0 { f32_to_f16(f16_to_f32(a) * 1024.0) } else { a };
    if special { a } else { scaled & 0x83FF | 0x3800 }
}

#[inline(always)]
fn frexp_exp(a: u32) -> u32 {
    let a = a & 0xFFFF;
    let denormal = a & 0x7C00 == 0;
    let scaled = if denormal { f32_to_f16(f16_to_f32(a) * 1024.0) } else { a };
    let e = (scaled >> 10 & 31) as i32 - 14 - if denormal { 10 } else { 0 };
    if a & 0x7C00 == 0x7C00 || a & 0x7FFF == 0 { 0 } else { e as u32 }
}

/// 16-bit integer clamp is bit 0 of `out`, which may also hold the destination half.
#[inline(always)]
fn clamped(s: &Step) -> bool {
    s.out & crate::step::OUT_CLAMP != 0
}

#[inline(always)]
fn add_u16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h2(w, s, |a, b| ((a & 0xFFFF) + (b & 0xFFFF)).min(0xFFFF));
    } else {
        h2(w, s, |a, b| a.wrapping_add(b));
    }
}

#[inline(always)]
fn sub_u16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h2(w, s, |a, b| (a & 0xFFFF).saturating_sub(b & 0xFFFF));
    } else {
        h2(w, s, |a, b| a.wrapping_sub(b));
    }
}

#[inline(always)]
fn add_i16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h2(w, s, |a, b| (sx(a) + sx(b)).clamp(-0x8000, 0x7FFF) as u32);
    } else {
        h2(w, s, |a, b| a.wrapping_add(b));
    }
}

#[inline(always)]
fn sub_i16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h2(w, s, |a, b| (sx(a) - sx(b)).clamp(-0x8000, 0x7FFF) as u32);
    } else {
        h2(w, s, |a, b| a.wrapping_sub(b));
    }
}

#[inline(always)]
fn mad_u16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h3(w, s, |a, b, c| {
            let r = u64::from(a & 0xFFFF) * u64::from(b & 0xFFFF) + u64::from(c & 0xFFFF);
            r.min(0xFFFF) as u32
        });
    } else {
        h3(w, s, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    }
}

#[inline(always)]
fn mad_i16(w: &mut Wave, s: &Step) {
    if clamped(s) {
        h3(w, s, |a, b, c| {
            let r = i64::from(sx(a)) * i64::from(sx(b)) + i64::from(sx(c));
            r.clamp(-0x8000, 0x7FFF) as u32
        });
    } else {
        h3(w, s, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    }
}

#[inline(always)]
fn mad_u32_u16(w: &mut Wave, s: &Step) {
    let clamp = clamped(s);
    u3(w, s, |a, b, c| {
        let product = (a & 0xFFFF) * (b & 0xFFFF);
        if clamp { product.saturating_add(c) } else { product.wrapping_add(c) }
    });
}

#[inline(always)]
fn mad_i32_i16(w: &mut Wave, s: &Step) {
    let clamp = clamped(s);
    u3(w, s, |a, b, c| {
        let (product, c) = (sx(a) * sx(b), c as i32);
        (if clamp { product.saturating_add(c) } else { product.wrapping_add(c) }) as u32
    });
}
