// SPDX-License-Identifier: MIT OR Apache-2.0
//! Floating point (`floats.c`, `modes.c`): exact where IEEE 754 says so, near where a machine's functions differ.

use super::Case;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "float32", problem: |_| float32() },
    Case { name: "float32_finite", problem: |_| float32_finite() },
    Case { name: "extremes", problem: |_| extremes() },
    Case { name: "transcendental", problem: |_| transcendental() },
    Case { name: "float64", problem: |_| float64() },
    Case { name: "float16", problem: |_| float16() },
    Case { name: "float16_near", problem: |_| float16_near() },
    Case { name: "packed_halves", problem: |_| packed_halves() },
    Case { name: "rounding_modes", problem: |_| rounding_modes() },
    Case { name: "denormal_modes", problem: |_| denormal_modes() },
    Case { name: "quantise", problem: |_| quantise() },
];

const N: usize = 1024;
const SPECIAL: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-45,
    -1e-40,
    f32::MAX,
    f32::MIN_POSITIVE,
    -3.0e38,
];

fn any_f32(r: &mut Random) -> f32 {
    match r.below(4) {
        0 => SPECIAL[r.below(SPECIAL.len() as u32) as usize],
        1 => f32::from_bits(r.u32()),
        _ => 100.0 * r.f32(),
    }
}

fn float32() -> Problem {
    let mut r = Random(71);
    Problem::line("float32", N as u32, 128)
        .with(&r.list(N, any_f32))
        .with(&r.list(N, any_f32))
        .zeroes::<f32>(18 * N, Check::Float { bytes: 4 })
        .number(N as u32)
}

fn float32_finite() -> Problem {
    let mut r = Random(72);
    let mut values = || r.list(N, |r| if r.below(3) == 0 { r.f32() } else { 200.0 * r.f32() });
    Problem::line("float32_finite", N as u32, 128)
        .with(&values())
        .with(&values())
        .zeroes::<f32>(19 * N, Check::Exact)
        .zeroes::<u32>(10 * N, Check::Exact)
        .number(N as u32)
}

fn extremes() -> Problem {
    let mut r = Random(79);
    // No signalling NaN: what quietens it is the compiler's choice. Equal numbers are as likely as special ones.
    let mut values = || {
        r.list(N, |r| if r.below(3) == 0 { r.below(4) as f32 - 2.0 } else { SPECIAL[r.below(12) as usize] })
    };
    Problem::line("extremes", N as u32, 128)
        .with(&values())
        .with(&values())
        .zeroes::<f32>(15 * N, Check::Float { bytes: 4 })
        .number(N as u32)
}

fn transcendental() -> Problem {
    let mut r = Random(73);
    Problem::line("transcendental", N as u32, 128)
        .with(&r.list(N, |r| 16.0 * r.f32()))
        .zeroes::<f32>(11 * N, Check::Near { bytes: 4, relative: 2e-6, absolute: 1e-6 })
        .number(N as u32)
}

fn float64() -> Problem {
    let mut r = Random(74);
    let mut values = || r.list(N, |r| if r.below(4) == 0 { 1e-7 * r.f64() } else { 1000.0 * r.f64() });
    Problem::line("float64", N as u32, 128)
        .with(&values())
        .with(&values())
        .zeroes::<f64>(23 * N, Check::Float { bytes: 8 })
        .zeroes::<u64>(2 * N, Check::Exact)
        .number(N as u32)
}

/// f16 bits, not zero, of magnitude below 2^`exponent`; some are denormal.
fn finite_half(r: &mut Random, exponent: u32) -> u16 {
    let fraction = r.below(1023) + 1;
    let biased = if r.below(10) == 0 { 0 } else { r.below(exponent + 10) + 5 };
    // CAST: 1, 5 and 10 bits.
    (r.below(2) << 15 | biased << 10 | fraction) as u16
}

fn float16() -> Problem {
    let mut r = Random(75);
    Problem::line("float16", N as u32, 128)
        .with(&r.list(N, |r| finite_half(r, 9)))
        .with(&r.list(N, |r| finite_half(r, 9)))
        .zeroes::<u16>(18 * N, Check::Float { bytes: 2 })
        .zeroes::<f32>(4 * N, Check::Float { bytes: 4 })
        .number(N as u32)
}

fn float16_near() -> Problem {
    let mut r = Random(76);
    Problem::line("float16_near", N as u32, 128)
        .with(&r.list(N, |r| finite_half(r, 4)))
        .with(&r.list(N, |r| finite_half(r, 4)))
        // One unit in the last place of f16 is 2^-10 of the value at most.
        .zeroes::<u16>(9 * N, Check::Near { bytes: 2, relative: 1e-3, absolute: 1e-3 })
        .number(N as u32)
}

fn packed_halves() -> Problem {
    let mut r = Random(77);
    Problem::line("packed_halves", N as u32, 128)
        .with(&r.list(2 * N, |r| finite_half(r, 7)))
        .with(&r.list(2 * N, |r| finite_half(r, 7)))
        .zeroes::<u16>(14 * 2 * N, Check::Float { bytes: 2 })
        .number(N as u32)
}

fn rounding_modes() -> Problem {
    let mut r = Random(93);
    Problem::line("rounding_modes", N as u32, 128)
        .with(&r.list(N, |r| 100.0 * r.f32()))
        .with(&r.list(N, |r| 100.0 * r.f32()))
        .zeroes::<f32>(49 * N, Check::Exact)
        .number(N as u32)
}

fn denormal_modes() -> Problem {
    let mut r = Random(94);
    let mut values =
        || r.list(N, |r| r.f32() * f32::MIN_POSITIVE * [0.5, 1.0, 4.0, 1e25][r.below(4) as usize]);
    Problem::line("denormal_modes", N as u32, 128)
        .with(&values())
        .with(&values())
        .zeroes::<f32>(9 * N, Check::Exact)
        .number(N as u32)
}

fn quantise() -> Problem {
    let mut r = Random(78);
    Problem::line("quantise", N as u32, 128)
        .with(&r.list(N, Random::f32))
        .with(&r.list(N / 32, |r| 0.0075 + 0.002 * r.f32()))
        .zeroes::<i8>(N, Check::Exact)
        .zeroes::<f32>(N, Check::Exact)
        .number(N as u32)
}
