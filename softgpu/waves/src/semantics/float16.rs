// SPDX-License-Identifier: MIT OR Apache-2.0
//! f16 arithmetic and functions.

use super::entry::Entry;
use super::exact::{self, F16, F64, NEAREST};
use super::float32::extreme;
use super::lanes::{Lane, Out, lanes};

fn seen(c: &Lane, x: u64) -> u64 {
    if c.wide().flush_in { F16.flush(x & 0xFFFF) } else { x & 0xFFFF }
}

fn of(c: &Lane, a: u64, f: impl Fn(f64) -> f64) -> u64 {
    let a = seen(c, a);
    exact::first_nan(F16, &[a]).unwrap_or_else(|| {
        let r = f(exact::wide16(a));
        if r.is_nan() { F16.default_nan() } else { exact::convert(F64, F16, r.to_bits(), NEAREST) }
    })
}

fn least(c: &Lane, a: u64, b: u64) -> u64 {
    extreme(F16, c.ieee(), a, b, false)
}

fn most(c: &Lane, a: u64, b: u64) -> u64 {
    extreme(F16, c.ieee(), a, b, true)
}

fn median(c: &Lane, a: u64, b: u64, d: u64) -> u64 {
    if [a, b, d].into_iter().any(|x| F16.is_nan(x)) {
        return least(c, least(c, a, b), d);
    }
    most(c, least(c, a, b), least(c, most(c, a, b), d))
}

fn function(c: &Lane, a: u64, f: fn(f64) -> f64) -> Out {
    let a = seen(c, a);
    if let Some(nan) = exact::first_nan(F16, &[a]) {
        return Out::Bits(nan, false);
    }
    let r = f(exact::wide16(a));
    if r.is_nan() {
        return Out::Bits(F16.default_nan(), false);
    }
    if r.is_infinite() {
        return Out::Bits(exact::convert(F64, F16, r.to_bits(), NEAREST), false);
    }
    Out::Near(r)
}

fn periodic(c: &Lane, a: u64, f: fn(f64) -> f64) -> Out {
    if F16.is_infinite(a & 0xFFFF) {
        return Out::Bits(F16.default_nan(), false);
    }
    function(c, a, f)
}

/// Fraction in 0.5..1 and exponent, for finite numbers that are not zero.
fn split(a: u64) -> Option<(f64, i32)> {
    if F16.is_nan(a) || F16.is_infinite(a) || F16.is_zero(a) {
        return None;
    }
    let (mut v, mut e) = (exact::wide16(a), 0);
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

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_ADD_F16 c (a: u64, b: u64) exact::add(F16, a, b, c.wide());
    V_SUB_F16 c (a: u64, b: u64) exact::sub(F16, a, b, c.wide());
    V_SUBREV_F16 c (a: u64, b: u64) exact::sub(F16, b, a, c.wide());
    V_MUL_F16 c (a: u64, b: u64) exact::mul(F16, a, b, c.wide());
    V_FMA_F16 c (a: u64, b: u64, d: u64) exact::fma(F16, a, b, d, c.wide());
    V_FMAC_F16 c (a: u64, b: u64, d: u64) exact::fma(F16, a, b, d, c.wide());
    V_FMAMK_F16 c (a: u64, b: u64, d: u64) exact::fma(F16, a, b, d, c.wide());
    V_FMAAK_F16 c (a: u64, b: u64, d: u64) exact::fma(F16, a, b, d, c.wide());
    V_MIN_F16 c (a: u64, b: u64) least(c, seen(c, a), seen(c, b));
    V_MAX_F16 c (a: u64, b: u64) most(c, seen(c, a), seen(c, b));
    V_MIN3_F16 c (a: u64, b: u64, d: u64) least(c, least(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MAX3_F16 c (a: u64, b: u64, d: u64) most(c, most(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MED3_F16 c (a: u64, b: u64, d: u64) median(c, seen(c, a), seen(c, b), seen(c, d));
    V_MAXMIN_F16 c (a: u64, b: u64, d: u64) least(c, most(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MINMAX_F16 c (a: u64, b: u64, d: u64) most(c, least(c, seen(c, a), seen(c, b)), seen(c, d));
    V_FLOOR_F16 c (a: u64) of(c, a, f64::floor);
    V_CEIL_F16 c (a: u64) of(c, a, f64::ceil);
    V_TRUNC_F16 c (a: u64) of(c, a, f64::trunc);
    V_RNDNE_F16 c (a: u64) of(c, a, f64::round_ties_even);
    V_FRACT_F16 c (a: u64) {
        let r = of(c, a, |x| x - x.floor());
        if r == 0x3C00 { 0x3BFF } else { r }
    };
    V_LDEXP_F16 c (a: u64, b: i16) exact::ldexp(F16, a, b.into(), c.wide());
    V_RCP_F16 c (a: u64) function(c, a, |x| 1.0 / x);
    V_SQRT_F16 c (a: u64) of(c, a, f64::sqrt);
    V_RSQ_F16 c (a: u64) function(c, a, |x| 1.0 / x.sqrt());
    V_EXP_F16 c (a: u64) function(c, a, f64::exp2);
    V_LOG_F16 c (a: u64) function(c, a, f64::log2);
    V_SIN_F16 c (a: u64) periodic(c, a, |x| ((x - x.round()) * std::f64::consts::TAU).sin());
    V_COS_F16 c (a: u64) periodic(c, a, |x| ((x - x.round()) * std::f64::consts::TAU).cos());
    V_FREXP_MANT_F16 c (a: u64) {
        let a = seen(c, a);
        let quiet = exact::first_nan(F16, &[a]).unwrap_or(a);
        split(a).map_or(quiet, |(v, _)| exact::convert(F64, F16, v.to_bits(), NEAREST))
    };
    V_FREXP_EXP_I16_F16 c (a: u64) split(a).map_or(0, |(_, e)| e) as i16;
    V_DIV_FIXUP_F16 c (q: u64, d: u64, n: u64) {
        let (q, d, n) = (seen(c, q), seen(c, d), seen(c, n));
        let negative = (d ^ n) & F16.sign();
        if F16.is_nan(n) {
            n | F16.quiet()
        } else if F16.is_nan(d) {
            d | F16.quiet()
        } else if (F16.is_zero(d) && F16.is_zero(n)) || (F16.is_infinite(d) && F16.is_infinite(n)) {
            0xFE00
        } else if F16.is_zero(d) || F16.is_infinite(n) {
            negative | F16.infinity()
        } else if F16.is_infinite(d) || F16.is_zero(n) {
            negative
        } else {
            q & !F16.sign() | negative
        }
    };
};
