// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline compares into lane masks, and selects by them.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::codes::{self, Codes};
use super::floats::Floats;
use super::generator::{Emit, Gen, Wide};
use crate::step::Step;

/// Predicates of vcmpps: with a NaN ordered ones are false and unordered ones true; none of them signals.
const LT: i32 = 0x11;
const EQ: i32 = 0x00;
const LE: i32 = 0x12;
const GT: i32 = 0x1E;
const LG: i32 = 0x0C;
const GE: i32 = 0x1D;
const O: i32 = 0x07;
const U: i32 = 0x03;
const NGE: i32 = 0x19;
const NLG: i32 = 0x08;
const NGT: i32 = 0x1A;
const NLE: i32 = 0x16;
const NEQ: i32 = 0x04;
const NLT: i32 = 0x15;

/// Predicates of vpcmpd and vpcmpud.
const INT_EQ: i32 = 0;
const INT_LT: i32 = 1;
const INT_LE: i32 = 2;
const NEVER: i32 = 3;
const INT_NE: i32 = 4;
const INT_GE: i32 = 5;
const INT_GT: i32 = 6;

const FLOAT: Codes =
    Codes { z: Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, y: Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8 };
const SIGNED: Codes = Codes { z: Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8, y: Code::INVALID };
const UNSIGNED: Codes = Codes { z: Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, y: Code::INVALID };

/// Kinds of integers.
const IS_SIGNED: bool = true;
const IS_UNSIGNED: bool = false;

fn compare(g: &mut Gen, s: &Step, c: usize, codes: Codes, predicate: i32) {
    let a = g.source(&s.src[0], 0, c);
    let b = g.last(&s.src[1], 0, c);
    match g.wide {
        Wide::Z => {
            let k = Register::K5;
            match g.masked {
                true => {
                    let exec = g.exec(c);
                    g.asm.masked(codes.z, exec, &[k.into(), a.into(), b, predicate.into()]);
                }
                false => g.asm.op4(codes.z, k, a, b, predicate),
            }
            g.mask_out(s.sdst, c, k);
        }
        Wide::Y => {
            let t = g.temporary();
            g.asm.op4(codes.y, t, a, b, predicate);
            g.gather_bits(s.sdst, c, t, false);
        }
    }
}

fn compare_integers(g: &mut Gen, s: &Step, c: usize, signed: bool, predicate: i32) {
    if g.wide == Wide::Z {
        return compare(g, s, c, if signed { SIGNED } else { UNSIGNED }, predicate);
    }
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    // AVX2 has "equal" and a signed "greater" only; the others are their opposites, or compare with an extreme.
    let inverted = match (signed, predicate) {
        (_, INT_EQ | INT_NE) => {
            let b = g.last(&s.src[1], 0, c);
            g.asm.op3(codes::EQUAL_Y, t, a, b);
            predicate == INT_NE
        }
        (true, INT_GT | INT_LE) => {
            let b = g.last(&s.src[1], 0, c);
            g.asm.op3(codes::GREATER_Y, t, a, b);
            predicate == INT_LE
        }
        (true, _) => {
            let b = g.source(&s.src[1], 0, c);
            g.asm.op3(codes::GREATER_Y, t, b, a);
            predicate == INT_GE
        }
        (false, _) => {
            let b = g.last(&s.src[1], 0, c);
            let least = matches!(predicate, INT_LE | INT_GT);
            g.op3(if least { codes::MIN_U } else { codes::MAX_U }, t, a, b);
            g.asm.op3(codes::EQUAL_Y, t, t, a);
            matches!(predicate, INT_GT | INT_LT)
        }
    };
    g.gather_bits(s.sdst, c, t, inverted);
}

/// Compares of 64 bits: of the high dwords, and where these are equal of the low ones.
fn compare64(g: &mut Gen, s: &Step, c: usize, signed: bool, predicate: i32) {
    let [(al, ah), (bl, bh)] = [0, 1].map(|k| (g.source(&s.src[k], 0, c), g.source(&s.src[k], 1, c)));
    if g.wide == Wide::Z {
        return compare64_avx512(g, s, c, signed, predicate, [(al, ah), (bl, bh)]);
    }
    let (t, equal) = (g.temporary(), g.temporary());
    g.asm.op3(codes::EQUAL_Y, equal, ah, bh);
    if matches!(predicate, INT_EQ | INT_NE) {
        g.asm.op3(codes::EQUAL_Y, t, al, bl);
        g.op3(codes::AND, t, t, equal);
        return g.gather_bits(s.sdst, c, t, predicate == INT_NE);
    }
    // "At least" of the operands in order or exchanged, or its opposite.
    let (exchanged, inverted) = match predicate {
        INT_LE => (true, false),
        INT_GT => (true, true),
        INT_LT => (false, true),
        _ => (false, false),
    };
    let [(xl, xh), (yl, yh)] = if exchanged { [(bl, bh), (al, ah)] } else { [(al, ah), (bl, bh)] };
    let low = g.temporary();
    g.op3(codes::MAX_U, low, xl, yl);
    g.asm.op3(codes::EQUAL_Y, low, low, xl);
    g.op3(if signed { codes::MAX_I } else { codes::MAX_U }, t, xh, yh);
    g.asm.op3(codes::EQUAL_Y, t, t, xh);
    g.asm.op3(codes::AND_NOT_Y, low, low, equal);
    g.asm.op3(codes::AND_NOT_Y, t, low, t);
    g.gather_bits(s.sdst, c, t, inverted);
}

fn compare64_avx512(
    g: &mut Gen,
    s: &Step,
    c: usize,
    signed: bool,
    predicate: i32,
    [(al, ah), (bl, bh)]: [(Register, Register); 2],
) {
    let (k, equal) = (Register::K5, Register::K6);
    let high = if signed { SIGNED.z } else { UNSIGNED.z };
    // Which difference of the high dwords decides. Equal numbers have none: vpcmpd's predicate 3 is never true.
    let strict = match predicate {
        INT_LE => INT_LT,
        INT_GE => INT_GT,
        INT_EQ => NEVER,
        other => other,
    };
    g.asm.op4(high, k, ah, bh, strict);
    g.asm.op4(UNSIGNED.z, equal, ah, bh, INT_EQ);
    g.asm.masked(UNSIGNED.z, equal, &[equal.into(), al.into(), bl.into(), predicate.into()]);
    g.asm.op3(Code::VEX_Korw_kr_kr_kr, k, k, equal);
    if g.masked {
        let exec = g.exec(c);
        g.asm.op3(Code::VEX_Kandw_kr_kr_kr, k, k, exec);
    }
    g.mask_out(s.sdst, c, k);
}

macro_rules! table {
    ($op:ident, $emit:ident, $($name:ident $x:ident => $kind:ident $predicate:ident;)*) => {
        match $op {
            $(Op::$name | Op::$x => Some((|g, s, c| $emit(g, s, c, $kind, $predicate)) as Emit),)*
            _ => None,
        }
    };
}

fn float(op: Op) -> Option<Emit> {
    table!(op, compare,
        V_CMP_LT_F32 V_CMPX_LT_F32 => FLOAT LT;
        V_CMP_EQ_F32 V_CMPX_EQ_F32 => FLOAT EQ;
        V_CMP_LE_F32 V_CMPX_LE_F32 => FLOAT LE;
        V_CMP_GT_F32 V_CMPX_GT_F32 => FLOAT GT;
        V_CMP_LG_F32 V_CMPX_LG_F32 => FLOAT LG;
        V_CMP_GE_F32 V_CMPX_GE_F32 => FLOAT GE;
        V_CMP_O_F32 V_CMPX_O_F32 => FLOAT O;
        V_CMP_U_F32 V_CMPX_U_F32 => FLOAT U;
        V_CMP_NGE_F32 V_CMPX_NGE_F32 => FLOAT NGE;
        V_CMP_NLG_F32 V_CMPX_NLG_F32 => FLOAT NLG;
        V_CMP_NGT_F32 V_CMPX_NGT_F32 => FLOAT NGT;
        V_CMP_NLE_F32 V_CMPX_NLE_F32 => FLOAT NLE;
        V_CMP_NEQ_F32 V_CMPX_NEQ_F32 => FLOAT NEQ;
        V_CMP_NLT_F32 V_CMPX_NLT_F32 => FLOAT NLT;
    )
}

fn integer(op: Op) -> Option<Emit> {
    table!(op, compare_integers,
        V_CMP_LT_I32 V_CMPX_LT_I32 => IS_SIGNED INT_LT;
        V_CMP_EQ_I32 V_CMPX_EQ_I32 => IS_SIGNED INT_EQ;
        V_CMP_LE_I32 V_CMPX_LE_I32 => IS_SIGNED INT_LE;
        V_CMP_GT_I32 V_CMPX_GT_I32 => IS_SIGNED INT_GT;
        V_CMP_NE_I32 V_CMPX_NE_I32 => IS_SIGNED INT_NE;
        V_CMP_GE_I32 V_CMPX_GE_I32 => IS_SIGNED INT_GE;
        V_CMP_LT_U32 V_CMPX_LT_U32 => IS_UNSIGNED INT_LT;
        V_CMP_EQ_U32 V_CMPX_EQ_U32 => IS_UNSIGNED INT_EQ;
        V_CMP_LE_U32 V_CMPX_LE_U32 => IS_UNSIGNED INT_LE;
        V_CMP_GT_U32 V_CMPX_GT_U32 => IS_UNSIGNED INT_GT;
        V_CMP_NE_U32 V_CMPX_NE_U32 => IS_UNSIGNED INT_NE;
        V_CMP_GE_U32 V_CMPX_GE_U32 => IS_UNSIGNED INT_GE;
    )
}

fn integer64(op: Op) -> Option<Emit> {
    table!(op, compare64,
        V_CMP_LT_I64 V_CMPX_LT_I64 => IS_SIGNED INT_LT;
        V_CMP_EQ_I64 V_CMPX_EQ_I64 => IS_SIGNED INT_EQ;
        V_CMP_LE_I64 V_CMPX_LE_I64 => IS_SIGNED INT_LE;
        V_CMP_GT_I64 V_CMPX_GT_I64 => IS_SIGNED INT_GT;
        V_CMP_NE_I64 V_CMPX_NE_I64 => IS_SIGNED INT_NE;
        V_CMP_GE_I64 V_CMPX_GE_I64 => IS_SIGNED INT_GE;
        V_CMP_LT_U64 V_CMPX_LT_U64 => IS_UNSIGNED INT_LT;
        V_CMP_EQ_U64 V_CMPX_EQ_U64 => IS_UNSIGNED INT_EQ;
        V_CMP_LE_U64 V_CMPX_LE_U64 => IS_UNSIGNED INT_LE;
        V_CMP_GT_U64 V_CMPX_GT_U64 => IS_UNSIGNED INT_GT;
        V_CMP_NE_U64 V_CMPX_NE_U64 => IS_UNSIGNED INT_NE;
        V_CMP_GE_U64 V_CMPX_GE_U64 => IS_UNSIGNED INT_GE;
    )
}

/// The emitter of a compare.
pub(super) fn emitter(op: Op, floats: Floats) -> Option<Emit> {
    match float(op) {
        Some(emit) => floats.f32_default.then_some(emit),
        None => integer(op).or_else(|| integer64(op)),
    }
}

/// `destination = mask ? source 1 : source 0`.
pub(super) fn select(g: &mut Gen, s: &Step, c: usize) {
    let mask = s.src[2].index;
    let a = g.source(&s.src[0], 0, c);
    match g.wide {
        Wide::Z => {
            let b = g.last(&s.src[1], 0, c);
            let k = g.mask(mask, c, Register::K5);
            let t = g.temporary();
            g.asm.masked(Code::EVEX_Vpblendmd_zmm_k1z_zmm_zmmm512b32, k, &[t.into(), a.into(), b]);
            g.result(s.dst, 0, c, t);
        }
        Wide::Y => {
            let b = g.last(&s.src[1], 0, c);
            let m = g.lanes_of(mask, c);
            let t = g.temporary();
            g.asm.op4(codes::BLEND_Y, t, a, b, m);
            g.result(s.dst, 0, c, t);
        }
    }
}
