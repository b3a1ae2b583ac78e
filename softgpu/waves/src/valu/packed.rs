// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packed 16-bit operations, dot products and mixed-precision multiply-add (VOP3P).

use super::fp::{self, f16_to_f32};
use super::half::sx;
use super::nan;
use super::shapes::*;
use super::soft::{self, Format};
use crate::level::lane_table;
use crate::step::{OUT_CLAMP, Step};
use crate::wave::Wave;

lane_table! {
    /// Packed handlers.
    table:
    V_PK_ADD_F16 = pa2 { nan::add16, |a, b, e| soft::add(Format::F16, a.into(), b.into(), e) as u32 };
    V_PK_MUL_F16 = pa2 { nan::mul16, |a, b, e| soft::mul(Format::F16, a.into(), b.into(), e) as u32 };
    V_PK_FMA_F16 = pfma;
    V_PK_FMAC_F16 = pfma;
    V_PK_MIN_F16 = pk_min;
    V_PK_MAX_F16 = pk_max;
    V_PK_ADD_U16 = pk_add_u16;
    V_PK_SUB_U16 = pk_sub_u16;
    V_PK_ADD_I16 = pk_add_i16;
    V_PK_SUB_I16 = pk_sub_i16;
    V_PK_MUL_LO_U16 = p2 { |a, b| a.wrapping_mul(b) };
    V_PK_MAD_U16 = pk_mad_u16;
    V_PK_MAD_I16 = pk_mad_i16;
    V_PK_LSHLREV_B16 = p2 { |a, b| b << (a & 15) };
    V_PK_LSHRREV_B16 = p2 { |a, b| b >> (a & 15) };
    V_PK_ASHRREV_I16 = p2 { |a, b| (sx(b) >> (a & 15)) as u32 };
    V_PK_MAX_I16 = p2 { |a, b| sx(a).max(sx(b)) as u32 };
    V_PK_MIN_I16 = p2 { |a, b| sx(a).min(sx(b)) as u32 };
    V_PK_MAX_U16 = p2 { |a, b| a.max(b) };
    V_PK_MIN_U16 = p2 { |a, b| a.min(b) };
    V_PACK_B32_F16 = u2 { |a, b| (a & 0xFFFF) | b << 16 };
    V_DOT2_F32_F16 = uf3 { dot2_f32_f16 };
    V_DOT2ACC_F32_F16 = uf3 { dot2_f32_f16 };
    V_DOT2_F32_BF16 = uf3 { dot2_f32_bf16 };
    V_DOT2_F16_F16 = hf3 { dot2_f16_f16 };
    V_DOT2_BF16_BF16 = h3 { dot2_bf16_bf16 };
    V_DOT4_I32_IU8 = dot4_iu8;
    V_DOT4_U32_U8 = dot4_u8;
    V_DOT8_I32_IU4 = dot8_iu4;
    V_DOT8_U32_U4 = dot8_u4;
    V_FMA_MIX_F32 = mix_f32;
    V_FMA_MIXLO_F16 = mix_f16;
    V_FMA_MIXHI_F16 = mix_f16;
}

#[inline(always)]
fn pk_min(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    pm2(w, s, |a, b| fp::min_f16(a, b, ieee));
}

#[inline(always)]
fn pk_max(w: &mut Wave, s: &Step) {
    let ieee = w.ieee();
    pm2(w, s, |a, b| fp::max_f16(a, b, ieee));
}

#[inline(always)]
fn pk_add_u16(w: &mut Wave, s: &Step) {
    if s.out == 0 { p2(w, s, |a, b| a + b) } else { p2(w, s, |a, b| (a + b).min(0xFFFF)) }
}

#[inline(always)]
fn pk_sub_u16(w: &mut Wave, s: &Step) {
    if s.out == 0 { p2(w, s, |a, b| a.wrapping_sub(b)) } else { p2(w, s, |a, b| a.saturating_sub(b)) }
}

#[inline(always)]
fn saturate_i16(x: i32) -> u32 {
    x.clamp(-0x8000, 0x7FFF) as u32
}

#[inline(always)]
fn pk_add_i16(w: &mut Wave, s: &Step) {
    if s.out == 0 { p2(w, s, |a, b| a + b) } else { p2(w, s, |a, b| saturate_i16(sx(a) + sx(b))) }
}

#[inline(always)]
fn pk_sub_i16(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        p2(w, s, |a, b| a.wrapping_sub(b));
    } else {
        p2(w, s, |a, b| saturate_i16(sx(a) - sx(b)));
    }
}

#[inline(always)]
fn pk_mad_u16(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        p3(w, s, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    } else {
        p3(w, s, |a, b, c| (u64::from(a) * u64::from(b) + u64::from(c)).min(0xFFFF) as u32);
    }
}

#[inline(always)]
fn pk_mad_i16(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        p3(w, s, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    } else {
        p3(w, s, |a, b, c| {
            let r = i64::from(sx(a)) * i64::from(sx(b)) + i64::from(sx(c));
            r.clamp(-0x8000, 0x7FFF) as u32
        });
    }
}

/// `c + a.lo*b.lo + a.hi*b.hi`, two fused steps, f32 denormals always flushed.
#[inline(always)]
fn dot2(a: [u32; 2], b: [u32; 2], c: u32) -> u32 {
    let low = nan::fma32(a[0], b[0], fp::flush_f32(c));
    fp::flush_f32(nan::fma32(a[1], b[1], low))
}

#[inline(always)]
fn dot2_f32_f16(a: u32, b: u32, c: u32) -> u32 {
    let split = |x: u32| [f16_to_f32(x & 0xFFFF).to_bits(), f16_to_f32(x >> 16).to_bits()];
    dot2(split(a), split(b), c)
}

/// Round to nearest even; NaNs stay NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

#[inline(always)]
fn dot2_f32_bf16(a: u32, b: u32, c: u32) -> u32 {
    dot2([a << 16, a & 0xFFFF_0000], [b << 16, b & 0xFFFF_0000], c)
}

#[inline(always)]
fn dot2_f16_f16(a: u32, b: u32, c: u32) -> u32 {
    let split = |x: u32| [f64::from(f16_to_f32(x & 0xFFFF)), f64::from(f16_to_f32(x >> 16))];
    let (x, y) = (split(a), split(b));
    let low = fp::add_to_odd(x[0] * y[0], f64::from(f16_to_f32(c & 0xFFFF)));
    let r = fp::f64_to_f16(fp::add_to_odd(x[1] * y[1], low));
    // The NaN of the inner step counts as the addend of the outer step.
    let inner = nan::of3_16(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF, if low.is_nan() { 0xFE00 } else { 0 });
    nan::of3_16(a >> 16, b >> 16, inner, r)
}

#[inline(always)]
fn dot2_bf16_bf16(a: u32, b: u32, c: u32) -> u32 {
    let low = nan::fma32(a << 16, b << 16, c << 16);
    f32_to_bf16(fp::f(nan::fma32(a & 0xFFFF_0000, b & 0xFFFF_0000, low)))
}

/// Sum of products of `n` fields of `bits` bits; signedness per operand.
#[inline(always)]
fn dot_fields(a: u32, b: u32, bits: u32, signed_a: bool, signed_b: bool) -> i64 {
    let field = |x: u32, k: u32, signed: bool| {
        let up = x << (32 - bits * (k + 1));
        if signed { i64::from(up as i32 >> (32 - bits)) } else { i64::from(up >> (32 - bits)) }
    };
    let mut sum = 0;
    for k in 0..32 / bits {
        sum += field(a, k, signed_a) * field(b, k, signed_b);
    }
    sum
}

#[inline(always)]
fn dot_signed(w: &mut Wave, s: &Step, bits: u32) {
    // Predecode leaves NEG in the flags: on these operations it means "signed".
    let (sa, sb) = (s.flags & 1 != 0, s.flags & 2 != 0);
    let clamp = s.out & OUT_CLAMP != 0;
    u3(w, s, |a, b, c| {
        let sum = dot_fields(a, b, bits, sa, sb) + i64::from(c as i32);
        if clamp { sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32 } else { sum as u32 }
    });
}

#[inline(always)]
fn dot_unsigned(w: &mut Wave, s: &Step, bits: u32) {
    let clamp = s.out & OUT_CLAMP != 0;
    u3(w, s, |a, b, c| {
        let sum = dot_fields(a, b, bits, false, false) + i64::from(c);
        if clamp { sum.min(u32::MAX.into()) as u32 } else { sum as u32 }
    });
}

#[inline(always)]
fn dot4_iu8(w: &mut Wave, s: &Step) {
    dot_signed(w, s, 8);
}

#[inline(always)]
fn dot4_u8(w: &mut Wave, s: &Step) {
    dot_unsigned(w, s, 8);
}

#[inline(always)]
fn dot8_iu4(w: &mut Wave, s: &Step) {
    dot_signed(w, s, 4);
}

#[inline(always)]
fn dot8_u4(w: &mut Wave, s: &Step) {
    dot_unsigned(w, s, 4);
}

/// A source of v_fma_mix as f32 bits: an f16 when its flag is set, flushed as MODE says for its own format.
#[inline(always)]
fn mix_source(s: &Step, k: usize, x: u32, m: u32) -> u32 {
    if s.flags >> k & 1 != 0 {
        f16_to_f32(fp::flush_in_f16(x & 0xFFFF, m)).to_bits()
    } else {
        fp::flush_in_f32(x, m)
    }
}

#[inline(always)]
fn mix_f32(w: &mut Wave, s: &Step) {
    let m = w.mode;
    if w.f32_default() && w.f16_64_default() {
        uf3(w, s, |a, b, c| {
            nan::fma32(mix_source(s, 0, a, m), mix_source(s, 1, b, m), mix_source(s, 2, c, m))
        });
    } else {
        let env = soft::Env::f32(m);
        uf3(w, s, |a, b, c| {
            let [x, y, z] = [(0, a), (1, b), (2, c)].map(|(k, v)| u64::from(mix_source(s, k, v, m)));
            soft::fma(Format::F32, x, y, z, 0, env) as u32
        });
    }
}

#[inline(always)]
fn mix_f16(w: &mut Wave, s: &Step) {
    let m = w.mode;
    let env = soft::Env::f16_64(m);
    hf3(w, s, |a, b, c| {
        fma_to_f16(mix_source(s, 0, a, m), mix_source(s, 1, b, m), mix_source(s, 2, c, m), env)
    });
}

/// `x * y + z` of f32, rounded once, to f16.
#[inline(always)]
pub(super) fn fma_to_f16(x: u32, y: u32, z: u32, env: soft::Env) -> u32 {
    // The f64 product of two f32 is exact; rounding the sum to odd leaves one rounding to f16.
    let sum = fp::add_to_odd(f64::from(fp::f(x)) * f64::from(fp::f(y)), f64::from(fp::f(z)));
    let r = if env.round == 0 && !env.flush_out {
        fp::f64_to_f16(sum)
    } else {
        // A zero sum of addends with different signs is negative when rounding down.
        let signs = (x ^ y) & 0x8000_0000 == z & 0x8000_0000;
        let zero = if !signs && env.round == 2 { -0.0 } else { sum };
        let sum = if sum == 0.0 { zero } else { sum };
        soft::convert(Format::F64, Format::F16, sum.to_bits(), false, env) as u32
    };
    let narrow = |x: u32| if fp::is_nan32(x) { fp::f32_to_f16(fp::f(x)) } else { 0 };
    nan::of3_16(narrow(x), narrow(y), narrow(z), r)
}
