// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar ALU, control and scalar memory instructions.
//!
//! INVARIANT: a write never reaches a scalar register beyond the one that the instruction names.

use softgpu_isa::{Op, Operand, info};

use super::lowering::Lowering;
use super::operands::scalar_index;
use crate::step::{Kind, Src, Step};
use crate::wave::M0;
use crate::{mem, salu};

impl Lowering<'_> {
    /// A scalar ALU or control instruction.
    pub(super) fn scalar(&self) -> Option<Step> {
        let inst = self.inst;
        let row = info(inst.op);
        // A wave with one half cannot run its halves in turn.
        let takes_turns = matches!(inst.op, Op::S_SUBVECTOR_LOOP_BEGIN | Op::S_SUBVECTOR_LOOP_END);
        (!takes_turns || self.shape.halves == 2).then_some(())?;
        let mut step = self.blank();
        step.run = salu::handler(inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        for (i, (&slot, &operand)) in row.src.iter().zip(&inst.src).enumerate().take(3) {
            step.src[i] = self.source(operand, slot, i, inst.op, false)?;
        }
        if let Some(slot) = row.dst.first() {
            let index = scalar_index(inst.dst, true)?;
            // A 64-bit write to M0 would also write EXEC.
            (index != M0 || slot.ty.dwords() == 1).then_some(())?;
            step.dst = index as u16;
        }
        Some(step)
    }

    /// A scalar load.
    pub(super) fn scalar_memory(&self) -> Option<Step> {
        let inst = self.inst;
        let mut step = self.blank();
        step.run = mem::handler(self.level, inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        let base = scalar_index(inst.src[0], false)?;
        step.src[0] = Src { kind: Kind::Scalar, mods: 0, index: base as u16, value: 0 };
        step.src[1] = match inst.src[1] {
            Operand::None | Operand::Null => Src::constant(0),
            other => Src { kind: Kind::Scalar, mods: 0, index: scalar_index(other, false)? as u16, value: 0 },
        };
        step.dst = scalar_index(inst.dst, true)? as u16;
        Some(step)
    }
}
