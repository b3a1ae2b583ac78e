// SPDX-License-Identifier: MIT OR Apache-2.0
//! f32 arithmetic and functions.

use super::entry::Entry;
use super::exact::{self, F32, F64, NEAREST};
use super::lanes::{Lane, Out, lanes};

/// An operand after the flushing that MODE says.
fn seen(c: &Lane, x: u32) -> u64 {
    if c.f32().flush_in { F32.flush(x.into()) } else { x.into() }
}

/// `f` of a number; a NaN gives the quiet NaN.
fn of(c: &Lane, a: u32, f: impl Fn(f64) -> f64) -> u64 {
    let a = seen(c, a);
    exact::first_nan(F32, &[a]).unwrap_or_else(|| {
        let x = f64::from_bits(exact::convert(F32, F64, a, NEAREST));
        exact::convert(F64, F32, f(x).to_bits(), NEAREST)
    })
}

fn wide(x: u64) -> f64 {
    f64::from(f32::from_bits(x as u32))
}

/// The minNum or maxNum of the ISA: -0 is below +0; in IEEE mode a signalling NaN is the result.
pub(crate) fn extreme(f: exact::Format, ieee: bool, a: u64, b: u64, greatest: bool) -> u64 {
    let signalling = |x: u64| f.is_nan(x) && x & f.quiet() == 0;
    if ieee && signalling(a) {
        return a | f.quiet();
    }
    if ieee && signalling(b) {
        return b | f.quiet();
    }
    match (f.is_nan(a), f.is_nan(b)) {
        (true, true) => return a | f.quiet(),
        (true, false) => return b,
        (false, true) => return a,
        _ => {}
    }
    // Sign and magnitude in order.
    let key = |x: u64| if x & f.sign() != 0 { -1 - (x & (f.sign() - 1)) as i64 } else { x as i64 };
    if (key(a) > key(b)) == greatest { a } else { b }
}

fn least(c: &Lane, a: u64, b: u64) -> u64 {
    extreme(F32, c.ieee(), a, b, false)
}

fn most(c: &Lane, a: u64, b: u64) -> u64 {
    extreme(F32, c.ieee(), a, b, true)
}

fn median(c: &Lane, a: u64, b: u64, d: u64) -> u64 {
    if [a, b, d].into_iter().any(|x| F32.is_nan(x)) {
        return least(c, least(c, a, b), d);
    }
    most(c, least(c, a, b), least(c, most(c, a, b), d))
}

/// Face, s, t, and twice the major axis of a cube map.
fn cube(x: f32, y: f32, z: f32) -> (f32, f32, f32, f32) {
    if z.abs() >= x.abs() && z.abs() >= y.abs() {
        if z < 0.0 { (5.0, -x, -y, 2.0 * z) } else { (4.0, x, -y, 2.0 * z) }
    } else if y.abs() >= x.abs() {
        if y < 0.0 { (3.0, x, -z, 2.0 * y) } else { (2.0, x, z, 2.0 * y) }
    } else if x < 0.0 {
        (1.0, z, -y, 2.0 * x)
    } else {
        (0.0, -z, -y, 2.0 * x)
    }
}

fn flushed(c: &Lane, x: u32) -> f32 {
    f32::from_bits(seen(c, x) as u32)
}

fn mantissa(a: u32) -> u32 {
    let x = u64::from(a);
    if F32.is_nan(x) || F32.is_infinite(x) || F32.is_zero(x) {
        return a;
    }
    let mut v = f64::from(f32::from_bits(a));
    while v.abs() >= 1.0 {
        v /= 2.0;
    }
    while v.abs() < 0.5 {
        v *= 2.0;
    }
    (v as f32).to_bits()
}

fn exponent(a: u32) -> i32 {
    let x = u64::from(a);
    if F32.is_nan(x) || F32.is_infinite(x) || F32.is_zero(x) {
        return 0;
    }
    let mut v = f64::from(f32::from_bits(a)).abs();
    let mut e = 0;
    while v >= 1.0 {
        v /= 2.0;
        e += 1;
    }
    while v < 0.5 {
        v *= 2.0;
        e -= 1;
    }
    e
}

fn is_zero(x: u64) -> bool {
    F32.is_zero(x)
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_ADD_F32 c (a: u64, b: u64) exact::add(F32, a, b, c.f32());
    V_SUB_F32 c (a: u64, b: u64) exact::sub(F32, a, b, c.f32());
    V_SUBREV_F32 c (a: u64, b: u64) exact::sub(F32, b, a, c.f32());
    V_MUL_F32 c (a: u64, b: u64) exact::mul(F32, a, b, c.f32());
    V_FMA_F32 c (a: u64, b: u64, d: u64) exact::fma(F32, a, b, d, c.f32());
    V_FMAC_F32 c (a: u64, b: u64, d: u64) exact::fma(F32, a, b, d, c.f32());
    V_FMAMK_F32 c (a: u64, b: u64, d: u64) exact::fma(F32, a, b, d, c.f32());
    V_FMAAK_F32 c (a: u64, b: u64, d: u64) exact::fma(F32, a, b, d, c.f32());
    V_MUL_DX9_ZERO_F32 c (a: u32, b: u32) {
        let (a, b) = (seen(c, a), seen(c, b));
        if is_zero(a) || is_zero(b) { 0 } else { exact::mul(F32, a, b, c.f32()) }
    };
    V_FMA_DX9_ZERO_F32 c (a: u32, b: u32, d: u32) {
        let (a, b, d) = (seen(c, a), seen(c, b), seen(c, d));
        if is_zero(a) || is_zero(b) { d } else { exact::fma(F32, a, b, d, c.f32()) }
    };
    V_FMAC_DX9_ZERO_F32 c (a: u32, b: u32, d: u32) {
        let (a, b, d) = (seen(c, a), seen(c, b), seen(c, d));
        if is_zero(a) || is_zero(b) { d } else { exact::fma(F32, a, b, d, c.f32()) }
    };
    V_MIN_F32 c (a: u32, b: u32) least(c, seen(c, a), seen(c, b));
    V_MAX_F32 c (a: u32, b: u32) most(c, seen(c, a), seen(c, b));
    V_MIN3_F32 c (a: u32, b: u32, d: u32) least(c, least(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MAX3_F32 c (a: u32, b: u32, d: u32) most(c, most(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MED3_F32 c (a: u32, b: u32, d: u32) median(c, seen(c, a), seen(c, b), seen(c, d));
    V_MAXMIN_F32 c (a: u32, b: u32, d: u32) least(c, most(c, seen(c, a), seen(c, b)), seen(c, d));
    V_MINMAX_F32 c (a: u32, b: u32, d: u32) most(c, least(c, seen(c, a), seen(c, b)), seen(c, d));
    V_FLOOR_F32 c (a: u32) of(c, a, f64::floor);
    V_CEIL_F32 c (a: u32) of(c, a, f64::ceil);
    V_TRUNC_F32 c (a: u32) of(c, a, f64::trunc);
    V_RNDNE_F32 c (a: u32) of(c, a, f64::round_ties_even);
    V_FRACT_F32 c (a: u32) {
        // The NaN of an infinite operand is the host's own.
        let r = of(c, a, |x| if x.is_infinite() { f64::from_bits(0xFFF8_0000_0000_0000) } else { x - x.floor() });
        // Always below 1.
        if r == 0x3F80_0000 { 0x3F7F_FFFF } else { r }
    };
    V_LDEXP_F32 c (a: u64, b: i32) exact::ldexp(F32, a, b.clamp(-5000, 5000).into(), c.f32());
    V_FREXP_MANT_F32 c (a: u32) mantissa(seen(c, a) as u32);
    V_FREXP_EXP_I32_F32 c (a: u32) exponent(a);
    V_CUBEID_F32 c (x: u32, y: u32, z: u32) cube(flushed(c, x), flushed(c, y), flushed(c, z)).0;
    V_CUBESC_F32 c (x: u32, y: u32, z: u32) cube(flushed(c, x), flushed(c, y), flushed(c, z)).1;
    V_CUBETC_F32 c (x: u32, y: u32, z: u32) cube(flushed(c, x), flushed(c, y), flushed(c, z)).2;
    V_CUBEMA_F32 c (x: u32, y: u32, z: u32) {
        let r = u64::from(cube(flushed(c, x), flushed(c, y), flushed(c, z)).3.to_bits());
        exact::first_nan(F32, &[r]).unwrap_or(r)
    };
    V_MULLIT_F32 c (a: u32, b: u32, d: u32) {
        let (x, y, z) = (seen(c, a), flushed(c, b), flushed(c, d));
        if y == -f32::MAX || y == f32::NEG_INFINITY || y.is_nan() || z <= 0.0 || z.is_nan() {
            u64::from((-f32::MAX).to_bits())
        } else {
            exact::mul(F32, x, y.to_bits().into(), NEAREST)
        }
    };
    V_DIV_FIXUP_F32 c (q: u32, d: u32, n: u32) {
        let (q, d, n) = (seen(c, q), seen(c, d), seen(c, n));
        let negative = (d ^ n) & F32.sign();
        let exponent = |x: u64| (x >> 23 & 0xFF) as i32;
        if F32.is_nan(n) {
            n | F32.quiet()
        } else if F32.is_nan(d) {
            d | F32.quiet()
        } else if (is_zero(d) && is_zero(n)) || (F32.is_infinite(d) && F32.is_infinite(n)) {
            0xFFC0_0000
        } else if is_zero(d) || F32.is_infinite(n) {
            negative | F32.infinity()
        } else if F32.is_infinite(d) || is_zero(n) || exponent(n) - exponent(d) < -150 {
            negative
        } else if F32.is_nan(q) {
            negative | F32.infinity()
        } else {
            q & !F32.sign() | negative
        }
    };
    V_DIV_FMAS_F32 c (a: u64, b: u64, d: u64) {
        let large = d >> 23 & 0xFF > 127;
        let scale = if c.vcc >> c.lane & 1 == 0 { 0 } else if large { 64 } else { -64 };
        exact::fma_scaled(F32, [a, b, d], scale, c.f32())
    };
    V_DIV_SCALE_F32 c (a: u32, b: u32, d: u32) {
        let (s0, s1, s2) = (seen(c, a), seen(c, b), seen(c, d));
        let exponent = |x: u64| (x >> 23 & 0xFF) as i32;
        let scaled = |by: i64| exact::ldexp(F32, s0, by, NEAREST);
        let (value, denominator) = (wide(s1).abs(), exponent(s1) != 255);
        let steep = value > 2f64.powi(126) && denominator;
        let tiny = exponent(s2) - exponent(s1) <= -126 && denominator;
        if is_zero(s1) || is_zero(s2) {
            (0x7FC0_0000, true)
        } else if exponent(s2) - exponent(s1) >= 96 {
            (if s0 == s1 { scaled(64) } else { s0 }, true)
        } else if F32.is_denormal(s1) {
            (scaled(64), false)
        } else if steep && tiny {
            (if s0 == s1 { scaled(-64) } else { s0 }, true)
        } else if steep {
            (scaled(-64), false)
        } else if tiny {
            (if s0 == s2 { scaled(64) } else { s0 }, true)
        } else if exponent(s2) <= 23 {
            (scaled(64), false)
        } else {
            (s0, false)
        }
    };
};

/// A function that flushes denormals in every MODE, within one unit in the last place.
fn function(c: &Lane, a: u32, f: fn(f64) -> f64) -> Out {
    let _ = c;
    let a = F32.flush(a.into());
    if let Some(nan) = exact::first_nan(F32, &[a]) {
        return Out::Bits(nan, false);
    }
    let r = f(wide(a));
    if r.is_nan() {
        return Out::Bits(F32.default_nan(), false);
    }
    let narrow = r as f32;
    if narrow.is_infinite() {
        return Out::Bits(narrow.to_bits().into(), false);
    }
    Out::Near(if narrow.is_subnormal() || (r != 0.0 && narrow == 0.0) { 0.0f64.copysign(r) } else { r })
}

fn turns(x: f64) -> f64 {
    // Whole turns and quarters are exact.
    let r = x - x.round();
    if r.abs() == 0.5 { 0.0 } else { (r * std::f64::consts::TAU).sin() }
}

fn turned_cosine(x: f64) -> f64 {
    let r = x - x.round();
    if r.abs() == 0.25 { 0.0 } else { (r * std::f64::consts::TAU).cos() }
}

/// sin and cos keep denormals; large arguments are whole turns, and the error bound is absolute.
fn periodic(c: &Lane, a: u32, f: fn(f64) -> f64) -> Out {
    let a = seen(c, a);
    if let Some(nan) = exact::first_nan(F32, &[a]) {
        return Out::Bits(nan, false);
    }
    if F32.is_infinite(a) {
        return Out::Bits(F32.default_nan(), false);
    }
    Out::Near(f(wide(a)))
}

pub(crate) const FUNCTIONS: &[Entry] = lanes! {
    V_RCP_F32 c (a: u32) function(c, a, |x| 1.0 / x);
    V_RCP_IFLAG_F32 c (a: u32) function(c, a, |x| 1.0 / x);
    V_RSQ_F32 c (a: u32) function(c, a, |x| 1.0 / x.sqrt());
    V_EXP_F32 c (a: u32) function(c, a, f64::exp2);
    V_LOG_F32 c (a: u32) function(c, a, f64::log2);
    V_SQRT_F32 c (a: u32) {
        let a = seen(c, a);
        exact::first_nan(F32, &[a]).unwrap_or_else(|| {
            let r = wide(a).sqrt();
            if r.is_nan() { F32.default_nan() } else { exact::convert(F64, F32, r.to_bits(), NEAREST) }
        })
    };
    V_SIN_F32 c (a: u32) periodic(c, a, turns);
    V_COS_F32 c (a: u32) periodic(c, a, turned_cosine);
};
