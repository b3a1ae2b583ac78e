// SPDX-License-Identifier: MIT OR Apache-2.0
//! 16-bit operations: f16 arithmetic and 16-bit integers; the untouched half of the destination is kept.

use super::fp::{self, f16_to_f32, f32_to_f16};
use super::int::med3;
use super::shapes::*;
use super::{div, trans};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

const ONE: u32 = 0x3C00;
const SIGN: u32 = 0x8000;

lane_table! {
    /// 16-bit handlers.
    table:
    V_ADD_F16 = ha2 { |a, b| f32_to_f16(f16_to_f32(a) + f16_to_f32(b)), |a, b| [a, ONE, b] };
    V_SUB_F16 = ha2 { |a, b| f32_to_f16(f16_to_f32(a) - f16_to_f32(b)), |a, b| [a, ONE, b ^ SIGN] };
    V_SUBREV_F16 = ha2 { |a, b| f32_to_f16(f16_to_f32(b) - f16_to_f32(a)), |a, b| [b, ONE, a ^ SIGN] };
    V_MUL_F16 = ha2 { |a, b| f32_to_f16(f16_to_f32(a) * f16_to_f32(b)), |a, b| [a, b, (a ^ b) & SIGN] };
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
    V_FLOOR_F16 = hf1 { |a| f32_to_f16(f16_to_f32(a & 0xFFFF).floor()) };
    V_CEIL_F16 = hf1 { |a| f32_to_f16(f16_to_f32(a & 0xFFFF).ceil()) };
    V_TRUNC_F16 = hf1 { |a| f32_to_f16(f16_to_f32(a & 0xFFFF).trunc()) };
    V_RNDNE_F16 = hf1 { |a| f32_to_f16(f16_to_f32(a & 0xFFFF).round_ties_even()) };
    V_FRACT_F16 = hf1 { fract };
    V_RCP_F16 = hf1 { |a| fp::f64_to_f16(1.0 / f64::from(f16_to_f32(a & 0xFFFF))) };
    V_SQRT_F16 = hf1 { |a| f32_to_f16(f16_to_f32(a & 0xFFFF).sqrt()) };
    V_RSQ_F16 = hf1 { |a| fp::f64_to_f16(1.0 / f64::from(f16_to_f32(a & 0xFFFF)).sqrt()) };
    V_EXP_F16 = hf1 { |a| f32_to_f16(fp::f(trans::exp2(f16_to_f32(a & 0xFFFF).to_bits()))) };
    V_LOG_F16 = hf1 { |a| f32_to_f16(fp::f(trans::log2(f16_to_f32(a & 0xFFFF).to_bits()))) };
    V_SIN_F16 = hf1 { |a| f32_to_f16(fp::f(trans::sin(f16_to_f32(a & 0xFFFF).to_bits()))) };
    V_COS_F16 = hf1 { |a| f32_to_f16(fp::f(trans::cos(f16_to_f32(a & 0xFFFF).to_bits()))) };
    V_LDEXP_F16 = hf2 { |a, b| ldexp(a & 0xFFFF, i32::from(b as u16 as i16)) };
    V_FREXP_MANT_F16 = hf1 { frexp_mant };
    V_FREXP_EXP_I16_F16 = h1 { frexp_exp };
    V_DIV_FIXUP_F16 = hf3 { div::fixup16 };
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
    V_MAD_U32_U16 = u3 { |a, b, c| (a & 0xFFFF).wrapping_mul(b & 0xFFFF).wrapping_add(c) };
    V_MAD_I32_I16 = u3 { |a, b, c| (sx(a).wrapping_mul(sx(b)) as u32).wrapping_add(c) };
}

/// Sign-extends the low half.
#[inline(always)]
pub(crate) fn sx(x: u32) -> i32 {
    i32::from(x as u16 as i16)
}

#[inline(always)]
fn min(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf2(w, s, |a, b| fp::min_f16(a, b, ieee));
}

#[inline(always)]
fn max(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf2(w, s, |a, b| fp::max_f16(a, b, ieee));
}

#[inline(always)]
fn min3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf3(w, s, |a, b, c| fp::min_f16(fp::min_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn max3(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf3(w, s, |a, b, c| fp::max_f16(fp::max_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn med3_f(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf3(w, s, |a, b, c| fp::med3_f16(a, b, c, ieee));
}

#[inline(always)]
fn maxmin(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf3(w, s, |a, b, c| fp::min_f16(fp::max_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn minmax(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    hf3(w, s, |a, b, c| fp::max_f16(fp::min_f16(a, b, ieee), c, ieee));
}

#[inline(always)]
fn fract(a: u32) -> u32 {
    let x = f16_to_f32(a & 0xFFFF);
    // A tiny negative x must not round up to 1.
    let r = f32_to_f16(x - x.floor());
    if x.is_nan() { a | 0x200 } else { r.min(0x3BFF) }
}

#[inline(always)]
fn ldexp(a: u32, e: i32) -> u32 {
    let scale = f64::from_bits(((1023 + e.clamp(-80, 80)) as u64) << 52);
    fp::f64_to_f16(f64::from(f16_to_f32(a)) * scale)
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
