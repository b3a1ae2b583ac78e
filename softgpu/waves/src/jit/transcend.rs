// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline transcendental functions of f32 (AVX-512).
//!
//! INVARIANT: the operations of [`crate::valu::trans`] with the same constants in the same order, eight lanes of f64 at
//! a time. A table of one `vfixupimmps` gives the results for NaNs, infinities, zeros and negative arguments.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Arg;
use super::codes;
use super::generator::{Emit, Gen};
use crate::step::{Kind, Src, Step, mods};
use crate::valu::trans;

const ADD: Code = Code::EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
const SUB: Code = Code::EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er;
pub(super) const MUL: Code = Code::EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er;
const DIV: Code = Code::EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er;
const FMA132: Code = Code::EVEX_Vfmadd132pd_zmm_k1z_zmm_zmmm512b64_er;
const FMA213: Code = Code::EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
const FMA231: Code = Code::EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
const BROADCAST: Code = Code::EVEX_Vbroadcastsd_zmm_k1z_xmmm64;

const ONE: u32 = 0x3F80_0000;
const SIGN: u32 = 0x8000_0000;
const EXPONENT: u32 = 0x7F80_0000;

/// Answers of `vfixupimmps`, four bits for each class of argument: quiet NaN, signalling NaN, zero, one, -infinity,
/// infinity, negative, positive. 0 keeps the result, 1 is the argument, 2 the argument as a quiet NaN, 3 the default
/// NaN, 4 -infinity, 5 infinity.
const EXP_CLASSES: u32 = 0x0000_0022;
const LOG_CLASSES: u32 = 0x0353_0422;
const SIN_CLASSES: u32 = 0x0033_0122;
const COS_CLASSES: u32 = 0x0033_0022;

/// The emitter of a transcendental function, for MODEs that keep f32 denormals.
pub(super) fn emitter(op: Op) -> Option<Emit> {
    Some(match op {
        Op::V_RCP_F32 | Op::V_RCP_IFLAG_F32 => reciprocal,
        Op::V_RSQ_F32 => reciprocal_root,
        Op::V_EXP_F32 => exponential,
        Op::V_LOG_F32 => logarithm,
        Op::V_SIN_F32 => |g, s, c| periodic(g, s, c, false),
        Op::V_COS_F32 => |g, s, c| periodic(g, s, c, true),
        _ => return None,
    })
}

/// The lower half of a register.
pub(super) fn half(r: Register) -> Register {
    // CAST: the number of a register.
    Register::YMM0 + (r as u32 - Register::ZMM0 as u32)
}

impl Gen {
    /// The low dword of a source, in at most one temporary.
    pub(super) fn operand(&mut self, s: &Src, c: usize) -> Register {
        if s.kind != Kind::ScalarMod {
            return self.source(s, 0, c);
        }
        let t = self.source(&Src { kind: Kind::Scalar, mods: 0, ..*s }, 0, c);
        if s.mods & mods::ABS_HI != 0 {
            let k = self.asm.constant(!SIGN);
            self.asm.op3(codes::AND.z, t, t, k);
        }
        if s.mods & mods::NEG_HI != 0 {
            let k = self.asm.constant(SIGN);
            self.asm.op3(codes::XOR.z, t, t, k);
        }
        t
    }

    /// A copy of the low dword of a source, the operation's first temporary.
    pub(super) fn own(&mut self, s: &Src, c: usize) -> Register {
        let a = self.source(s, 0, c);
        // The registers keep their values until they are written.
        self.regs.release_temporaries();
        let t = self.temporary();
        if t != a {
            self.asm.op2(codes::MOVE.z, t, a);
        }
        t
    }

    /// An f64 constant as a last operand.
    fn double(&mut self, value: f64) -> Arg {
        self.asm.constant64(value.to_bits(), true).into()
    }

    /// Makes denormals of `r` zeros of the same sign.
    fn flush(&mut self, r: Register) {
        let (exponent, sign) = (self.asm.constant(EXPONENT), self.asm.constant(SIGN));
        self.asm.op3(Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32, Register::K5, r, exponent);
        self.asm.masked(codes::AND.z, Register::K5, &[r.into(), r.into(), sign.into()]);
    }

    /// Puts in the results of special lanes of `x`, by table.
    fn fix(&mut self, r: Register, x: Register, table: u32) {
        let table = self.asm.constant(table);
        self.asm.op4(Code::EVEX_Vfixupimmps_zmm_k1z_zmm_zmmm512b32_imm8_sae, r, x, table, 0);
    }

    /// The upper or lower eight lanes of `from`, as f64.
    pub(super) fn widen(&mut self, to: Register, from: Register, upper: bool) {
        let code = Code::EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae;
        if upper {
            self.asm.op3(Code::EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, half(to), from, 1);
            self.asm.op2(code, to, half(to));
        } else {
            self.asm.op2(code, to, half(from));
        }
    }

    /// f64 to f32, in the lower half of the register.
    pub(super) fn narrow(&mut self, to: Register, from: Register) {
        self.asm.op2(Code::EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er, half(to), from);
    }

    /// Puts the lower half of `upper` above that of `r`.
    pub(super) fn join(&mut self, r: Register, upper: Register) {
        self.asm.op4(Code::EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8, r, r, half(upper), 1);
    }

    /// `body` in f64 on the lanes of the temporary `x`, which is lost; `body` works in place.
    fn in_f64(&mut self, x: Register, mut body: impl FnMut(&mut Gen, Register)) -> Register {
        let r = self.temporary();
        self.widen(r, x, false);
        body(self, r);
        self.narrow(r, r);
        self.widen(x, x, true);
        body(self, x);
        self.narrow(x, x);
        self.join(r, x);
        r
    }

    /// `r = coefficients[0] + x * (coefficients[1] + ...)`.
    fn polynomial(&mut self, r: Register, x: Register, coefficients: &[f64]) {
        let Some((last, rest)) = coefficients.split_last() else { return };
        let k = self.asm.constant64(last.to_bits(), false);
        self.asm.op2(BROADCAST, r, k);
        for &coefficient in rest.iter().rev() {
            let k = self.double(coefficient);
            self.asm.op3(FMA213, r, x, k);
        }
    }

    /// `to = a code constant`.
    fn with_constant(&mut self, code: Code, to: Register, a: Register, value: f64) {
        let k = self.double(value);
        self.asm.op3(code, to, a, k);
    }
}

fn reciprocal(g: &mut Gen, s: &Step, c: usize) {
    let x = g.own(&s.src[0], c);
    let one = g.constant(ONE);
    g.flush(x);
    g.asm.op3(Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er, x, one, x);
    g.flush(x);
    g.result(s.dst, 0, c, x);
}

fn reciprocal_root(g: &mut Gen, s: &Step, c: usize) {
    let x = g.own(&s.src[0], c);
    g.flush(x);
    let one = g.temporary();
    let k = g.asm.constant64(1f64.to_bits(), false);
    g.asm.op2(BROADCAST, one, k);
    let r = g.in_f64(x, |g, x| {
        g.asm.op2(Code::EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er, x, x);
        g.asm.op3(DIV, x, one, x);
    });
    g.flush(r);
    g.result(s.dst, 0, c, r);
}

fn exponential(g: &mut Gen, s: &Step, c: usize) {
    let x = g.own(&s.src[0], c);
    g.flush(x);
    let (clamped, t, p) = (g.temporary(), g.temporary(), g.temporary());
    let (least, most) = (g.asm.constant((-200f32).to_bits()), g.asm.constant(200f32.to_bits()));
    g.asm.op3(Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae, clamped, x, least);
    g.asm.op3(Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae, clamped, clamped, most);
    let r = g.in_f64(clamped, |g, x| {
        g.with_constant(ADD, t, x, trans::SHIFT);
        g.with_constant(SUB, p, t, trans::SHIFT);
        g.asm.op3(SUB, x, x, p);
        g.with_constant(MUL, x, x, std::f64::consts::LN_2);
        g.polynomial(p, x, &trans::EXP2);
        g.asm.op3(Code::EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8, t, t, 52);
        g.asm.op3(Code::EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64, x, p, t);
    });
    g.flush(r);
    g.fix(r, x, EXP_CLASSES);
    g.result(s.dst, 0, c, r);
}

fn logarithm(g: &mut Gen, s: &Step, c: usize) {
    let x = g.own(&s.src[0], c);
    g.flush(x);
    let (safe, e, t, p) = (g.temporary(), g.temporary(), g.temporary(), g.temporary());
    // All classes but positive normal numbers.
    g.asm.op3(Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8, Register::K5, x, 0xFF);
    g.asm.op2(codes::MOVE.z, safe, x);
    let one = g.asm.constant_once(ONE);
    g.asm.masked(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, Register::K5, &[safe.into(), one.into()]);
    let r = g.in_f64(safe, |g, x| {
        let root_half = g.asm.constant64(trans::ROOT_HALF, true);
        g.asm.op3(Code::EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64, e, x, root_half);
        g.asm.op3(Code::EVEX_Vpsraq_zmm_k1z_zmmm512b64_imm8, e, e, 52);
        g.asm.op3(Code::EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8, t, e, 52);
        g.asm.op3(Code::EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64, x, x, t);
        g.asm.op2(Code::EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er, e, e);
        g.with_constant(SUB, t, x, 1.0);
        g.with_constant(ADD, x, x, 1.0);
        g.asm.op3(DIV, t, t, x);
        g.asm.op3(MUL, x, t, t);
        g.polynomial(p, x, &trans::LOG2);
        g.asm.op3(MUL, x, p, t);
        g.with_constant(FMA132, x, e, trans::LOG2_FACTOR);
    });
    g.fix(r, x, LOG_CLASSES);
    g.result(s.dst, 0, c, r);
}

/// sin or cos of 2 pi x.
fn periodic(g: &mut Gen, s: &Step, c: usize, cosine: bool) {
    let x = g.own(&s.src[0], c);
    let (turns, t, z, sin, cos) = (g.temporary(), g.temporary(), g.temporary(), g.temporary(), g.temporary());
    let (positive, whole) = (g.asm.constant(!SIGN), g.asm.constant((trans::WHOLE_TURNS as f32).to_bits()));
    g.asm.op3(codes::AND.z, turns, x, positive);
    // Of positive numbers the greater has the greater bits.
    g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, Register::K5, turns, whole, super::integer::LESS);
    g.asm.zeroed(codes::MOVE.z, Register::K5, &[turns.into(), x.into()]);
    let r = g.in_f64(turns, |g, x| {
        let shift = g.asm.constant64(trans::SHIFT.to_bits(), false);
        g.asm.op2(BROADCAST, t, shift);
        g.with_constant(FMA231, t, x, 4.0);
        g.with_constant(SUB, z, t, trans::SHIFT);
        g.with_constant(FMA231, x, z, -0.25);
        g.with_constant(MUL, x, x, std::f64::consts::TAU);
        g.asm.op3(MUL, z, x, x);
        g.polynomial(sin, z, &trans::SINE);
        g.asm.op3(MUL, sin, sin, x);
        g.polynomial(cos, z, &trans::COSINE);
        // Odd quadrants exchange sine and cosine. The sign of a sine is bit 1 of the quadrant, that of a cosine bit 1
        // of the next quadrant.
        let one = g.asm.constant64(1, true);
        g.asm.op3(Code::EVEX_Vptestmq_kr_k1_zmm_zmmm512b64, Register::K5, t, one);
        let (even, odd) = if cosine { (cos, sin) } else { (sin, cos) };
        g.asm.masked(
            Code::EVEX_Vpblendmq_zmm_k1z_zmm_zmmm512b64,
            Register::K5,
            &[x.into(), even.into(), odd.into()],
        );
        if cosine {
            g.asm.op3(Code::EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64, t, t, one);
        }
        g.asm.op3(Code::EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8, t, t, 62);
        let sign = g.asm.constant64(1 << 63, true);
        g.asm.op3(Code::EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64, t, t, sign);
        g.asm.op3(Code::EVEX_Vpxorq_zmm_k1z_zmm_zmmm512b64, x, x, t);
        // A zero is positive in every quadrant.
        g.with_constant(ADD, x, x, 0.0);
    });
    g.fix(r, x, if cosine { COS_CLASSES } else { SIN_CLASSES });
    g.result(s.dst, 0, c, r);
}
