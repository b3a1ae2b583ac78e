// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modifiers that the ISA document does not assign to an operation, although LLVM 19 prints them.
//!
//! INVARIANT: two words that differ in unassigned bits only are equal after [`clear`], so that no engine can tell them
//! apart.

use super::cursor::{Cursor, Strictness};
use crate::info::{Class, Flags, Ty};
use crate::inst::{Enc, Inst};
use crate::table::{Op, OpInfo, info};

/// The bit that a 13-bit offset has above FLAT's 12 bits.
const FLAT_OFFSET: i32 = 0xfff;

impl Cursor<'_> {
    /// Class of source `i` as far as neg and abs go: LLVM 19 does not know that moves may negate a float.
    pub(super) fn modified_class(&self, row: &OpInfo, i: usize) -> Option<Class> {
        let class = row.src.get(i).map(|slot| slot.class);
        let is_move = matches!(row.op, Op::V_MOV_B32 | Op::V_MOV_B16);
        if is_move && self.strictness == Strictness::Llvm19 { class.map(|_| Class::X) } else { class }
    }
}

/// Clears the modifiers of `inst` that its operation ignores.
pub(super) fn clear(inst: &mut Inst) {
    let row = info(inst.op);
    match inst.enc {
        Enc::Vop3 | Enc::Vop3sd => clear_long(inst, row),
        Enc::Vop3p => clear_packed(inst, row),
        Enc::Vinterp => inst.op_sel &= half_bits(row),
        // "Must be positive for Flat; MSB is ignored and forced to zero".
        Enc::Flat => inst.imm &= FLAT_OFFSET,
        _ => {}
    }
}

fn clear_long(inst: &mut Inst, row: &OpInfo) {
    inst.clamp &= row.any(Flags::CLAMP);
    if !row.any(Flags::OMOD) {
        inst.omod = 0;
    }
    inst.op_sel &= match row.op {
        // fi and bound_ctrl.
        Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32 => 0b0011,
        _ => half_bits(row),
    };
    if row.op == Op::V_LDEXP_F16 {
        // The exponent is an integer.
        inst.neg &= 0b01;
        inst.abs &= 0b01;
    }
}

/// op_sel bits of the 16-bit operands.
fn half_bits(row: &OpInfo) -> u8 {
    let sources = row.src.iter().enumerate().filter(|(_, slot)| slot.ty.is_half());
    let destination = row.dst.first().is_some_and(|slot| slot.ty.is_half());
    sources.fold(u8::from(destination) << 3, |mask, (i, _)| mask | 1 << i)
}

fn clear_packed(inst: &mut Inst, row: &OpInfo) {
    inst.clamp &= row.any(Flags::CLAMP);
    let of = |wanted: &dyn Fn(Ty) -> bool| {
        let sources = row.src.iter().enumerate().filter(|(_, slot)| wanted(slot.ty));
        sources.fold(0u8, |mask, (i, _)| mask | 1 << i)
    };
    let (neg, neg_hi) = match negation(row) {
        Negation::None => (0, 0),
        // Here the bit says that a factor is signed.
        Negation::Signs => (0b011, 0),
        Negation::Floats => (of(&|_| true), of(&|_| true)),
    };
    inst.neg &= neg;
    inst.neg_hi &= neg_hi;
    let selected = if row.src.iter().any(|slot| slot.ty == Ty::ACC) {
        // Here the bit says which half of an accumulator register holds the matrix.
        if row.any(Flags::OP_SEL) { 0b100 } else { 0 }
    } else {
        of(&|ty| matches!(ty, Ty::P16 | Ty::MIX))
    };
    inst.op_sel &= selected;
    if row.any(Flags::OP_SEL) {
        let halves = of(&|ty| matches!(ty, Ty::P16 | Ty::MIX));
        // The assembler's value where nothing is selected.
        inst.op_sel_hi |= of(&|_| true) & !halves;
    }
}

/// What neg and neg_hi mean in a packed operation.
enum Negation {
    None,
    Signs,
    Floats,
}

fn negation(row: &OpInfo) -> Negation {
    match row.op {
        Op::V_DOT4_I32_IU8
        | Op::V_DOT8_I32_IU4
        | Op::V_WMMA_I32_16X16X16_IU8
        | Op::V_WMMA_I32_16X16X16_IU4 => Negation::Signs,
        _ if row.any(Flags::PACKED_F16 | Flags::PACKED_BF16) => Negation::Floats,
        _ if row.src.iter().any(|slot| matches!(slot.ty, Ty::MIX | Ty::ACC) && slot.class == Class::X) => {
            Negation::Floats
        }
        _ => Negation::None,
    }
}
