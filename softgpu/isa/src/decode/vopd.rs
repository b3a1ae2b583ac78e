// SPDX-License-Identifier: MIT OR Apache-2.0
//! VOPD: two operations in one instruction, sharing one literal.
//!
//! INVARIANT: Y's destination register has the other parity than X's.

use super::cursor::Cursor;
use crate::info::{Class, Fmt, Slot, Ty};
use crate::inst::{DecodeError, Enc, Inst, Operand, Second, WaveSize};
use crate::layout;
use crate::table::{Op, info};

pub(super) fn vopd(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vopd::*;
    // Wave64 has no dual issue: with 64 lanes a SIMD is busy without it.
    cursor.require(cursor.wave == WaveSize::W32)?;
    let x = cursor.op(Fmt::DualX, OPX.of(cursor.bits()))?;
    let y = cursor.op(Fmt::DualY, OPY.of(cursor.bits()))?;
    cursor.claim()?;
    let bits = cursor.bits();
    let mut inst = Inst::new(x, Enc::Vopd, 8);
    let vdstx = VDSTX.of(bits);
    inst.dst = cursor.vgpr(vdstx, Ty::B32)?;
    let [x0, x1, x2] = half(cursor, x, SRCX0.of(bits), VSRCX1.of(bits))?;
    inst.src = [x0, x1, x2, Operand::None];
    let vdsty = VDSTY.of(bits) << 1 | (!vdstx & 1);
    let src = half(cursor, y, SRCY0.of(bits), VSRCY1.of(bits))?;
    inst.second = Some(Second { op: y, dst: cursor.vgpr(vdsty, Ty::B32)?, src });
    Ok(cursor.finish(inst))
}

fn half(cursor: &mut Cursor<'_>, op: Op, src0: u32, vsrc1: u32) -> Result<[Operand; 3], DecodeError> {
    let row = info(op);
    let mut src = [Operand::None; 3];
    let mut vsrc1 = Some(vsrc1);
    for (i, &slot) in row.src.iter().enumerate().take(3) {
        src[i] = match slot.class {
            _ if i == 0 => cursor.source(src0, Slot { class: Class::X, ty: slot.ty })?,
            Class::M => Operand::Vcc,
            Class::LIT => Operand::Literal(cursor.literal()?),
            _ => match vsrc1.take() {
                Some(index) => cursor.vgpr(index, slot.ty)?,
                None => Operand::None,
            },
        };
    }
    cursor.require_unassigned(vsrc1.unwrap_or(0) == 0)?;
    Ok(src)
}
