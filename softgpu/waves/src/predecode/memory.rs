// SPDX-License-Identifier: MIT OR Apache-2.0
//! Vector memory and LDS instructions.
//!
//! INVARIANT: this module checks every register that a handler reads or writes for the access, including data and
//! status.

use softgpu_isa::{Class, Enc, Flags, Operand, Slot, Ty, info};

use super::lowering::Lowering;
use super::operands::scalar_index;
use crate::mem::{self, flags, global};
use crate::step::{FLAG_GLC, FLAG_SADDR, FLAG_VADDR, Kind, Src, Step};

/// What the name of a memory operation says apart from its size.
fn variant_flags(name: &str) -> u16 {
    let half = match name {
        name if name.contains("d16_hi") => global::FLAG_D16_HI,
        name if name.contains("d16") => global::FLAG_D16,
        _ => 0,
    };
    half | if name.contains("stride64") { flags::FLAG_STRIDE64 } else { 0 }
}

impl Lowering<'_> {
    /// A vector memory or LDS instruction.
    pub(super) fn vector_memory(&self) -> Option<Step> {
        let inst = self.inst;
        let row = info(inst.op);
        let mut step = self.blank();
        step.run = mem::handler(self.level, inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        if inst.gds {
            return None;
        }
        // The status of a load follows its data.
        let status = usize::from(inst.tfe && row.any(Flags::LOAD));
        step.flags |= if status != 0 { flags::FLAG_TFE } else { 0 };
        if let Some((kind, _)) = row.any(Flags::ATOMIC).then(|| mem::atomic_of(row.name)).flatten() {
            step.sdst = kind as u16;
        }
        if let (Some(slot), Operand::Vgpr(_)) = (row.dst.first(), inst.dst) {
            step.dst = self.vgpr_row(inst.dst, slot.ty.dwords() as usize + status)? as u16;
            if row.any(Flags::ATOMIC) {
                step.flags |= FLAG_GLC;
            }
        }
        step.flags |= variant_flags(row.name);
        if let Some(slot) = row.src.get(1).filter(|slot| slot.class == Class::V) {
            step.src[1] = Src::vgpr(self.vgpr_row(inst.src[1], slot.ty.dwords() as usize)?);
        }
        match inst.enc {
            Enc::Ds => {
                if row.src.first().is_some_and(|slot| slot.class == Class::V) {
                    step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], 1)?);
                }
                if let Some(slot) = row.src.get(2).filter(|slot| slot.class == Class::V) {
                    step.src[2] = Src::vgpr(self.vgpr_row(inst.src[2], slot.ty.dwords() as usize)?);
                }
            }
            Enc::Mubuf | Enc::Mtbuf => self.buffer(&mut step)?,
            _ => self.address(&mut step)?,
        }
        Some(step)
    }

    /// Enters the address of a flat, global or scratch access.
    fn address(&self, step: &mut Step) -> Option<()> {
        let (inst, row) = (self.inst, info(self.inst.op));
        let scalar_base = scalar_index(inst.src[2], false).filter(|_| inst.src[2] != Operand::Null);
        if let Some(base) = scalar_base {
            step.flags |= FLAG_SADDR;
            step.src[2] = Src { kind: Kind::Scalar, mods: 0, index: base as u16, value: 0 };
        }
        if inst.src[0] != Operand::None {
            step.flags |= FLAG_VADDR;
            let wide = inst.enc != Enc::Scratch && scalar_base.is_none();
            step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], if wide { 2 } else { 1 })?);
        } else if scalar_base.is_none()
            && row.src.first().is_some_and(|s| s.class != Class::NONE)
            && inst.enc != Enc::Scratch
        {
            return None;
        }
        Some(())
    }

    /// Enters the address of a buffer access.
    fn buffer(&self, step: &mut Step) -> Option<()> {
        let inst = self.inst;
        let dwords = if inst.offen && inst.idxen { 2 } else { 1 };
        if inst.offen || inst.idxen {
            step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], dwords)?);
        }
        if inst.enc == Enc::Mtbuf {
            step.sdst = u16::from(inst.format);
        }
        if inst.offen {
            step.flags |= flags::FLAG_OFFEN;
        }
        if inst.idxen {
            step.flags |= flags::FLAG_IDXEN;
        }
        if step.src[1].is_vgpr() && inst.src[1] != Operand::None {
            step.dst = step.src[1].index;
        }
        let resource = scalar_index(inst.src[2], false)?;
        step.src[2] = Src { kind: Kind::Scalar, mods: 0, index: resource as u16, value: 0 };
        let slot = Slot { class: Class::S, ty: Ty::U32 };
        step.src[1] = self.source(inst.src[3], slot, 3, inst.op, false)?;
        Some(())
    }
}
