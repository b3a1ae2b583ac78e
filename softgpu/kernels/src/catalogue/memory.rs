// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory accesses of every width and the scalar unit (`memory.c`).

use super::Case;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "memory_widths", problem: |_| memory_widths() },
    Case { name: "uniform", problem: |_| uniform() },
];

/// Bytes of an item's piece of memory.
const PIECE: usize = 128;

fn memory_widths() -> Problem {
    let items = 128;
    let mut r = Random(91);
    Problem::line("memory_widths", items as u32, 64)
        .with(&r.list(items * PIECE, |r| r.u32() as u8))
        .zeroes::<u8>(items * PIECE, Check::Exact)
        .zeroes::<u8>(items * PIECE, Check::Exact)
        .zeroes::<u32>(2 * items, Check::Exact)
        .number(items as u32)
}

fn uniform() -> Problem {
    let mut r = Random(92);
    Problem::line("uniform", 512, 64)
        .with(&r.list(256, Random::u32))
        .zeroes::<u32>(29 * 512, Check::Exact)
        .number(512)
        .number(0x1234_5678)
        .number(0xFEDC_BA98)
        .number(40)
}
