// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline transcendental functions of f32.
//!
//! INVARIANT: the operations of [`crate::valu::trans`] with the same constants in the same order, those in f64 for half a register's
//! lanes at a time. The results for NaNs, infinities, zeros and negative arguments are put in last: by a table of
//! one `vfixupimmps` (AVX-512), or by blends.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::{Arg, Label};
use super::codes::{self, AND_NOT_Y, COMPARE_PS_Y, Codes, EQUAL_Y};
use super::generator::{Emit, Gen, Wide};
use crate::step::{Kind, Src, Step, mods};
use crate::valu::trans;

macro_rules! codes {
    ($($name:ident $z:ident $y:ident;)*) => {
        $(pub(super) const $name: Codes = Codes { z: Code::$z, y: Code::$y };)*
    };
}

codes! {
    ADD EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er VEX_Vaddpd_ymm_ymm_ymmm256;
    SUB EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er VEX_Vsubpd_ymm_ymm_ymmm256;
    MUL EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er VEX_Vmulpd_ymm_ymm_ymmm256;
    DIV EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er VEX_Vdivpd_ymm_ymm_ymmm256;
    FMA132 EVEX_Vfmadd132pd_zmm_k1z_zmm_zmmm512b64_er VEX_Vfmadd132pd_ymm_ymm_ymmm256;
    FMA213 EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er VEX_Vfmadd213pd_ymm_ymm_ymmm256;
    FMA231 EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er VEX_Vfmadd231pd_ymm_ymm_ymmm256;
    BROADCAST EVEX_Vbroadcastsd_zmm_k1z_xmmm64 VEX_Vbroadcastsd_ymm_m64;
    ROOT64 EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er VEX_Vsqrtpd_ymm_ymmm256;
    DIV32 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er VEX_Vdivps_ymm_ymm_ymmm256;
    ADD32 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er VEX_Vaddps_ymm_ymm_ymmm256;
    SUB32 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er VEX_Vsubps_ymm_ymm_ymmm256;
    FMA213_32 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er VEX_Vfmadd213ps_ymm_ymm_ymmm256;
    BROADCAST32 EVEX_Vbroadcastss_zmm_k1z_xmmm32 VEX_Vbroadcastss_ymm_m32;
    MIN32 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae VEX_Vminps_ymm_ymm_ymmm256;
    LEFT64_BY EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8 VEX_Vpsllq_ymm_ymm_imm8;
    ADD64 EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64 VEX_Vpaddq_ymm_ymm_ymmm256;
    SUB64 EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64 VEX_Vpsubq_ymm_ymm_ymmm256;
    AND64 EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64 VEX_Vpand_ymm_ymm_ymmm256;
    XOR64 EVEX_Vpxorq_zmm_k1z_zmm_zmmm512b64 VEX_Vpxor_ymm_ymm_ymmm256;
}

const ONE: u32 = 0x3F80_0000;
const SIGN: u32 = 0x8000_0000;
const EXPONENT: u32 = 0x7F80_0000;
const QUIET: u32 = 0x0040_0000;
/// Predicates of vcmpps.
pub(super) const UNORDERED: i32 = 3;
const SAME: i32 = 0;
/// Greater or equal, and ordered.
const AT_LEAST: i32 = 13;

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
        Op::V_RSQ_F32 => |g, s, c| function(g, s, c, Op::V_RSQ_F32),
        Op::V_EXP_F32 => |g, s, c| function(g, s, c, Op::V_EXP_F32),
        Op::V_LOG_F32 => |g, s, c| function(g, s, c, Op::V_LOG_F32),
        Op::V_SIN_F32 => |g, s, c| function(g, s, c, Op::V_SIN_F32),
        Op::V_COS_F32 => |g, s, c| function(g, s, c, Op::V_COS_F32),
        _ => return None,
    })
}

/// What computes a function in a temporary, which is lost, and returns another one.
type Body = fn(&mut Gen, Register) -> Register;

fn body(op: Op) -> Option<Body> {
    Some(match op {
        Op::V_RSQ_F32 => reciprocal_root,
        Op::V_EXP_F32 => exponential,
        Op::V_LOG_F32 => logarithm,
        Op::V_SIN_F32 => |g, x| periodic(g, x, false),
        Op::V_COS_F32 => |g, x| periodic(g, x, true),
        _ => return None,
    })
}

/// A function that is called, since it has many instructions: it takes its argument in the last register, uses some in front of it, and
/// leaves its result in one of these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    op: Op,
    label: Label,
    registers: u8,
    result: Register,
}

fn function(g: &mut Gen, s: &Step, c: usize, op: Op) {
    let Some(body) = body(op) else { return };
    let shared = g.shared.iter().find(|shared| shared.op == op).copied();
    match shared {
        // A loop's registers are not to be had.
        Some(shared) if !g.resident => g.call_shared(s, c, shared),
        _ => {
            let x = g.own(&s.src[0], c);
            let r = body(g, x);
            g.result(s.dst, 0, c, r);
        }
    }
}

/// The lower half of a register.
pub(super) fn half(r: Register) -> Register {
    // CAST: the number of a register.
    match r.is_zmm() {
        true => Register::YMM0 + (r as u32 - Register::ZMM0 as u32),
        false => Register::XMM0 + (r as u32 - Register::YMM0 as u32),
    }
}

impl Gen {
    /// Emits the functions that steps with these operations call.
    pub(super) fn emit_shared(&mut self, ops: impl Iterator<Item = Op>) {
        for op in ops {
            let Some(body) = body(op).filter(|_| self.shared.iter().all(|shared| shared.op != op)) else {
                continue;
            };
            let label = self.asm.label();
            self.asm.place(label);
            let x = self.temporary();
            let result = body(self, x);
            self.asm.op0(Code::Retnq);
            self.shared.push(Shared { op, label, registers: self.regs.taken(), result });
            self.regs.clear();
        }
    }

    fn call_shared(&mut self, s: &Step, c: usize, shared: Shared) {
        let a = self.source(&s.src[0], 0, c);
        // CAST: a register's number.
        let last = self.wide.registers() as u8 - 1;
        let x = self.vector(last);
        let own = self.number(a);
        for n in (last + 1 - shared.registers..=last).filter(|&n| n != own) {
            self.free(n);
        }
        if a != x {
            self.op2(codes::MOVE, x, a);
        }
        if own > last - shared.registers {
            self.free(own);
        }
        self.asm.jump(Code::Call_rel32_64, shared.label);
        self.regs.make_temporary(self.number(shared.result));
        self.result(s.dst, 0, c, shared.result);
    }

    /// Empties a register; what is newer than memory is stored.
    fn free(&mut self, register: u8) {
        if let Some(spill) = self.regs.free(register) {
            self.store(spill);
        }
    }

    /// The low dword of a source, in at most one temporary.
    pub(super) fn operand(&mut self, s: &Src, c: usize) -> Register {
        if s.kind != Kind::ScalarMod {
            return self.source(s, 0, c);
        }
        let t = self.source(&Src { kind: Kind::Scalar, mods: 0, ..*s }, 0, c);
        if s.mods & mods::ABS_HI != 0 {
            let k = self.constant_argument(!SIGN);
            self.op3(codes::AND, t, t, k);
        }
        if s.mods & mods::NEG_HI != 0 {
            let k = self.constant_argument(SIGN);
            self.op3(codes::XOR, t, t, k);
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
            self.op2(codes::MOVE, t, a);
        }
        t
    }

    /// A 64-bit constant as a last operand.
    pub(super) fn constant64_argument(&mut self, value: u64) -> Arg {
        match self.wide {
            Wide::Z => self.asm.constant64(value, true).into(),
            Wide::Y => self.asm.constant64_lanes(value).into(),
        }
    }

    /// Makes denormals of `r` zeros of the same sign.
    fn flush(&mut self, r: Register) {
        let exponent = self.constant_argument(EXPONENT);
        if self.wide == Wide::Y {
            let t = self.temporary();
            let zero = self.constant_argument(0);
            self.op3(codes::AND, t, r, exponent);
            self.asm.op3(EQUAL_Y, t, t, zero);
            // All bits of those lanes but the sign.
            self.op3(codes::RIGHT_BY, t, t, 1);
            return self.asm.op3(AND_NOT_Y, r, t, r);
        }
        let sign = self.asm.constant(SIGN);
        self.asm.op3(Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32, Register::K5, r, exponent);
        self.asm.masked(codes::AND.z, Register::K5, &[r.into(), r.into(), sign.into()]);
    }

    /// Puts in the results of special lanes of `x`, by table.
    fn fix(&mut self, r: Register, x: Register, table: u32) {
        let table = self.asm.constant(table);
        self.asm.op4(Code::EVEX_Vfixupimmps_zmm_k1z_zmm_zmmm512b32_imm8_sae, r, x, table, 0);
    }

    /// The upper or lower half of the lanes of `from`, as f64.
    pub(super) fn widen(&mut self, to: Register, from: Register, upper: bool) {
        let (extract, code) = match self.wide {
            Wide::Z => {
                (Code::EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, Code::EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae)
            }
            Wide::Y => (Code::VEX_Vextractf128_xmmm128_ymm_imm8, Code::VEX_Vcvtps2pd_ymm_xmmm128),
        };
        if upper {
            self.asm.op3(extract, half(to), from, 1);
            self.asm.op2(code, to, half(to));
        } else {
            self.asm.op2(code, to, half(from));
        }
    }

    /// f64 to f32, in the lower half of the register.
    pub(super) fn narrow(&mut self, to: Register, from: Register) {
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er,
            Wide::Y => Code::VEX_Vcvtpd2ps_xmm_ymmm256,
        };
        self.asm.op2(code, half(to), from);
    }

    /// Puts the lower half of `upper` above that of `r`.
    pub(super) fn join(&mut self, r: Register, upper: Register) {
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8,
            Wide::Y => Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8,
        };
        self.asm.op4(code, r, r, half(upper), 1);
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
        self.op2(BROADCAST, r, k);
        for &coefficient in rest.iter().rev() {
            let k = self.constant64_argument(coefficient.to_bits());
            self.op3(FMA213, r, x, k);
        }
    }

    /// `to = a codes constant`.
    fn with_constant(&mut self, codes: Codes, to: Register, a: Register, value: f64) {
        let k = self.constant64_argument(value.to_bits());
        self.op3(codes, to, a, k);
    }
}

fn reciprocal(g: &mut Gen, s: &Step, c: usize) {
    let x = g.own(&s.src[0], c);
    let one = g.constant(ONE);
    g.flush(x);
    g.op3(DIV32, x, one, x);
    g.flush(x);
    g.result(s.dst, 0, c, x);
}

fn reciprocal_root(g: &mut Gen, x: Register) -> Register {
    g.flush(x);
    let one = g.temporary();
    let k = g.asm.constant64(1f64.to_bits(), false);
    g.op2(BROADCAST, one, k);
    let r = g.in_f64(x, |g, x| {
        g.op2(ROOT64, x, x);
        g.op3(DIV, x, one, x);
    });
    g.flush(r);
    r
}

fn exponential(g: &mut Gen, x: Register) -> Register {
    let (t, r, p) = (g.temporary(), g.temporary(), g.temporary());
    let most = g.constant_argument(trans::GREATEST_EXPONENT.to_bits());
    let shift = g.constant_argument(trans::SHIFT_F32.to_bits());
    // Of a NaN it is the second one.
    g.op3(MIN32, r, x, most);
    g.op3(ADD32, t, r, shift);
    g.op3(SUB32, p, t, shift);
    g.op3(SUB32, r, r, p);
    let [first @ .., last] = trans::EXP2;
    let last = g.asm.constant_once(last);
    g.op2(BROADCAST32, p, last);
    for k in first.into_iter().rev() {
        let k = g.constant_argument(k);
        g.op3(FMA213_32, p, r, k);
    }
    g.op3(codes::LEFT_BY, t, t, 23);
    let least = g.constant_argument(trans::LEAST_EXPONENT.to_bits());
    match g.wide {
        Wide::Z => {
            let k = Register::K5;
            g.asm.op4(Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, k, x, least, AT_LEAST);
            g.asm.zeroed(codes::ADD.z, k, &[p.into(), p.into(), t.into()]);
            g.fix(p, x, EXP_CLASSES);
        }
        Wide::Y => {
            g.op3(codes::ADD, p, p, t);
            g.asm.op4(COMPARE_PS_Y, t, x, least, AT_LEAST);
            g.op3(codes::AND, p, p, t);
            let quiet = g.constant_argument(QUIET);
            g.asm.op4(COMPARE_PS_Y, t, x, x, UNORDERED);
            g.op3(codes::OR, x, x, quiet);
            g.pick_lanes(p, p, x, t);
        }
    }
    p
}

fn logarithm(g: &mut Gen, x: Register) -> Register {
    g.flush(x);
    let [safe, e, t, p] = [0; 4].map(|_| g.temporary());
    // Of all lanes but positive normal numbers the logarithm of 1 is taken.
    let unsafe_lanes = match g.wide {
        Wide::Z => {
            g.asm.op3(Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8, Register::K5, x, 0xFF);
            g.asm.op2(codes::MOVE.z, safe, x);
            let one = g.asm.constant_once(ONE);
            let code = Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32;
            g.asm.masked(code, Register::K5, &[safe.into(), one.into()]);
            None
        }
        Wide::Y => {
            let lanes = g.temporary();
            let [one, least, count] = [ONE, 0x0080_0000, 0x7F00_0000].map(|k| g.constant_argument(k));
            g.op3(codes::SUB, t, x, least);
            g.op3(codes::MAX_U, lanes, t, count);
            g.asm.op3(EQUAL_Y, lanes, lanes, t);
            g.pick_lanes(safe, x, one, lanes);
            Some(lanes)
        }
    };
    let r = g.in_f64(safe, |g, x| {
        exponent_and_mantissa(g, x, e, t);
        g.with_constant(SUB, t, x, 1.0);
        g.with_constant(ADD, x, x, 1.0);
        g.op3(DIV, t, t, x);
        g.op3(MUL, x, t, t);
        g.polynomial(p, x, &trans::LOG2);
        g.op3(MUL, x, p, t);
        g.with_constant(FMA132, x, e, trans::LOG2_FACTOR);
    });
    match unsafe_lanes {
        None => g.fix(r, x, LOG_CLASSES),
        Some(lanes) => {
            let done = g.asm.label();
            g.asm.op2(Code::VEX_Vptest_ymm_ymmm256, lanes, lanes);
            g.asm.jump(Code::Je_rel32_64, done);
            // Of infinity, NaNs and numbers below 0 the square root is the result, of zeros -infinity.
            let (zero, infinity) = (g.constant_argument(0), g.constant_argument(SIGN | EXPONENT));
            g.asm.op2(Code::VEX_Vsqrtps_ymm_ymmm256, t, x);
            g.asm.op4(COMPARE_PS_Y, p, x, zero, SAME);
            g.pick_lanes(t, t, infinity, p);
            g.pick_lanes(r, r, t, lanes);
            g.asm.place(done);
        }
    }
    r
}

/// `e` = exponent of `x` as f64; `x` is scaled by its inverse, to between the square roots of 1/2 and 2. `t` is lost.
fn exponent_and_mantissa(g: &mut Gen, x: Register, e: Register, t: Register) {
    let root_half = g.constant64_argument(trans::ROOT_HALF);
    g.op3(SUB64, e, x, root_half);
    if g.wide == Wide::Z {
        g.asm.op3(Code::EVEX_Vpsraq_zmm_k1z_zmmm512b64_imm8, e, e, 52);
        g.asm.op3(Code::EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8, t, e, 52);
        g.op3(SUB64, x, x, t);
        return g.asm.op2(Code::EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er, e, e);
    }
    let (high, sign) = (g.constant64_argument(0xFFF << 52), g.constant64_argument(1 << 63));
    g.op3(AND64, t, e, high);
    g.op3(SUB64, x, x, t);
    // AVX2 converts no 64-bit integers: the exponent plus 2^11 becomes the mantissa's end of 2^52.
    g.op3(XOR64, e, e, sign);
    g.asm.op3(Code::VEX_Vpsrlq_ymm_ymm_imm8, e, e, 52);
    let base = 4_503_599_627_370_496.0;
    let bits = g.constant64_argument(f64::to_bits(base));
    g.op3(XOR64, e, e, bits);
    g.with_constant(SUB, e, e, base + 2048.0);
}

/// sin or cos of 2 pi x.
fn periodic(g: &mut Gen, x: Register, cosine: bool) -> Register {
    let [turns, t, z, sin, cos] = [0; 5].map(|_| g.temporary());
    whole_turns_to_zero(g, turns, x, t);
    let r = g.in_f64(turns, |g, x| {
        let shift = g.asm.constant64(trans::SHIFT.to_bits(), false);
        g.op2(BROADCAST, t, shift);
        g.with_constant(FMA231, t, x, 4.0);
        g.with_constant(SUB, z, t, trans::SHIFT);
        g.with_constant(FMA231, x, z, -0.25);
        g.with_constant(MUL, x, x, std::f64::consts::TAU);
        g.op3(MUL, z, x, x);
        g.polynomial(sin, z, &trans::SINE);
        g.op3(MUL, sin, sin, x);
        g.polynomial(cos, z, &trans::COSINE);
        // Odd quadrants exchange sine and cosine. The sign of a sine is bit 1 of the quadrant, that of a cosine bit 1
        // of the next quadrant.
        let (even, odd) = if cosine { (cos, sin) } else { (sin, cos) };
        let one = g.constant64_argument(1);
        match g.wide {
            Wide::Z => {
                g.asm.op3(Code::EVEX_Vptestmq_kr_k1_zmm_zmmm512b64, Register::K5, t, one);
                let code = Code::EVEX_Vpblendmq_zmm_k1z_zmm_zmmm512b64;
                g.asm.masked(code, Register::K5, &[x.into(), even.into(), odd.into()]);
            }
            Wide::Y => {
                g.op3(LEFT64_BY, z, t, 63);
                g.asm.op4(Code::VEX_Vblendvpd_ymm_ymm_ymmm256_ymm, x, even, odd, z);
            }
        }
        if cosine {
            g.op3(ADD64, t, t, one);
        }
        g.op3(LEFT64_BY, t, t, 62);
        let sign = g.constant64_argument(1 << 63);
        g.op3(AND64, t, t, sign);
        g.op3(XOR64, x, x, t);
        // A zero is positive in every quadrant.
        g.with_constant(ADD, x, x, 0.0);
    });
    match g.wide {
        Wide::Z => g.fix(r, x, if cosine { COS_CLASSES } else { SIN_CLASSES }),
        Wide::Y => periodic_specials(g, r, x, [t, z], cosine),
    }
    r
}

/// `turns = x`, or 0 where that is a whole number of turns, an infinity or a NaN.
fn whole_turns_to_zero(g: &mut Gen, turns: Register, x: Register, t: Register) {
    let (positive, whole) = (g.constant_argument(!SIGN), (trans::WHOLE_TURNS as f32).to_bits());
    g.op3(codes::AND, turns, x, positive);
    // Of positive numbers the greater has the greater bits.
    if g.wide == Wide::Y {
        let below = g.constant_argument(whole - 1);
        g.asm.op3(codes::GREATER_Y, t, turns, below);
        return g.asm.op3(AND_NOT_Y, turns, t, x);
    }
    let whole = g.asm.constant(whole);
    g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, Register::K5, turns, whole, super::integer::LESS);
    g.asm.zeroed(codes::MOVE.z, Register::K5, &[turns.into(), x.into()]);
}

/// An infinity gives the default NaN and a NaN itself, quieted; the sine keeps the sign of a zero (AVX2).
fn periodic_specials(g: &mut Gen, r: Register, x: Register, [t, z]: [Register; 2], cosine: bool) {
    let exponent = g.constant_argument(EXPONENT);
    if !cosine {
        let zero = g.constant_argument(0);
        g.asm.op4(COMPARE_PS_Y, t, x, zero, SAME);
        g.pick_lanes(r, r, x, t);
    }
    g.op3(codes::AND, t, x, exponent);
    g.asm.op3(EQUAL_Y, t, t, exponent);
    g.op3(codes::SUB_PS, z, x, x);
    g.pick_lanes(r, r, z, t);
}
