// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalars that are read from one lane, or written to one: v_readlane, v_readfirstlane, v_writelane. They are scalar steps
//! between lane-wise operations.
//!
//! INVARIANT: the lane is read and written in memory, so the row's pieces that are newer are stored before; a piece that is
//! written is in no register afterwards.

use iced_x86::Code;
use softgpu_isa::Op;

use super::asm::{ROW_BIAS, ROWS};
use super::generator::{Access, Accesses, Gen};
use super::scalar::{A as VALUE, B as LANE, B64, known, load, place};
use super::transfer::at;
use crate::step::{Kind, Step};
use crate::wave::EXEC;

/// The row of which a lane is read or written, if `step` is one of these.
fn row_of(step: &Step) -> Option<u16> {
    match step.op? {
        Op::V_READFIRSTLANE_B32 => (step.src[0].kind == Kind::Vgpr).then_some(step.src[0].index),
        Op::V_READLANE_B32 => {
            (step.src[0].kind == Kind::Vgpr && known(&step.src[1])).then_some(step.src[0].index)
        }
        Op::V_WRITELANE_B32 => step.src[..2].iter().all(known).then_some(step.dst),
        _ => None,
    }
}

/// Whether [`emit`] emits this step.
pub(super) fn is_inline(step: &Step) -> bool {
    row_of(step).is_some()
}

/// Whether a row of the step is in registers no more.
pub(super) fn writes_row(step: &Step) -> bool {
    step.op == Some(Op::V_WRITELANE_B32)
}

/// The pieces that have to be in memory.
pub(super) fn accesses(g: &Gen, step: &Step) -> Accesses {
    let Some(row) = row_of(step) else { return Accesses::new() };
    (0..g.pieces()).map(|c| Access { piece: g.piece(row, 0, c), overwrites: false }).collect()
}

/// Emits a step; `false`, and nothing, if it is none of these.
pub(super) fn emit(g: &mut Gen, step: &Step) -> bool {
    let Some(row) = row_of(step) else { return false };
    for c in 0..g.pieces() {
        let piece = g.piece(row, 0, c);
        if let Some(spill) = g.regs.clean(piece) {
            g.store(spill);
        }
        if writes_row(step) {
            g.regs.drop_piece(piece);
        }
    }
    let last = 32 * g.shape.halves as i32 - 1;
    if step.op == Some(Op::V_READFIRSTLANE_B32) {
        // Of no active lane the first one: TZCNT gives the number of bits.
        let exec = place(EXEC as u16);
        let (code, to) = match g.shape.halves {
            1 => (Code::Tzcnt_r32_rm32, LANE),
            _ => (Code::Tzcnt_r64_rm64, B64),
        };
        g.asm.op2(code, to, exec);
    } else {
        load(&mut g.asm, LANE, &step.src[1]);
    }
    g.asm.op2(Code::And_rm32_imm8, LANE, last);
    let lane = at(ROWS, B64, 4, 128 * i64::from(row) - ROW_BIAS);
    if writes_row(step) {
        load(&mut g.asm, VALUE, &step.src[0]);
        g.asm.op2(Code::Mov_rm32_r32, lane, VALUE);
    } else {
        g.asm.op2(Code::Mov_r32_rm32, VALUE, lane);
        g.asm.op2(Code::Mov_rm32_r32, place(step.dst), VALUE);
    }
    true
}
