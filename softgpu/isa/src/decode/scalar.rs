// SPDX-License-Identifier: MIT OR Apache-2.0
//! SOP1, SOP2, SOPC, SOPK, SOPP.
//!
//! INVARIANT: operands are the destination, then the sources, in field order; a field for which the row has no slot is
//! ignored.

use super::cursor::Cursor;
use crate::info::{Class, Fmt, Ty};
use crate::inst::{DecodeError, Enc, Inst};
use crate::layout;
use crate::table::info;

pub(super) fn sop2(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::sop2::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Sop2, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Sop2, 4);
    scalar_operands(cursor, &mut inst, SDST.of(bits), &[SSRC0.of(bits), SSRC1.of(bits)])?;
    Ok(cursor.finish(inst))
}

pub(super) fn sop1(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::sop1::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Sop1, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Sop1, 4);
    scalar_operands(cursor, &mut inst, SDST.of(bits), &[SSRC0.of(bits)])?;
    Ok(cursor.finish(inst))
}

pub(super) fn sopc(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::sopc::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Sopc, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Sopc, 4);
    scalar_operands(cursor, &mut inst, 0, &[SSRC0.of(bits), SSRC1.of(bits)])?;
    Ok(cursor.finish(inst))
}

fn scalar_operands(
    cursor: &mut Cursor<'_>,
    inst: &mut Inst,
    sdst: u32,
    codes: &[u32],
) -> Result<(), DecodeError> {
    let row = info(inst.op);
    if let Some(slot) = row.dst.first() {
        inst.dst = cursor.register(sdst, slot.ty)?;
    }
    for ((slot, &code), source) in row.src.iter().zip(codes).zip(&mut inst.src) {
        match slot.class {
            // CAST: an 8-bit field.
            Class::MSG => inst.imm = code as i32,
            Class::R => {
                cursor.require(matches!(code, 0..=127 | 235..=238 | 251..=253))?;
                *source = cursor.scalar_source(code, slot.ty)?;
            }
            _ => *source = cursor.scalar_source(code, slot.ty)?,
        }
    }
    Ok(())
}

pub(super) fn sopk(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::sopk::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Sopk, OP.of(bits))?;
    let row = info(op);
    let mut inst = Inst::new(op, Enc::Sopk, 4);
    inst.imm = SIMM16.signed(bits);
    if let Some(slot) = row.dst.first() {
        inst.dst = cursor.register(SDST.of(bits), slot.ty)?;
    }
    match row.src.first().map(|slot| slot.class) {
        Some(Class::R) => inst.src[0] = cursor.register(SDST.of(bits), Ty::B32)?,
        Some(Class::LIT) => inst.src[0] = cursor.scalar_source(layout::LITERAL, Ty::B32)?,
        _ => {}
    }
    Ok(cursor.finish(inst))
}

pub(super) fn sopp(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::sopp::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Sopp, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Sopp, 4);
    if info(op).src.is_empty() {
        cursor.require_unassigned(SIMM16.of(bits) == 0)?;
    } else {
        inst.imm = SIMM16.signed(bits);
    }
    Ok(cursor.finish(inst))
}
