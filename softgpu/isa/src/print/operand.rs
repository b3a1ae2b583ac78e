// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands as text.
//!
//! INVARIANT: a literal prints as an inline constant if an inline constant of its type has the same value.

use std::fmt;

use crate::info::{Flags, Slot, Ty};
use crate::inst::Operand;
use crate::table::OpInfo;

const FLOATS: [&str; 9] = ["0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494"];
const F16: [u32; 9] = [0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118];
const BF16: [u32; 9] = [0x3f00, 0xbf00, 0x3f80, 0xbf80, 0x4000, 0xc000, 0x4080, 0xc080, 0x3e22];
const F32: [u32; 9] = [
    0x3f00_0000,
    0xbf00_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x4000_0000,
    0xc000_0000,
    0x4080_0000,
    0xc080_0000,
    0x3e22_f983,
];
const F64_HIGH: [u32; 8] =
    [0x3fe0_0000, 0xbfe0_0000, 0x3ff0_0000, 0xbff0_0000, 0x4000_0000, 0xc000_0000, 0x4010_0000, 0xc010_0000];

/// The type that a constant prints as.
#[derive(Clone, Copy)]
pub(super) enum Constant {
    Of(Ty),
    PackedF16,
    PackedBf16,
}

impl Constant {
    /// The type that a constant in `slot` of `row` prints as.
    pub(super) fn in_slot(row: &OpInfo, slot: &Slot) -> Self {
        match slot.ty {
            Ty::P16 if row.any(Flags::PACKED_F16) => Self::PackedF16,
            Ty::P16 if row.any(Flags::PACKED_BF16) => Self::PackedBf16,
            ty => Self::Of(ty),
        }
    }
}

impl From<Ty> for Constant {
    fn from(ty: Ty) -> Self {
        Self::Of(ty)
    }
}

/// Prints `operand` as `dwords` registers wide, constants as `constant`.
pub(super) fn operand(
    f: &mut fmt::Formatter<'_>,
    operand: Operand,
    constant: impl Into<Constant>,
    dwords: u8,
) -> fmt::Result {
    let constant = constant.into();
    let pick =
        |f: &mut fmt::Formatter<'_>, one: &str, two: &str| f.write_str(if dwords == 1 { one } else { two });
    match operand {
        Operand::None => f.write_str("off"),
        Operand::Vgpr(index) => tuple(f, "v", index, dwords),
        Operand::Sgpr(index) => tuple(f, "s", index, dwords),
        Operand::Ttmp(index) => tuple(f, "ttmp", index, dwords),
        Operand::Vcc => pick(f, "vcc_lo", "vcc"),
        Operand::VccHi => f.write_str("vcc_hi"),
        Operand::Null => f.write_str("null"),
        Operand::M0 => f.write_str("m0"),
        Operand::ExecLo => pick(f, "exec_lo", "exec"),
        Operand::ExecHi => f.write_str("exec_hi"),
        Operand::Int(value) => write!(f, "{value}"),
        Operand::Float(code) => float(f, code, constant),
        Operand::Literal(value) => literal(f, value, constant),
        Operand::SharedBase => f.write_str("src_shared_base"),
        Operand::SharedLimit => f.write_str("src_shared_limit"),
        Operand::PrivateBase => f.write_str("src_private_base"),
        Operand::PrivateLimit => f.write_str("src_private_limit"),
        Operand::Vccz => f.write_str("src_vccz"),
        Operand::Execz => f.write_str("src_execz"),
        Operand::Scc => f.write_str("src_scc"),
        Operand::LdsDirect => f.write_str("src_lds_direct"),
    }
}

fn float(f: &mut fmt::Formatter<'_>, code: u8, constant: Constant) -> fmt::Result {
    let index = usize::from(code.wrapping_sub(240)).min(FLOATS.len() - 1);
    match (code, constant) {
        // A 16-bit integer operation reads the bits of the f16.
        (_, Constant::Of(Ty::B16 | Ty::U16 | Ty::I16)) => write!(f, "{:#x}", F16[index]),
        (248, Constant::Of(ty)) if ty.dwords() > 1 => f.write_str("0.15915494309189532"),
        _ => f.write_str(FLOATS[index]),
    }
}

fn tuple(f: &mut fmt::Formatter<'_>, file: &str, index: u8, dwords: u8) -> fmt::Result {
    match dwords {
        1 => write!(f, "{file}{index}"),
        _ => write!(f, "{file}[{index}:{}]", u32::from(index) + u32::from(dwords) - 1),
    }
}

fn is_inline_int(value: i64) -> bool {
    (-16..=64).contains(&value)
}

fn literal(f: &mut fmt::Formatter<'_>, value: u32, constant: Constant) -> fmt::Result {
    let named = |table: &[u32], value: u32| table.iter().position(|&pattern| pattern == value);
    let [a, b, ..] = value.to_le_bytes();
    let low_half = u16::from_le_bytes([a, b]);
    let (half, whole) = (i64::from(low_half.cast_signed()), i64::from(value.cast_signed()));
    let (integer, float) = match constant {
        Constant::PackedF16 => (whole, named(&F16, value)),
        Constant::PackedBf16 => (whole, named(&BF16, value)),
        Constant::Of(Ty::F64 | Ty::ACC) => (if value == 0 { 0 } else { i64::MAX }, named(&F64_HIGH, value)),
        Constant::Of(Ty::B64 | Ty::U64 | Ty::I64) => (i64::from(value), None),
        Constant::Of(Ty::BF16) => (half, named(&BF16, value & 0xffff)),
        Constant::Of(Ty::F16 | Ty::MIX) => (half, named(&F16, value & 0xffff)),
        Constant::Of(_) => (whole, named(&F32, value)),
    };
    match float {
        _ if is_inline_int(integer) => write!(f, "{integer}"),
        Some(index) => f.write_str(FLOATS[index]),
        // LLVM prints the half that a 16-bit operation reads.
        None if matches!(constant, Constant::Of(Ty::F16 | Ty::MIX | Ty::B16 | Ty::U16 | Ty::I16)) => {
            write!(f, "{low_half:#x}")
        }
        None => write!(f, "{value:#x}"),
    }
}

/// A 16-bit immediate in hexadecimal.
pub(super) fn hex16(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    write!(f, "{:#x}", imm & 0xffff)
}
