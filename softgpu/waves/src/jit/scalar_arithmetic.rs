// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar products, extremes, fields, counts and packed halves.
//!
//! INVARIANT: as for [`super::scalar`].

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Asm;
use super::scalar::{A, A64, B, B64, Then, finish, finish64, load, load64, place, set_scc};
use crate::step::{Kind, Step};

/// What to move if the first operand is not the result, and when it is.
fn extreme(op: Op) -> Option<(Code, Code)> {
    Some(match op {
        Op::S_MIN_I32 => (Code::Cmovge_r32_rm32, Code::Setl_rm8),
        Op::S_MIN_U32 => (Code::Cmovae_r32_rm32, Code::Setb_rm8),
        Op::S_MAX_I32 => (Code::Cmovl_r32_rm32, Code::Setge_rm8),
        Op::S_MAX_U32 => (Code::Cmovb_r32_rm32, Code::Setae_rm8),
        _ => return None,
    })
}

fn shift_then_add(op: Op) -> Option<i32> {
    Some(match op {
        Op::S_LSHL1_ADD_U32 => 1,
        Op::S_LSHL2_ADD_U32 => 2,
        Op::S_LSHL3_ADD_U32 => 3,
        Op::S_LSHL4_ADD_U32 => 4,
        _ => return None,
    })
}

/// Whether the halves of the result are the high ones of their sources.
fn pack(op: Op) -> Option<[bool; 2]> {
    Some(match op {
        Op::S_PACK_LL_B32_B16 => [false, false],
        Op::S_PACK_LH_B32_B16 => [false, true],
        Op::S_PACK_HL_B32_B16 => [true, false],
        Op::S_PACK_HH_B32_B16 => [true, true],
        _ => return None,
    })
}

/// Emits a step; `false`, and nothing, if it is none of these.
pub(super) fn emit(asm: &mut Asm, op: Op, s: &Step) -> bool {
    if let Some((other, first)) = extreme(op) {
        load(asm, A, &s.src[0]);
        load(asm, B, &s.src[1]);
        asm.op2(Code::Cmp_r32_rm32, A, B);
        asm.op2(other, A, B);
        finish(asm, s, Then::Flag(first));
        return true;
    }
    if let Some(by) = shift_then_add(op) {
        load(asm, A, &s.src[0]);
        load(asm, B, &s.src[1]);
        asm.op2(Code::Shl_rm64_imm8, A64, by);
        asm.op2(Code::Add_r64_rm64, A64, B64);
        finish(asm, s, Then::Keep);
        asm.op2(Code::Shr_rm64_imm8, A64, 32);
        set_scc(asm, Code::Setne_rm8);
        return true;
    }
    if let Some([low, high]) = pack(op) {
        load(asm, A, &s.src[0]);
        load(asm, B, &s.src[1]);
        match low {
            true => asm.op2(Code::Shr_rm32_imm8, A, 16),
            false => asm.op2(Code::And_rm32_imm32, A, 0xFFFF),
        }
        match high {
            true => asm.op2(Code::And_rm32_imm32, B, !0xFFFF),
            false => asm.op2(Code::Shl_rm32_imm8, B, 16),
        }
        asm.op2(Code::Or_r32_rm32, A, B);
        finish(asm, s, Then::Keep);
        return true;
    }
    products(asm, op, s) || fields(asm, op, s) || bits(asm, op, s)
}

fn products(asm: &mut Asm, op: Op, s: &Step) -> bool {
    match op {
        Op::S_MULK_I32 => {
            asm.op2(Code::Mov_r32_imm32, A, s.imm);
            asm.op2(Code::Imul_r32_rm32, A, place(s.dst));
        }
        Op::S_MUL_HI_U32 | Op::S_MUL_HI_I32 => {
            load(asm, A, &s.src[0]);
            load(asm, B, &s.src[1]);
            if op == Op::S_MUL_HI_I32 {
                asm.op2(Code::Movsxd_r64_rm32, A64, A);
                asm.op2(Code::Movsxd_r64_rm32, B64, B);
            }
            asm.op2(Code::Imul_r64_rm64, A64, B64);
            asm.op2(Code::Shr_rm64_imm8, A64, 32);
        }
        _ => return false,
    }
    finish(asm, s, Then::Keep);
    true
}

/// Fields of which place and width are known; they seldom are not.
fn fields(asm: &mut Asm, op: Op, s: &Step) -> bool {
    if !matches!(op, Op::S_BFE_U32 | Op::S_BFE_I32)
        || !matches!(s.src[1].kind, Kind::Const | Kind::ConstSigned)
    {
        return false;
    }
    let (offset, width) =
        (s.src[1].value & 31, (s.src[1].value >> 16 & 0x7F).min(32 - (s.src[1].value & 31)));
    load(asm, A, &s.src[0]);
    if width == 0 {
        asm.op2(Code::Mov_r32_imm32, A, 0);
    } else {
        // CAST: below 32.
        asm.op2(Code::Shl_rm32_imm8, A, (32 - offset - width) as i32);
        let right = if op == Op::S_BFE_U32 { Code::Shr_rm32_imm8 } else { Code::Sar_rm32_imm8 };
        asm.op2(right, A, (32 - width) as i32);
    }
    finish(asm, s, Then::NotZero);
    true
}

fn bits(asm: &mut Asm, op: Op, s: &Step) -> bool {
    let then = match op {
        Op::S_SEXT_I32_I8 => {
            load(asm, A, &s.src[0]);
            asm.op2(Code::Movsx_r32_rm8, A, Register::AL);
            Then::Keep
        }
        Op::S_SEXT_I32_I16 => {
            load(asm, A, &s.src[0]);
            asm.op2(Code::Movsx_r32_rm16, A, Register::AX);
            Then::Keep
        }
        Op::S_CTZ_I32_B32 | Op::S_CLZ_I32_U32 => {
            load(asm, A, &s.src[0]);
            asm.op2(Code::Mov_r32_imm32, B, -1);
            // The carry says that there is no bit.
            let count = if op == Op::S_CTZ_I32_B32 { Code::Tzcnt_r32_rm32 } else { Code::Lzcnt_r32_rm32 };
            asm.op2(count, A, A);
            asm.op2(Code::Cmovb_r32_rm32, A, B);
            Then::Keep
        }
        Op::S_BCNT1_I32_B32 => {
            load(asm, A, &s.src[0]);
            asm.op2(Code::Popcnt_r32_rm32, A, A);
            Then::NotZero
        }
        Op::S_BCNT1_I32_B64 => {
            load64(asm, A64, &s.src[0]);
            asm.op2(Code::Popcnt_r64_rm64, A64, A64);
            Then::NotZero
        }
        Op::S_ABS_I32 => {
            load(asm, A, &s.src[0]);
            asm.op2(Code::Mov_r32_rm32, B, A);
            asm.op1(Code::Neg_rm32, A);
            asm.op2(Code::Cmovs_r32_rm32, A, B);
            Then::NotZero
        }
        Op::S_BITSET0_B32 | Op::S_BITSET1_B32 => {
            load(asm, B, &s.src[0]);
            asm.op2(Code::Mov_r32_rm32, A, place(s.dst));
            asm.op2(if op == Op::S_BITSET0_B32 { Code::Btr_rm32_r32 } else { Code::Bts_rm32_r32 }, A, B);
            Then::Keep
        }
        Op::S_BITCMP0_B32 | Op::S_BITCMP1_B32 => {
            load(asm, A, &s.src[0]);
            load(asm, B, &s.src[1]);
            asm.op2(Code::Bt_rm32_r32, A, B);
            set_scc(asm, if op == Op::S_BITCMP0_B32 { Code::Setae_rm8 } else { Code::Setb_rm8 });
            return true;
        }
        Op::S_NOT_B64 => {
            load64(asm, A64, &s.src[0]);
            asm.op1(Code::Not_rm64, A64);
            finish64(asm, s, true);
            return true;
        }
        _ => return false,
    };
    finish(asm, s, then);
    true
}
