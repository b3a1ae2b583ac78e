// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomic operations (`atomics.c`).

use super::{Case, varied, varied_wide};
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "atomics_global_32_own", problem: |_| own_32("atomics_global_32_own") },
    Case { name: "atomics_global_64_own", problem: |_| own_64("atomics_global_64_own") },
    Case { name: "atomics_flat_32_own", problem: |_| own_32("atomics_flat_32_own") },
    Case { name: "atomics_flat_64_own", problem: |_| own_64("atomics_flat_64_own") },
    Case { name: "atomics_lds_32_own", problem: |_| own_32("atomics_lds_32_own") },
    Case { name: "atomics_lds_64_own", problem: |_| own_64("atomics_lds_64_own") },
    Case { name: "atomics_global_32_shared", problem: |_| shared_32("atomics_global_32_shared") },
    Case { name: "atomics_global_64_shared", problem: |_| shared_64("atomics_global_64_shared") },
    Case { name: "atomics_flat_32_shared", problem: |_| shared_32("atomics_flat_32_shared") },
    Case { name: "atomics_flat_64_shared", problem: |_| shared_64("atomics_flat_64_shared") },
    Case { name: "atomics_lds_32_shared", problem: |_| shared_32("atomics_lds_32_shared") },
    Case { name: "atomics_lds_64_shared", problem: |_| shared_64("atomics_lds_64_shared") },
    Case { name: "atomics_float_own", problem: |_| float_own() },
    Case { name: "atomics_float_shared", problem: |_| float_shared() },
    Case { name: "atomics_csub", problem: |_| csub() },
    Case { name: "spin_lock", problem: |_| spin_lock() },
];

/// Operations of `OWN` and `TOGETHER`.
const OPERATIONS: usize = 14;
const ITEMS: usize = 256;
const GROUP: u16 = 64;
/// The compare-and-swaps among the operations, with what they expect of a value.
const EXPECT_ODD: usize = 12;
const EXPECT_SAME: usize = 13;

/// A cell for each operation and item; every other compare-and-swap finds what it expects.
fn own_32(kernel: &'static str) -> Problem {
    let mut r = Random(51);
    let values = r.list(ITEMS, varied);
    let mut cells = r.list(OPERATIONS * ITEMS, varied);
    for i in (0..ITEMS).step_by(2) {
        cells[EXPECT_ODD * ITEMS + i] = values[i] | 1;
        cells[EXPECT_SAME * ITEMS + i] = values[i];
    }
    Problem::line(kernel, ITEMS as u32, GROUP)
        .with(&cells)
        .with(&values)
        .zeroes::<u32>(OPERATIONS * ITEMS, Check::Exact)
        .number(ITEMS as u32)
}

fn own_64(kernel: &'static str) -> Problem {
    let mut r = Random(52);
    let values = r.list(ITEMS, varied_wide);
    let mut cells = r.list(OPERATIONS * ITEMS, varied_wide);
    for i in (0..ITEMS).step_by(2) {
        cells[EXPECT_ODD * ITEMS + i] = values[i] | 1;
        cells[EXPECT_SAME * ITEMS + i] = values[i];
    }
    Problem::line(kernel, ITEMS as u32, GROUP)
        .with(&cells)
        .with(&values)
        .zeroes::<u64>(OPERATIONS * ITEMS, Check::Exact)
        .number(ITEMS as u32)
}

/// Enough cells for one set each workgroup; global and flat kernels use the first set only.
fn shared_32(kernel: &'static str) -> Problem {
    let mut r = Random(53);
    Problem::line(kernel, ITEMS as u32, GROUP)
        .with(&r.list(OPERATIONS * ITEMS / usize::from(GROUP), Random::u32))
        .with(&r.list(ITEMS, Random::u32))
}

fn shared_64(kernel: &'static str) -> Problem {
    let mut r = Random(54);
    Problem::line(kernel, ITEMS as u32, GROUP)
        .with(&r.list(OPERATIONS * ITEMS / usize::from(GROUP), Random::u64))
        .with(&r.list(ITEMS, Random::u64))
}

fn float_own() -> Problem {
    let mut r = Random(55);
    Problem::line("atomics_float_own", ITEMS as u32, GROUP)
        .with(&r.list(10 * ITEMS, |r| 100.0 * r.f32()))
        .with(&r.list(ITEMS, |r| 100.0 * r.f32()))
        .zeroes::<f32>(10 * ITEMS, Check::Exact)
        .number(ITEMS as u32)
}

fn float_shared() -> Problem {
    let mut r = Random(56);
    Problem::line("atomics_float_shared", ITEMS as u32, GROUP)
        .with(&[0.5f32; 9])
        .with(&r.list(ITEMS, |r| r.below(2001) as f32 / 8.0 - 125.0))
}

fn csub() -> Problem {
    let mut r = Random(57);
    Problem::line("atomics_csub", ITEMS as u32, GROUP)
        .with(&r.list(ITEMS, |r| r.below(100)))
        .with(&r.list(ITEMS, |r| r.below(100)))
        .zeroes::<u32>(ITEMS, Check::Exact)
}

fn spin_lock() -> Problem {
    Problem::line("spin_lock", 128, GROUP).with(&[0u32]).with(&[0u32]).number(3)
}
