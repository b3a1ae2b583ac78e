// SPDX-License-Identifier: MIT OR Apache-2.0
//! f64 arithmetic and functions.

use super::entry::Entry;
use super::exact::{self, F64, NEAREST};
use super::float32::extreme;
use super::lanes::{Lane, lanes};

fn seen(c: &Lane, x: u64) -> u64 {
    if c.wide().flush_in { F64.flush(x) } else { x }
}

/// `f` of a number; a NaN gives the quiet NaN, and an invalid operation the default NaN.
fn of(c: &Lane, a: u64, f: fn(f64) -> f64) -> u64 {
    let a = seen(c, a);
    exact::first_nan(F64, &[a]).unwrap_or_else(|| {
        let r = f(f64::from_bits(a));
        if r.is_nan() { F64.default_nan() } else { r.to_bits() }
    })
}

fn exponent(x: u64) -> i32 {
    (x >> 52 & 0x7FF) as i32
}

fn split(a: u64) -> Option<(f64, i32)> {
    if F64.is_nan(a) || F64.is_infinite(a) || F64.is_zero(a) {
        return None;
    }
    let (mut v, mut e) = (f64::from_bits(a), 0);
    while v.abs() >= 1.0 {
        v /= 2.0;
        e += 1;
    }
    while v.abs() < 0.5 {
        v *= 2.0;
        e -= 1;
    }
    Some((v, e))
}

/// 2/pi to 1201 bits, as hexadecimal digits from the binary point on.
const TWO_OVER_PI: &str = concat!(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921C",
    "FE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980F",
    "EF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D08",
    "56033046FC7B",
);

/// Bit `k` of 2/pi after the binary point.
fn bit(k: usize) -> u64 {
    let digit = TWO_OVER_PI.as_bytes().get(k / 4).map_or(0, |&d| char::from(d).to_digit(16).unwrap_or(0));
    if k > 1200 { 0 } else { u64::from(digit >> (3 - k % 4) & 1) }
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_ADD_F64 c (a: u64, b: u64) exact::add(F64, a, b, c.wide());
    V_MUL_F64 c (a: u64, b: u64) exact::mul(F64, a, b, c.wide());
    V_FMA_F64 c (a: u64, b: u64, d: u64) exact::fma(F64, a, b, d, c.wide());
    V_MIN_F64 c (a: u64, b: u64) extreme(F64, c.ieee(), seen(c, a), seen(c, b), false);
    V_MAX_F64 c (a: u64, b: u64) extreme(F64, c.ieee(), seen(c, a), seen(c, b), true);
    V_LDEXP_F64 c (a: u64, b: i32) exact::ldexp(F64, a, b.clamp(-9000, 9000).into(), c.wide());
    V_FLOOR_F64 c (a: u64) of(c, a, f64::floor);
    V_CEIL_F64 c (a: u64) of(c, a, f64::ceil);
    V_TRUNC_F64 c (a: u64) of(c, a, f64::trunc);
    V_RNDNE_F64 c (a: u64) of(c, a, f64::round_ties_even);
    V_FRACT_F64 c (a: u64) {
        let r = of(c, a, |x| x - x.floor());
        if r == 1f64.to_bits() { r - 1 } else { r }
    };
    V_RCP_F64 c (a: u64) of(c, a, |x| 1.0 / x);
    V_RSQ_F64 c (a: u64) of(c, a, |x| 1.0 / x.sqrt());
    V_SQRT_F64 c (a: u64) of(c, a, f64::sqrt);
    V_FREXP_MANT_F64 c (a: u64) split(seen(c, a)).map_or(seen(c, a), |(v, _)| v.to_bits());
    V_FREXP_EXP_I32_F64 c (a: u64) split(a).map_or(0, |(_, e)| e);
    V_DIV_FIXUP_F64 c (q: u64, d: u64, n: u64) {
        let (q, d, n) = (seen(c, q), seen(c, d), seen(c, n));
        let negative = (d ^ n) & F64.sign();
        if F64.is_nan(n) {
            n | F64.quiet()
        } else if F64.is_nan(d) {
            d | F64.quiet()
        } else if (F64.is_zero(d) && F64.is_zero(n)) || (F64.is_infinite(d) && F64.is_infinite(n)) {
            F64.default_nan()
        } else if F64.is_zero(d) || F64.is_infinite(n) {
            negative | F64.infinity()
        } else if F64.is_infinite(d) || F64.is_zero(n) || exponent(n) - exponent(d) < -1075 {
            negative
        } else if F64.is_nan(q) {
            negative | F64.infinity()
        } else {
            q & !F64.sign() | negative
        }
    };
    V_DIV_FMAS_F64 c (a: u64, b: u64, d: u64) {
        let scale = if c.vcc >> c.lane & 1 == 0 { 0 } else if exponent(d) > 1023 { 128 } else { -128 };
        exact::fma_scaled(F64, [a, b, d], scale, c.wide())
    };
    V_DIV_SCALE_F64 c (a: u64, b: u64, d: u64) {
        let (s0, s1, s2) = (seen(c, a), seen(c, b), seen(c, d));
        let scaled = |by: i64| exact::ldexp(F64, s0, by, NEAREST);
        let finite = exponent(s1) != 2047;
        let steep = f64::from_bits(s1).abs() > 2f64.powi(1022) && finite;
        let tiny = exponent(s2) - exponent(s1) <= -1022 && finite;
        if F64.is_zero(s1) || F64.is_zero(s2) {
            (0x7FF8_0000_0000_0000, true)
        } else if exponent(s2) - exponent(s1) >= 768 {
            (if s0 == s1 { scaled(128) } else { s0 }, true)
        } else if F64.is_denormal(s1) {
            (scaled(128), false)
        } else if steep && tiny {
            (if s0 == s1 { scaled(-128) } else { s0 }, true)
        } else if steep {
            (scaled(-128), false)
        } else if tiny {
            (if s0 == s2 { scaled(128) } else { s0 }, true)
        } else if exponent(s2) <= 53 {
            (scaled(128), false)
        } else {
            (s0, false)
        }
    };
    V_TRIG_PREOP_F64 c (a: u64, segment: u32) {
        let a = exponent(a);
        let skip = (segment % 32) as usize * 53 + if a > 1077 { a as usize - 1077 } else { 0 };
        let bits = (0..53).fold(0u64, |r, k| r << 1 | bit(skip + k));
        let power = -53 - skip as i64 + if a >= 1968 { 128 } else { 0 };
        exact::ldexp(F64, exact::from_integer(F64, bits as i64, NEAREST), power, NEAREST)
    };
};
