// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of the memory formats.
//!
//! INVARIANT: an offset of zero and cleared cache bits are not printed.

use std::fmt;

use super::List;
use super::operand::operand;
use crate::info::{Class, Flags, Ty};
use crate::inst::{Enc, Inst, Operand};
use crate::table::{Op, info};

fn cache_bits(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    for (set, name) in [(inst.glc, " glc"), (inst.slc, " slc"), (inst.dlc, " dlc")] {
        if set {
            f.write_str(name)?;
        }
    }
    Ok(())
}

pub(super) fn smem(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    let Some(base) = row.src.first() else { return Ok(()) };
    let mut list = List::new();
    list.next(f)?;
    match (row.dst.first(), inst.src[2]) {
        (Some(slot), _) => operand(f, inst.dst, slot.ty, slot.ty.dwords())?,
        (None, Operand::Int(prefetch @ 0..=64)) => write!(f, "{prefetch}")?,
        (None, Operand::Int(prefetch)) => write!(f, "{prefetch:#x}")?,
        (None, other) => operand(f, other, Ty::B32, 1)?,
    }
    list.next(f)?;
    operand(f, inst.src[0], base.ty, base.ty.dwords())?;
    let has_register = inst.src[1] != Operand::Null;
    list.next(f)?;
    let magnitude = inst.imm.unsigned_abs();
    let sign = if inst.imm < 0 { "-" } else { "" };
    match (has_register, inst.imm) {
        (true, 0) => operand(f, inst.src[1], Ty::B32, 1)?,
        (true, _) => {
            operand(f, inst.src[1], Ty::B32, 1)?;
            write!(f, " offset:{sign}{magnitude:#x}")?;
        }
        (false, 0) => f.write_str("null")?,
        (false, _) => write!(f, "{sign}{magnitude:#x}")?,
    }
    cache_bits(f, inst)
}

pub(super) fn ds(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    let mut list = List::new();
    if let Some(slot) = row.dst.first() {
        list.next(f)?;
        operand(f, inst.dst, slot.ty, slot.ty.dwords())?;
    }
    for (slot, &value) in row.src.iter().zip(&inst.src).filter(|(slot, _)| slot.class != Class::NONE) {
        list.next(f)?;
        operand(f, value, slot.ty, slot.ty.dwords())?;
    }
    let (offset0, offset1) = (inst.imm & 0xff, inst.imm >> 8 & 0xff);
    match inst.op {
        Op::DS_SWIZZLE_B32 => swizzle(f, inst.imm)?,
        _ if row.any(Flags::TWO_OFFSETS) => {
            if offset0 != 0 {
                write!(f, " offset0:{offset0}")?;
            }
            if offset1 != 0 {
                write!(f, " offset1:{offset1}")?;
            }
        }
        _ if inst.imm != 0 => write!(f, " offset:{}", inst.imm)?,
        _ => {}
    }
    if inst.gds { f.write_str(" gds") } else { Ok(()) }
}

fn swizzle(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    if imm == 0 {
        return Ok(());
    }
    f.write_str(" offset:")?;
    let lane = |i: i32| imm >> (2 * i) & 3;
    let (and, or, xor) = (imm & 31, imm >> 5 & 31, imm >> 10 & 31);
    if imm & 0xff00 == 0x8000 {
        return write!(f, "swizzle(QUAD_PERM,{},{},{},{})", lane(0), lane(1), lane(2), lane(3));
    }
    if imm & 0x8000 != 0 {
        return write!(f, "{imm}");
    }
    if and == 31 && or == 0 && xor.count_ones() == 1 {
        return write!(f, "swizzle(SWAP,{xor})");
    }
    let group = xor + 1;
    if and == 31 && or == 0 && xor > 0 && group & xor == 0 {
        return write!(f, "swizzle(REVERSE,{group})");
    }
    let group = 32 - and;
    if group > 1 && group & (group - 1) == 0 && or < group && xor == 0 {
        return write!(f, "swizzle(BROADCAST,{group},{or})");
    }
    f.write_str("swizzle(BITMASK_PERM,\"")?;
    for bit in (0..5).rev() {
        let is = |field: i32| field >> bit & 1 != 0;
        let symbol = match (is(and), is(or), is(xor)) {
            (true, false, false) => "p",
            (true, false, true) => "i",
            (false, true, false) | (true, true, false) | (false, false, true) => "1",
            _ => "0",
        };
        f.write_str(symbol)?;
    }
    f.write_str("\")")
}

pub(super) fn flat(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    let mut list = List::new();
    if let (Some(slot), true) = (row.dst.first(), inst.dst != Operand::None) {
        list.next(f)?;
        operand(f, inst.dst, slot.ty, slot.ty.dwords())?;
    }
    if row.src[0].class != Class::NONE {
        list.next(f)?;
        let narrow = inst.enc == Enc::Scratch || inst.src[2] != Operand::None;
        operand(f, inst.src[0], Ty::B32, if narrow { 1 } else { 2 })?;
    }
    if row.src[1].class != Class::NONE {
        list.next(f)?;
        operand(f, inst.src[1], row.src[1].ty, row.src[1].ty.dwords())?;
    }
    if let Some(slot) = row.src.get(2) {
        list.next(f)?;
        operand(f, inst.src[2], slot.ty, slot.ty.dwords())?;
    }
    if inst.imm != 0 {
        write!(f, " offset:{}", inst.imm)?;
    }
    cache_bits(f, inst)
}

pub(super) fn buffer(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    if row.src.is_empty() {
        return Ok(());
    }
    let mut list = List::new();
    let data = match (row.src[1].class, row.dst.first()) {
        (Class::NONE, Some(slot)) => Some((inst.dst, slot.ty)),
        (Class::NONE, None) => None,
        _ => Some((inst.src[1], row.src[1].ty)),
    };
    if let Some((value, ty)) = data {
        list.next(f)?;
        operand(f, value, ty, ty.dwords() + u8::from(inst.tfe))?;
    }
    list.next(f)?;
    operand(f, inst.src[0], Ty::B32, if inst.offen && inst.idxen { 2 } else { 1 })?;
    list.next(f)?;
    operand(f, inst.src[2], Ty::B128, 4)?;
    list.next(f)?;
    operand(f, inst.src[3], Ty::B32, 1)?;
    if inst.enc == Enc::Mtbuf {
        data_format(f, inst.format)?;
    }
    for (set, name) in [(inst.idxen, " idxen"), (inst.offen, " offen")] {
        if set {
            f.write_str(name)?;
        }
    }
    if inst.imm != 0 {
        write!(f, " offset:{}", inst.imm)?;
    }
    cache_bits(f, inst)?;
    if inst.tfe { f.write_str(" tfe") } else { Ok(()) }
}

/// The data format by name. The assembler's default is not printed; a number without a name prints as the number.
fn data_format(f: &mut fmt::Formatter<'_>, format: u8) -> fmt::Result {
    const SIX: &[&str] = &["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT"];
    const SEVEN: &[&str] = &["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "FLOAT"];
    const FOUR: &[&str] = &["UNORM", "SNORM", "UINT", "SINT"];
    const WIDE: &[&str] = &["UINT", "SINT", "FLOAT"];
    const GROUPS: [(u8, &str, &[&str]); 14] = [
        (1, "8", SIX),
        (7, "16", SEVEN),
        (14, "8_8", SIX),
        (20, "32", WIDE),
        (23, "16_16", SEVEN),
        (30, "10_11_11", &["FLOAT"]),
        (31, "11_11_10", &["FLOAT"]),
        (32, "10_10_10_2", FOUR),
        (36, "2_10_10_10", SIX),
        (42, "8_8_8_8", SIX),
        (48, "32_32", WIDE),
        (51, "16_16_16_16", SEVEN),
        (58, "32_32_32", WIDE),
        (61, "32_32_32_32", WIDE),
    ];
    let group = GROUPS.iter().rev().find(|(first, ..)| *first <= format);
    let name = group
        .and_then(|(first, widths, kinds)| kinds.get(usize::from(format - first)).map(|kind| (widths, kind)));
    match (format, name) {
        (1, _) => Ok(()),
        (0, _) => f.write_str(" format:[BUF_FMT_INVALID]"),
        (_, Some((widths, kind))) => write!(f, " format:[BUF_FMT_{widths}_{kind}]"),
        _ => write!(f, " format:{format}"),
    }
}
