// SPDX-License-Identifier: MIT OR Apache-2.0
//! VOP3, VOP3SD and VOP3P, with literals and DPP.
//!
//! INVARIANT: a modifier bit the operation does not have is decoded as zero; [`Strictness::Llvm19`](super::Strictness)
//! refuses it, except op_sel and the bits of sources that do not exist in integer op_sel operations.

use super::cursor::Cursor;
use super::vector;
use crate::info::{Class, Flags, Fmt, Slot, Ty};
use crate::inst::{DecodeError, Enc, Inst, Operand};
use crate::layout;
use crate::table::{self, Op, OpInfo, info};

pub(super) fn vop3(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vop3::*;
    let opcode = OP.of(cursor.bits());
    let (op, enc) = match table::lookup(Fmt::Vop3, opcode) {
        Some(op) => (op, Enc::Vop3),
        None => (cursor.op(Fmt::Vop3sd, opcode)?, Enc::Vop3sd),
    };
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, enc, 8);
    match row.dst.first() {
        Some(&slot) => inst.dst = long_destination(cursor, VDST.of(bits), slot)?,
        // A compare that writes EXEC ignores the destination field.
        None => cursor.require_unassigned(VDST.of(bits) == 0 || row.any(Flags::WRITES_EXEC))?,
    }
    if enc == Enc::Vop3sd {
        inst.sdst = cursor.register(SDST.of(bits), Ty::MASK)?;
    }
    long_sources(cursor, &mut inst, row, [SRC0.of(bits), SRC1.of(bits), SRC2.of(bits)])?;
    modifiers(cursor, &mut inst, row)?;
    Ok(cursor.finish(inst))
}

fn long_destination(cursor: &Cursor<'_>, vdst: u32, slot: Slot) -> Result<Operand, DecodeError> {
    match slot.class {
        Class::D | Class::M => {
            cursor.require(vdst < 128)?;
            cursor.register(vdst, slot.ty)
        }
        _ => cursor.vgpr(vdst, slot.ty),
    }
}

/// Reads the sources, and the DPP dword if source 0 is a DPP marker.
fn long_sources(
    cursor: &mut Cursor<'_>,
    inst: &mut Inst,
    row: &OpInfo,
    codes: [u32; 3],
) -> Result<(), DecodeError> {
    let marker = codes[0];
    let is_dpp = matches!(marker, layout::DPP16 | layout::DPP8 | layout::DPP8_FI) && !row.src.is_empty();
    if is_dpp {
        cursor.require(row.any(Flags::DPP64))?;
        let word = cursor.claim()?;
        inst.dpp = Some(vector::dpp(cursor, marker, word)?);
        inst.src[0] = cursor.vgpr(word & 0xff, row.src[0].ty)?;
    }
    for (i, &code) in codes.iter().enumerate() {
        match row.src.get(i) {
            Some(_) if is_dpp && i == 0 => {}
            Some(&slot) => {
                // A DPP dword takes the literal's place.
                cursor.require(!(is_dpp && code == layout::LITERAL))?;
                let is_vector_only = is_dpp && slot.ty == Ty::MIX && i == 1;
                let class = if is_vector_only { Class::V } else { slot.class };
                // Matrices are in vector registers.
                let is_matrix = slot.ty.dwords() > 2 && class == Class::X;
                cursor.require(!is_matrix || code >= layout::NULL)?;
                cursor.require(!is_matrix || !matches!(code, 125..=127))?;
                inst.src[i] = cursor.source(code, Slot { class, ty: slot.ty })?;
            }
            None => cursor.require_unassigned(code == 0)?,
        }
    }
    Ok(())
}

fn modifiers(cursor: &Cursor<'_>, inst: &mut Inst, row: &OpInfo) -> Result<(), DecodeError> {
    use layout::vop3::*;
    let bits = cursor.bits();
    let (neg, abs) = (NEG.of8(bits), ABS.of8(bits));
    let scalar_destination = inst.enc == Enc::Vop3sd;
    for i in 0u8..3 {
        let class = cursor.modified_class(row, usize::from(i));
        let bit = 1 << i;
        match class {
            Some(Class::XM) => {
                inst.neg |= neg & bit;
                inst.abs |= if scalar_destination { 0 } else { abs & bit };
            }
            Some(Class::XN) => {
                inst.neg |= neg & bit;
            }
            Some(_) if row.any(Flags::LOOSE) => {}
            _ => {
                cursor.require_unassigned(neg & bit == 0)?;
                cursor.require_unassigned(abs & bit == 0 || scalar_destination)?;
            }
        }
    }
    if !scalar_destination {
        inst.op_sel = OP_SEL.of8(bits) & op_sel_mask(row);
    }
    if row.any(Flags::OP_SEL) {
        cursor.require_unassigned(row.src.len() > 2 || inst.op_sel & 4 == 0)?;
    }
    inst.clamp = CLAMP.is_set(bits);
    cursor.require_unassigned(!inst.clamp || row.any(Flags::CLAMP))?;
    inst.omod = OMOD.of8(bits);
    cursor.require_unassigned(inst.omod == 0 || row.any(Flags::OMOD))
}

/// The op_sel bits an operation has: those of its 16-bit operands; permutes have fi and bound_ctrl there. Operations
/// without `Flags::OP_SEL` have these bits too; LLVM 19 neither prints them nor requires them to be zero.
fn op_sel_mask(row: &OpInfo) -> u8 {
    match row.op {
        Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32 => 0b0011,
        Op::V_DOT2_F16_F16 | Op::V_DOT2_BF16_BF16 => 0b1100,
        _ if row.any(Flags::OP_SEL) => 0b1111,
        _ => {
            let bit = |i: usize, slot: &Slot| u8::from(slot.ty.is_half()) << i;
            let sources = row.src.iter().enumerate().fold(0, |mask, (i, slot)| mask | bit(i, slot));
            sources | row.dst.first().map_or(0, |slot| bit(3, slot))
        }
    }
}

pub(super) fn vop3p(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vop3p::*;
    let op = cursor.op(Fmt::Vop3p, OP.of(cursor.bits()))?;
    cursor.require_unassigned(!UNUSED.is_set(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, Enc::Vop3p, 8);
    if let Some(&slot) = row.dst.first() {
        inst.dst = long_destination(cursor, VDST.of(bits), slot)?;
    }
    long_sources(cursor, &mut inst, row, [SRC0.of(bits), SRC1.of(bits), SRC2.of(bits)])?;
    inst.neg = NEG.of8(bits);
    inst.neg_hi = NEG_HI.of8(bits);
    inst.op_sel = OP_SEL.of8(bits);
    inst.op_sel_hi = OP_SEL_HI.of8(bits) | OP_SEL_HI2.of8(bits) << 2;
    // CAST: at most 3 sources.
    let sources = (1u8 << row.src.len()) - 1;
    for mask in [inst.neg, inst.neg_hi, inst.op_sel] {
        cursor.require_unassigned(mask & !sources == 0)?;
    }
    inst.op_sel_hi &= sources;
    if !row.any(Flags::OP_SEL) {
        cursor.require_unassigned(inst.op_sel == 0)?;
        inst.op_sel_hi = 0;
    }
    if row.src.iter().any(|slot| slot.ty == Ty::MIX) {
        inst.abs = inst.neg_hi;
    }
    inst.clamp = CLAMP.is_set(bits);
    cursor.require_unassigned(!inst.clamp || row.any(Flags::CLAMP))?;
    Ok(cursor.finish(inst))
}
