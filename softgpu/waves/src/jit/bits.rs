// SPDX-License-Identifier: MIT OR Apache-2.0
//! More inline integer operations: fields, shifts of pairs, counts and permutations of bytes.
//!
//! INVARIANT: as for [`super::integer`], which has the commonest operations.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Arg;
use super::codes::{self, Codes, LEFT_BY, LOAD, RIGHT_BY, RIGHT_SIGNED_BY, SHUFFLE_BYTES};
use super::generator::{Emit, Gen, Wide};
use super::integer;
use crate::step::{Kind, Src, Step};

const SHUFFLE: Code = SHUFFLE_BYTES.z;
/// Sums of adjacent bytes, or words, by factors of 1.
const ADD_BYTES: Codes =
    Codes { z: Code::EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512, y: Code::VEX_Vpmaddubsw_ymm_ymm_ymmm256 };
const ADD_WORDS: Codes =
    Codes { z: Code::EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512, y: Code::VEX_Vpmaddwd_ymm_ymm_ymmm256 };
const MOVE_BYTES: Code = Code::EVEX_Vmovdqu8_zmm_k1z_zmmm512;
const COMPARE_BYTES: Code = Code::EVEX_Vpcmpub_kr_k1_zmm_zmmm512_imm8;
/// Predicates of vpcmpub.
const NOT_LESS: i32 = 5;
const GREATER: i32 = 6;
/// The index of each dword's byte 0 within 128 bits, in all four bytes of the dword.
const PLACES: [u32; 4] = [0, 0x0404_0404, 0x0808_0808, 0x0C0C_0C0C];

fn constant(s: &Src) -> Option<u32> {
    matches!(s.kind, Kind::Const | Kind::ConstSigned).then_some(s.value)
}

/// The emitter of an integer operation with the operands of `step`.
pub(super) fn emitter(op: Op, step: &Step) -> Option<Emit> {
    let count = |k: usize| constant(&step.src[k]).is_some();
    Some(match op {
        Op::V_MUL_HI_I32 => |g, s, c| integer::multiply_high(g, s, c, integer::MULTIPLY_I),
        Op::V_MUL_I32_I24 => |g, s, c| multiply24(g, s, c, false),
        Op::V_MAD_I32_I24 => |g, s, c| multiply24(g, s, c, true),
        Op::V_BFE_I32 if count(1) && count(2) => extract,
        Op::V_BFM_B32 if count(0) && count(1) => field_mask,
        Op::V_ALIGNBYTE_B32 if count(2) => align_bytes,
        Op::V_LSHRREV_B64 if count(0) => |g, s, c| shift_right64(g, s, c, false),
        Op::V_ASHRREV_I64 if count(0) => |g, s, c| shift_right64(g, s, c, true),
        Op::V_BCNT_U32_B32 => count_bits,
        Op::V_MBCNT_LO_U32_B32 => |g, s, c| count_below(g, s, c, 0),
        Op::V_MBCNT_HI_U32_B32 => |g, s, c| count_below(g, s, c, 1),
        Op::V_PERM_B32 => match constant(&step.src[2]) {
            Some(selector) if selector.to_le_bytes().iter().all(|s| !(8..12).contains(s)) => permute_by,
            _ => permute,
        },
        _ => return None,
    })
}

/// Product of the sign-extended low 24 bits, plus source 2 if `add`.
fn multiply24(g: &mut Gen, s: &Step, c: usize, add: bool) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (x, y) = (g.temporary(), g.temporary());
    for (to, from) in [(x, a), (y, b)] {
        g.op3(LEFT_BY, to, from, 8);
        g.op3(RIGHT_SIGNED_BY, to, to, 8);
    }
    if !add {
        return g.finish(codes::MULLO, s.dst, 0, c, &[x.into(), y.into()]);
    }
    g.op3(codes::MULLO, x, x, y);
    let z = g.last(&s.src[2], 0, c);
    g.finish(codes::ADD, s.dst, 0, c, &[x.into(), z]);
}

/// Sign-extended bit field at constant offset and width.
fn extract(g: &mut Gen, s: &Step, c: usize) {
    let (offset, width) = (s.src[1].value & 31, s.src[2].value & 31);
    if width == 0 {
        let zero = g.constant(0);
        return g.result(s.dst, 0, c, zero);
    }
    let a = g.source(&s.src[0], 0, c);
    let t = g.temporary();
    // CAST: below 32.
    let (offset, outside) = (offset as i32, (32 - width) as i32);
    g.op3(RIGHT_SIGNED_BY, t, a, offset);
    g.op3(LEFT_BY, t, t, outside);
    g.finish(RIGHT_SIGNED_BY, s.dst, 0, c, &[t.into(), outside.into()]);
}

fn field_mask(g: &mut Gen, s: &Step, c: usize) {
    let (width, offset) = (s.src[0].value & 31, s.src[1].value & 31);
    let mask = g.constant(((1u32 << width) - 1) << offset);
    g.result(s.dst, 0, c, mask);
}

/// The parts of the low dword of `(high : low) >> by` that come from `low` and from `high`. `by` is 0 to 32: a host's
/// shift by 32 gives zero. (One instruction would do it with VBMI2, which Skylake and Cascade Lake servers do not
/// have.)
pub(super) fn parts(g: &mut Gen, high: Register, low: Register, by: i32) -> (Register, Register) {
    let (below, above) = (g.temporary(), g.temporary());
    g.op3(RIGHT_BY, below, low, by);
    g.op3(LEFT_BY, above, high, 32 - by);
    (below, above)
}

/// Low dword of (source 0 : source 1) >> 8 * constant.
fn align_bytes(g: &mut Gen, s: &Step, c: usize) {
    let (high, low) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    // CAST: at most 24.
    let by = (s.src[2].value & 3) as i32 * 8;
    let (below, above) = parts(g, high, low, by);
    g.finish(codes::OR, s.dst, 0, c, &[below.into(), above.into()]);
}

/// `destination:64 = source 1:64 >> constant`.
fn shift_right64(g: &mut Gen, s: &Step, c: usize, signed: bool) {
    // CAST: below 64.
    let by = (s.src[0].value & 63) as i32;
    let (low, high) = (g.source(&s.src[1], 0, c), g.source(&s.src[1], 1, c));
    let (t, u) = (g.temporary(), g.temporary());
    let shift = if signed { RIGHT_SIGNED_BY } else { RIGHT_BY };
    if by < 32 {
        let (below, above) = parts(g, high, low, by);
        g.op3(codes::OR, t, below, above);
        g.op3(shift, u, high, by);
    } else {
        g.op3(shift, t, high, by - 32);
        // Shift counts of 32 give the sign, or zero.
        g.op3(shift, u, high, 32);
    }
    g.result(s.dst, 0, c, t);
    g.result(s.dst, 1, c, u);
}

/// Bits that are set, in every dword of the temporary `t`.
fn population(g: &mut Gen, t: Register) {
    // The counts of all nibbles, as a table for vpshufb.
    const COUNTS: [u32; 4] = [0x0201_0100, 0x0302_0201, 0x0302_0201, 0x0403_0302];
    let (u, counts) = (g.temporary(), g.temporary());
    let (nibbles, table) = (g.constant_argument(0x0F0F_0F0F), g.constants_argument(|k| COUNTS[k % 4]));
    g.op2(LOAD, counts, table);
    g.op3(RIGHT_BY, u, t, 4);
    g.op3(codes::AND, u, u, nibbles);
    g.op3(codes::AND, t, t, nibbles);
    g.op3(SHUFFLE_BYTES, u, counts, u);
    g.op3(SHUFFLE_BYTES, t, counts, t);
    // No carry between bytes.
    g.op3(codes::ADD, t, t, u);
    for (codes, ones) in [(ADD_BYTES, 0x0101_0101), (ADD_WORDS, 0x0001_0001)] {
        let ones = g.constants_argument(|_| ones);
        g.op3(codes, t, t, ones);
    }
}

fn count_bits(g: &mut Gen, s: &Step, c: usize) {
    let t = g.own(&s.src[0], c);
    population(g, t);
    let b = g.last(&s.src[1], 0, c);
    g.finish(codes::ADD, s.dst, 0, c, &[t.into(), b]);
}

/// Bits of source 0 for lanes of 32-lane half `word` that are below the lane, plus source 1.
fn count_below(g: &mut Gen, s: &Step, c: usize, word: usize) {
    let first = g.wide.lanes() * c;
    let below = |lane: usize| match (first / 32).cmp(&word) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => (1u32 << (first % 32 + lane)) - 1,
        std::cmp::Ordering::Greater => u32::MAX,
    };
    let t = match constant(&s.src[0]) {
        Some(mask) => {
            let t = g.temporary();
            let counts = g.constants_argument(|lane| (below(lane) & mask).count_ones());
            g.op2(LOAD, t, counts);
            t
        }
        None => {
            let t = g.own(&s.src[0], c);
            let below = g.constants_argument(below);
            g.op3(codes::AND, t, t, below);
            population(g, t);
            t
        }
    };
    let b = g.last(&s.src[1], 0, c);
    g.finish(codes::ADD, s.dst, 0, c, &[t.into(), b]);
}

/// vpshufb's selector of bytes in every dword; 0x80 gives zero.
fn choice(g: &mut Gen, t: Register, bytes: [u8; 4]) {
    let words = g.constants_argument(|k| {
        // The selected bytes are counted within their dword.
        let place = |b: u8| if b & 0x80 != 0 { b } else { b + 4 * (k % 4) as u8 };
        u32::from_le_bytes(bytes.map(place))
    });
    g.op2(LOAD, t, words);
}

/// v_perm_b32 by a constant that selects no sign bits.
fn permute_by(g: &mut Gen, s: &Step, c: usize) {
    let selector = s.src[2].value.to_le_bytes();
    let from = |first: u8| selector.map(|k| if k & !3 == first { k & 3 } else { 0x80 });
    let (high, low) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (t, u) = (g.temporary(), g.temporary());
    choice(g, t, from(4));
    g.op3(SHUFFLE_BYTES, t, high, t);
    choice(g, u, from(0));
    g.op3(SHUFFLE_BYTES, u, low, u);
    let ones = u32::from_le_bytes(selector.map(|k| if k > 12 { 0xFF } else { 0 }));
    if ones != 0 {
        let ones = g.constant_argument(ones);
        g.op3(codes::OR, t, t, ones);
    }
    g.finish(codes::OR, s.dst, 0, c, &[t.into(), u.into()]);
}

/// v_perm_b32 by any selector. Values of its bytes: 0 to 7 select a byte, 8 to 11 give the sign of byte 1, 3, 5, 7, 12
/// gives zero, and values above 12 give all ones.
fn permute(g: &mut Gen, s: &Step, c: usize) {
    if g.wide == Wide::Y {
        return permute_avx2(g, s, c);
    }
    let (high, low) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let selector = g.source(&s.src[2], 0, c);
    let (n, t, r) = (g.temporary(), g.temporary(), g.temporary());
    let (signs, k6, k7) = (Register::K5, Register::K6, Register::K7);
    let bytes = |g: &mut Gen, to: Register, value: u8| {
        let place = g.asm.constant_once(u32::from_le_bytes([value; 4]));
        g.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, to, place);
    };
    bytes(g, t, 8);
    g.asm.op4(COMPARE_BYTES, signs, selector, t, NOT_LESS);
    // For 8 + k, byte 2k + 1; bits that the shift moves into the next byte are masked off.
    g.asm.op3(codes::ADD.z, n, selector, selector);
    let (ones, sevens) = (g.asm.constant(0x0101_0101), g.asm.constant(0x0707_0707));
    g.asm.op3(codes::OR.z, n, n, ones);
    g.asm.op2(codes::MOVE.z, r, selector);
    g.asm.masked(MOVE_BYTES, signs, &[r.into(), n.into()]);
    g.asm.op3(codes::AND.z, n, r, sevens);
    // First whether the byte is one of the high four, then which of the four.
    bytes(g, t, 4);
    g.asm.op3(Code::EVEX_Vptestmb_kr_k1_zmm_zmmm512, k6, n, t);
    let threes = g.asm.constant(0x0303_0303);
    g.asm.op3(codes::AND.z, n, n, threes);
    let places = g.asm.constants16(std::array::from_fn(|k| PLACES[k % 4]));
    g.asm.op3(codes::OR.z, n, n, places);
    g.asm.op3(SHUFFLE, r, low, n);
    g.asm.masked(SHUFFLE, k6, &[r.into(), high.into(), n.into()]);
    g.asm.op2(Code::EVEX_Vpmovb2m_kr_zmm, k7, r);
    g.asm.op2(Code::EVEX_Vpmovm2b_zmm_kr, n, k7);
    g.asm.masked(MOVE_BYTES, signs, &[r.into(), n.into()]);
    bytes(g, t, 12);
    let (constants, all) = (k6, k7);
    g.asm.op4(COMPARE_BYTES, constants, selector, t, NOT_LESS);
    g.asm.op4(COMPARE_BYTES, all, selector, t, GREATER);
    g.asm.op2(Code::EVEX_Vpmovm2b_zmm_kr, n, all);
    g.asm.masked(MOVE_BYTES, constants, &[r.into(), n.into()]);
    g.result(s.dst, 0, c, r);
}

/// As [`permute`]. Blends of bytes look at their highest bits, so a shift of words makes a mask of a lower bit.
fn permute_avx2(g: &mut Gen, s: &Step, c: usize) {
    const BLEND_BYTES: Code = Code::VEX_Vpblendvb_ymm_ymm_ymmm256_ymm;
    const LEFT_WORDS: Code = Code::VEX_Vpsllw_ymm_ymm_imm8;
    let (high, low) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let selector = g.source(&s.src[2], 0, c);
    let (n, r, t, signs) = (g.temporary(), g.temporary(), g.temporary(), g.temporary());
    let bytes = |g: &mut Gen, value: u8| g.asm.constant_lanes(u32::from_le_bytes([value; 4]));
    let (ones, threes, eights) = (bytes(g, 1), bytes(g, 3), bytes(g, 8));
    g.asm.op3(Code::VEX_Vpmaxub_ymm_ymm_ymmm256, signs, selector, eights);
    g.asm.op3(Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256, signs, signs, selector);
    g.op3(codes::ADD, n, selector, selector);
    g.op3(codes::OR, n, n, ones);
    g.asm.op4(BLEND_BYTES, n, selector, n, signs);
    // Bit 2 says whether the byte is one of the high four.
    g.asm.op3(LEFT_WORDS, t, n, 5);
    g.op3(codes::AND, n, n, threes);
    let places = g.constants_argument(|k| PLACES[k % 4]);
    g.op3(codes::OR, n, n, places);
    g.op3(SHUFFLE_BYTES, r, low, n);
    g.op3(SHUFFLE_BYTES, n, high, n);
    g.asm.op4(BLEND_BYTES, r, r, n, t);
    g.op3(codes::XOR, n, n, n);
    g.asm.op3(Code::VEX_Vpcmpgtb_ymm_ymm_ymmm256, n, n, r);
    g.asm.op4(BLEND_BYTES, r, r, n, signs);
    // 12 gives zero, above it ones.
    let (twelves, thirteens) = (bytes(g, 12), bytes(g, 13));
    g.asm.op3(Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256, n, selector, twelves);
    g.asm.op3(codes::AND_NOT_Y, r, n, r);
    g.asm.op3(Code::VEX_Vpmaxub_ymm_ymm_ymmm256, n, selector, thirteens);
    g.asm.op3(Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256, n, n, selector);
    g.finish(codes::OR, s.dst, 0, c, &[r.into(), n.into()]);
}

/// `!(source 0 ^ source 1)`.
pub(super) fn equal_bits(g: &mut Gen, s: &Step, c: usize) {
    let a = g.source(&s.src[0], 0, c);
    let b = g.last(&s.src[1], 0, c);
    let t = g.temporary();
    let code = g.pick(codes::XOR);
    g.asm.op3(code, t, a, b);
    let ones: Arg = g.constant_argument(u32::MAX);
    g.finish(codes::XOR, s.dst, 0, c, &[t.into(), ones]);
}

/// Median of three integers, by the codes of minimum and maximum.
pub(super) fn median(g: &mut Gen, s: &Step, c: usize, min: codes::Codes, max: codes::Codes) {
    let (a, b) = (g.source(&s.src[0], 0, c), g.source(&s.src[1], 0, c));
    let (low, high) = (g.temporary(), g.temporary());
    let (least, most) = (g.pick(min), g.pick(max));
    g.asm.op3(least, low, a, b);
    g.asm.op3(most, high, a, b);
    let x = g.last(&s.src[2], 0, c);
    g.asm.op3(least, high, high, x);
    g.finish(max, s.dst, 0, c, &[low.into(), high.into()]);
}
