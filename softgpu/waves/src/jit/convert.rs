// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline conversions between f32, f16 and integers.
//!
//! INVARIANT: float to integer truncates and saturates and NaN gives 0; a 16-bit result keeps the other half of its
//! register.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::codes::{
    self, COMPARE_PS_Y, Codes, FROM_I32, LEFT_BY, MAX_I, MIN_I, MIN_U, MUL_PS, RIGHT_BY, RIGHT_SIGNED_BY,
};
use super::floats::Floats;
use super::generator::{Emit, Gen, Wide};
use super::mix;
use super::transcend::half;
use crate::step::{Kind, OUT_HIGH, Src, Step, mods};

pub(super) const COMPARE_PS: Code = Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
/// Predicates of vcmpps.
pub(super) const ORDERED: i32 = 0x07;
const NOT_BELOW: i32 = 0x1D;
const ABOVE: i32 = 0x1E;
/// Rounding of vcvtps2ph.
pub(super) const NEAREST: i32 = 0;
const TO_ZERO: i32 = 3;
const TO_F16: Codes =
    Codes { z: Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae, y: Code::VEX_Vcvtps2ph_xmmm128_ymm_imm8 };
const FROM_F16: Codes =
    Codes { z: Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae, y: Code::VEX_Vcvtph2ps_ymm_xmmm128 };
const FROM_WORDS: Codes =
    Codes { z: Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256, y: Code::VEX_Vpmovzxwd_ymm_xmmm128 };
const BLEND_WORDS: Codes = Codes { z: Code::INVALID, y: Code::VEX_Vpblendw_ymm_ymm_ymmm256_imm8 };
/// vpternlogd: `first & third | second`.
pub(super) const AND_OR: i32 = 0xEC;
/// vpternlogd: `third ? second : first`.
const PICK: i32 = 0xD8;

/// Whether sources are 16 bits wide, or may be, and have only modifiers that this module implements.
pub(super) fn reads_half(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        V_CVT_F32_F16 | V_CVT_I32_I16 | V_CVT_U32_U16 | V_CVT_F16_U16 | V_CVT_F16_I16 | V_PACK_B32_F16
    ) || mix::is_mix(op)
}

/// Whether the result is 16 bits wide, so that the other half of the register stays.
pub(super) fn writes_half(op: Op) -> bool {
    matches!(
        op,
        Op::V_CVT_F16_F32 | Op::V_CVT_F16_U16 | Op::V_CVT_F16_I16 | Op::V_FMA_MIXLO_F16 | Op::V_FMA_MIXHI_F16
    )
}

/// The emitter of a conversion.
pub(super) fn emitter(op: Op, floats: Floats) -> Option<Emit> {
    // Integer results and packed ones do not depend on MODE.
    let any: Option<Emit> = match op {
        Op::V_CVT_I32_F32 => Some(|g, s, c| to_i32(g, s, c, false)),
        Op::V_CVT_FLOOR_I32_F32 => Some(|g, s, c| to_i32(g, s, c, true)),
        Op::V_CVT_U32_F32 => Some(to_u32),
        Op::V_CVT_PK_RTZ_F16_F32 => Some(pack_f16),
        Op::V_PACK_B32_F16 => Some(pack_halves),
        Op::V_CVT_I32_I16 => Some(|g, s, c| integer16(g, s, c, RIGHT_SIGNED_BY)),
        Op::V_CVT_U32_U16 => Some(|g, s, c| integer16(g, s, c, RIGHT_BY)),
        Op::V_CVT_PK_U16_U32 => Some(pack_u16),
        Op::V_CVT_PK_I16_I32 => Some(pack_i16),
        _ => None,
    };
    if any.is_some() {
        return any;
    }
    let f16: Option<Emit> = match op {
        Op::V_CVT_F32_F16 => Some(to_f32),
        Op::V_CVT_F16_F32 => Some(to_f16),
        _ => None,
    };
    if f16.is_some() {
        return f16.filter(|_| floats.f32_default && floats.f16_64_default);
    }
    match op {
        Op::V_CVT_F16_U16 => {
            return floats.f16_64_default.then_some(|g, s, c| from_integer16(g, s, c, RIGHT_BY));
        }
        Op::V_CVT_F16_I16 => {
            return floats.f16_64_default.then_some(|g, s, c| from_integer16(g, s, c, RIGHT_SIGNED_BY));
        }
        _ => {}
    }
    let f32: Emit = match op {
        Op::V_CVT_F32_UBYTE0 => |g, s, c| from_byte(g, s, c, 0),
        Op::V_CVT_F32_UBYTE1 => |g, s, c| from_byte(g, s, c, 1),
        Op::V_CVT_F32_UBYTE2 => |g, s, c| from_byte(g, s, c, 2),
        Op::V_CVT_F32_UBYTE3 => |g, s, c| from_byte(g, s, c, 3),
        Op::V_CVT_OFF_F32_I4 => from_nibble,
        _ => return None,
    };
    floats.f32_default.then_some(f32)
}

/// Codes of an operation that AVX2 does not have here.
pub(super) const fn only(z: Code) -> Codes {
    Codes { z, y: Code::INVALID }
}

/// `to = floor of a`.
pub(super) fn floor(g: &mut Gen, to: Register, a: Register) {
    let code = match g.wide {
        Wide::Z => Code::EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae,
        Wide::Y => Code::VEX_Vroundps_ymm_ymmm256_imm8,
    };
    g.asm.op3(code, to, a, 9);
}

fn to_i32(g: &mut Gen, s: &Step, c: usize, down: bool) {
    let mut a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    if down {
        floor(g, t, a);
        a = t;
    }
    let limit = g.constant_argument(2_147_483_648f32.to_bits());
    // The host instruction gives the least integer for values out of range; one below is right for those below it.
    if g.wide == Wide::Y {
        let (r, above) = (g.temporary(), g.temporary());
        g.asm.op2(Code::VEX_Vcvttps2dq_ymm_ymmm256, r, a);
        g.asm.op4(COMPARE_PS_Y, above, a, limit, NOT_BELOW);
        g.op3(codes::XOR, r, r, above);
        g.asm.op4(COMPARE_PS_Y, above, a, a, ORDERED);
        return g.finish(codes::AND, s.dst, 0, c, &[r.into(), above.into()]);
    }
    g.asm.op4(COMPARE_PS, Register::K5, a, a, ORDERED);
    g.asm.op4(COMPARE_PS, Register::K6, a, limit, NOT_BELOW);
    g.asm.zeroed(Code::EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae, Register::K5, &[t.into(), a.into()]);
    let most = g.asm.constant_once(i32::MAX as u32);
    g.asm.masked(codes::BROADCAST.z, Register::K6, &[t.into(), most.into()]);
    g.result(s.dst, 0, c, t);
}

fn to_u32(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let (t, zero) = (g.temporary(), g.constant(0));
    if g.wide == Wide::Y {
        return to_u32_avx2(g, s, c, [a, t, zero]);
    }
    g.asm.op4(COMPARE_PS, Register::K5, a, zero, ABOVE);
    // The host instruction gives the greatest integer for values above the range.
    g.asm.zeroed(Code::EVEX_Vcvttps2udq_zmm_k1z_zmmm512b32_sae, Register::K5, &[t.into(), a.into()]);
    g.result(s.dst, 0, c, t);
}

/// From 2^31 on, 2^31 is subtracted first; from 2^32 on, the host instruction still gives the least integer.
fn to_u32_avx2(g: &mut Gen, s: &Step, c: usize, [a, t, r]: [Register; 3]) {
    let high = g.temporary();
    // For a NaN the second operand.
    g.asm.op3(Code::VEX_Vmaxps_ymm_ymm_ymmm256, t, a, r);
    let limit = g.constant_argument(2_147_483_648f32.to_bits());
    g.asm.op4(COMPARE_PS_Y, high, t, limit, NOT_BELOW);
    g.op3(codes::AND, r, high, limit);
    g.op3(codes::SUB_PS, t, t, r);
    g.asm.op2(Code::VEX_Vcvttps2dq_ymm_ymmm256, t, t);
    g.op3(RIGHT_SIGNED_BY, r, t, 31);
    g.op3(LEFT_BY, high, high, 31);
    g.op3(codes::XOR, t, t, high);
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), r.into()]);
}

/// A 16-bit source in the low halves of the lanes; the high halves have no meaning.
fn half_source(g: &mut Gen, s: &Src, c: usize) -> Register {
    let kind = match s.kind {
        Kind::VgprMod => Kind::Vgpr,
        Kind::ScalarMod => Kind::Scalar,
        _ => return g.source(s, 0, c),
    };
    let a = g.source(&Src { kind, mods: 0, ..*s }, 0, c);
    let t = g.temporary();
    let by = if s.mods & mods::LO_FROM_HI != 0 { 16 } else { 0 };
    g.op3(RIGHT_BY, t, a, by);
    if s.mods & mods::ABS_LO != 0 {
        let k = g.constant_argument(0x7FFF);
        g.op3(codes::AND, t, t, k);
    }
    if s.mods & mods::NEG_LO != 0 {
        let k = g.constant_argument(0x8000);
        g.op3(codes::XOR, t, t, k);
    }
    t
}

/// The low halves of `t`, whose high halves are zero, become the half of the destination that `s` selects.
pub(super) fn half_result(g: &mut Gen, s: &Step, c: usize, t: Register) {
    let high = s.out & OUT_HIGH != 0;
    if high {
        g.op3(LEFT_BY, t, t, 16);
    }
    if g.wide == Wide::Y {
        let piece = g.piece(s.dst, 0, c);
        let old = g.piece_register(piece);
        let words = if high { 0xAA } else { 0x55 };
        return g.finish(BLEND_WORDS, s.dst, 0, c, &[old.into(), t.into(), words.into()]);
    }
    let keep = g.asm.constant(if high { 0xFFFF } else { 0xFFFF_0000 });
    let d = g.destination(s.dst, 0, c, true);
    let code = Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8;
    match g.masked {
        true => {
            let exec = g.exec(c);
            g.asm.masked(code, exec, &[d.into(), t.into(), keep.into(), AND_OR.into()]);
        }
        false => g.asm.op4(code, d, t, keep, AND_OR),
    }
}

/// `destination = source 1 << 16 | source 0`, of 16 bits each.
fn pack_halves(g: &mut Gen, s: &Step, c: usize) {
    let (a, b) = (half_source(g, &s.src[0], c), half_source(g, &s.src[1], c));
    let t = g.temporary();
    g.op3(LEFT_BY, t, b, 16);
    if g.wide == Wide::Y {
        return g.finish(BLEND_WORDS, s.dst, 0, c, &[t.into(), a.into(), 0x55.into()]);
    }
    let low = g.asm.constant(0xFFFF);
    g.asm.op4(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8, t, a, low, PICK);
    g.result(s.dst, 0, c, t);
}

fn to_f32(g: &mut Gen, s: &Step, c: usize) {
    let a = half_source(g, &s.src[0], c);
    let (t, u) = (g.temporary(), g.temporary());
    words(g, t, a, u);
    g.finish(FROM_F16, s.dst, 0, c, &[half(t).into()]);
}

/// The lower part of `t` = the low halves of `from`, which may be `t`. `u` is overwritten (AVX2).
fn words(g: &mut Gen, t: Register, from: Register, u: Register) {
    match g.wide {
        Wide::Z => g.asm.op2(Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, half(t), from),
        Wide::Y => {
            let low = g.constant_argument(0xFFFF);
            g.op3(codes::AND, t, from, low);
            g.asm.op3(Code::VEX_Vextracti128_xmmm128_ymm_imm8, half(u), t, 1);
            g.asm.op3(Code::VEX_Vpackusdw_xmm_xmm_xmmm128, half(t), half(t), half(u));
        }
    }
}

/// An f16 source as f32, in a temporary. `u` is overwritten.
pub(super) fn wide_source(g: &mut Gen, s: &Src, c: usize, u: Register) -> Register {
    let a = half_source(g, s, c);
    let is_temporary = matches!(s.kind, Kind::VgprMod | Kind::ScalarMod);
    let t = if is_temporary { a } else { g.temporary() };
    words(g, t, a, u);
    g.op2(FROM_F16, t, half(t));
    t
}

/// `t = f16 of from`, in low halves.
pub(super) fn narrow(g: &mut Gen, t: Register, from: Register, rounding: i32) {
    g.op3(TO_F16, half(t), from, rounding);
    g.op2(FROM_WORDS, t, half(t));
}

fn to_f16(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    narrow(g, t, a, NEAREST);
    half_result(g, s, c, t);
}

fn pack_f16(g: &mut Gen, s: &Step, c: usize) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (t, u) = (g.temporary(), g.temporary());
    narrow(g, t, a, TO_ZERO);
    narrow(g, u, b, TO_ZERO);
    g.op3(LEFT_BY, u, u, 16);
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), u.into()]);
}

/// Sign- or zero-extended low half.
fn integer16(g: &mut Gen, s: &Step, c: usize, down: Codes) {
    let a = half_source(g, &s.src[0], c);
    let t = g.temporary();
    g.op3(LEFT_BY, t, a, 16);
    g.finish(down, s.dst, 0, c, &[t.into(), 16.into()]);
}

/// f16 of an integer of 16 bits: exact as f32, rounded once.
fn from_integer16(g: &mut Gen, s: &Step, c: usize, down: Codes) {
    let a = half_source(g, &s.src[0], c);
    let t = g.temporary();
    g.op3(LEFT_BY, t, a, 16);
    g.op3(down, t, t, 16);
    g.op2(FROM_I32, t, t);
    narrow(g, t, t, NEAREST);
    half_result(g, s, c, t);
}

fn pack_u16(g: &mut Gen, s: &Step, c: usize) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (t, u) = (g.temporary(), g.temporary());
    let most = g.constant_argument(0xFFFF);
    for (to, from) in [(t, a), (u, b)] {
        g.op3(MIN_U, to, from, most);
    }
    g.op3(LEFT_BY, u, u, 16);
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), u.into()]);
}

fn pack_i16(g: &mut Gen, s: &Step, c: usize) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (t, u) = (g.temporary(), g.temporary());
    let (least, most) = (g.constant_argument(-0x8000i32 as u32), g.constant_argument(0x7FFF));
    for (to, from) in [(t, a), (u, b)] {
        g.op3(MAX_I, to, from, least);
        g.op3(MIN_I, to, to, most);
        g.op3(LEFT_BY, to, to, 16);
    }
    g.op3(RIGHT_BY, t, t, 16);
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), u.into()]);
}

fn from_byte(g: &mut Gen, s: &Step, c: usize, byte: i32) {
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    g.op3(RIGHT_BY, t, a, 8 * byte);
    if byte != 3 {
        let k = g.constant_argument(0xFF);
        g.op3(codes::AND, t, t, k);
    }
    g.finish(FROM_I32, s.dst, 0, c, &[t.into()]);
}

/// Signed low nibble, in sixteenths.
fn from_nibble(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    g.op3(LEFT_BY, t, a, 28);
    g.op3(RIGHT_SIGNED_BY, t, t, 28);
    g.op2(FROM_I32, t, t);
    let k = g.constant_argument(0.0625f32.to_bits());
    g.finish(MUL_PS, s.dst, 0, c, &[t.into(), k]);
}
