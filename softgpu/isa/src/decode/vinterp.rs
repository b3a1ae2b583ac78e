// SPDX-License-Identifier: MIT OR Apache-2.0
//! VINTERP: multiply-add of vector registers, with a count of exports to wait for.
//!
//! INVARIANT: no source is a scalar register or a constant; neg and clamp are assigned to all operations, op_sel to 16-bit operands.

use super::cursor::Cursor;
use crate::info::{Flags, Fmt};
use crate::inst::{DecodeError, Enc, Inst};
use crate::layout;
use crate::table::info;

pub(super) fn vinterp(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vinterp::*;
    let op = cursor.op(Fmt::Vinterp, OP.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let row = info(op);
    let mut inst = Inst::new(op, Enc::Vinterp, 8);
    if let Some(slot) = row.dst.first() {
        inst.dst = cursor.vgpr(VDST.of(bits), slot.ty)?;
    }
    for ((&slot, field), source) in row.src.iter().zip([SRC0, SRC1, SRC2]).zip(&mut inst.src) {
        *source = cursor.source(field.of(bits), slot)?;
    }
    inst.imm = WAIT_EXP.of(bits) as i32;
    inst.op_sel = OP_SEL.of8(bits);
    cursor.require_unassigned(inst.op_sel == 0 || row.any(Flags::OP_SEL))?;
    inst.neg = NEG.of8(bits);
    inst.clamp = CLAMP.is_set(bits);
    Ok(cursor.finish(inst))
}
