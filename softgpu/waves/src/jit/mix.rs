// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline v_fma_mix: a fused multiply-add of sources that are f32 or f16 each, to f32 or to one half of a register.
//!
//! INVARIANT: a result of 16 bits is rounded once. The sum is first made an f32 that is odd where it is not exact: then rounding
//! it to f16 is rounding the exact sum. The NaN is the first source's that is one.

use iced_x86::{Code, Register, RoundingControl};
use softgpu_isa::Op;

use super::codes;
use super::convert::{NEAREST, half_result, narrow, wide_source};
use super::floats::Floats;
use super::generator::{Emit, Gen, Wide};
use super::transcend::{UNORDERED, half};
use crate::step::Step;

/// Predicate of vcmppd: not equal, and neither is a NaN.
const DIFFERENT_NUMBERS: i32 = 0x0C;
/// vshufps: the odd dwords of both sources.
const ODD_DWORDS: i32 = 0xDD;

/// The emitter of one of these operations.
pub(super) fn emitter(op: Op, floats: Floats) -> Option<Emit> {
    let emit: Emit = match op {
        Op::V_FMA_MIX_F32 => to_f32,
        Op::V_FMA_MIXLO_F16 | Op::V_FMA_MIXHI_F16 => to_f16,
        _ => return None,
    };
    (floats.f32_default && floats.f16_64_default).then_some(emit)
}

/// Whether `op` is one of these; then the flags of its step say which sources are halves.
pub(super) fn is_mix(op: Op) -> bool {
    matches!(op, Op::V_FMA_MIX_F32 | Op::V_FMA_MIXLO_F16 | Op::V_FMA_MIXHI_F16)
}

/// The sources as f32. `u` is overwritten.
fn sources(g: &mut Gen, s: &Step, c: usize, u: Register) -> [Register; 3] {
    std::array::from_fn(|k| match s.flags >> k & 1 {
        0 => g.source(&s.src[k], 0, c),
        _ => wide_source(g, &s.src[k], c, u),
    })
}

fn to_f32(g: &mut Gen, s: &Step, c: usize) {
    let t = g.temporary();
    let [a, b, addend] = sources(g, s, c, t);
    g.op2(codes::MOVE, t, addend);
    g.op3(codes::FMA231, t, a, b);
    g.result(s.dst, 0, c, t);
}

fn to_f16(g: &mut Gen, s: &Step, c: usize) {
    let u = g.temporary();
    let sources = sources(g, s, c, u);
    let t = match g.wide {
        Wide::Z => odd(g, sources, u),
        Wide::Y => odd_avx2(g, sources, u),
    };
    narrow(g, t, t, NEAREST);
    half_result(g, s, c, t);
}

/// The sum rounded down and rounded up: the odd one of both, or the exact one.
fn odd(g: &mut Gen, [a, b, addend]: [Register; 3], up: Register) -> Register {
    let down = g.temporary();
    for (t, rounding) in [(down, RoundingControl::RoundDown), (up, RoundingControl::RoundUp)] {
        g.asm.op2(codes::MOVE.z, t, addend);
        g.asm.rounded(codes::FMA231.z, rounding, &[t.into(), a.into(), b.into()]);
    }
    let (k, one) = (Register::K5, g.asm.constant(1));
    g.asm.op3(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, k, down, one);
    // Of zeros the positive one.
    g.asm.masked(codes::MOVE.z, k, &[up.into(), down.into()]);
    up
}

/// The same in f64, in which products are exact, with the error of the sum, four lanes at a time.
fn odd_avx2(g: &mut Gen, sources: [Register; 3], t: Register) -> Register {
    let [low, high, p, q, s] = [0; 5].map(|_| g.temporary());
    for (upper, r) in [(0, low), (1, high)] {
        let wide = |g: &mut Gen, to: Register, from: Register| {
            if upper == 0 {
                return g.asm.op2(Code::VEX_Vcvtps2pd_ymm_xmmm128, to, half(from));
            }
            g.asm.op3(Code::VEX_Vextractf128_xmmm128_ymm_imm8, half(to), from, 1);
            g.asm.op2(Code::VEX_Vcvtps2pd_ymm_xmmm128, to, half(to));
        };
        const ADD: Code = Code::VEX_Vaddpd_ymm_ymm_ymmm256;
        const SUB: Code = Code::VEX_Vsubpd_ymm_ymm_ymmm256;
        wide(g, p, sources[0]);
        wide(g, q, sources[1]);
        g.asm.op3(Code::VEX_Vmulpd_ymm_ymm_ymmm256, p, p, q);
        wide(g, q, sources[2]);
        g.asm.op3(ADD, s, p, q);
        // The error of the sum of p and q.
        g.asm.op3(SUB, t, s, p);
        g.asm.op3(SUB, q, q, t);
        g.asm.op3(SUB, t, s, t);
        g.asm.op3(SUB, p, p, t);
        g.asm.op3(ADD, p, p, q);
        // That of the f32 is greater if there is one.
        g.asm.op2(Code::VEX_Vcvtpd2ps_xmm_ymmm256, half(r), s);
        g.asm.op2(Code::VEX_Vcvtps2pd_ymm_xmmm128, t, half(r));
        g.asm.op3(SUB, s, s, t);
        g.asm.op3(ADD, p, p, s);
        g.op3(codes::XOR, q, q, q);
        g.asm.op4(Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8, q, p, q, DIFFERENT_NUMBERS);
        // As dwords.
        for x in [p, q] {
            g.asm.op3(Code::VEX_Vextractf128_xmmm128_ymm_imm8, half(t), x, 1);
            g.asm.op4(Code::VEX_Vshufps_xmm_xmm_xmmm128_imm8, half(x), half(x), half(t), ODD_DWORDS);
        }
        // One less in magnitude where the error has the other sign, and odd.
        let (p, q, t, r) = (half(p), half(q), half(t), half(r));
        g.asm.op3(Code::VEX_Vpxor_xmm_xmm_xmmm128, p, p, r);
        g.asm.op3(Code::VEX_Vpsrad_xmm_xmm_imm8, p, p, 31);
        g.asm.op3(Code::VEX_Vpand_xmm_xmm_xmmm128, p, p, q);
        g.asm.op3(Code::VEX_Vpaddd_xmm_xmm_xmmm128, r, r, p);
        g.asm.op3(Code::VEX_Vpsrld_xmm_xmm_imm8, t, q, 31);
        g.asm.op3(Code::VEX_Vpor_xmm_xmm_xmmm128, r, r, t);
    }
    g.asm.op4(Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, low, low, half(high), 1);
    // Of an invalid product and a NaN the NaN is the result.
    let [a, b, addend] = sources;
    g.asm.op2(codes::MOVE.y, t, addend);
    g.asm.op3(codes::FMA231.y, t, a, b);
    g.asm.op4(codes::COMPARE_PS_Y, q, t, t, UNORDERED);
    g.asm.op4(codes::BLEND_Y, low, low, t, q);
    low
}
