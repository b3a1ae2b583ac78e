// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline minima, maxima and medians of f32.
//!
//! INVARIANT: same bits as [`crate::valu`]'s handlers in IEEE mode with denormals: -0 is below +0; of a number and a
//! quiet NaN the number is the result; a signalling NaN is the result, quieted, the first of two.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::codes::{self, COMPARE_PS_Y, Codes, MUL_PS};
use super::convert::{COMPARE_PS, only};
use super::floats::Floats;
use super::generator::{Emit, Gen, Wide};
use crate::step::{Kind, Src, Step};

/// Orders the zeros and lets signalling NaNs win, as IEEE mode does.
const RANGE: Code = Code::EVEX_Vrangeps_zmm_k1z_zmm_zmmm512b32_imm8_sae;
const K5: Register = Register::K5;
const K6: Register = Register::K6;
/// Predicate of vcmpps.
const UNORDERED: i32 = 3;
/// Bit 22 of an f32, which a quiet NaN has, becomes the sign.
const QUIET_TO_SIGN: i32 = 9;

/// Which of two numbers.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The selector of vrangeps; the result has the sign of the selected value.
    range: i32,
    /// Host instructions that give the second operand for two zeros, and one that selects the zero of two results.
    host: Code,
    zero: Codes,
}

const MIN: End = End { range: 0b0100, host: Code::VEX_Vminps_ymm_ymm_ymmm256, zero: codes::OR };
const MAX: End = End { range: 0b0101, host: Code::VEX_Vmaxps_ymm_ymm_ymmm256, zero: codes::AND };

/// The emitter of such an operation.
pub(super) fn emitter(op: Op, floats: Floats) -> Option<Emit> {
    let emit: Emit = match op {
        Op::V_MIN_F32 => |g, s, c| two(g, s, c, MIN),
        Op::V_MAX_F32 => |g, s, c| two(g, s, c, MAX),
        Op::V_MIN3_F32 => |g, s, c| three(g, s, c, MIN, MIN),
        Op::V_MAX3_F32 => |g, s, c| three(g, s, c, MAX, MAX),
        Op::V_MAXMIN_F32 => |g, s, c| three(g, s, c, MAX, MIN),
        Op::V_MINMAX_F32 => |g, s, c| three(g, s, c, MIN, MAX),
        Op::V_MED3_F32 => median,
        _ => return None,
    };
    (floats.f32_default && floats.ieee).then_some(emit)
}

fn two(g: &mut Gen, s: &Step, c: usize, end: End) {
    if g.wide == Wide::Z {
        let a = g.source(&s.src[0], 0, c);
        let b = g.last(&s.src[1], 0, c);
        return g.finish(only(RANGE), s.dst, 0, c, &[a.into(), b, end.range.into()]);
    }
    if same(&s.src[0], &s.src[1]) {
        // How compilers quiet signalling NaNs.
        let a = g.operand(&s.src[0], c);
        let one = g.constant_argument(1f32.to_bits());
        return g.finish(MUL_PS, s.dst, 0, c, &[a.into(), one]);
    }
    let (a, b) = (g.operand(&s.src[0], c), g.operand(&s.src[1], c));
    let t = g.temporary();
    let spare = [0; 4].map(|_| g.temporary());
    extreme(g, t, (a, b), end, spare);
    g.result(s.dst, 0, c, t);
}

fn same(a: &Src, b: &Src) -> bool {
    a.kind == b.kind && a.index == b.index && a.mods == b.mods && a.kind != Kind::Const
}

/// `to` = minimum or maximum of two registers, which `to` is none of (AVX2).
fn extreme(g: &mut Gen, to: Register, (a, b): (Register, Register), end: End, spare: [Register; 4]) {
    let [unordered, r, t, other] = spare;
    g.asm.op3(end.host, to, a, b);
    g.asm.op3(end.host, r, b, a);
    g.op3(end.zero, to, to, r);
    g.asm.op4(COMPARE_PS_Y, unordered, a, b, UNORDERED);
    let done = g.asm.label();
    g.asm.op2(Code::VEX_Vptest_ymm_ymmm256, unordered, unordered);
    g.asm.jump(Code::Je_rel32_64, done);
    // The first source if the second is a NaN, else the second; a signalling NaN instead of either.
    g.asm.op4(COMPARE_PS_Y, t, b, b, UNORDERED);
    g.pick_lanes(r, b, a, t);
    for x in [b, a] {
        let (signalling, quiet) = (t, other);
        g.asm.op4(COMPARE_PS_Y, signalling, x, x, UNORDERED);
        g.op3(codes::LEFT_BY, quiet, x, QUIET_TO_SIGN);
        g.asm.op3(codes::AND_NOT_Y, signalling, quiet, signalling);
        g.pick_lanes(r, r, x, signalling);
    }
    let one = g.constant_argument(1f32.to_bits());
    g.op3(MUL_PS, r, r, one);
    g.pick_lanes(to, to, r, unordered);
    g.asm.place(done);
}

/// `second(first(source 0, source 1), source 2)`.
fn three(g: &mut Gen, s: &Step, c: usize, first: End, second: End) {
    let (a, b) = (g.operand(&s.src[0], c), g.operand(&s.src[1], c));
    let t = g.temporary();
    if g.wide == Wide::Z {
        g.asm.op4(RANGE, t, a, b, first.range);
        let x = g.operand(&s.src[2], c);
        return g.finish(only(RANGE), s.dst, 0, c, &[t.into(), x.into(), second.range.into()]);
    }
    let x = g.operand(&s.src[2], c);
    let r = g.temporary();
    let spare = [0; 4].map(|_| g.temporary());
    extreme(g, t, (a, b), first, spare);
    extreme(g, r, (t, x), second, spare);
    g.result(s.dst, 0, c, r);
}

fn median(g: &mut Gen, s: &Step, c: usize) {
    let [a, b, x] = [0, 1, 2].map(|k| g.operand(&s.src[k], c));
    let (low, high) = (g.temporary(), g.temporary());
    if g.wide == Wide::Y {
        return median_avx2(g, s, c, [a, b, x, low, high]);
    }
    g.asm.op4(COMPARE_PS, K5, a, b, UNORDERED);
    g.asm.op4(COMPARE_PS, K6, x, x, UNORDERED);
    g.asm.op3(Code::VEX_Korw_kr_kr_kr, K5, K5, K6);
    g.asm.op4(RANGE, low, a, b, MIN.range);
    g.asm.op4(RANGE, high, a, b, MAX.range);
    g.asm.op4(RANGE, high, high, x, MIN.range);
    g.asm.op4(RANGE, high, low, high, MAX.range);
    // With a NaN among the sources, the minimum.
    g.asm.masked(RANGE, K5, &[high.into(), low.into(), x.into(), MIN.range.into()]);
    g.result(s.dst, 0, c, high);
}

fn median_avx2(g: &mut Gen, s: &Step, c: usize, [a, b, x, low, high]: [Register; 5]) {
    let r = g.temporary();
    let spare = [0; 4].map(|_| g.temporary());
    extreme(g, low, (a, b), MIN, spare);
    extreme(g, high, (a, b), MAX, spare);
    extreme(g, r, (high, x), MIN, spare);
    extreme(g, high, (low, r), MAX, spare);
    // With a NaN among the sources, the minimum.
    extreme(g, r, (low, x), MIN, spare);
    let [unordered, t, ..] = spare;
    g.asm.op4(COMPARE_PS_Y, unordered, a, b, UNORDERED);
    g.asm.op4(COMPARE_PS_Y, t, x, x, UNORDERED);
    g.op3(codes::OR, unordered, unordered, t);
    g.pick_lanes(high, high, r, unordered);
    g.result(s.dst, 0, c, high);
}
