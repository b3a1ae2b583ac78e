// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands: which register, scalar or constant a source is, and which modifiers apply to it.
//!
//! INVARIANT: an operand outside the wave's registers is `None`, and its instruction becomes illegal.

use softgpu_isa::{Class, Enc, Flags, Inst, Op, Operand, Slot, Ty, info};

use super::lowering::Lowering;
use crate::mem;
use crate::step::{Kind, SPECIAL_EXECZ, SPECIAL_SCC, SPECIAL_VCCZ, Src, mods};
use crate::wave::{EXEC, M0, SINK, TTMP, VCC};

/// The scalar index of a register operand; writes to NULL go to the sink.
pub(super) fn scalar_index(operand: Operand, writing: bool) -> Option<usize> {
    Some(match operand {
        Operand::Sgpr(n) => n as usize,
        Operand::Vcc => VCC,
        Operand::VccHi => VCC + 1,
        Operand::Ttmp(n) => TTMP + n as usize,
        Operand::Null if writing => SINK,
        Operand::Null => 124,
        Operand::M0 => M0,
        Operand::ExecLo => EXEC,
        Operand::ExecHi => EXEC + 1,
        _ => return None,
    })
}

/// Bits of inline float 240..=248.
fn float_bits(code: u8, ty: Ty, half_float: bool) -> Src {
    let k = code.wrapping_sub(240) as usize;
    const F64_HIGH: [u32; 8] = [
        0x3FE0_0000,
        0xBFE0_0000,
        0x3FF0_0000,
        0xBFF0_0000,
        0x4000_0000,
        0xC000_0000,
        0x4010_0000,
        0xC010_0000,
    ];
    const F32: [u32; 9] = [
        0x3F00_0000,
        0xBF00_0000,
        0x3F80_0000,
        0xBF80_0000,
        0x4000_0000,
        0xC000_0000,
        0x4080_0000,
        0xC080_0000,
        0x3E22_F983,
    ];
    const F16: [u32; 9] = [0x3800, 0xB800, 0x3C00, 0xBC00, 0x4000, 0xC000, 0x4400, 0xC400, 0x3118];
    let constant = |kind, value| Src { kind, mods: 0, index: 0, value };
    match ty {
        Ty::F64 | Ty::B64 | Ty::U64 | Ty::I64 => match F64_HIGH.get(k) {
            Some(&high) => constant(Kind::ConstHigh, high),
            None => constant(Kind::ConstInvTwoPi, 0),
        },
        Ty::F16 | Ty::BF16 | Ty::B16 | Ty::U16 | Ty::I16 => Src::constant(F16.get(k).copied().unwrap_or(0)),
        _ if half_float => Src::constant(F16.get(k).copied().unwrap_or(0)),
        _ => Src::constant(F32.get(k).copied().unwrap_or(0)),
    }
}

/// Modifiers of source `i` as seen by an operand of type `ty`.
fn modifiers(inst: &Inst, i: usize, slot: Slot, selects: bool) -> u8 {
    let ty = slot.ty;
    let bit = |field: u8| field >> i & 1 != 0;
    let pick = |on: bool, m: u8| if on { m } else { 0 };
    match ty {
        Ty::F32 | Ty::F64 => pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI),
        Ty::F16 | Ty::BF16 => {
            pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
                | pick(bit(inst.op_sel), mods::LO_FROM_HI)
        }
        // Selects apply sign modifiers to their operands as to floats.
        Ty::B32 if slot.class == Class::XM => {
            pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI)
        }
        Ty::B16 if slot.class == Class::XM => {
            pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
                | pick(bit(inst.op_sel), mods::LO_FROM_HI)
        }
        Ty::B16 | Ty::U16 | Ty::I16 => pick(bit(inst.op_sel), mods::LO_FROM_HI),
        Ty::P16 if inst.enc == Enc::Vop3p => {
            let halves = if selects {
                pick(bit(inst.op_sel), mods::LO_FROM_HI) | pick(!bit(inst.op_sel_hi), mods::HI_FROM_LO)
            } else {
                0
            };
            halves | pick(bit(inst.neg), mods::NEG_LO) | pick(bit(inst.neg_hi), mods::NEG_HI)
        }
        Ty::P16 => 0,
        Ty::MIX if bit(inst.op_sel_hi) => {
            pick(bit(inst.op_sel), mods::LO_FROM_HI)
                | pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
        }
        Ty::MIX => pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI),
        _ => 0,
    }
}

/// Operations whose NEG field means "signed operand".
pub(super) fn neg_is_signed(op: Op) -> bool {
    use Op::*;
    matches!(op, V_DOT4_I32_IU8 | V_DOT8_I32_IU4 | V_WMMA_I32_16X16X16_IU8 | V_WMMA_I32_16X16X16_IU4)
}

impl Lowering<'_> {
    /// Source `i` of operation `op`; `packed` if the instruction's modifiers are for it.
    pub(super) fn source(&self, operand: Operand, slot: Slot, i: usize, op: Op, packed: bool) -> Option<Src> {
        let inst = self.inst;
        let half_float = (slot.ty == Ty::P16 && info(op).any(Flags::PACKED_F16))
            || (slot.ty == Ty::MIX && inst.op_sel_hi >> i & 1 != 0);
        let constant = |kind, value| Src { kind, mods: 0, index: 0, value };
        let wide = matches!(slot.ty, Ty::F64 | Ty::B64 | Ty::U64 | Ty::I64);
        let mut src = match operand {
            Operand::None => return Some(Src::default()),
            Operand::Vgpr(r) => Src::vgpr(self.row(r, self.width(slot))?),
            Operand::Int(x) => constant(if wide { Kind::ConstSigned } else { Kind::Const }, x as u32),
            Operand::Float(code) => float_bits(code, slot.ty, half_float),
            Operand::Literal(x) => match slot.ty {
                Ty::F64 => constant(Kind::ConstHigh, x),
                Ty::I64 => constant(Kind::ConstSigned, x),
                _ => Src::constant(x),
            },
            Operand::SharedBase | Operand::SharedLimit | Operand::PrivateBase | Operand::PrivateLimit => {
                let high = match operand {
                    Operand::SharedBase | Operand::SharedLimit => mem::flat::SHARED_BASE,
                    _ => mem::flat::PRIVATE_BASE,
                };
                // The limit's low dword is all ones; no code reads it, and there is no room for it in the pair.
                if wide { constant(Kind::ConstHigh, high) } else { Src::constant(high) }
            }
            Operand::Vccz => Src { kind: Kind::Special, mods: 0, index: SPECIAL_VCCZ, value: 0 },
            Operand::Execz => Src { kind: Kind::Special, mods: 0, index: SPECIAL_EXECZ, value: 0 },
            Operand::Scc => Src { kind: Kind::Special, mods: 0, index: SPECIAL_SCC, value: 0 },
            Operand::LdsDirect => return None,
            _ => Src { kind: Kind::Scalar, mods: 0, index: scalar_index(operand, false)? as u16, value: 0 },
        };
        if packed && slot.class != Class::M && !neg_is_signed(op) {
            src = self.modified(src, modifiers(inst, i, slot, info(op).any(Flags::OP_SEL)), wide);
        }
        Some(src)
    }

    /// A source with modifiers `m`; those of a constant are applied at once.
    pub(super) fn modified(&self, mut src: Src, m: u8, wide: bool) -> Src {
        if m == 0 {
            return src;
        }
        match src.kind {
            Kind::Const if !wide => src.value = mods::apply(m, src.value),
            Kind::Vgpr => {
                src.kind = Kind::VgprMod;
                src.mods = m;
            }
            Kind::Scalar => {
                src.kind = Kind::ScalarMod;
                src.mods = m;
            }
            _ => src.mods = m,
        }
        src
    }
}
