// SPDX-License-Identifier: MIT OR Apache-2.0
//! Vector ALU instructions: plain, with DPP, and dual-issue.
//!
//! INVARIANT: both halves of a dual-issue instruction read their sources before either of them writes.

use softgpu_isa::{Class, Dpp, Flags, Op, Operand, Second, Ty, info};

use super::lowering::Lowering;
use super::operands::{neg_is_signed, scalar_index};
use crate::step::{FLAG_ALL_LANES, FLAG_DPP_MASK, OUT_CLAMP, OUT_HIGH, OUT_OMOD_SHIFT, Src, Step, mods};
use crate::valu::{self, cross};
use crate::wave::EXEC;

/// Operations that read their destination as a further source.
fn accumulates(op: Op) -> bool {
    use Op::*;
    matches!(op, V_FMAC_F32 | V_FMAC_F16 | V_FMAC_DX9_ZERO_F32 | V_PK_FMAC_F16 | V_DOT2ACC_F32_F16)
}

impl Lowering<'_> {
    /// A vector ALU operation, or half of a dual one.
    pub(super) fn vector(&self, op: Op, dst: Operand, sources: &[Operand], whole: bool) -> Option<Step> {
        let inst = self.inst;
        let row = info(op);
        let mut step = self.blank();
        step.run = valu::table_handler(self.level, op)?;
        step.op = Some(op);
        for (i, (&slot, &operand)) in row.src.iter().zip(sources).enumerate().take(3) {
            step.src[i] = self.source(operand, slot, i, op, whole)?;
        }
        let moves_rows =
            matches!(op, Op::V_SWAP_B32 | Op::V_SWAP_B16 | Op::V_SWAPREL_B32 | Op::V_PERMLANE64_B32);
        if moves_rows && !step.src[0].is_vgpr() {
            return None;
        }
        // Four accumulators are four registers; no scalar operand is that wide.
        if op == Op::V_MQSAD_U32_U8 && !step.src[2].is_vgpr() {
            return None;
        }
        self.set_destination(&mut step, op, dst, whole)?;
        if accumulates(op) {
            let mut acc = Src::vgpr(step.dst as usize);
            if step.out & OUT_HIGH != 0 {
                acc = self.modified(acc, mods::LO_FROM_HI, false);
            }
            step.src[2] = acc;
        }
        let compares = row.dst.first().is_none_or(|slot| slot.class == Class::M);
        if whole && !compares {
            step.out |= (u8::from(inst.clamp) * OUT_CLAMP) | (inst.omod << OUT_OMOD_SHIFT);
        }
        self.special(op, &mut step);
        let is_matrix = row.name.starts_with("v_wmma");
        if let Some(fast) = valu::fast_handler(self.level, self.shape.halves, op, &step) {
            step.run = fast;
        }
        if is_matrix && inst.op_sel & 4 != 0 {
            step.out |= OUT_HIGH;
        }
        Some(step)
    }

    /// Enters the destinations of `op`.
    fn set_destination(&self, step: &mut Step, op: Op, dst: Operand, whole: bool) -> Option<()> {
        let (inst, row) = (self.inst, info(op));
        match row.dst.first() {
            Some(slot) if slot.class == Class::V => {
                step.dst = self.vgpr_row(dst, self.width(*slot))? as u16;
                let narrow = matches!(slot.ty, Ty::F16 | Ty::BF16 | Ty::B16 | Ty::U16 | Ty::I16);
                let high = (whole && narrow && inst.op_sel & 8 != 0) || op == Op::V_FMA_MIXHI_F16;
                if high {
                    step.out |= OUT_HIGH;
                }
            }
            Some(slot) if slot.class == Class::M => step.sdst = scalar_index(dst, true)? as u16,
            Some(_) => step.dst = scalar_index(dst, true)? as u16,
            None if row.any(Flags::WRITES_EXEC) => step.sdst = EXEC as u16,
            None => {}
        }
        if row.dst.len() > 1 {
            step.sdst = scalar_index(inst.sdst, true)? as u16;
        }
        Some(())
    }

    /// Enters the fields that only some operations have.
    fn special(&self, op: Op, step: &mut Step) {
        let inst = self.inst;
        match op {
            _ if neg_is_signed(op) => step.flags = u16::from(inst.neg),
            Op::V_FMA_MIX_F32 | Op::V_FMA_MIXLO_F16 | Op::V_FMA_MIXHI_F16 => {
                step.flags = u16::from(inst.op_sel_hi)
            }
            Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32 => step.flags = u16::from(inst.op_sel),
            _ => {}
        }
    }

    /// The steps of a DPP instruction: one that permutes the lanes of the first source into a spare register, the
    /// operation on that register, and one that restores EXEC.
    pub(super) fn with_dpp(&self, dpp: Dpp, mut step: Step) -> Option<Vec<Step>> {
        if !step.src[0].is_vgpr() || info(self.inst.op).src.first().is_none_or(|s| s.ty.dwords() != 1) {
            return None;
        }
        let mut prepare = self.blank();
        prepare.run = cross::dpp_prepare;
        prepare.src[0] = Src::vgpr(step.src[0].index as usize);
        prepare.dst = self.spare(0) as u16;
        let fetches = match dpp {
            Dpp::Dpp16 { ctrl, row_mask, bank_mask, bound_ctrl, fi } => {
                prepare.imm = i32::from(ctrl);
                prepare.flags = u16::from(bank_mask & 15) | u16::from(row_mask & 15) << 4;
                if bound_ctrl {
                    prepare.flags |= cross::DPP_BOUND_CTRL;
                }
                fi
            }
            Dpp::Dpp8 { sel, fi } => {
                let packed = sel.iter().rev().fold(0u32, |r, &s| r << 3 | u32::from(s & 7));
                prepare.imm = packed as i32;
                prepare.flags = cross::DPP8;
                fi
            }
        };
        if fetches {
            prepare.flags |= cross::DPP_FETCH_INACTIVE;
        }
        step.src[0].index = self.spare(0) as u16;
        let all = cross::DPP_BOUND_CTRL | 0xFF;
        if prepare.flags & cross::DPP8 == 0 && prepare.flags & all != all {
            step.flags |= FLAG_DPP_MASK;
            step.imm = prepare.imm | i32::from(prepare.flags) << 16;
        }
        let mut steps = vec![prepare, step];
        if step.sdst as usize != EXEC {
            let mut restore = self.blank();
            restore.run = cross::dpp_restore;
            steps.push(restore);
        }
        Some(steps)
    }

    /// Both halves must read before either writes: orders them, or keeps a copy of the old value of X's destination.
    pub(super) fn dual(&self, second: &Second) -> Option<Vec<Step>> {
        let inst = self.inst;
        let x = self.vector(inst.op, inst.dst, &inst.src[..3], false)?;
        let mut y = self.vector(second.op, second.dst, &second.src, false)?;
        let reads = |s: &Step, row: u16| s.src.iter().any(|src| src.is_vgpr() && src.index == row);
        if !reads(&y, x.dst) {
            return Some(vec![x, y]);
        }
        if !reads(&x, y.dst) {
            return Some(vec![y, x]);
        }
        let mut keep = self.blank();
        keep.run = cross::copy_all;
        keep.op = Some(Op::V_MOV_B32);
        keep.flags = FLAG_ALL_LANES;
        keep.src[0] = Src::vgpr(x.dst as usize);
        keep.dst = self.spare(1) as u16;
        for src in &mut y.src {
            if src.is_vgpr() && src.index == x.dst {
                src.index = keep.dst;
            }
        }
        Some(vec![keep, x, y])
    }
}
