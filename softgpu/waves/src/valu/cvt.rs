// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversions between f32, f16 and integers; float to integer truncates and saturates, NaN gives 0.

use super::fp::{self, f, f16_to_f32, f32_to_f16};
use super::half::sx;
use super::shapes::*;
use super::soft::{self, Format};
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

lane_table! {
    /// Conversion handlers.
    table:
    V_CVT_F32_I32 = from_i32;
    V_CVT_F32_U32 = from_u32;
    V_CVT_U32_F32 = u1 { |a| f(a) as u32 };
    V_CVT_I32_F32 = u1 { |a| f(a) as i32 as u32 };
    V_CVT_NEAREST_I32_F32 = u1 { |a| (f64::from(f(a)) + 0.5).floor() as i32 as u32 };
    V_CVT_FLOOR_I32_F32 = u1 { |a| f(a).floor() as i32 as u32 };
    V_CVT_F32_UBYTE0 = uf1 { |a| ((a & 0xFF) as i32 as f32).to_bits() };
    V_CVT_F32_UBYTE1 = uf1 { |a| ((a >> 8 & 0xFF) as i32 as f32).to_bits() };
    V_CVT_F32_UBYTE2 = uf1 { |a| ((a >> 16 & 0xFF) as i32 as f32).to_bits() };
    V_CVT_F32_UBYTE3 = uf1 { |a| ((a >> 24) as i32 as f32).to_bits() };
    V_CVT_OFF_F32_I4 = uf1 { |a| (((a << 28) as i32 >> 28) as f32 * 0.0625).to_bits() };
    V_CVT_F16_F32 = narrow;
    V_CVT_F32_F16 = widen;
    V_CVT_F16_U16 = ha1 { |a| f32_to_f16(a as i32 as f32), |a, e| from_integer16(i64::from(a), e) };
    V_CVT_F16_I16 = ha1 { |a| f32_to_f16(sx(a) as f32), |a, e| from_integer16(i64::from(sx(a)), e) };
    V_CVT_U16_F16 = h1 { |a| u32::from(f16_to_f32(a & 0xFFFF) as u16) };
    V_CVT_I16_F16 = h1 { |a| f16_to_f32(a & 0xFFFF) as i16 as u16 as u32 };
    V_CVT_I32_I16 = u1 { |a| sx(a) as u32 };
    V_CVT_U32_U16 = u1 { |a| a & 0xFFFF };
    V_CVT_PK_RTZ_F16_F32 = u2 { |a, b| fp::f32_to_f16_rtz(f(a)) | fp::f32_to_f16_rtz(f(b)) << 16 };
    V_CVT_PK_I16_F32 = u2 { |a, b| u32::from(f(a) as i16 as u16) | u32::from(f(b) as i16 as u16) << 16 };
    V_CVT_PK_U16_F32 = u2 { |a, b| u32::from(f(a) as u16) | u32::from(f(b) as u16) << 16 };
    V_CVT_PK_NORM_I16_F32 = u2 { |a, b| snorm(f(a)) | snorm(f(b)) << 16 };
    V_CVT_PK_NORM_U16_F32 = u2 { |a, b| unorm(f(a)) | unorm(f(b)) << 16 };
    V_CVT_PK_NORM_I16_F16 = u2 { |a, b| snorm(f16_to_f32(a & 0xFFFF)) | snorm(f16_to_f32(b & 0xFFFF)) << 16 };
    V_CVT_PK_NORM_U16_F16 = u2 { |a, b| unorm(f16_to_f32(a & 0xFFFF)) | unorm(f16_to_f32(b & 0xFFFF)) << 16 };
    V_CVT_NORM_I16_F16 = h1 { |a| snorm(f16_to_f32(a & 0xFFFF)) };
    V_CVT_NORM_U16_F16 = h1 { |a| unorm(f16_to_f32(a & 0xFFFF)) };
    V_CVT_PK_U16_U32 = u2 { |a, b| a.min(0xFFFF) | b.min(0xFFFF) << 16 };
    V_CVT_PK_I16_I32 = u2 { |a, b| clamp16(a) | clamp16(b) << 16 };
    V_CVT_PK_U8_F32 = u3 { pack_byte };
    V_SAT_PK_U8_I16 = h1 { |a| (sx(a).clamp(0, 255) | sx(a >> 16).clamp(0, 255) << 8) as u32 };
}

#[inline(always)]
fn from_integer16(x: i64, env: soft::Env) -> u32 {
    soft::from_integer(Format::F16, x, env) as u32
}

#[inline(always)]
fn clamp16(x: u32) -> u32 {
    (x as i32).clamp(-0x8000, 0x7FFF) as u32 & 0xFFFF
}

/// -1..=1 to -32767..=32767; the product is exact in f64, so it is rounded once.
#[inline(always)]
fn snorm(x: f32) -> u32 {
    let x = if x.is_nan() { 0.0 } else { f64::from(x.clamp(-1.0, 1.0)) };
    (x * 32767.0).round_ties_even() as i32 as u32 & 0xFFFF
}

/// 0..=1 to 0..=65535.
#[inline(always)]
fn unorm(x: f32) -> u32 {
    let x = if x.is_nan() { 0.0 } else { f64::from(x.clamp(0.0, 1.0)) };
    (x * 65535.0).round_ties_even() as i32 as u32 & 0xFFFF
}

#[inline(always)]
fn pack_byte(a: u32, b: u32, c: u32) -> u32 {
    let shift = (b & 3) * 8;
    let byte = u32::from(f(a).round_ties_even() as u8);
    c & !(0xFF << shift) | byte << shift
}

#[inline(always)]
fn from_i32(w: &mut Wave, s: &Step) {
    if w.f32_default() {
        uf1(w, s, |a| (a as i32 as f32).to_bits());
    } else {
        let env = soft::Env::f32(w.mode);
        uf1(w, s, |a| soft::from_integer(Format::F32, i64::from(a as i32), env) as u32);
    }
}

#[inline(always)]
fn from_u32(w: &mut Wave, s: &Step) {
    if w.f32_default() {
        uf1(w, s, |a| (a as f32).to_bits());
    } else {
        let env = soft::Env::f32(w.mode);
        uf1(w, s, |a| soft::from_integer(Format::F32, i64::from(a), env) as u32);
    }
}

#[inline(always)]
fn narrow(w: &mut Wave, s: &Step) {
    if w.f32_default() && w.f16_64_default() {
        hf1(w, s, |a| f32_to_f16(f(a)));
    } else {
        let m = w.mode;
        hf1(w, s, |a| {
            let flush_in = m & 0x10 == 0;
            soft::convert(Format::F32, Format::F16, a.into(), flush_in, soft::Env::f16_64(m)) as u32
        });
    }
}

#[inline(always)]
fn widen(w: &mut Wave, s: &Step) {
    let m = w.mode;
    if w.f16_64_default() {
        uf1(w, s, |a| f16_to_f32(a & 0xFFFF).to_bits());
    } else {
        uf1(w, s, |a| f16_to_f32(fp::flush_in_f16(a & 0xFFFF, m)).to_bits());
    }
}
