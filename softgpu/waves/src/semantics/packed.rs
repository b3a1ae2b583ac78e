// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packed 16-bit operations, dot products and mixed-precision multiply-add.

use super::entry::Entry;
use super::exact::{self, F16, F32, Format, NEAREST};
use super::float32::extreme;
use super::lanes::{Lane, finished, lanes};

/// Each half of the result from the same halves of the sources.
fn halves(sources: [u32; 3], f: impl Fn([u32; 3]) -> u32) -> u32 {
    let low = f(sources.map(|x| x & 0xFFFF));
    let high = f(sources.map(|x| x >> 16));
    low & 0xFFFF | high << 16
}

fn floats(c: &Lane, sources: [u32; 3], f: impl Fn([u64; 3]) -> u64) -> u32 {
    halves(sources, |x| finished(F16, f(x.map(u64::from)), c.clamp, 0, c.mode) as u32)
}

fn signed(x: u32) -> i64 {
    i64::from(x as u16 as i16)
}

fn sat(c: &Lane, x: i64) -> u32 {
    if c.clamp { x.clamp(-0x8000, 0x7FFF) as u32 } else { x as u32 }
}

fn satu(c: &Lane, x: i64) -> u32 {
    if c.clamp { x.clamp(0, 0xFFFF) as u32 } else { x as u32 }
}

fn seen(c: &Lane, x: u64) -> u64 {
    if c.wide().flush_in { F16.flush(x) } else { x }
}

/// Fields of `bits` bits, as integers.
fn fields(x: u32, bits: u32, signed: bool) -> Vec<i64> {
    (0..32 / bits)
        .map(|k| {
            let field = i64::from(x >> (bits * k) & ((1 << bits) - 1));
            if signed && field >= 1 << (bits - 1) { field - (1 << bits) } else { field }
        })
        .collect()
}

fn dot(a: Vec<i64>, b: Vec<i64>) -> i64 {
    a.into_iter().zip(b).map(|(x, y)| x * y).sum()
}

fn dot_signed(c: &Lane, a: u32, b: u32, d: u32, bits: u32) -> u32 {
    let sum = dot(fields(a, bits, c.neg & 1 != 0), fields(b, bits, c.neg & 2 != 0)) + i64::from(d as i32);
    if c.clamp { sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32 } else { sum as u32 }
}

fn dot_unsigned(c: &Lane, a: u32, b: u32, d: u32, bits: u32) -> u32 {
    let sum = dot(fields(a, bits, false), fields(b, bits, false)) + i64::from(d);
    if c.clamp { sum.min(u32::MAX.into()) as u32 } else { sum as u32 }
}

/// Two fused steps in f32: the low products first. f32 denormals are flushed before and after.
fn dot2(a: [u64; 2], b: [u64; 2], d: u64) -> u64 {
    let low = exact::fma(F32, a[0], b[0], F32.flush(d), NEAREST);
    F32.flush(exact::fma(F32, a[1], b[1], low, NEAREST))
}

fn two(x: u32, from: Format) -> [u64; 2] {
    [x & 0xFFFF, x >> 16].map(|half| exact::convert(from, F32, half.into(), NEAREST))
}

fn two_bf16(x: u32) -> [u64; 2] {
    [(x << 16).into(), (x & 0xFFFF_0000).into()]
}

/// A source of the mixed operations as f32.
fn mixed(c: &Lane, k: u32, x: u32) -> u64 {
    if c.op_sel_hi >> k & 1 != 0 {
        exact::convert(F16, F32, seen(c, (x & 0xFFFF).into()), NEAREST)
    } else if c.f32().flush_in {
        F32.flush(x.into())
    } else {
        x.into()
    }
}

/// The mixed product and sum as f16, rounded once.
fn mixed_half(c: &Lane, a: u32, b: u32, d: u32) -> u32 {
    let sources = [mixed(c, 0, a), mixed(c, 1, b), mixed(c, 2, d)];
    // Denormals that MODE flushes in operands are flushed already.
    exact::fma_into(F32, F16, sources, exact::Mode { flush_in: false, ..c.wide() }) as u32
}

fn bf16(x: u64) -> u32 {
    let (bits, rest) = ((x >> 16) as u32, x & 0xFFFF);
    if F32.is_nan(x) {
        return bits | 0x40;
    }
    let up = rest > 0x8000 || (rest == 0x8000 && bits & 1 != 0);
    bits + u32::from(up)
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_PK_ADD_F16 c (a: u32, b: u32) floats(c, [a, b, 0], |[a, b, _]| exact::add(F16, a, b, c.wide()));
    V_PK_MUL_F16 c (a: u32, b: u32) floats(c, [a, b, 0], |[a, b, _]| exact::mul(F16, a, b, c.wide()));
    V_PK_FMA_F16 c (a: u32, b: u32, d: u32) floats(c, [a, b, d], |[a, b, d]| exact::fma(F16, a, b, d, c.wide()));
    V_PK_FMAC_F16 c (a: u32, b: u32, d: u32) floats(c, [a, b, d], |[a, b, d]| exact::fma(F16, a, b, d, c.wide()));
    V_PK_MIN_F16 c (a: u32, b: u32) {
        floats(c, [a, b, 0], |[a, b, _]| extreme(F16, c.ieee(), seen(c, a), seen(c, b), false))
    };
    V_PK_MAX_F16 c (a: u32, b: u32) {
        floats(c, [a, b, 0], |[a, b, _]| extreme(F16, c.ieee(), seen(c, a), seen(c, b), true))
    };
    V_PK_ADD_U16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| satu(c, i64::from(a) + i64::from(b)));
    V_PK_SUB_U16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| satu(c, i64::from(a) - i64::from(b)));
    V_PK_ADD_I16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| sat(c, signed(a) + signed(b)));
    V_PK_SUB_I16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| sat(c, signed(a) - signed(b)));
    V_PK_MUL_LO_U16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| a.wrapping_mul(b));
    V_PK_MAD_U16 c (a: u32, b: u32, d: u32) {
        halves([a, b, d], |[a, b, d]| satu(c, i64::from(a) * i64::from(b) + i64::from(d)))
    };
    V_PK_MAD_I16 c (a: u32, b: u32, d: u32) {
        halves([a, b, d], |[a, b, d]| sat(c, signed(a) * signed(b) + signed(d)))
    };
    V_PK_LSHLREV_B16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| b << (a % 16));
    V_PK_LSHRREV_B16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| b >> (a % 16));
    V_PK_ASHRREV_I16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| signed(b).div_euclid(1 << (a % 16)) as u32);
    V_PK_MAX_I16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| signed(a).max(signed(b)) as u32);
    V_PK_MIN_I16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| signed(a).min(signed(b)) as u32);
    V_PK_MAX_U16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| a.max(b));
    V_PK_MIN_U16 c (a: u32, b: u32) halves([a, b, 0], |[a, b, _]| a.min(b));
    V_PACK_B32_F16 c (a: u32, b: u32) a & 0xFFFF | b << 16;
    V_DOT2_F32_F16 c (a: u32, b: u32, d: u64) dot2(two(a, F16), two(b, F16), d);
    V_DOT2ACC_F32_F16 c (a: u32, b: u32, d: u64) dot2(two(a, F16), two(b, F16), d);
    V_DOT2_F32_BF16 c (a: u32, b: u32, d: u64) dot2(two_bf16(a), two_bf16(b), d);
    V_DOT2_F16_F16 c (a: u32, b: u32, d: u64) dot2_half(a, b, d);
    V_DOT2_BF16_BF16 c (a: u32, b: u32, d: u64) {
        let (a, b) = (two_bf16(a), two_bf16(b));
        let low = exact::fma(F32, a[0], b[0], (d & 0xFFFF) << 16, NEAREST);
        bf16(exact::fma(F32, a[1], b[1], low, NEAREST))
    };
    V_DOT4_I32_IU8 c (a: u32, b: u32, d: u32) dot_signed(c, a, b, d, 8);
    V_DOT8_I32_IU4 c (a: u32, b: u32, d: u32) dot_signed(c, a, b, d, 4);
    V_DOT4_U32_U8 c (a: u32, b: u32, d: u32) dot_unsigned(c, a, b, d, 8);
    V_DOT8_U32_U4 c (a: u32, b: u32, d: u32) dot_unsigned(c, a, b, d, 4);
    V_FMA_MIX_F32 c (a: u32, b: u32, d: u32) exact::fma(F32, mixed(c, 0, a), mixed(c, 1, b), mixed(c, 2, d), c.f32());
    V_FMA_MIXLO_F16 c (a: u32, b: u32, d: u32) finished(F16, mixed_half(c, a, b, d).into(), c.clamp, 0, c.mode);
    V_FMA_MIXHI_F16 c (a: u32, b: u32, d: u32) finished(F16, mixed_half(c, a, b, d).into(), c.clamp, 0, c.mode);
};

/// Two products and a sum in f16. The products are exact multiples of 2^-48: so is the sum, which is rounded once.
fn dot2_half(a: u32, b: u32, d: u64) -> u64 {
    let (low, high) = ([a & 0xFFFF, b & 0xFFFF].map(u64::from), [a >> 16, b >> 16].map(u64::from));
    // A NaN of the inner step is the outer step's addend.
    let inner = exact::fma(F16, low[0], low[1], d & 0xFFFF, NEAREST);
    let invalid = F16.is_nan(inner);
    if invalid || high.iter().any(|&x| F16.is_nan(x)) {
        let addend = if invalid { inner } else { 0 };
        return exact::first_nan(F16, &[high[0], high[1], addend]).unwrap_or(F16.default_nan());
    }
    let infinite = |x: u64| F16.is_infinite(x);
    if high.iter().any(|&x| infinite(x)) || low.iter().any(|&x| infinite(x)) || infinite(d & 0xFFFF) {
        // The infinity of the inner step, if it is one, or a finite number.
        let is_infinite = low.iter().any(|&x| infinite(x)) || infinite(d & 0xFFFF);
        return exact::fma(F16, high[0], high[1], if is_infinite { inner } else { 0 }, NEAREST);
    }
    let fixed = |x: u64| (exact::wide16(x) * 2f64.powi(24)) as i128;
    let terms = [fixed(low[0]) * fixed(low[1]), fixed(high[0]) * fixed(high[1]), fixed(d & 0xFFFF) << 24];
    let sum: i128 = terms.iter().sum();
    if sum == 0 {
        let outer = exact::mul(F16, high[0], high[1], NEAREST);
        let zero = |x: u64| x & F16.sign();
        let inner_zero = terms[0] + terms[2] == 0;
        return if inner_zero && terms[1] == 0 {
            exact::add(F16, zero(outer), zero(inner), NEAREST)
        } else {
            0
        };
    }
    exact::from_fixed(F16, sum, -48)
}
