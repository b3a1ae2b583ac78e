// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three helpers of IEEE division: scale, fused multiply-add with unscale, and fixup (RDNA3 ISA,
//! V_DIV_SCALE, V_DIV_FMAS, V_DIV_FIXUP).

use super::fp::{self, f, is_nan32, is_nan64};
use super::masks::put_mask;
use super::shapes::{Lanes64, fetch, fetch64, finish_f32, put, put64};
use super::shapes64::finish_f64;
use super::soft::{self, Format};
use crate::step::Step;
use crate::wave::{Lanes, VCC, Wave};

const NAN32: u32 = 0x7FC0_0000;
const NAN64: u64 = 0x7FF8_0000_0000_0000;

fn exponent32(x: u32) -> i32 {
    (x >> 23 & 0xFF) as i32
}

fn exponent64(x: u64) -> i32 {
    (x >> 52 & 0x7FF) as i32
}

/// Scales one f32: `s0` is the numerator or denominator, `s1` the denominator, `s2` the numerator.
///
/// A zero among them (or a denormal, where MODE flushes) gives NaN and a set bit. The exponents alone decide whether a
/// quotient could be denormal. Tests of tinygrad found both on the hardware.
fn scale_one32(s0: u32, s1: u32, s2: u32, m: u32) -> (u32, bool) {
    let [s0, s1, s2] = [s0, s1, s2].map(|x| fp::flush_in_f32(x, m));
    let up = fp::ldexp32(f(s0), 64).to_bits();
    let down = fp::ldexp32(f(s0), -64).to_bits();
    if s1 & 0x7FFF_FFFF == 0 || s2 & 0x7FFF_FFFF == 0 {
        return (NAN32, true);
    }
    let apart = exponent32(s2) - exponent32(s1);
    // 1/s1 would be denormal: s1 is above 2^126.
    let tiny_reciprocal = s1 & 0x7FFF_FFFF > 0x7E80_0000 && exponent32(s1) != 255;
    let tiny_quotient = apart <= -126 && exponent32(s1) != 255;
    if apart >= 96 {
        (if s0 == s1 { up } else { s0 }, true)
    } else if exponent32(s1) == 0 {
        (up, false)
    } else if tiny_reciprocal && tiny_quotient {
        // The denominator is huge: it is scaled down, which scales the quotient up.
        (if s0 == s1 { down } else { s0 }, true)
    } else if tiny_reciprocal {
        (down, false)
    } else if tiny_quotient {
        (if s0 == s2 { up } else { s0 }, true)
    } else if exponent32(s2) <= 23 {
        (up, false)
    } else {
        (s0, false)
    }
}

/// v_div_scale_f32.
#[inline(always)]
pub(crate) fn scale32(w: &mut Wave, s: &Step) {
    let mut masks = [0u32; 2];
    let mut results = [[0u32; 32]; 2];
    for half in 0..w.halves {
        let (mut ta, mut tb, mut tc) = ([0u32; 32], [0u32; 32], [0u32; 32]);
        let a = fetch(w, &s.src[0], half, &mut ta);
        let b = fetch(w, &s.src[1], half, &mut tb);
        let c = fetch(w, &s.src[2], half, &mut tc);
        let mut ordinary = true;
        for i in 0..32 {
            let (x, y) = (b[i] >> 23 & 0xFF, c[i] >> 23 & 0xFF);
            ordinary &= (x.wrapping_sub(80) < 90) & (y.wrapping_sub(80) < 90);
        }
        if ordinary {
            results[half] = *a;
            continue;
        }
        let exec = w.exec_half(half);
        for i in 0..32 {
            let (r, scaled) = scale_one32(a[i], b[i], c[i], w.mode);
            results[half][i] = r;
            masks[half] |= (u32::from(scaled) << i) & exec;
        }
    }
    for half in 0..w.halves {
        finish_f32(w, s, &mut results[half]);
        put(w, s.dst as usize, half, &results[half]);
    }
    put_mask(w, s.sdst as usize, masks);
}

/// v_div_fmas_f32: lanes in VCC are scaled back by 2^+-64 with one rounding.
#[inline(always)]
pub(crate) fn fmas32(w: &mut Wave, s: &Step) {
    if w.vccz() {
        return super::shapes::fma32(w, s);
    }
    let env = soft::Env::f32(w.mode);
    for half in 0..w.halves {
        let (mut ta, mut tb, mut tc) = ([0u32; 32], [0u32; 32], [0u32; 32]);
        let a = fetch(w, &s.src[0], half, &mut ta);
        let b = fetch(w, &s.src[1], half, &mut tb);
        let c = fetch(w, &s.src[2], half, &mut tc);
        let vcc = w.s[VCC + half];
        let r = core::array::from_fn(|i| {
            let scale = match (vcc >> i & 1 != 0, exponent32(c[i]) > 127) {
                (false, _) => 0,
                (true, true) => 64,
                (true, false) => -64,
            };
            soft::fma(Format::F32, a[i].into(), b[i].into(), c[i].into(), scale, env) as u32
        });
        let mut r: Lanes = r;
        finish_f32(w, s, &mut r);
        put(w, s.dst as usize, half, &r);
    }
}

/// v_div_fixup_f32: special cases of the quotient `q` of `n / d`.
#[inline(always)]
pub(crate) fn fixup32(q: u32, d: u32, n: u32) -> u32 {
    let sign = (d ^ n) & 0x8000_0000;
    let (da, na) = (d & 0x7FFF_FFFF, n & 0x7FFF_FFFF);
    let infinity = 0x7F80_0000;
    let apart = exponent32(n) - exponent32(d);
    let r = if is_nan32(q) { infinity } else { q & 0x7FFF_FFFF } | sign;
    let r = if apart < -150 { sign } else { r };
    let r = if da == infinity || na == 0 { sign } else { r };
    let r = if da == 0 || na == infinity { infinity | sign } else { r };
    let r = if (da == 0 && na == 0) || (da == infinity && na == infinity) { 0xFFC0_0000 } else { r };
    let r = if is_nan32(d) { d | 0x0040_0000 } else { r };
    if is_nan32(n) { n | 0x0040_0000 } else { r }
}

/// As [`scale_one32`] for f64.
fn scale_one64(s0: u64, s1: u64, s2: u64, m: u32) -> (u64, bool) {
    let [s0, s1, s2] = [s0, s1, s2].map(|x| fp::flush_in_f64(x, m));
    let up = || fp::ldexp64(f64::from_bits(s0), 128).to_bits();
    let down = || fp::ldexp64(f64::from_bits(s0), -128).to_bits();
    if s1 << 1 == 0 || s2 << 1 == 0 {
        return (NAN64, true);
    }
    let apart = exponent64(s2) - exponent64(s1);
    let tiny_reciprocal = s1 << 1 > 0x7FD0_0000_0000_0000 << 1 && exponent64(s1) != 2047;
    let tiny_quotient = apart <= -1022 && exponent64(s1) != 2047;
    if apart >= 768 {
        (if s0 == s1 { up() } else { s0 }, true)
    } else if exponent64(s1) == 0 {
        (up(), false)
    } else if tiny_reciprocal && tiny_quotient {
        (if s0 == s1 { down() } else { s0 }, true)
    } else if tiny_reciprocal {
        (down(), false)
    } else if tiny_quotient {
        (if s0 == s2 { up() } else { s0 }, true)
    } else if exponent64(s2) <= 53 {
        (up(), false)
    } else {
        (s0, false)
    }
}

/// v_div_scale_f64.
#[inline(always)]
pub(crate) fn scale64(w: &mut Wave, s: &Step) {
    let mut masks = [0u32; 2];
    let mut results: [Lanes64; 2] = [[0; 32]; 2];
    for half in 0..w.halves {
        let (mut a, mut b, mut c) = ([0u64; 32], [0u64; 32], [0u64; 32]);
        fetch64(w, &s.src[0], half, &mut a);
        fetch64(w, &s.src[1], half, &mut b);
        fetch64(w, &s.src[2], half, &mut c);
        let exec = w.exec_half(half);
        for i in 0..32 {
            let (r, scaled) = scale_one64(a[i], b[i], c[i], w.mode);
            results[half][i] = r;
            masks[half] |= (u32::from(scaled) << i) & exec;
        }
    }
    for half in 0..w.halves {
        finish_f64(w, s, &mut results[half]);
        put64(w, s.dst as usize, half, &results[half]);
    }
    put_mask(w, s.sdst as usize, masks);
}

/// v_div_fmas_f64.
#[inline(always)]
pub(crate) fn fmas64(w: &mut Wave, s: &Step) {
    if w.vccz() {
        return super::shapes64::fma64(w, s);
    }
    let env = soft::Env::f16_64(w.mode);
    for half in 0..w.halves {
        let (mut a, mut b, mut c) = ([0u64; 32], [0u64; 32], [0u64; 32]);
        fetch64(w, &s.src[0], half, &mut a);
        fetch64(w, &s.src[1], half, &mut b);
        fetch64(w, &s.src[2], half, &mut c);
        let vcc = w.s[VCC + half];
        let r = core::array::from_fn(|i| {
            let scale = match (vcc >> i & 1 != 0, exponent64(c[i]) > 1023) {
                (false, _) => 0,
                (true, true) => 128,
                (true, false) => -128,
            };
            soft::fma(Format::F64, a[i], b[i], c[i], scale, env)
        });
        let mut r: Lanes64 = r;
        finish_f64(w, s, &mut r);
        put64(w, s.dst as usize, half, &r);
    }
}

/// v_div_fixup_f64 on one lane.
#[inline(always)]
fn fixup_one64(q: u64, d: u64, n: u64) -> u64 {
    const SIGN: u64 = 1 << 63;
    const INFINITY: u64 = 0x7FF0_0000_0000_0000;
    let sign = (d ^ n) & SIGN;
    let (da, na) = (d & !SIGN, n & !SIGN);
    if is_nan64(n) {
        n | 1 << 51
    } else if is_nan64(d) {
        d | 1 << 51
    } else if (da == 0 && na == 0) || (da == INFINITY && na == INFINITY) {
        0xFFF8_0000_0000_0000
    } else if da == 0 || na == INFINITY {
        INFINITY | sign
    } else if da == INFINITY || na == 0 || exponent64(n) - exponent64(d) < -1075 {
        sign
    } else if is_nan64(q) {
        INFINITY | sign
    } else {
        q & !SIGN | sign
    }
}

/// v_div_fixup_f64.
#[inline(always)]
pub(crate) fn fixup64(w: &mut Wave, s: &Step) {
    for half in 0..w.halves {
        let (mut a, mut b, mut c) = ([0u64; 32], [0u64; 32], [0u64; 32]);
        fetch64(w, &s.src[0], half, &mut a);
        fetch64(w, &s.src[1], half, &mut b);
        fetch64(w, &s.src[2], half, &mut c);
        let mut r: Lanes64 = core::array::from_fn(|i| {
            let [q, d, n] = [a[i], b[i], c[i]].map(|x| fp::flush_in_f64(x, w.mode));
            fixup_one64(q, d, n)
        });
        finish_f64(w, s, &mut r);
        put64(w, s.dst as usize, half, &r);
    }
}

/// v_div_fixup_f16.
#[inline(always)]
pub(crate) fn fixup16(q: u32, d: u32, n: u32) -> u32 {
    let (q, d, n) = (q & 0xFFFF, d & 0xFFFF, n & 0xFFFF);
    let sign = (d ^ n) & 0x8000;
    let (da, na) = (d & 0x7FFF, n & 0x7FFF);
    if na > 0x7C00 {
        n | 0x200
    } else if da > 0x7C00 {
        d | 0x200
    } else if (da == 0 && na == 0) || (da == 0x7C00 && na == 0x7C00) {
        0xFE00
    } else if da == 0 || na == 0x7C00 {
        0x7C00 | sign
    } else if da == 0x7C00 || na == 0 {
        sign
    } else {
        q & 0x7FFF | sign
    }
}
