// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases: which kernel on which problem.
//!
//! INVARIANT: a case's problem is the same whenever it is made, and every kernel of the code object has a case.

mod atomics;
mod collective;
mod control;
mod floats;
mod gemm;
mod integer;
mod memory;
mod neural;

pub use gemm::square as gemm;

use crate::WaveSize;
use crate::problem::Problem;
use crate::random::Random;

/// A kernel and how its problem is made; small enough for a test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The kernel's name, which is the case's.
    pub name: &'static str,
    /// Makes the problem for waves of a size.
    pub problem: fn(WaveSize) -> Problem,
}

/// All cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        gemm::CASES,
        neural::CASES,
        collective::CASES,
        atomics::CASES,
        integer::CASES,
        floats::CASES,
        control::CASES,
        memory::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The case called `name`.
pub fn case(name: &str) -> Option<&'static Case> {
    cases().find(|case| case.name == name)
}

/// f16 bits of a value that f16 holds exactly and that is normal or zero there.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    // CAST: a sign, 5 bits of exponent and 10 of fraction.
    if value == 0.0 {
        return sign as u16;
    }
    (sign | ((bits >> 23 & 0xFF) - 112) << 10 | (bits >> 13 & 0x3FF)) as u16
}

/// A multiple of 1/32 in [-1, 1], which f16 and bf16 hold and whose products f32 sums exactly.
fn coarse(r: &mut Random) -> f32 {
    (r.below(65) as f32 - 32.0) / 32.0
}

/// 32 bits: small numbers, edges and anything.
fn varied(r: &mut Random) -> u32 {
    match r.below(5) {
        0 => r.below(40),
        1 => r.below(40).wrapping_neg(),
        2 => [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x8000, 0xFFFF, 0x7FFF][r.below(8) as usize],
        _ => r.u32(),
    }
}

/// 64 bits in the same manner.
fn varied_wide(r: &mut Random) -> u64 {
    match r.below(5) {
        0 => u64::from(varied(r)),
        1 => u64::from(varied(r)) << 32,
        2 => u64::from(r.below(99)).wrapping_neg(),
        3 => [0, 1, i64::MAX as u64, i64::MIN as u64, u64::MAX, 1 << 32, u64::from(u32::MAX)]
            [r.below(7) as usize],
        _ => r.u64(),
    }
}
