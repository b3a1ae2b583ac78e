// SPDX-License-Identifier: MIT OR Apache-2.0
//! SMEM, DS, FLAT, GLOBAL, SCRATCH, MUBUF and MTBUF.
//!
//! INVARIANT: `src[0]` is the address and `src[1]` the data wherever both exist; an address that is "off" is `None`.

use super::cursor::{Cursor, Strictness};
use crate::info::{Class, Flags, Fmt, Ty};
use crate::inst::{DecodeError, Enc, Inst, Operand};
use crate::layout;
use crate::table::{Op, OpInfo, info};

/// Code of EXEC's high half, which cannot be an address.
const EXEC_HI: u32 = 127;

pub(super) fn smem(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::smem::*;
    let op = cursor.op(Fmt::Smem, OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, Enc::Smem, 8);
    if row.any(Flags::LOAD) {
        inst.glc = GLC.is_set(bits);
        inst.dlc = DLC.is_set(bits);
    } else {
        cursor.require_unassigned(!GLC.is_set(bits) && !DLC.is_set(bits))?;
    }
    if let Some(slot) = row.dst.first() {
        // M0 and EXEC cannot be loaded.
        cursor.require(SDATA.of(bits) <= layout::NULL)?;
        inst.dst = cursor.register(SDATA.of(bits), slot.ty)?;
    }
    for (i, slot) in row.src.iter().enumerate() {
        inst.src[i] = match slot.class {
            Class::OFF => cursor.register(SOFFSET.of(bits), slot.ty)?,
            // CAST: a 7-bit field.
            Class::K => Operand::Int(SDATA.of(bits) as i32),
            _ => cursor.register(SBASE.of(bits) << 1, slot.ty)?,
        };
        inst.imm = OFFSET.signed(bits);
    }
    Ok(cursor.finish(inst))
}

pub(super) fn ds(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::ds::*;
    let op = cursor.op(Fmt::Ds, OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, Enc::Ds, 8);
    inst.gds = GDS.is_set(bits);
    cursor.require(!row.any(if inst.gds { Flags::NO_GDS } else { Flags::GDS_ONLY }))?;
    if op == Op::DS_NOP {
        cursor.require_unassigned(OFFSET.of(bits) == 0)?;
    } else {
        // CAST: a 16-bit field.
        inst.imm = OFFSET.of(bits) as i32;
    }
    match row.dst.first() {
        Some(slot) => inst.dst = cursor.vgpr(VDST.of(bits), slot.ty)?,
        None => cursor.require_unassigned(VDST.of(bits) == 0)?,
    }
    for (i, field) in [ADDR, DATA0, DATA1].into_iter().enumerate() {
        match row.src.get(i).filter(|slot| slot.class != Class::NONE) {
            Some(slot) => inst.src[i] = cursor.vgpr(field.of(bits), slot.ty)?,
            None => cursor.require_unassigned(field.of(bits) == 0)?,
        }
    }
    Ok(cursor.finish(inst))
}

pub(super) fn flat(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::flat::*;
    let (fmt, enc) = match SEG.of(cursor.bits()) {
        0 => (Fmt::Flat, Enc::Flat),
        1 => (Fmt::Scratch, Enc::Scratch),
        2 => (Fmt::Global, Enc::Global),
        _ => return Err(cursor.illegal()),
    };
    let op = cursor.op(fmt, OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, enc, 8);
    inst.glc = GLC.is_set(bits);
    inst.slc = SLC.is_set(bits);
    inst.dlc = DLC.is_set(bits);
    // CAST: a 13-bit field; FLAT's is unsigned.
    inst.imm = if enc == Enc::Flat { OFFSET.of(bits) as i32 } else { OFFSET.signed(bits) };
    let mut saddr = SADDR.of(bits);
    let vector_address = match enc {
        Enc::Flat => {
            cursor.require_unassigned(saddr == layout::NULL && !SVE.is_set(bits))?;
            saddr = layout::NULL;
            Some(Ty::B64)
        }
        Enc::Scratch => SVE.is_set(bits).then_some(Ty::B32),
        _ => {
            cursor.require_unassigned(!SVE.is_set(bits))?;
            let has_address = row.src.first().is_some_and(|slot| slot.class == Class::V);
            has_address.then_some(if saddr == layout::NULL { Ty::B64 } else { Ty::B32 })
        }
    };
    if let Some(ty) = vector_address {
        inst.src[0] = cursor.vgpr(ADDR.of(bits), ty)?;
    }
    if let Some(slot) = row.src.get(2).filter(|_| saddr != layout::NULL) {
        cursor.require(saddr != EXEC_HI)?;
        inst.src[2] = cursor.register(saddr, slot.ty)?;
    }
    data(cursor, &mut inst, row, DATA.of(bits), VDST.of(bits))?;
    Ok(cursor.finish(inst))
}

/// Data and destination; an atomic has a destination only if it returns the old value (glc).
fn data(
    cursor: &Cursor<'_>,
    inst: &mut Inst,
    row: &OpInfo,
    vdata: u32,
    vdst: u32,
) -> Result<(), DecodeError> {
    if let Some(slot) = row.src.get(1).filter(|slot| slot.class == Class::V) {
        inst.src[1] = cursor.vgpr(vdata, slot.ty)?;
    }
    let returns = !row.any(Flags::ATOMIC) || inst.glc;
    if let Some(slot) = row.dst.first().filter(|_| returns) {
        inst.dst = cursor.vgpr(vdst, slot.ty)?;
    }
    Ok(())
}

pub(super) fn mubuf(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::mubuf::*;
    let op = cursor.op(Fmt::Mubuf, OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let mut inst = Inst::new(op, Enc::Mubuf, 8);
    inst.glc = GLC.is_set(bits);
    inst.slc = SLC.is_set(bits);
    inst.dlc = DLC.is_set(bits);
    inst.tfe = TFE.is_set(bits);
    inst.offen = OFFEN.is_set(bits);
    inst.idxen = IDXEN.is_set(bits);
    if matches!(op, Op::BUFFER_GL0_INV | Op::BUFFER_GL1_INV) {
        cursor.require_unassigned(!(inst.glc || inst.dlc || inst.tfe || inst.offen || inst.idxen))?;
        return Ok(cursor.finish(Inst::new(op, Enc::Mubuf, 8)));
    }
    buffer(cursor, inst)
}

pub(super) fn mtbuf(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::mubuf::{DLC, GLC, IDXEN, OFFEN, SLC, TFE};
    let op = cursor.op(Fmt::Mtbuf, layout::mtbuf::OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let mut inst = Inst::new(op, Enc::Mtbuf, 8);
    inst.format = layout::mtbuf::FORMAT.of8(bits);
    inst.glc = GLC.is_set(bits);
    inst.slc = SLC.is_set(bits);
    inst.dlc = DLC.is_set(bits);
    inst.offen = OFFEN.is_set(bits);
    inst.idxen = IDXEN.is_set(bits);
    // LLVM has no status dword here.
    cursor.require(!TFE.is_set(bits))?;
    buffer(cursor, inst)
}

/// Address, resource and data of a buffer access.
fn buffer(cursor: &mut Cursor<'_>, mut inst: Inst) -> Result<Inst, DecodeError> {
    use layout::mubuf::*;
    let bits = cursor.bits();
    let row = info(inst.op);
    // CAST: a 12-bit field.
    inst.imm = OFFSET.of(bits) as i32;
    let address = match (inst.offen, inst.idxen) {
        (false, false) => None,
        (true, true) => Some(Ty::B64),
        _ => Some(Ty::B32),
    };
    if let Some(ty) = address {
        inst.src[0] = cursor.vgpr(VADDR.of(bits), ty)?;
    }
    inst.src[2] = cursor.register(SRSRC.of(bits) << 2, Ty::B128)?;
    inst.src[3] = cursor.scalar_source(SOFFSET.of(bits), Ty::B32)?;
    // Only a load can report a failed fetch; LLVM prints the bit for stores too.
    let takes_status = row.any(Flags::LOAD) && !row.any(Flags::LDS);
    cursor.require_unassigned(!inst.tfe || takes_status || row.any(Flags::STORE))?;
    inst.tfe &= takes_status || cursor.strictness == Strictness::Llvm19;
    let vdata = VDATA.of(bits);
    data(cursor, &mut inst, row, vdata, vdata)?;
    // The status dword follows the data.
    let data_slot = row.dst.first().or(row.src.get(1));
    if let Some(slot) = data_slot.filter(|_| inst.tfe) {
        cursor.require(vdata + u32::from(slot.ty.dwords()) < 256)?;
    }
    Ok(cursor.finish(inst))
}
