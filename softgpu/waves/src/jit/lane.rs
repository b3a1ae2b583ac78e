// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which lane-wise steps are emitted inline, and how.
//!
//! INVARIANT: an inline step gives the same bits as its handler, in the MODE that the program was compiled for. A step
//! with an operand or modifier that this module does not implement is done by its handler.

use iced_x86::Code;
use softgpu_isa::{Class, Op, info};

use super::bits;
use super::carry;
use super::codes;
use super::codes::{ADD_PS, Codes, FROM_I32, MAX_I, MAX_U, MIN_I, MIN_U, MUL_PS, MULLO, SUB_PS};
use super::compare;
use super::convert;
use super::dpp;
use super::extremes;
use super::floats::Floats;
use super::generator::{Access, Accesses, Emit, Gen, Wide};
use super::integer;
use super::mix;
use super::permute_rows;
use super::special;
use super::transcend;
use crate::step::{FLAG_ALL_LANES, FLAG_DPP_MASK, Kind, OUT_HIGH, Step, mods};

macro_rules! evex_vex {
    ($z:ident, $y:ident) => {
        Codes { z: Code::$z, y: Code::$y }
    };
    ($z:ident) => {
        Codes { z: Code::$z, y: Code::INVALID }
    };
}

const ROUND: Codes = evex_vex!(EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae, VEX_Vroundps_ymm_ymmm256_imm8);
const FROM_U32: Codes = evex_vex!(EVEX_Vcvtudq2ps_zmm_k1z_zmmm512b32_er);

/// `destination = op(source 0, source 1)`.
fn two(g: &mut Gen, s: &Step, c: usize, codes: Codes, swap: bool) {
    let (i, j) = if swap || constant_first(s, &codes) { (1, 0) } else { (0, 1) };
    let a = g.source(&s.src[i], 0, c);
    let b = g.last(&s.src[j], 0, c);
    g.finish(codes, s.dst, 0, c, &[a.into(), b]);
}

/// Whether the sources may change places so that the first one becomes a memory operand. For floats the order decides
/// which NaN is the result, so the first source must be a constant that is not a NaN.
fn constant_first(s: &Step, codes: &Codes) -> bool {
    let [a, b] = [&s.src[0], &s.src[1]];
    let number = a.kind == Kind::Const && a.value & 0x7FFF_FFFF <= 0x7F80_0000;
    let turns = match codes.z {
        z if z == codes::ADD.z
            || z == codes::AND.z
            || z == codes::OR.z
            || z == codes::XOR.z
            || z == MULLO.z =>
        {
            matches!(a.kind, Kind::Const | Kind::Scalar)
        }
        z if z == ADD_PS.z || z == MUL_PS.z => number,
        _ => false,
    };
    turns && b.kind == Kind::Vgpr
}

fn one(g: &mut Gen, s: &Step, c: usize, codes: Codes) {
    let a = g.last(&s.src[0], 0, c);
    g.finish(codes, s.dst, 0, c, &[a]);
}

fn from_u32(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Z {
        return one(g, s, c, FROM_U32);
    }
    // The halves as mantissas of 2^23 + low and 2^39 + 2^16 high; the last sum is the only one that rounds.
    let a = g.source(&s.src[0], 0, c);
    let (low, high) = (g.temporary(), g.temporary());
    let [low_exponent, high_exponent, both] =
        [0x4B00_0000, 0x5300_0000, 0x5300_0080].map(|k| g.asm.constant_lanes(k));
    g.asm.op4(Code::VEX_Vpblendw_ymm_ymm_ymmm256_imm8, low, a, low_exponent, 0xAA);
    g.op3(codes::RIGHT_BY, high, a, 16);
    g.op3(codes::OR, high, high, high_exponent);
    g.op3(SUB_PS, high, high, both);
    g.finish(ADD_PS, s.dst, 0, c, &[low.into(), high.into()]);
}

fn round(g: &mut Gen, s: &Step, c: usize, how: i32) {
    let a = g.last(&s.src[0], 0, c);
    g.finish(ROUND, s.dst, 0, c, &[a, (8 | how).into()]);
}

fn copy(g: &mut Gen, s: &Step, c: usize) {
    if s.flags & FLAG_ALL_LANES != 0 {
        let a = g.source(&s.src[0], 0, c);
        let d = g.destination(s.dst, 0, c, false);
        let code = g.pick(codes::MOVE);
        return g.asm.op2(code, d, a);
    }
    let a = g.source(&s.src[0], 0, c);
    g.result(s.dst, 0, c, a);
}

/// Operations of both widths that need no default float mode.
fn plain(op: Op) -> Option<Emit> {
    Some(match op {
        Op::V_MOV_B32 => copy,
        Op::V_ADD_NC_U32 => |g, s, c| two(g, s, c, codes::ADD, false),
        Op::V_SUB_NC_U32 => |g, s, c| two(g, s, c, codes::SUB, false),
        Op::V_SUBREV_NC_U32 => |g, s, c| two(g, s, c, codes::SUB, true),
        Op::V_ADD_NC_I32 => |g, s, c| two(g, s, c, codes::ADD, false),
        Op::V_SUB_NC_I32 => |g, s, c| two(g, s, c, codes::SUB, false),
        Op::V_AND_B32 => |g, s, c| two(g, s, c, codes::AND, false),
        Op::V_OR_B32 => |g, s, c| two(g, s, c, codes::OR, false),
        Op::V_XOR_B32 => |g, s, c| two(g, s, c, codes::XOR, false),
        Op::V_MUL_LO_U32 => |g, s, c| two(g, s, c, MULLO, false),
        Op::V_MIN_I32 => |g, s, c| two(g, s, c, MIN_I, false),
        Op::V_MAX_I32 => |g, s, c| two(g, s, c, MAX_I, false),
        Op::V_MIN_U32 => |g, s, c| two(g, s, c, MIN_U, false),
        Op::V_MAX_U32 => |g, s, c| two(g, s, c, MAX_U, false),
        Op::V_MIN3_I32 => |g, s, c| integer::three(g, s, c, MIN_I, MIN_I),
        Op::V_MAX3_I32 => |g, s, c| integer::three(g, s, c, MAX_I, MAX_I),
        Op::V_MIN3_U32 => |g, s, c| integer::three(g, s, c, MIN_U, MIN_U),
        Op::V_MAX3_U32 => |g, s, c| integer::three(g, s, c, MAX_U, MAX_U),
        Op::V_MAXMIN_I32 => |g, s, c| integer::three(g, s, c, MAX_I, MIN_I),
        Op::V_MINMAX_I32 => |g, s, c| integer::three(g, s, c, MIN_I, MAX_I),
        Op::V_MAXMIN_U32 => |g, s, c| integer::three(g, s, c, MAX_U, MIN_U),
        Op::V_MINMAX_U32 => |g, s, c| integer::three(g, s, c, MIN_U, MAX_U),
        Op::V_MED3_I32 => |g, s, c| bits::median(g, s, c, MIN_I, MAX_I),
        Op::V_MED3_U32 => |g, s, c| bits::median(g, s, c, MIN_U, MAX_U),
        Op::V_XNOR_B32 => bits::equal_bits,
        Op::V_NOT_B32 => integer::not,
        Op::V_LSHLREV_B32 => |g, s, c| integer::shift(g, s, c, codes::SHIFT_LEFT),
        Op::V_LSHRREV_B32 => |g, s, c| integer::shift(g, s, c, codes::SHIFT_RIGHT),
        Op::V_ASHRREV_I32 => |g, s, c| integer::shift(g, s, c, codes::SHIFT_RIGHT_SIGNED),
        Op::V_ADD3_U32 => |g, s, c| integer::three(g, s, c, codes::ADD, codes::ADD),
        Op::V_OR3_B32 => |g, s, c| integer::three(g, s, c, codes::OR, codes::OR),
        Op::V_XOR3_B32 => |g, s, c| integer::three(g, s, c, codes::XOR, codes::XOR),
        Op::V_AND_OR_B32 => |g, s, c| integer::three(g, s, c, codes::AND, codes::OR),
        Op::V_XAD_U32 => |g, s, c| integer::three(g, s, c, codes::XOR, codes::ADD),
        Op::V_LSHL_ADD_U32 => |g, s, c| integer::shift_then(g, s, c, codes::ADD),
        Op::V_LSHL_OR_B32 => |g, s, c| integer::shift_then(g, s, c, codes::OR),
        Op::V_ADD_LSHL_U32 => integer::add_then_shift,
        Op::V_MUL_U32_U24 => |g, s, c| integer::multiply24(g, s, c, false),
        Op::V_MAD_U32_U24 => |g, s, c| integer::multiply24(g, s, c, true),
        Op::V_BFI_B32 => integer::insert,
        Op::V_BFE_U32 => integer::extract,
        Op::V_ALIGNBIT_B32 => integer::align,
        Op::V_CNDMASK_B32 => compare::select,
        Op::V_MUL_HI_U32 => |g, s, c| integer::multiply_high(g, s, c, integer::MULTIPLY_U),
        Op::V_MAD_U64_U32 => integer::multiply_add64,
        Op::V_LSHLREV_B64 => integer::shift_left64,
        Op::V_ADD_CO_U32 => |g, s, c| carry::emit(g, s, c, carry::ADD),
        Op::V_SUB_CO_U32 => |g, s, c| carry::emit(g, s, c, carry::SUB),
        Op::V_SUBREV_CO_U32 => |g, s, c| carry::emit(g, s, c, carry::SUBREV),
        Op::V_ADD_CO_CI_U32 => |g, s, c| carry::emit(g, s, c, carry::ADD_IN),
        Op::V_SUB_CO_CI_U32 => |g, s, c| carry::emit(g, s, c, carry::SUB_IN),
        Op::V_SUBREV_CO_CI_U32 => |g, s, c| carry::emit(g, s, c, carry::SUBREV_IN),
        _ => return None,
    })
}

/// Float operations, of a MODE that rounds to nearest even and keeps denormals.
fn float(op: Op) -> Option<Emit> {
    Some(match op {
        Op::V_ADD_F32 => |g, s, c| two(g, s, c, ADD_PS, false),
        Op::V_SUB_F32 => |g, s, c| two(g, s, c, SUB_PS, false),
        Op::V_SUBREV_F32 => |g, s, c| two(g, s, c, SUB_PS, true),
        Op::V_MUL_F32 => |g, s, c| two(g, s, c, MUL_PS, false),
        Op::V_FMA_F32 | Op::V_FMAC_F32 | Op::V_FMAMK_F32 | Op::V_FMAAK_F32 => Gen::multiply_add,
        Op::V_CVT_F32_I32 => |g, s, c| one(g, s, c, FROM_I32),
        Op::V_CVT_F32_U32 => from_u32,
        Op::V_RNDNE_F32 => |g, s, c| round(g, s, c, 0),
        Op::V_FLOOR_F32 => |g, s, c| round(g, s, c, 1),
        Op::V_CEIL_F32 => |g, s, c| round(g, s, c, 2),
        Op::V_TRUNC_F32 => |g, s, c| round(g, s, c, 3),
        _ => return None,
    })
}

/// How `step` is emitted, if it is.
pub(super) fn emitter(step: &Step, floats: Floats) -> Option<Emit> {
    let op = step.op?;
    let row = info(op);
    let out = if convert::writes_half(op) { step.out & !OUT_HIGH } else { step.out };
    let has_known_flags = matches!(step.flags, 0 | FLAG_ALL_LANES | FLAG_DPP_MASK) || mix::is_mix(op);
    if out != 0 || !has_known_flags {
        return None;
    }
    for (src, slot) in step.src.iter().zip(row.src) {
        let sign_only = src.mods & !(mods::NEG_HI | mods::ABS_HI) == 0 || convert::reads_half(op);
        let wide_source = slot.ty.dwords() == 2;
        let known = match src.kind {
            Kind::Vgpr | Kind::Const | Kind::ConstSigned | Kind::ConstHigh => true,
            Kind::Scalar => true,
            Kind::VgprMod | Kind::ScalarMod => sign_only && !wide_source && slot.class != Class::M,
            _ => false,
        };
        // A mask that is not in the scalar file is left to the handler.
        let mask = slot.class == Class::M && src.kind != Kind::Scalar;
        if !known || mask {
            return None;
        }
    }
    if let Some(emit) = plain(op) {
        return integer::possible(op, step).then_some(emit);
    }
    if let Some(emit) = compare::emitter(op, floats) {
        return Some(emit);
    }
    let transcendental = || transcend::emitter(op).filter(|_| floats.f32_default);
    let more = bits::emitter(op, step)
        .or_else(|| extremes::emitter(op, floats))
        .or_else(|| convert::emitter(op, floats))
        .or_else(|| special::emitter(op, floats))
        .or_else(|| mix::emitter(op, floats))
        .or_else(transcendental);
    if let Some(emit) = more {
        return Some(emit);
    }
    floats.f32_default.then(|| float(op)).flatten()
}

/// Whether `step` leaves a part of its destination as it is, although it may name no such source.
pub(super) fn keeps_destination(step: &Step) -> bool {
    step.op.is_some_and(convert::writes_half) || step.flags & FLAG_DPP_MASK != 0
}

/// What `step` accesses when it is emitted for piece `c`. A masked write keeps old lanes, so it is a read as well.
pub(super) fn accesses(g: &Gen, step: &Step, c: usize, masked: bool) -> Accesses {
    let Some(op) = step.op else { return dpp::accesses(g, step, c) };
    if permute_rows::is_one(step) {
        return permute_rows::accesses(g, step, c, masked);
    }
    let row = info(op);
    let mut list = Accesses::new();
    let dwords = |slot: &softgpu_isa::Slot| slot.ty.dwords() as usize;
    for (k, src) in step.src.iter().enumerate().filter(|(_, s)| s.is_vgpr()) {
        // The accumulator has no slot of its own.
        let n = row.src.get(k).map_or(1, dwords);
        list.extend((0..n).map(|d| Access { piece: g.piece(src.index, d, c), overwrites: false }));
    }
    if let Some(slot) = row.dst.first().filter(|slot| slot.class == Class::V) {
        let overwrites = !masked || step.flags & FLAG_ALL_LANES != 0;
        list.extend((0..dwords(slot)).map(|d| Access { piece: g.piece(step.dst, d, c), overwrites }));
        if keeps_destination(step) {
            list.extend(
                (0..dwords(slot)).map(|d| Access { piece: g.piece(step.dst, d, c), overwrites: false }),
            );
        }
    }
    list
}
