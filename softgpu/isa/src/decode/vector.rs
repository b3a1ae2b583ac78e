// SPDX-License-Identifier: MIT OR Apache-2.0
//! VOP1, VOP2, VOPC and their DPP forms.
//!
//! INVARIANT: a 16-bit operand of a short form names v0..v127; its field's top bit selects the high half and becomes
//! the operand's op_sel bit. (LLVM 19 does so only with `+real-true16`; otherwise it refuses the word.)

use super::cursor::Cursor;
use crate::info::{Class, Flags, Fmt, Slot, Ty};
use crate::inst::{DecodeError, Dpp, Enc, Inst, Operand};
use crate::layout;
use crate::table::{Op, OpInfo, info};

pub(super) fn vop1(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vop1::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Vop1, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Vop1, 4);
    let row = info(op);
    if let Some(&slot) = row.dst.first() {
        inst.dst = short_destination(cursor, &mut inst, VDST.of(bits), slot)?;
    } else {
        cursor.require_unassigned(VDST.of(bits) == 0)?;
    }
    short_sources(cursor, &mut inst, row, SRC0.of(bits), None)?;
    Ok(cursor.finish(inst))
}

pub(super) fn vop2(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vop2::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Vop2, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Vop2, 4);
    let row = info(op);
    if let Some(&slot) = row.dst.first() {
        inst.dst = short_destination(cursor, &mut inst, VDST.of(bits), slot)?;
    }
    if row.dst.len() > 1 {
        inst.sdst = Operand::Vcc;
    }
    short_sources(cursor, &mut inst, row, SRC0.of(bits), Some(VSRC1.of(bits)))?;
    Ok(cursor.finish(inst))
}

pub(super) fn vopc(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    use layout::vopc::*;
    let bits = cursor.bits();
    let op = cursor.op(Fmt::Vopc, OP.of(bits))?;
    let mut inst = Inst::new(op, Enc::Vopc, 4);
    let row = info(op);
    if !row.dst.is_empty() {
        inst.dst = Operand::Vcc;
    }
    short_sources(cursor, &mut inst, row, SRC0.of(bits), Some(VSRC1.of(bits)))?;
    Ok(cursor.finish(inst))
}

/// A vector register of a short form; `position` is its op_sel bit.
fn short_vgpr(
    cursor: &Cursor<'_>,
    inst: &mut Inst,
    index: u32,
    ty: Ty,
    position: u8,
) -> Result<Operand, DecodeError> {
    if ty.is_half() && index >= 128 {
        inst.op_sel |= 1 << position;
        return cursor.vgpr(index - 128, ty);
    }
    cursor.vgpr(index, ty)
}

fn short_destination(
    cursor: &Cursor<'_>,
    inst: &mut Inst,
    vdst: u32,
    slot: Slot,
) -> Result<Operand, DecodeError> {
    match slot.class {
        Class::D => {
            cursor.require(vdst < 128)?;
            cursor.register(vdst, slot.ty)
        }
        _ => short_vgpr(cursor, inst, vdst, slot.ty, 3),
    }
}

fn short_sources(
    cursor: &mut Cursor<'_>,
    inst: &mut Inst,
    row: &OpInfo,
    src0: u32,
    vsrc1: Option<u32>,
) -> Result<(), DecodeError> {
    let Some(&first) = row.src.first() else { return Ok(()) };
    inst.src[0] = match src0 {
        layout::DPP16 | layout::DPP8 | layout::DPP8_FI => {
            cursor.require(row.any(Flags::DPP))?;
            cursor.claim()?;
            let vsrc0 = short_dpp(cursor, inst, row, src0)?;
            short_vgpr(cursor, inst, vsrc0, first.ty, 0)?
        }
        layout::VGPR0.. => short_vgpr(cursor, inst, src0 - layout::VGPR0, first.ty, 0)?,
        _ => cursor.source(src0, first)?,
    };
    let mut vsrc1 = vsrc1;
    for (i, &slot) in (0u8..).zip(row.src).skip(1).take(3) {
        inst.src[usize::from(i)] = match slot.class {
            Class::M => Operand::Vcc,
            Class::LIT => Operand::Literal(cursor.literal()?),
            _ => match vsrc1.take() {
                Some(index) => short_vgpr(cursor, inst, index, slot.ty, i)?,
                None => Operand::None,
            },
        };
    }
    Ok(())
}

/// Reads the claimed DPP dword into `inst` and returns source 0's register number.
fn short_dpp(cursor: &Cursor<'_>, inst: &mut Inst, row: &OpInfo, marker: u32) -> Result<u32, DecodeError> {
    use layout::dpp16::*;
    let bits = cursor.bits();
    let neg = NEG0.of8(bits) | NEG1.of8(bits) << 1;
    let abs = ABS0.of8(bits) | ABS1.of8(bits) << 1;
    inst.dpp = Some(dpp(cursor, marker, layout::low(bits >> 32))?);
    if marker == layout::DPP16 {
        for i in 0u8..2 {
            let class = cursor.modified_class(row, usize::from(i));
            let bit = 1 << i;
            match class {
                // v_ldexp_f16's exponent has modifiers in the long form only.
                Some(Class::XM) if inst.op == Op::V_LDEXP_F16 && i == 1 => {}
                Some(Class::XM) => {
                    inst.neg |= neg & bit;
                    inst.abs |= abs & bit;
                }
                Some(_) if row.any(Flags::LOOSE) => {}
                _ => cursor.require_unassigned((neg | abs) & bit == 0)?,
            }
        }
    }
    Ok(VSRC0.of(bits))
}

/// Whether LLVM knows the 9-bit DPP16 pattern on gfx11.
fn is_dpp16_control(control: u32) -> bool {
    matches!(control, 0..=0xff | 0x101..=0x10f | 0x111..=0x11f | 0x121..=0x12f | 0x140 | 0x141 | 0x150..=0x16f)
}

/// The lane selection in a DPP dword.
pub(super) fn dpp(cursor: &Cursor<'_>, marker: u32, word: u32) -> Result<Dpp, DecodeError> {
    use layout::{dpp8, dpp16};
    let bits = u64::from(word) << 32;
    if marker == layout::DPP16 {
        let control = dpp16::CTRL.of(bits);
        cursor.require(is_dpp16_control(control))?;
        return Ok(Dpp::Dpp16 {
            ctrl: dpp16::CTRL.of16(bits),
            row_mask: dpp16::ROW_MASK.of8(bits),
            bank_mask: dpp16::BANK_MASK.of8(bits),
            bound_ctrl: dpp16::BOUND_CTRL.is_set(bits),
            fi: dpp16::FI.is_set(bits),
        });
    }
    let packed = dpp8::SEL.of(bits);
    // CAST: masked to three bits.
    let sel = std::array::from_fn(|lane| (packed >> (3 * lane) & 7) as u8);
    Ok(Dpp::Dpp8 { sel, fi: marker == layout::DPP8_FI })
}
