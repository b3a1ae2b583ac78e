// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of an f32 division for AVX2, with lanes of ones or zeros as masks.
//!
//! INVARIANT: as for [`super::special`], which has the steps for AVX-512. No operation takes a register in the code that
//! its branch skips.

use iced_x86::{Code, Register};

use super::codes::{
    self, AND, AND_NOT_Y, COMPARE_PS_Y, EQUAL_Y, GREATER_Y, LEFT_BY, MUL_PS, OR, RIGHT_BY, SUB, XOR,
};
use super::convert::ORDERED;
use super::generator::Gen;
use super::transcend::{self, LEFT64_BY, MUL, SUB64, UNORDERED, XOR64};
use crate::step::Step;
use crate::wave::VCC;

const BLEND64: Code = Code::VEX_Vblendvpd_ymm_ymm_ymmm256_ymm;
/// Predicates of vcmpps and vcmppd.
const SAME: i32 = 0;
const APART: i32 = 0x0C;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7F80_0000;
const NAN: u32 = 0x7FC0_0000;

/// `to = exponent field of x`.
fn exponent_field(g: &mut Gen, to: Register, x: Register) {
    g.op3(LEFT_BY, to, x, 1);
    g.op3(RIGHT_BY, to, to, 24);
}

/// Compares and blends of the steps.
impl Gen {
    /// `to` = lanes of `x` that are not one of the `count` numbers from `least` on; `t` is lost.
    fn outside(&mut self, to: Register, x: Register, t: Register, least: u32, count: u32) {
        let (least, count) = (self.constant_argument(least), self.constant_argument(count));
        self.op3(SUB, t, x, least);
        self.op3(codes::MAX_U, to, t, count);
        self.asm.op3(EQUAL_Y, to, to, t);
    }

    /// `to` = lanes of `x` that are greater than `value`.
    fn above(&mut self, to: Register, x: Register, value: i32) {
        // CAST: its bits.
        let value = self.constant_argument(value as u32);
        self.asm.op3(GREATER_Y, to, x, value);
    }

    /// `to` = lanes of `x` with the bits of `value`.
    fn equal_to(&mut self, to: Register, x: Register, value: u32) {
        let value = self.constant_argument(value);
        self.asm.op3(EQUAL_Y, to, x, value);
    }

    /// `to` = lanes of `x` that are zeros of either sign.
    fn zeros(&mut self, to: Register, x: Register) {
        let zero = self.constant_argument(0);
        self.asm.op4(COMPARE_PS_Y, to, x, zero, SAME);
    }

    fn invert(&mut self, mask: Register) {
        let ones = self.constant_argument(u32::MAX);
        self.op3(XOR, mask, mask, ones);
    }

    /// `to = x * factor`.
    fn times(&mut self, to: Register, x: Register, factor: f32) {
        let factor = self.constant_argument(factor.to_bits());
        self.op3(MUL_PS, to, x, factor);
    }

    /// `to = from` where `k` and `a`, `b` have the same bits; `m` is lost.
    fn pick_same(
        &mut self,
        to: Register,
        from: Register,
        k: Register,
        (a, b): (Register, Register),
        m: Register,
    ) {
        self.asm.op3(EQUAL_Y, m, a, b);
        self.op3(AND, m, m, k);
        self.pick_lanes(to, to, from, m);
    }
}

/// v_div_scale_f32: the cases of `scale_one32` from the last to the first, so that the first wins.
pub(super) fn scale(g: &mut Gen, s: &Step, c: usize) {
    let [x, d, n] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, scaled, de, ne, k, t, m] = [0; 7].map(|_| g.temporary());
    g.op2(codes::MOVE, r, x);
    g.op3(XOR, scaled, scaled, scaled);
    exponent_field(g, de, d);
    exponent_field(g, ne, n);
    // Exponents from 80 to 169 need no scaling.
    g.outside(k, de, t, 80, 90);
    g.outside(m, ne, t, 80, 90);
    g.op3(OR, k, k, m);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Vptest_ymm_ymmm256, k, k);
    g.asm.jump(Code::Je_rel32_64, done);
    scale_extremes(g, [x, d, n], [r, scaled, de, ne], [k, t, m]);
    g.asm.place(done);
    g.result(s.dst, 0, c, r);
    g.gather_bits(s.sdst, c, scaled, false);
}

fn scale_extremes(
    g: &mut Gen,
    [x, d, n]: [Register; 3],
    [r, scaled, de, ne]: [Register; 4],
    spare: [Register; 3],
) {
    let [k, t, m] = spare;
    let (up, down) = (2f32.powi(64), 2f32.powi(-64));
    g.times(t, x, up);
    g.above(k, ne, 23);
    g.pick_lanes(r, t, r, k);
    // A tiny quotient.
    let apart = ne;
    g.op3(SUB, apart, ne, de);
    g.above(scaled, apart, -126);
    g.equal_to(m, de, 255);
    g.op3(OR, scaled, scaled, m);
    g.invert(scaled);
    g.pick_lanes(r, r, x, scaled);
    g.pick_same(r, t, scaled, (x, n), m);
    // A tiny reciprocal: above 2^126. Alone it does not count as scaled.
    let positive = g.constant_argument(!SIGN);
    g.op3(AND, m, d, positive);
    g.above(k, m, 0x7E80_0000);
    g.equal_to(m, de, 255);
    g.asm.op3(AND_NOT_Y, k, m, k);
    g.times(t, x, down);
    g.pick_lanes(r, r, t, k);
    g.op3(AND, k, k, scaled);
    g.pick_lanes(r, r, x, k);
    g.pick_same(r, t, k, (x, d), m);
    // A denormal denominator.
    g.times(t, x, up);
    g.equal_to(k, de, 0);
    g.pick_lanes(r, r, t, k);
    g.asm.op3(AND_NOT_Y, scaled, k, scaled);
    // A huge quotient.
    g.above(k, apart, 95);
    g.pick_lanes(r, r, x, k);
    g.op3(OR, scaled, scaled, k);
    g.pick_same(r, t, k, (x, d), m);
    // Zeros.
    g.zeros(k, d);
    g.zeros(m, n);
    g.op3(OR, k, k, m);
    let nan = g.constant_argument(NAN);
    g.pick_lanes(r, r, nan, k);
    g.op3(OR, scaled, scaled, k);
}

/// v_div_fmas_f32: a fused multiply-add; lanes in VCC are scaled by 2^64 or 2^-64 with one rounding, in f64.
pub(super) fn fma(g: &mut Gen, s: &Step, c: usize) {
    let [a, b, x] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, k, low, p, q, sum, t] = [0; 7].map(|_| g.temporary());
    g.op2(codes::MOVE, r, x);
    g.op3(codes::FMA231, r, a, b);
    // VCC_LO's number, as all scalars'.
    g.spread(k, VCC as u16, c);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Vptest_ymm_ymmm256, k, k);
    g.asm.jump(Code::Je_rel32_64, done);
    // NaNs are those of the operation without scaling.
    g.asm.op4(COMPARE_PS_Y, p, a, b, ORDERED);
    g.asm.op4(COMPARE_PS_Y, q, x, x, ORDERED);
    g.op3(AND, k, k, p);
    g.op3(AND, k, k, q);
    for (upper, to) in [(false, low), (true, p)] {
        g.widen(p, a, upper);
        g.widen(q, b, upper);
        g.op3(MUL, p, p, q);
        g.widen(q, x, upper);
        sum_to_odd(g, sum, [p, q, t]);
        // Scaling is up for addends from 2 on: bit 62.
        g.widen(q, x, upper);
        g.op3(LEFT64_BY, q, q, 1);
        let up = g.constant64_argument(2f64.powi(64).to_bits());
        let down = g.asm.constant64(2f64.powi(-64).to_bits(), false);
        g.op2(transcend::BROADCAST, t, down);
        g.asm.op4(BLEND64, t, t, up, q);
        g.op3(MUL, sum, sum, t);
        g.narrow(to, sum);
    }
    g.join(low, p);
    g.pick_lanes(r, r, low, k);
    g.asm.place(done);
    g.result(s.dst, 0, c, r);
}

/// `sum = p + q` rounded to odd: of its two neighbours the odd one, so that narrowing rounds once. The others are lost.
fn sum_to_odd(g: &mut Gen, sum: Register, [p, q, t]: [Register; 3]) {
    // The error of the sum, exactly: (p - (sum - t)) + (q - t) with t = sum - p.
    g.op3(transcend::ADD, sum, p, q);
    g.op3(transcend::SUB, t, sum, p);
    g.op3(transcend::SUB, q, q, t);
    g.op3(transcend::SUB, t, sum, t);
    g.op3(transcend::SUB, p, p, t);
    let error = p;
    g.op3(transcend::ADD, error, p, q);
    // An error of the other sign: the sum was rounded away from zero.
    g.op3(XOR64, t, error, sum);
    g.asm.op3(Code::VEX_Vpsrlq_ymm_ymm_imm8, t, t, 63);
    g.op3(SUB64, t, sum, t);
    let (one, zero) = (g.constant64_argument(1), g.constant64_argument(0));
    g.op3(OR, t, t, one);
    g.asm.op4(Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8, q, error, zero, APART);
    g.asm.op4(BLEND64, sum, sum, t, q);
}

/// v_div_fixup_f32: special cases of the quotient of n / d.
pub(super) fn fixup(g: &mut Gen, s: &Step, c: usize) {
    let [q, d, n] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, sign, de, ne, k, t, m] = [0; 7].map(|_| g.temporary());
    let (sign_bit, positive) = (g.constant_argument(SIGN), g.constant_argument(!SIGN));
    g.op3(XOR, sign, d, n);
    g.op3(AND, sign, sign, sign_bit);
    g.op3(AND, r, q, positive);
    g.op3(OR, r, r, sign);
    exponent_field(g, de, d);
    exponent_field(g, ne, n);
    g.outside(k, de, t, 1, 254);
    g.outside(m, ne, t, 1, 254);
    g.op3(OR, k, k, m);
    g.asm.op4(COMPARE_PS_Y, m, q, q, UNORDERED);
    g.op3(OR, k, k, m);
    g.op3(SUB, t, ne, de);
    g.above(t, t, -151);
    g.invert(t);
    g.op3(OR, k, k, t);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Vptest_ymm_ymmm256, k, k);
    g.asm.jump(Code::Je_rel32_64, done);
    let infinity = g.constant_argument(INFINITY);
    g.op3(OR, k, sign, infinity);
    g.pick_lanes(r, r, k, m);
    g.pick_lanes(r, r, sign, t);
    // Of zeros, infinities and NaNs the host's own quotient is the result.
    g.zeros(k, d);
    for (x, value) in [(n, 0), (de, 255), (ne, 255)] {
        match value {
            0 => g.zeros(t, x),
            _ => g.equal_to(t, x, value),
        }
        g.op3(OR, k, k, t);
    }
    g.op3(transcend::DIV32, t, n, d);
    g.pick_lanes(r, r, t, k);
    g.asm.place(done);
    g.result(s.dst, 0, c, r);
}
