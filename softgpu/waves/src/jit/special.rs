// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline f32 operations that take apart or scale, and the steps of a division (for AVX-512).
//!
//! INVARIANT: same bits as [`crate::valu`]'s handlers in MODEs that round f32 to nearest even and keep its denormals.
//! Steps that a division needs only for extreme operands are skipped by a branch where no lane needs them; the code
//! that the branch skips stores or loads no registers.

use iced_x86::{Code, Register, RoundingControl};
use softgpu_isa::Op;

use super::codes::{self, AND_NOT_Y, COMPARE_PS_Y, Codes, EQUAL_Y, MUL_PS, SUB_PS};
use super::convert::{self, AND_OR, COMPARE_PS, ORDERED, only};
use super::division_avx2;
use super::floats::Floats;
use super::generator::{Emit, Gen, Wide};
use super::integer::{EQUAL, LESS};
use super::transcend::{LEFT64_BY, MIN32, MUL, half};
use crate::step::Step;
use crate::wave::VCC;

const CLASS: Code = Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8;
const COMPARE: Code = Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8;
const COMPARE_UNSIGNED: Code = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
const NONE_SET: Code = Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32;
const SELECT: Code = Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8;

const K5: Register = Register::K5;
const K6: Register = Register::K6;
const K7: Register = Register::K7;

/// Predicates of vpcmpd.
const LESS_OR_EQUAL: i32 = 2;
const NOT_LESS: i32 = 5;
/// Classes of vfpclassps.
const NAN: i32 = 0x81;
const ZERO: i32 = 0x06;
const INFINITE: i32 = 0x18;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7F80_0000;
const QUIET: u32 = 0x0040_0000;

/// The emitter of such an operation.
pub(super) fn emitter(op: Op, floats: Floats) -> Option<Emit> {
    if op == Op::V_FREXP_EXP_I32_F32 {
        return Some(exponent);
    }
    let other: Emit = match op {
        Op::V_SQRT_F32 => root,
        Op::V_FRACT_F32 => fraction,
        Op::V_LDEXP_F32 => scale,
        Op::V_FREXP_MANT_F32 => mantissa,
        Op::V_DIV_SCALE_F32 => divide_scale,
        Op::V_DIV_FMAS_F32 => divide_fma,
        Op::V_DIV_FIXUP_F32 => divide_fixup,
        _ => return None,
    };
    floats.f32_default.then_some(other)
}

fn root(g: &mut Gen, s: &Step, c: usize) {
    const ROOT: Codes =
        Codes { z: Code::EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er, y: Code::VEX_Vsqrtps_ymm_ymmm256 };
    let a = g.last(&s.src[0], 0, c);
    g.finish(ROOT, s.dst, 0, c, &[a]);
}

fn fraction(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    // The greatest f32 below 1 is the first operand: for a NaN and a number vminps gives the second operand.
    let (t, most) = (g.temporary(), g.constant(0x3F7F_FFFF));
    convert::floor(g, t, a);
    g.op3(SUB_PS, t, a, t);
    g.finish(MIN32, s.dst, 0, c, &[most.into(), t.into()]);
}

/// `source 0 * 2^source 1`.
fn scale(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Y {
        return scale_avx2(g, s, c);
    }
    let (a, e) = (g.source(&s.src[0], 0, c), g.last(&s.src[1], 0, c));
    let t = g.temporary();
    g.asm.op2(Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er, t, e);
    let code = only(Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er);
    g.finish(code, s.dst, 0, c, &[a.into(), t.into()]);
}

/// As [`scale`], in f64: the product is exact there, and narrowing rounds once.
fn scale_avx2(g: &mut Gen, s: &Step, c: usize) {
    let (a, e) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let [t, p, q, r] = [0; 4].map(|_| g.temporary());
    // Beyond these limits the result does not change.
    let [least, most, bias] = [-300i32 as u32, 300, 1023].map(|k| g.constant_argument(k));
    g.op3(codes::MAX_I, t, e, least);
    g.op3(codes::MIN_I, t, t, most);
    g.op3(codes::ADD, t, t, bias);
    for (upper, to) in [(false, r), (true, p)] {
        g.widen(p, a, upper);
        if upper {
            g.asm.op3(Code::VEX_Vextracti128_xmmm128_ymm_imm8, half(t), t, 1);
        }
        g.asm.op2(Code::VEX_Vpmovsxdq_ymm_xmmm128, q, half(t));
        g.op3(LEFT64_BY, q, q, 52);
        g.op3(MUL, p, p, q);
        g.narrow(to, p);
    }
    g.join(r, p);
    g.result(s.dst, 0, c, r);
}

/// `a` with denormals scaled up by 2^32, the lanes of zeros and denormals, and those of zeros, infinities and NaNs.
fn normal(g: &mut Gen, a: Register) -> [Register; 3] {
    let [x, small, special, t] = [0; 4].map(|_| g.temporary());
    let [exponent, zero, factor] = [INFINITY, 0, 4_294_967_296f32.to_bits()].map(|k| g.constant_argument(k));
    g.op3(codes::AND, t, a, exponent);
    g.asm.op3(EQUAL_Y, small, t, zero);
    g.asm.op3(EQUAL_Y, special, t, exponent);
    g.op3(MUL_PS, x, a, factor);
    g.pick_lanes(x, a, x, small);
    g.asm.op4(COMPARE_PS_Y, t, a, zero, 0);
    g.op3(codes::OR, special, special, t);
    [x, small, special]
}

fn mantissa(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    if g.wide == Wide::Y {
        let [x, _, special] = normal(g, a);
        let [kept, half] = [!INFINITY, 0.5f32.to_bits()].map(|k| g.constant_argument(k));
        g.op3(codes::AND, x, x, kept);
        g.op3(codes::OR, x, x, half);
        g.pick_lanes(x, x, a, special);
        return g.result(s.dst, 0, c, x);
    }
    let t = g.temporary();
    g.asm.op3(CLASS, K5, a, NAN | ZERO | INFINITE);
    // From 1/2 to 1, with the sign.
    g.asm.op3(Code::EVEX_Vgetmantps_zmm_k1z_zmmm512b32_imm8_sae, t, a, 2);
    g.asm.masked(codes::MOVE.z, K5, &[t.into(), a.into()]);
    g.result(s.dst, 0, c, t);
}

fn exponent(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    if g.wide == Wide::Y {
        let [x, small, special] = normal(g, a);
        let [bias, scaled] = [126, 32].map(|k| g.constant_argument(k));
        exponent_field(g, x, x);
        g.op3(codes::AND, small, small, scaled);
        g.op3(codes::SUB, x, x, small);
        g.op3(codes::SUB, x, x, bias);
        g.asm.op3(AND_NOT_Y, x, special, x);
        return g.result(s.dst, 0, c, x);
    }
    let t = g.temporary();
    g.asm.op3(CLASS, K5, a, NAN | ZERO | INFINITE);
    g.asm.op2(Code::EVEX_Vgetexpps_zmm_k1z_zmmm512b32_sae, t, a);
    g.asm.op2(Code::EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae, t, t);
    let one = g.asm.constant(1);
    g.asm.op3(codes::ADD.z, t, t, one);
    g.asm.masked(codes::XOR.z, K5, &[t.into(), t.into(), t.into()]);
    g.result(s.dst, 0, c, t);
}

/// `to = exponent field of x`.
fn exponent_field(g: &mut Gen, to: Register, x: Register) {
    g.op3(codes::LEFT_BY, to, x, 1);
    g.op3(codes::RIGHT_BY, to, to, 24);
}

/// Masked moves and compares of the division steps.
impl Gen {
    /// `r = x` where `k`.
    fn put_where(&mut self, k: Register, r: Register, x: Register) {
        self.asm.masked(codes::MOVE.z, k, &[r.into(), x.into()]);
    }

    /// `r = value` where `k`.
    fn put_constant_where(&mut self, k: Register, r: Register, value: u32) {
        let place = self.asm.constant_once(value);
        self.asm.masked(codes::BROADCAST.z, k, &[r.into(), place.into()]);
    }

    fn compare(&mut self, code: Code, k: Register, a: Register, value: u32, predicate: i32) {
        let place = self.asm.constant(value);
        self.asm.op4(code, k, a, place, predicate);
    }

    fn class(&mut self, k: Register, x: Register, classes: i32) {
        self.asm.op3(CLASS, k, x, classes);
    }

    fn or(&mut self, to: Register, a: Register, b: Register) {
        self.asm.op3(Code::VEX_Korw_kr_kr_kr, to, a, b);
    }

    /// `to = !a & b`.
    fn and_not(&mut self, to: Register, a: Register, b: Register) {
        self.asm.op3(Code::VEX_Kandnw_kr_kr_kr, to, a, b);
    }

    /// `to = from` where `k` and `from`'s lanes `a`, `b` have the same bits.
    fn put_where_same(&mut self, k: Register, a: Register, b: Register, to: Register, from: Register) {
        self.asm.masked(COMPARE, k, &[K7.into(), a.into(), b.into(), EQUAL.into()]);
        self.put_where(K7, to, from);
    }
}

/// v_div_scale_f32: the cases of `scale_one32` from the last to the first, so that the first wins.
fn divide_scale(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Y {
        return division_avx2::scale(g, s, c);
    }
    let [x, d, n] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, de, ne, up, down, magnitude] = [0; 6].map(|_| g.temporary());
    let scaled = K6;
    g.asm.op2(codes::MOVE.z, r, x);
    exponent_field(g, de, d);
    exponent_field(g, ne, n);
    // Exponents from 80 to 169 need no scaling.
    let low = g.asm.constant(80);
    for (k, e, t) in [(K5, de, up), (K7, ne, down)] {
        g.asm.op3(codes::SUB.z, t, e, low);
        g.compare(COMPARE_UNSIGNED, k, t, 90, NOT_LESS);
    }
    g.asm.op3(Code::VEX_Kxorw_kr_kr_kr, scaled, scaled, scaled);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Kortestw_kr_kr, K5, K7);
    g.asm.jump(Code::Je_rel32_64, done);
    for (t, factor) in [(up, 64), (down, -64)] {
        let factor = g.asm.constant(2f32.powi(factor).to_bits());
        g.asm.op3(MUL_PS.z, t, x, factor);
    }
    g.compare(COMPARE, K5, ne, 23, LESS_OR_EQUAL);
    g.put_where(K5, r, up);
    // A tiny quotient.
    g.asm.op3(codes::SUB.z, ne, ne, de);
    g.compare(COMPARE, K5, ne, -126i32 as u32, LESS_OR_EQUAL);
    let special = g.asm.constant(255);
    g.asm.masked(COMPARE, K5, &[scaled.into(), de.into(), special.into(), LESS.into()]);
    g.put_where(scaled, r, x);
    g.put_where_same(scaled, x, n, r, up);
    // A tiny reciprocal: from 2^126 to the greatest number.
    const HUGE: u32 = 0x7E80_0001;
    let (positive, huge) = (g.asm.constant(!SIGN), g.asm.constant(HUGE));
    g.asm.op3(codes::AND.z, magnitude, d, positive);
    g.asm.op3(codes::SUB.z, magnitude, magnitude, huge);
    g.compare(COMPARE_UNSIGNED, K5, magnitude, INFINITY - HUGE, LESS);
    g.put_where(K5, r, down);
    // Both conditions: a tiny reciprocal alone does not count as scaled.
    g.asm.op3(Code::VEX_Kandw_kr_kr_kr, K5, K5, scaled);
    g.put_where(K5, r, x);
    g.put_where_same(K5, x, d, r, down);
    // A denormal denominator.
    g.asm.op3(NONE_SET, K5, de, de);
    g.put_where(K5, r, up);
    g.and_not(scaled, K5, scaled);
    // A huge quotient.
    g.compare(COMPARE, K5, ne, 96, NOT_LESS);
    g.put_where(K5, r, x);
    g.or(scaled, scaled, K5);
    g.put_where_same(K5, x, d, r, up);
    // Zeros.
    g.asm.op3(NONE_SET, K5, d, positive);
    g.asm.op3(NONE_SET, K7, n, positive);
    g.or(K5, K5, K7);
    g.put_constant_where(K5, r, 0x7FC0_0000);
    g.or(scaled, scaled, K5);
    g.asm.place(done);
    if g.masked {
        let exec = g.exec(c);
        g.asm.op3(Code::VEX_Kandw_kr_kr_kr, scaled, scaled, exec);
    }
    g.result(s.dst, 0, c, r);
    g.mask_out(s.sdst, c, scaled);
}

/// v_div_fmas_f32: a fused multiply-add; lanes in VCC are scaled by 2^64 or 2^-64 with one rounding, in f64.
fn divide_fma(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Y {
        return division_avx2::fma(g, s, c);
    }
    let [a, b, x] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, factor, p, q, low, high] = [0; 6].map(|_| g.temporary());
    g.asm.op2(codes::MOVE.z, r, x);
    g.asm.op3(codes::FMA231.z, r, a, b);
    // VCC_LO's number, as all scalars'.
    g.mask_in(K5, VCC as u16, c);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Kortestw_kr_kr, K5, K5);
    g.asm.jump(Code::Je_rel32_64, done);
    // NaNs are those of the operation without scaling.
    g.asm.masked(COMPARE_PS, K5, &[K6.into(), a.into(), b.into(), ORDERED.into()]);
    g.asm.masked(COMPARE_PS, K6, &[K5.into(), x.into(), x.into(), ORDERED.into()]);
    // Scaling is up for exponents from 128 on, whose highest bit is set.
    let (up, down) = (2f32.powi(64).to_bits(), g.asm.constant_once(2f32.powi(-64).to_bits()));
    g.asm.op2(codes::BROADCAST.z, factor, down);
    let highest = g.asm.constant(0x4000_0000);
    g.asm.op3(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, K7, x, highest);
    g.put_constant_where(K7, factor, up);
    for (upper, r) in [(false, low), (true, high)] {
        g.widen(p, a, upper);
        g.widen(q, b, upper);
        g.op3(MUL, p, p, q);
        g.widen(q, x, upper);
        // The sum rounded to odd: of its two neighbours the odd one, so that narrowing rounds once.
        let add = Code::EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
        g.asm.rounded(add, RoundingControl::RoundDown, &[r.into(), p.into(), q.into()]);
        g.asm.rounded(add, RoundingControl::RoundUp, &[p.into(), p.into(), q.into()]);
        let one = g.asm.constant64(1, true);
        g.asm.op3(Code::EVEX_Vptestmq_kr_k1_zmm_zmmm512b64, K6, r, one);
        g.asm.masked(Code::EVEX_Vmovdqa64_zmm_k1z_zmmm512, K6, &[p.into(), r.into()]);
        g.widen(q, factor, upper);
        g.op3(MUL, p, p, q);
        g.narrow(r, p);
    }
    g.join(low, high);
    g.put_where(K5, r, low);
    g.asm.place(done);
    g.result(s.dst, 0, c, r);
}

/// v_div_fixup_f32: special cases of the quotient of n / d.
fn divide_fixup(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Y {
        return division_avx2::fixup(g, s, c);
    }
    let [q, d, n] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let [r, sign, infinity, apart] = [0; 4].map(|_| g.temporary());
    let (sign_bit, positive) = (g.asm.constant(SIGN), g.asm.constant(!SIGN));
    g.asm.op3(codes::XOR.z, sign, d, n);
    g.asm.op3(codes::AND.z, sign, sign, sign_bit);
    g.asm.op2(codes::MOVE.z, r, q);
    g.asm.op4(SELECT, r, sign, positive, AND_OR);
    exponent_field(g, apart, n);
    exponent_field(g, infinity, d);
    g.asm.op3(codes::SUB.z, apart, apart, infinity);
    g.class(K5, q, NAN);
    g.class(K6, d, NAN | ZERO | INFINITE);
    g.class(K7, n, NAN | ZERO | INFINITE);
    g.or(K7, K7, K6);
    g.compare(COMPARE, K6, apart, -150i32 as u32, LESS);
    g.or(K7, K7, K6);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Kortestw_kr_kr, K5, K7);
    g.asm.jump(Code::Je_rel32_64, done);
    let bits = g.asm.constant(INFINITY);
    g.asm.op3(codes::OR.z, infinity, sign, bits);
    g.put_where(K5, r, infinity);
    g.put_where(K6, r, sign);
    // Zero, then infinity, then all other values.
    for (zero, k) in [(d, INFINITE), (n, ZERO)] {
        g.class(K5, zero, k);
        g.put_where(K5, r, sign);
    }
    g.class(K6, d, ZERO);
    g.put_where(K6, r, infinity);
    g.class(K7, n, INFINITE);
    g.put_where(K7, r, infinity);
    for (k, classes, x) in [(K6, ZERO, n), (K7, INFINITE, d)] {
        g.asm.masked(CLASS, k, &[K5.into(), x.into(), classes.into()]);
        g.put_constant_where(K5, r, 0xFFC0_0000);
    }
    let quiet = g.asm.constant(QUIET);
    for x in [d, n] {
        g.class(K5, x, NAN);
        g.asm.masked(codes::OR.z, K5, &[r.into(), x.into(), quiet.into()]);
    }
    g.asm.place(done);
    g.result(s.dst, 0, c, r);
}
