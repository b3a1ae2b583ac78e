// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar instructions and branch conditions on the wave's scalar file in memory.
//!
//! INVARIANT: this code uses RAX, RCX and the registers of `kept_scalars.rs` only, and no vector register, except in loads.

use iced_x86::{Code, ConditionCode, MemoryOperand, Register};
use softgpu_isa::Op;

use super::asm::{Arg, Asm, SCALARS, memory, wave_field};
use super::scalar_arithmetic;
use crate::predecode::Shape;
use crate::salu::control::DEALLOC_VGPRS;
use crate::step::{Kind, SPECIAL_SCC, Src, Step};
use crate::wave::status::NO_VGPRS;
use crate::wave::{EXEC, VCC, Wave};

pub(super) const A: Register = Register::EAX;
pub(super) const B: Register = Register::ECX;
pub(super) const A64: Register = Register::RAX;
pub(super) const B64: Register = Register::RCX;

/// SCC in memory.
fn scc() -> MemoryOperand {
    wave_field(std::mem::offset_of!(Wave, scc))
}

pub(super) fn place(index: u16) -> MemoryOperand {
    memory(SCALARS, 4 * i64::from(index), false)
}

/// What an operation does to SCC.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// SCC keeps its value.
    Keep,
    /// SCC = result is not zero.
    NotZero,
    /// SCC = this condition of the last instruction.
    Flag(Code),
}

/// Whether [`load`] knows how to load it.
pub(super) fn known(s: &Src) -> bool {
    match s.kind {
        Kind::Scalar | Kind::Const | Kind::ConstSigned => true,
        Kind::Special => s.index == SPECIAL_SCC,
        _ => false,
    }
}

pub(super) fn load(asm: &mut Asm, to: Register, s: &Src) {
    match s.kind {
        Kind::Scalar if to == A && asm.has_result(s.index) => {}
        Kind::Scalar => {
            let from = kept_or_place(asm, s.index);
            asm.op2(Code::Mov_r32_rm32, to, from);
        }
        Kind::Special => asm.op2(Code::Mov_r32_rm32, to, scc()),
        _ => asm.op2(Code::Mov_r32_imm32, to, s.value as i32),
    }
}

/// Where a scalar is to be read.
fn kept_or_place(asm: &Asm, index: u16) -> Arg {
    asm.kept(index).map_or_else(|| place(index).into(), Arg::from)
}

pub(super) fn load64(asm: &mut Asm, to: Register, s: &Src) {
    match s.kind {
        Kind::Scalar => asm.op2(Code::Mov_r64_rm64, to, place(s.index)),
        Kind::Special => asm.op2(Code::Mov_r32_rm32, to - (A64 as u32 - A as u32), scc()),
        Kind::ConstSigned => asm.op2(Code::Mov_rm64_imm32, to, s.value as i32),
        // A 32-bit move clears the upper half.
        _ => asm.op2(Code::Mov_r32_imm32, to - (A64 as u32 - A as u32), s.value as i32),
    }
}

/// SCC = this condition of the last instruction. RAX is overwritten, the flags are not.
pub(super) fn set_scc(asm: &mut Asm, condition: Code) {
    if asm.without_scc {
        return asm.set_flags(condition);
    }
    asm.op1(condition, Register::AL);
    asm.op2(Code::Movzx_r32_rm8, A, Register::AL);
    asm.op2(Code::Mov_rm32_r32, scc(), A);
    asm.set_flags(condition);
}

/// A second operand: in memory, or in ECX.
fn second(asm: &mut Asm, s: &Src) -> Arg {
    match s.kind {
        Kind::Scalar => kept_or_place(asm, s.index),
        Kind::Special => scc().into(),
        _ => {
            load(asm, B, s);
            B.into()
        }
    }
}

pub(super) fn finish(asm: &mut Asm, s: &Step, then: Then) {
    asm.op2(Code::Mov_rm32_r32, place(s.dst), A);
    asm.keep(s.dst, A);
    match then {
        Then::Keep => {}
        Then::NotZero if asm.without_scc => {}
        Then::NotZero => {
            asm.op2(Code::Test_rm32_r32, A, A);
            set_scc(asm, Code::Setne_rm8);
        }
        // Moves do not change the flags.
        Then::Flag(condition) => set_scc(asm, condition),
    }
    if asm.without_scc || matches!(then, Then::Keep) {
        asm.set_result(s.dst);
    }
}

pub(super) fn finish64(asm: &mut Asm, s: &Step, not_zero: bool) {
    asm.op2(Code::Mov_rm64_r64, place(s.dst), A64);
    if not_zero && !asm.without_scc {
        asm.op2(Code::Test_rm64_r64, A64, A64);
        set_scc(asm, Code::Setne_rm8);
    }
}

/// Two-operand 32-bit forms: instruction, whether the second source is inverted first, SCC.
fn two(op: Op) -> Option<(Code, bool, Then)> {
    use Then::{Flag, Keep};
    // Logic sets the flags, as comparisons do.
    let not_zero = Flag(Code::Setne_rm8);
    Some(match op {
        Op::S_ADD_U32 => (Code::Add_r32_rm32, false, Flag(Code::Setb_rm8)),
        Op::S_SUB_U32 => (Code::Sub_r32_rm32, false, Flag(Code::Setb_rm8)),
        Op::S_ADD_I32 => (Code::Add_r32_rm32, false, Flag(Code::Seto_rm8)),
        Op::S_SUB_I32 => (Code::Sub_r32_rm32, false, Flag(Code::Seto_rm8)),
        Op::S_AND_B32 => (Code::And_r32_rm32, false, not_zero),
        Op::S_OR_B32 => (Code::Or_r32_rm32, false, not_zero),
        Op::S_XOR_B32 => (Code::Xor_r32_rm32, false, not_zero),
        Op::S_AND_NOT1_B32 => (Code::And_r32_rm32, true, not_zero),
        Op::S_OR_NOT1_B32 => (Code::Or_r32_rm32, true, not_zero),
        Op::S_XNOR_B32 => (Code::Xor_r32_rm32, true, not_zero),
        Op::S_MUL_I32 => (Code::Imul_r32_rm32, false, Keep),
        _ => return None,
    })
}

/// The form of an instruction whose second operand is a constant.
fn with_constant(code: Code) -> Option<Code> {
    Some(match code {
        Code::Add_r32_rm32 => Code::Add_rm32_imm32,
        Code::Sub_r32_rm32 => Code::Sub_rm32_imm32,
        Code::And_r32_rm32 => Code::And_rm32_imm32,
        Code::Or_r32_rm32 => Code::Or_rm32_imm32,
        Code::Xor_r32_rm32 => Code::Xor_rm32_imm32,
        _ => return None,
    })
}

fn two64(op: Op) -> Option<(Code, bool)> {
    Some(match op {
        Op::S_AND_B64 => (Code::And_r64_rm64, false),
        Op::S_OR_B64 => (Code::Or_r64_rm64, false),
        Op::S_XOR_B64 => (Code::Xor_r64_rm64, false),
        Op::S_AND_NOT1_B64 => (Code::And_r64_rm64, true),
        Op::S_OR_NOT1_B64 => (Code::Or_r64_rm64, true),
        Op::S_XNOR_B64 => (Code::Xor_r64_rm64, true),
        _ => return None,
    })
}

fn shift(op: Op) -> Option<(Code, bool)> {
    Some(match op {
        Op::S_LSHL_B32 => (Code::Shl_rm32_CL, false),
        Op::S_LSHR_B32 => (Code::Shr_rm32_CL, false),
        Op::S_ASHR_I32 => (Code::Sar_rm32_CL, false),
        Op::S_LSHL_B64 => (Code::Shl_rm64_CL, true),
        Op::S_LSHR_B64 => (Code::Shr_rm64_CL, true),
        Op::S_ASHR_I64 => (Code::Sar_rm64_CL, true),
        _ => return None,
    })
}

/// Condition of a compare, and whether the second operand is the immediate (2: zero-extended).
fn test(op: Op) -> Option<(Code, u8)> {
    Some(match op {
        Op::S_CMP_EQ_I32 | Op::S_CMP_EQ_U32 => (Code::Sete_rm8, 0),
        Op::S_CMP_LG_I32 | Op::S_CMP_LG_U32 => (Code::Setne_rm8, 0),
        Op::S_CMP_GT_I32 => (Code::Setg_rm8, 0),
        Op::S_CMP_GE_I32 => (Code::Setge_rm8, 0),
        Op::S_CMP_LT_I32 => (Code::Setl_rm8, 0),
        Op::S_CMP_LE_I32 => (Code::Setle_rm8, 0),
        Op::S_CMP_GT_U32 => (Code::Seta_rm8, 0),
        Op::S_CMP_GE_U32 => (Code::Setae_rm8, 0),
        Op::S_CMP_LT_U32 => (Code::Setb_rm8, 0),
        Op::S_CMP_LE_U32 => (Code::Setbe_rm8, 0),
        Op::S_CMPK_EQ_I32 => (Code::Sete_rm8, 1),
        Op::S_CMPK_LG_I32 => (Code::Setne_rm8, 1),
        Op::S_CMPK_GT_I32 => (Code::Setg_rm8, 1),
        Op::S_CMPK_GE_I32 => (Code::Setge_rm8, 1),
        Op::S_CMPK_LT_I32 => (Code::Setl_rm8, 1),
        Op::S_CMPK_LE_I32 => (Code::Setle_rm8, 1),
        Op::S_CMPK_EQ_U32 => (Code::Sete_rm8, 2),
        Op::S_CMPK_LG_U32 => (Code::Setne_rm8, 2),
        Op::S_CMPK_GT_U32 => (Code::Seta_rm8, 2),
        Op::S_CMPK_GE_U32 => (Code::Setae_rm8, 2),
        Op::S_CMPK_LT_U32 => (Code::Setb_rm8, 2),
        Op::S_CMPK_LE_U32 => (Code::Setbe_rm8, 2),
        _ => return None,
    })
}

/// SAVEEXEC forms: instruction on (source, EXEC), which of the two is inverted first, and whether they have 64 bits.
fn save_exec(op: Op) -> Option<(Code, bool, bool, bool)> {
    Some(match op {
        Op::S_AND_SAVEEXEC_B32 => (Code::And_r32_rm32, false, false, false),
        Op::S_OR_SAVEEXEC_B32 => (Code::Or_r32_rm32, false, false, false),
        Op::S_XOR_SAVEEXEC_B32 => (Code::Xor_r32_rm32, false, false, false),
        Op::S_AND_NOT0_SAVEEXEC_B32 => (Code::And_r32_rm32, true, false, false),
        Op::S_AND_NOT1_SAVEEXEC_B32 => (Code::And_r32_rm32, false, true, false),
        Op::S_OR_NOT0_SAVEEXEC_B32 => (Code::Or_r32_rm32, true, false, false),
        Op::S_AND_SAVEEXEC_B64 => (Code::And_r64_rm64, false, false, true),
        Op::S_OR_SAVEEXEC_B64 => (Code::Or_r64_rm64, false, false, true),
        Op::S_XOR_SAVEEXEC_B64 => (Code::Xor_r64_rm64, false, false, true),
        Op::S_AND_NOT0_SAVEEXEC_B64 => (Code::And_r64_rm64, true, false, true),
        Op::S_AND_NOT1_SAVEEXEC_B64 => (Code::And_r64_rm64, false, true, true),
        Op::S_OR_NOT0_SAVEEXEC_B64 => (Code::Or_r64_rm64, true, false, true),
        _ => return None,
    })
}

/// Emits `step`; `false` (and nothing is emitted) if `step` is not done inline.
pub(super) fn emit(asm: &mut Asm, step: &Step) -> bool {
    let Some(op) = step.op else { return false };
    let s = step;
    if !s.src.iter().all(known) {
        return false;
    }
    if let Some((code, invert, then)) = two(op) {
        let is_second = |asm: &Asm| s.src[1].kind == Kind::Scalar && asm.has_result(s.src[1].index);
        if !invert && !matches!(code, Code::Sub_r32_rm32) && is_second(asm) {
            // The result of the step before, whichever operand it is.
            let b = second(asm, &s.src[0]);
            asm.op2(code, A, b);
            finish(asm, s, then);
            return true;
        }
        load(asm, A, &s.src[0]);
        if invert {
            load(asm, B, &s.src[1]);
            asm.op1(Code::Not_rm32, B);
            asm.op2(code, A, B);
        } else if let (Kind::Const | Kind::ConstSigned, Some(code)) = (s.src[1].kind, with_constant(code)) {
            asm.op2(code, A, s.src[1].value as i32);
        } else {
            let b = second(asm, &s.src[1]);
            asm.op2(code, A, b);
        }
        finish(asm, s, then);
    } else if let Some((code, invert)) = two64(op) {
        load64(asm, A64, &s.src[0]);
        load64(asm, B64, &s.src[1]);
        if invert {
            asm.op1(Code::Not_rm64, B64);
        }
        asm.op2(code, A64, B64);
        finish64(asm, s, true);
    } else if let Some((code, is_wide)) = shift(op) {
        load(asm, B, &s.src[1]);
        if is_wide {
            load64(asm, A64, &s.src[0]);
            asm.op2(code, A64, Register::CL);
            finish64(asm, s, true);
        } else {
            load(asm, A, &s.src[0]);
            asm.op2(code, A, Register::CL);
            finish(asm, s, Then::NotZero);
        }
    } else if let Some((condition, immediate)) = test(op) {
        // SOPK compares read their destination field, which predecode puts first among the sources.
        let constant = match (immediate, s.src[1].kind) {
            (1, _) => Some(s.imm),
            (2, _) => Some(s.imm & 0xFFFF),
            (_, Kind::Const | Kind::ConstSigned) => Some(s.src[1].value as i32),
            _ => None,
        };
        match (constant, s.src[0].kind) {
            (Some(constant), Kind::Scalar) => {
                let a = kept_or_place(asm, s.src[0].index);
                asm.op2(Code::Cmp_rm32_imm32, a, constant);
            }
            (Some(constant), _) => {
                load(asm, A, &s.src[0]);
                asm.op2(Code::Cmp_rm32_imm32, A, constant);
            }
            (None, _) => {
                load(asm, A, &s.src[0]);
                let b = second(asm, &s.src[1]);
                asm.op2(Code::Cmp_r32_rm32, A, b);
            }
        }
        set_scc(asm, condition);
    } else if let Some((code, invert_source, invert_exec, is_wide)) = save_exec(op) {
        let (a, b, get, put, not) = match is_wide {
            false => (A, B, Code::Mov_r32_rm32, Code::Mov_rm32_r32, Code::Not_rm32),
            true => (A64, B64, Code::Mov_r64_rm64, Code::Mov_rm64_r64, Code::Not_rm64),
        };
        if is_wide {
            load64(asm, a, &s.src[0])
        } else {
            load(asm, a, &s.src[0])
        }
        match is_wide {
            true => asm.op2(get, b, place(EXEC as u16)),
            false => {
                let exec = kept_or_place(asm, EXEC as u16);
                asm.op2(get, b, exec);
            }
        }
        asm.op2(put, place(s.dst), b);
        for (register, is_inverted) in [(a, invert_source), (b, invert_exec)] {
            if is_inverted {
                asm.op1(not, register);
            }
        }
        asm.op2(code, a, b);
        asm.op2(put, place(EXEC as u16), a);
        if !is_wide {
            asm.keep(EXEC as u16, a);
        }
        set_scc(asm, Code::Setne_rm8);
    } else {
        return others(asm, op, s);
    }
    true
}

fn others(asm: &mut Asm, op: Op, s: &Step) -> bool {
    match op {
        Op::S_SENDMSG if s.imm & 0xFF == DEALLOC_VGPRS => {
            let status = wave_field(std::mem::offset_of!(Wave, status));
            asm.op2(Code::Or_rm32_imm32, status, NO_VGPRS as i32);
        }
        Op::S_MOV_B32 if matches!(s.src[0].kind, Kind::Const | Kind::ConstSigned) => {
            asm.op2(Code::Mov_rm32_imm32, place(s.dst), s.src[0].value as i32);
        }
        Op::S_MOV_B32 => {
            load(asm, A, &s.src[0]);
            finish(asm, s, Then::Keep);
        }
        Op::S_MOV_B64 => {
            load64(asm, A64, &s.src[0]);
            finish64(asm, s, false);
        }
        Op::S_NOT_B32 => {
            load(asm, A, &s.src[0]);
            asm.op1(Code::Not_rm32, A);
            finish(asm, s, Then::NotZero);
        }
        Op::S_MOVK_I32 => {
            asm.op2(Code::Mov_rm32_imm32, place(s.dst), s.imm);
        }
        Op::S_ADDK_I32 => {
            asm.op2(Code::Mov_r32_rm32, A, place(s.dst));
            asm.op2(Code::Add_rm32_imm32, A, s.imm);
            finish(asm, s, Then::Flag(Code::Seto_rm8));
        }
        Op::S_ADDC_U32 | Op::S_SUBB_U32 => {
            load(asm, A, &s.src[0]);
            load(asm, B, &s.src[1]);
            asm.op2(Code::Bt_rm32_imm8, scc(), 0);
            asm.op2(if op == Op::S_ADDC_U32 { Code::Adc_r32_rm32 } else { Code::Sbb_r32_rm32 }, A, B);
            finish(asm, s, Then::Flag(Code::Setb_rm8));
        }
        Op::S_CMP_EQ_U64 | Op::S_CMP_LG_U64 => {
            load64(asm, A64, &s.src[0]);
            load64(asm, B64, &s.src[1]);
            asm.op2(Code::Cmp_r64_rm64, A64, B64);
            set_scc(asm, if op == Op::S_CMP_EQ_U64 { Code::Sete_rm8 } else { Code::Setne_rm8 });
        }
        Op::S_CSELECT_B32 => {
            load(asm, A, &s.src[1]);
            load(asm, B, &s.src[0]);
            asm.op2(Code::Bt_rm32_imm8, scc(), 0);
            asm.op2(Code::Cmovb_r32_rm32, A, B);
            finish(asm, s, Then::Keep);
        }
        Op::S_CSELECT_B64 => {
            load64(asm, A64, &s.src[1]);
            load64(asm, B64, &s.src[0]);
            asm.op2(Code::Bt_rm32_imm8, scc(), 0);
            asm.op2(Code::Cmovb_r64_rm64, A64, B64);
            finish64(asm, s, false);
        }
        _ => return scalar_arithmetic::emit(asm, op, s),
    }
    true
}

/// RAX and RCX = start and end of what a scalar load reads. Returns its dwords; `None` (and nothing is emitted) if it is not done
/// inline.
pub(super) fn loaded_range(asm: &mut Asm, s: &Step) -> Option<i64> {
    let dwords: i64 = match s.op {
        Some(Op::S_LOAD_B32) => 1,
        Some(Op::S_LOAD_B64) => 2,
        Some(Op::S_LOAD_B128) => 4,
        Some(Op::S_LOAD_B256) => 8,
        Some(Op::S_LOAD_B512) => 16,
        _ => return None,
    };
    if s.src[0].kind != Kind::Scalar || !matches!(s.src[1].kind, Kind::Scalar | Kind::Const) {
        return None;
    }
    asm.op2(Code::Mov_r64_rm64, A64, place(s.src[0].index));
    // A 32-bit move clears the upper half.
    load(asm, B, &s.src[1]);
    asm.op2(Code::Add_r64_rm64, A64, B64);
    asm.op2(Code::Add_rm64_imm32, A64, s.imm);
    asm.op2(Code::And_rm64_imm8, A64, -4);
    asm.op2(Code::Lea_r64_m, B64, memory(A64, 4 * dwords, false));
    Some(dwords)
}

/// A scalar load of so many dwords from RAX on. RCX and the first two vector registers are overwritten.
pub(super) fn load_dwords(asm: &mut Asm, s: &Step, dwords: i64) {
    match dwords {
        1 => {
            asm.op2(Code::Mov_r32_rm32, B, memory(A64, 0, false));
            asm.op2(Code::Mov_rm32_r32, place(s.dst), B);
        }
        2 => {
            asm.op2(Code::Mov_r64_rm64, B64, memory(A64, 0, false));
            asm.op2(Code::Mov_rm64_r64, place(s.dst), B64);
        }
        4 => {
            asm.op2(Code::VEX_Vmovdqu_xmm_xmmm128, Register::XMM0, memory(A64, 0, false));
            asm.op2(Code::VEX_Vmovdqu_xmmm128_xmm, place(s.dst), Register::XMM0);
        }
        _ => {
            // All parts are read before any is written: they may overlap.
            let halves = [(Register::YMM0, 0), (Register::YMM1, 8)];
            let halves = &halves[..dwords as usize / 8];
            for &(r, at) in halves {
                asm.op2(Code::VEX_Vmovdqu_ymm_ymmm256, r, memory(A64, 4 * at, false));
            }
            for &(r, at) in halves {
                asm.op2(Code::VEX_Vmovdqu_ymmm256_ymm, place(s.dst + at as u16), r);
            }
        }
    }
}

/// The jump under the condition of an instruction that sets a byte.
fn jump_if(condition: Code) -> Code {
    use ConditionCode::*;
    match condition.condition_code() {
        b => Code::Jb_rel32_64,
        ae => Code::Jae_rel32_64,
        e => Code::Je_rel32_64,
        be => Code::Jbe_rel32_64,
        a => Code::Ja_rel32_64,
        l => Code::Jl_rel32_64,
        ge => Code::Jge_rel32_64,
        le => Code::Jle_rel32_64,
        g => Code::Jg_rel32_64,
        o => Code::Jo_rel32_64,
        no => Code::Jno_rel32_64,
        _ => Code::Jne_rel32_64,
    }
}

/// Emits the comparison of a conditional branch, and returns the jump that is taken when the branch is.
pub(super) fn condition(asm: &mut Asm, op: Op, shape: Shape) -> Option<Code> {
    let mut zero = |index: usize| match asm.kept(index as u16) {
        Some(register) if shape.halves == 1 => asm.op2(Code::Test_rm32_r32, register, register),
        _ => {
            let code = if shape.halves == 2 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
            asm.op2(code, place(index as u16), 0);
        }
    };
    Some(match op {
        Op::S_CBRANCH_SCC0 | Op::S_CBRANCH_SCC1 => {
            let taken = asm.flags().map(jump_if).unwrap_or_else(|| {
                asm.op2(Code::Cmp_rm32_imm8, scc(), 0);
                Code::Jne_rel32_64
            });
            if op == Op::S_CBRANCH_SCC0 { taken.negate_condition_code() } else { taken }
        }
        Op::S_CBRANCH_VCCZ => {
            zero(VCC);
            Code::Je_rel32_64
        }
        Op::S_CBRANCH_VCCNZ => {
            zero(VCC);
            Code::Jne_rel32_64
        }
        Op::S_CBRANCH_EXECZ => {
            zero(EXEC);
            Code::Je_rel32_64
        }
        Op::S_CBRANCH_EXECNZ => {
            zero(EXEC);
            Code::Jne_rel32_64
        }
        _ => return None,
    })
}
