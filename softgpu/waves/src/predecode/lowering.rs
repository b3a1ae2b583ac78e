// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instruction that is being predecoded: its address, the shape of its waves, and the rows of its registers.
//!
//! INVARIANT: a row or width that this module returns is within the register file of a wave of the given shape.

use softgpu_isa::{Inst, Operand, Slot, WaveSize};

use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Src, Step};
use crate::wave::{PREDECODE_VGPRS, SINK, Wave};

/// The shape of the wave's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// 1 for wave32, 2 for wave64.
    pub halves: usize,
    /// Allocated VGPRs.
    pub vgprs: usize,
}

fn never(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    Flow::Next
}

/// An empty step at `pc`.
pub(crate) fn blank(pc: u64, size: u8) -> Step {
    Step {
        run: never,
        pc,
        src: [Src::default(); 3],
        dst: 0,
        sdst: SINK as u16,
        imm: 0,
        target: u32::MAX,
        ordinal: 0,
        out: 0,
        size,
        flags: 0,
        op: None,
    }
}

/// One instruction that is being lowered to steps.
pub(super) struct Lowering<'a> {
    pub level: Level,
    pub shape: Shape,
    /// Address of the instruction.
    pub pc: u64,
    pub inst: &'a Inst,
}

impl Lowering<'_> {
    /// An empty step of this instruction.
    pub(super) fn blank(&self) -> Step {
        blank(self.pc, self.inst.size)
    }

    /// The first row of a register and of the registers after it.
    pub(super) fn row(&self, register: u8, dwords: usize) -> Option<usize> {
        let register = register as usize;
        (register + dwords <= self.shape.vgprs).then_some(register * self.shape.halves)
    }

    /// The number of registers of an operand in this wave.
    pub(super) fn width(&self, slot: Slot) -> usize {
        let wave = if self.shape.halves == 2 { WaveSize::W64 } else { WaveSize::W32 };
        slot.ty.dwords_in(wave) as usize
    }

    pub(super) fn vgpr_row(&self, operand: Operand, dwords: usize) -> Option<usize> {
        match operand {
            Operand::Vgpr(r) => self.row(r, dwords),
            _ => None,
        }
    }

    /// Row of the `k`-th spare register.
    pub(super) fn spare(&self, k: usize) -> usize {
        (self.shape.vgprs + k.min(PREDECODE_VGPRS - 1)) * self.shape.halves
    }
}
