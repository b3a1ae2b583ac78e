// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline integer operations of more than one instruction.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Arg;
use super::bits;
use super::codes::{self, Codes};
use super::generator::{Gen, Wide};
use crate::step::{Kind, Src, Step};
use crate::wave::SINK;

const ANDN: Codes =
    Codes { z: Code::EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpandn_ymm_ymm_ymmm256 };
/// Products of even lanes in 64 bits.
pub(super) const MULTIPLY_U: Codes =
    Codes { z: Code::EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64, y: Code::VEX_Vpmuludq_ymm_ymm_ymmm256 };
pub(super) const MULTIPLY_I: Codes =
    Codes { z: Code::EVEX_Vpmuldq_zmm_k1z_zmm_zmmm512b64, y: Code::VEX_Vpmuldq_ymm_ymm_ymmm256 };
const RIGHT64_BY: Codes =
    Codes { z: Code::EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8, y: Code::VEX_Vpsrlq_ymm_ymm_imm8 };
/// Even or odd lanes twice.
const EVEN_TWICE: Codes =
    Codes { z: Code::EVEX_Vmovsldup_zmm_k1z_zmmm512, y: Code::VEX_Vmovsldup_ymm_ymmm256 };
const ODD_TWICE: Codes =
    Codes { z: Code::EVEX_Vmovshdup_zmm_k1z_zmmm512, y: Code::VEX_Vmovshdup_ymm_ymmm256 };
/// vpternlogd truth tables over (destination, second, third).
const TERNARY_XOR: i32 = 0x96;
const TERNARY_OR: i32 = 0xFE;

fn is_constant(s: &Src) -> bool {
    matches!(s.kind, Kind::Const | Kind::ConstSigned)
}

/// Whether the operands of `step` are ones that the emitter of `op` can do.
pub(super) fn possible(op: Op, step: &Step) -> bool {
    match op {
        Op::V_BFE_U32 => is_constant(&step.src[1]) && is_constant(&step.src[2]),
        Op::V_ALIGNBIT_B32 => is_constant(&step.src[2]),
        Op::V_LSHLREV_B64 => {
            is_constant(&step.src[0])
                && (1..32).contains(&(step.src[0].value & 63))
                && step.src[1].kind == Kind::Vgpr
        }
        _ => true,
    }
}

/// A shift count as a last operand: five bits of it.
fn count(g: &mut Gen, s: &Src, c: usize) -> Arg {
    match s.kind {
        Kind::Const | Kind::ConstSigned => g.constant_argument(s.value & 31),
        _ => {
            let n = g.source(s, 0, c);
            let t = g.temporary();
            let k = g.constant_argument(31);
            let code = g.pick(codes::AND);
            g.asm.op3(code, t, n, k);
            t.into()
        }
    }
}

pub(super) fn not(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let k = g.constant_argument(u32::MAX);
    g.finish(codes::XOR, s.dst, 0, c, &[a.into(), k]);
}

/// `source 1 shifted by source 0`.
pub(super) fn shift(g: &mut Gen, s: &Step, c: usize, by: Codes) {
    let n = count(g, &s.src[0], c);
    let a = g.source(&s.src[1], 0, c);
    g.finish(by, s.dst, 0, c, &[a.into(), n]);
}

/// `(source 0 first source 1) second source 2`.
pub(super) fn three(g: &mut Gen, s: &Step, c: usize, first: Codes, second: Codes) {
    let a = g.source(&s.src[0], 0, c);
    let b = g.last(&s.src[1], 0, c);
    let t = g.temporary();
    let ternary = match (g.wide, first.z, second.z) {
        (Wide::Z, x, y) if x == codes::XOR.z && y == codes::XOR.z => Some(TERNARY_XOR),
        (Wide::Z, x, y) if x == codes::OR.z && y == codes::OR.z => Some(TERNARY_OR),
        _ => None,
    };
    if let (Some(table), Arg::R(b)) = (ternary, b) {
        let x = g.last(&s.src[2], 0, c);
        g.asm.op2(codes::MOVE.z, t, a);
        g.asm.op4(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8, t, b, x, table);
        return g.result(s.dst, 0, c, t);
    }
    let code = g.pick(first);
    g.asm.op3(code, t, a, b);
    let x = g.last(&s.src[2], 0, c);
    g.finish(second, s.dst, 0, c, &[t.into(), x]);
}

/// `(source 0 << source 1) then source 2`.
pub(super) fn shift_then(g: &mut Gen, s: &Step, c: usize, then: Codes) {
    let n = count(g, &s.src[1], c);
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    let code = g.pick(codes::SHIFT_LEFT);
    g.asm.op3(code, t, a, n);
    let x = g.last(&s.src[2], 0, c);
    g.finish(then, s.dst, 0, c, &[t.into(), x]);
}

/// `(source 0 + source 1) << source 2`.
pub(super) fn add_then_shift(g: &mut Gen, s: &Step, c: usize) {
    let n = count(g, &s.src[2], c);
    let a = g.source(&s.src[0], 0, c);
    let b = g.last(&s.src[1], 0, c);
    let t = g.temporary();
    let code = g.pick(codes::ADD);
    g.asm.op3(code, t, a, b);
    g.finish(codes::SHIFT_LEFT, s.dst, 0, c, &[t.into(), n]);
}

/// `(source 0 & 2^24 - 1) * (source 1 & 2^24 - 1)`, plus source 2 if `add`.
pub(super) fn multiply24(g: &mut Gen, s: &Step, c: usize, add: bool) {
    const LOW: u32 = 0xFF_FFFF;
    let and = g.pick(codes::AND);
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (x, y) = (g.temporary(), g.temporary());
    let k = g.constant_argument(LOW);
    g.asm.op3(and, x, a, k);
    g.asm.op3(and, y, b, k);
    if !add {
        return g.finish(codes::MULLO, s.dst, 0, c, &[x.into(), y.into()]);
    }
    g.op3(codes::MULLO, x, x, y);
    let z = g.last(&s.src[2], 0, c);
    g.finish(codes::ADD, s.dst, 0, c, &[x.into(), z]);
}

/// `source 0 & source 1 | !source 0 & source 2`.
pub(super) fn insert(g: &mut Gen, s: &Step, c: usize) {
    let m = g.source(&s.src[0], 0, c);
    let b = g.last(&s.src[1], 0, c);
    let (t, u) = (g.temporary(), g.temporary());
    let (and, andn) = (g.pick(codes::AND), g.pick(ANDN));
    g.asm.op3(and, t, m, b);
    let x = g.last(&s.src[2], 0, c);
    g.asm.op3(andn, u, m, x);
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), u.into()]);
}

/// Bit field of source 0 at constant offset and width.
pub(super) fn extract(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let (offset, width) = (s.src[1].value & 31, s.src[2].value & 31);
    let t = g.temporary();
    let by = g.constant_argument(offset);
    let code = g.pick(codes::SHIFT_RIGHT);
    g.asm.op3(code, t, a, by);
    let mask = g.constant_argument((1u32 << width) - 1);
    g.finish(codes::AND, s.dst, 0, c, &[t.into(), mask]);
}

/// Low dword of (source 0 : source 1) >> constant.
pub(super) fn align(g: &mut Gen, s: &Step, c: usize) {
    let low = g.source(&s.src[1], 0, c);
    let high = g.source(&s.src[0], 0, c);
    let by = (s.src[2].value & 31) as i32;
    let (below, above) = bits::parts(g, high, low, by);
    g.finish(codes::OR, s.dst, 0, c, &[below.into(), above.into()]);
}

/// Lanes 0, 2, 4... and 1, 3, 5... of the 64-bit products of the first two sources, and a free register.
fn products(g: &mut Gen, s: &Step, c: usize, multiply: Codes) -> (Register, Register, Register) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (even, odd, other) = (g.temporary(), g.temporary(), g.temporary());
    g.op3(multiply, even, a, b);
    g.op3(RIGHT64_BY, odd, a, 32);
    g.op3(RIGHT64_BY, other, b, 32);
    g.op3(multiply, odd, odd, other);
    (even, odd, other)
}

/// `to` = even lanes of `a`, odd lanes of `b`; `to` is one of them or neither.
fn interleave(g: &mut Gen, to: Register, a: Register, b: Register) {
    match g.wide {
        Wide::Z => {
            let place = g.asm.constant_once(0xAAAA_AAAA);
            g.asm.op2(Code::VEX_Kmovw_kr_km16, Register::K5, place);
            let code = Code::EVEX_Vpblendmd_zmm_k1z_zmm_zmmm512b32;
            g.asm.masked(code, Register::K5, &[to.into(), a.into(), b.into()]);
        }
        Wide::Y => g.asm.op4(Code::VEX_Vpblendd_ymm_ymm_ymmm256_imm8, to, a, b, 0xAA),
    }
}

/// High dwords of the products that `multiply` gives.
pub(super) fn multiply_high(g: &mut Gen, s: &Step, c: usize, multiply: Codes) {
    let (even, odd, _) = products(g, s, c, multiply);
    g.op2(ODD_TWICE, even, even);
    interleave(g, even, even, odd);
    g.result(s.dst, 0, c, even);
}

/// `destination:64 = source 0 * source 1 + source 2:64`, with carry-out.
pub(super) fn multiply_add64(g: &mut Gen, s: &Step, c: usize) {
    let (even, odd, low) = products(g, s, c, MULTIPLY_U);
    // All low dwords of the products, then all high ones.
    g.op2(EVEN_TWICE, low, odd);
    interleave(g, low, even, low);
    let high = even;
    g.op2(ODD_TWICE, high, even);
    interleave(g, high, high, odd);
    match g.wide {
        Wide::Z => add64(g, s, c, low, high, odd),
        Wide::Y => add64_avx2(g, s, c, low, high, odd),
    }
}

/// `destination:64 = (high : low) + source 2:64`, with carry-out. `t` is free.
fn add64(g: &mut Gen, s: &Step, c: usize, low: Register, high: Register, t: Register) {
    let addend = g.last(&s.src[2], 0, c);
    g.asm.op3(codes::ADD.z, t, low, addend);
    g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, Register::K5, t, low, LESS);
    let addend = g.source(&s.src[2], 1, c);
    let sum = low;
    g.asm.op3(codes::ADD.z, sum, high, addend);
    let ones = g.asm.constant(u32::MAX);
    g.asm.masked(codes::SUB.z, Register::K5, &[sum.into(), sum.into(), ones.into()]);
    if s.sdst as usize != SINK {
        // Carry: the sum is below an addend, or equal to it with a carry from below.
        let (less, equal) = (Register::K6, Register::K7);
        g.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, less, sum, high, LESS);
        g.asm.masked(
            Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8,
            Register::K5,
            &[equal.into(), sum.into(), high.into(), EQUAL.into()],
        );
        g.asm.op3(Code::VEX_Korw_kr_kr_kr, less, less, equal);
        if g.masked {
            let exec = g.exec(c);
            g.asm.op3(Code::VEX_Kandw_kr_kr_kr, less, less, exec);
        }
        g.mask_out(s.sdst, c, less);
    }
    g.result(s.dst, 0, c, t);
    g.result(s.dst, 1, c, sum);
}

/// As [`add64`].
fn add64_avx2(g: &mut Gen, s: &Step, c: usize, low: Register, high: Register, t: Register) {
    let addend = g.last(&s.src[2], 0, c);
    g.asm.op3(codes::ADD.y, t, low, addend);
    // Lanes of ones where the low dwords give a carry.
    let carry = low;
    let ones = g.constant_argument(u32::MAX);
    g.asm.op3(codes::MAX_U.y, carry, t, low);
    g.asm.op3(codes::EQUAL_Y, carry, carry, t);
    g.asm.op3(codes::XOR.y, carry, carry, ones);
    let addend = g.source(&s.src[2], 1, c);
    let sum = g.temporary();
    g.asm.op3(codes::ADD.y, sum, high, addend);
    g.asm.op3(codes::SUB.y, sum, sum, carry);
    if s.sdst as usize != SINK {
        // Carry: the sum is at most an addend, and not equal to it without a carry from below.
        let least = g.temporary();
        g.asm.op3(codes::MIN_U.y, least, sum, high);
        g.asm.op3(codes::EQUAL_Y, least, least, sum);
        g.asm.op3(codes::EQUAL_Y, high, sum, high);
        g.asm.op3(codes::AND_NOT_Y, high, carry, high);
        g.asm.op3(codes::AND_NOT_Y, least, high, least);
        g.gather_bits(s.sdst, c, least, false);
    }
    g.result(s.dst, 0, c, t);
    g.result(s.dst, 1, c, sum);
}

/// Predicates of vpcmpud.
pub(super) const EQUAL: i32 = 0;
pub(super) const LESS: i32 = 1;

/// `destination:64 = source 1:64 << constant below 32`.
pub(super) fn shift_left64(g: &mut Gen, s: &Step, c: usize) {
    let by = (s.src[0].value & 63) as i32;
    let (low, high) = (g.source(&s.src[1], 0, c), g.source(&s.src[1], 1, c));
    let t = g.temporary();
    let (below, above) = bits::parts(g, high, low, 32 - by);
    g.op3(codes::OR, t, below, above);
    g.finish(codes::LEFT_BY, s.dst, 0, c, &[low.into(), by.into()]);
    g.result(s.dst, 1, c, t);
}
