// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline additions and subtractions with carry masks.

use iced_x86::{Code, Register};

use super::asm::Arg;
use super::codes;
use super::generator::{Gen, Wide};
use super::integer::LESS;
use crate::step::Step;

/// Which of the six operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    subtract: bool,
    reverse: bool,
    carry_in: bool,
}

pub(super) const ADD: Form = Form { subtract: false, reverse: false, carry_in: false };
pub(super) const SUB: Form = Form { subtract: true, reverse: false, carry_in: false };
pub(super) const SUBREV: Form = Form { subtract: true, reverse: true, carry_in: false };
pub(super) const ADD_IN: Form = Form { carry_in: true, ..ADD };
pub(super) const SUB_IN: Form = Form { carry_in: true, ..SUB };
pub(super) const SUBREV_IN: Form = Form { carry_in: true, ..SUBREV };

pub(super) fn emit(g: &mut Gen, s: &Step, c: usize, form: Form) {
    if g.wide == Wide::Y {
        return emit_avx2(g, s, c, form);
    }
    let (i, j) = if form.reverse { (1, 0) } else { (0, 1) };
    let (a, b) = (g.source(&s.src[i], 0, c), g.source(&s.src[j], 0, c));
    let (out, second) = (Register::K5, Register::K7);
    let r = g.temporary();
    // Add: the sum is below an addend. Subtract: the first is below the second.
    if form.subtract {
        g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, out, a, b, LESS);
        g.asm.op3(codes::SUB.z, r, a, b);
    } else {
        g.asm.op3(codes::ADD.z, r, a, b);
        g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, out, r, a, LESS);
    }
    if form.carry_in {
        let carry = g.mask(s.src[2].index, c, Register::K6);
        let ones = g.constant(u32::MAX);
        if form.subtract {
            // Subtracting one from zero gives a second borrow.
            g.asm.masked(
                Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32,
                carry,
                &[second.into(), r.into(), r.into()],
            );
            g.asm.masked(codes::ADD.z, carry, &[r.into(), r.into(), ones.into()]);
        } else {
            g.asm.masked(codes::SUB.z, carry, &[r.into(), r.into(), ones.into()]);
            g.asm.masked(
                Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32,
                carry,
                &[second.into(), r.into(), r.into()],
            );
        }
        g.asm.op3(Code::VEX_Korw_kr_kr_kr, out, out, second);
    }
    if g.masked {
        let exec = g.exec(c);
        g.asm.op3(Code::VEX_Kandw_kr_kr_kr, out, out, exec);
    }
    g.result(s.dst, 0, c, r);
    g.mask_out(s.sdst, c, out);
}

/// With a carry-in, a carry-out is "below or equal" instead of "below": of the sum and an addend, or of the minuend and
/// the subtrahend.
fn emit_avx2(g: &mut Gen, s: &Step, c: usize, form: Form) {
    let (i, j) = if form.reverse { (1, 0) } else { (0, 1) };
    let a = g.source(&s.src[i], 0, c);
    let b = if form.subtract { g.source(&s.src[j], 0, c).into() } else { g.last(&s.src[j], 0, c) };
    let (r, out) = (g.temporary(), g.temporary());
    g.op3(if form.subtract { codes::SUB } else { codes::ADD }, r, a, b);
    let carry = form.carry_in.then(|| {
        let carry = g.lanes_of(s.src[2].index, c);
        // The mask's lanes are 0 and -1.
        g.op3(if form.subtract { codes::ADD } else { codes::SUB }, r, r, carry);
        carry
    });
    let (x, y): (Register, Arg) = if form.subtract { (a, b) } else { (r, a.into()) };
    let Some(carry) = carry else {
        g.op3(codes::MAX_U, out, x, y);
        g.asm.op3(codes::EQUAL_Y, out, out, x);
        g.result(s.dst, 0, c, r);
        return g.gather_bits(s.sdst, c, out, true);
    };
    let equal = g.temporary();
    g.op3(codes::MIN_U, out, x, y);
    g.asm.op3(codes::EQUAL_Y, out, out, x);
    g.asm.op3(codes::EQUAL_Y, equal, x, y);
    g.asm.op3(codes::AND_NOT_Y, equal, carry, equal);
    g.asm.op3(codes::AND_NOT_Y, out, equal, out);
    g.result(s.dst, 0, c, r);
    g.gather_bits(s.sdst, c, out, false);
}
