// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline compares into lane masks, and selects by them.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::codes::Codes;
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
const INT_NE: i32 = 4;
const INT_GE: i32 = 5;
const INT_GT: i32 = 6;

const FLOAT: Codes =
    Codes { z: Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, y: Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8 };
const SIGNED: Codes = Codes { z: Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8, y: Code::INVALID };
const UNSIGNED: Codes = Codes { z: Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, y: Code::INVALID };

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
            g.gather_bits(s.sdst, c, t);
        }
    }
}

macro_rules! table {
    ($op:ident, $($name:ident $x:ident => $codes:ident $predicate:ident;)*) => {
        match $op {
            $(Op::$name | Op::$x => Some((|g, s, c| compare(g, s, c, $codes, $predicate)) as Emit),)*
            _ => None,
        }
    };
}

fn float(op: Op) -> Option<Emit> {
    table!(op,
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
    table!(op,
        V_CMP_LT_I32 V_CMPX_LT_I32 => SIGNED INT_LT;
        V_CMP_EQ_I32 V_CMPX_EQ_I32 => SIGNED INT_EQ;
        V_CMP_LE_I32 V_CMPX_LE_I32 => SIGNED INT_LE;
        V_CMP_GT_I32 V_CMPX_GT_I32 => SIGNED INT_GT;
        V_CMP_NE_I32 V_CMPX_NE_I32 => SIGNED INT_NE;
        V_CMP_GE_I32 V_CMPX_GE_I32 => SIGNED INT_GE;
        V_CMP_LT_U32 V_CMPX_LT_U32 => UNSIGNED INT_LT;
        V_CMP_EQ_U32 V_CMPX_EQ_U32 => UNSIGNED INT_EQ;
        V_CMP_LE_U32 V_CMPX_LE_U32 => UNSIGNED INT_LE;
        V_CMP_GT_U32 V_CMPX_GT_U32 => UNSIGNED INT_GT;
        V_CMP_NE_U32 V_CMPX_NE_U32 => UNSIGNED INT_NE;
        V_CMP_GE_U32 V_CMPX_GE_U32 => UNSIGNED INT_GE;
    )
}

/// The emitter of a compare.
pub(super) fn emitter(op: Op, wide: Wide, floats: Floats) -> Option<Emit> {
    match float(op) {
        Some(emit) => floats.f32_default.then_some(emit),
        None => (wide == Wide::Z).then(|| integer(op)).flatten(),
    }
}

/// `destination = mask ? source 1 : source 0`.
pub(super) fn select(g: &mut Gen, s: &Step, c: usize) {
    let mask = s.src[2].index;
    let a = g.source(&s.src[0], 0, c);
    match g.wide {
        Wide::Z => {
            let b = g.last(&s.src[1], 0, c);
            g.mask_in(Register::K5, mask, c);
            let t = g.temporary();
            g.asm.masked(Code::EVEX_Vpblendmd_zmm_k1z_zmm_zmmm512b32, Register::K5, &[t.into(), a.into(), b]);
            g.result(s.dst, 0, c, t);
        }
        Wide::Y => {
            let b = g.source(&s.src[1], 0, c);
            let (t, m) = (g.temporary(), g.temporary());
            g.spread(m, mask, c);
            g.asm.op4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, t, a, b, m);
            g.result(s.dst, 0, c, t);
        }
    }
}
