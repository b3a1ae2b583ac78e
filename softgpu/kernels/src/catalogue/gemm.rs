// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix products (`gemm.c`).

use super::{Case, coarse, half, varied};
use crate::WaveSize;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "gemm_naive", problem: |_| square("gemm_naive", 32, 1) },
    Case { name: "gemm_lds", problem: |_| square("gemm_lds", 48, 1) },
    Case { name: "gemm_4x4", problem: |_| square("gemm_4x4", 128, 4) },
    Case { name: "gemm_8x8", problem: |_| square("gemm_8x8", 128, 8) },
    Case { name: "gemm_wmma_f16", problem: |size| floats_by_wave("gemm_wmma_f16", size, half) },
    Case {
        name: "gemm_wmma_bf16",
        problem: |size| floats_by_wave("gemm_wmma_bf16", size, |v| (v.to_bits() >> 16) as u16),
    },
    Case { name: "gemm_wmma_f16_f16", problem: |size| halves_by_wave("gemm_wmma_f16_f16", size, half) },
    Case {
        name: "gemm_wmma_bf16_bf16",
        problem: |size| halves_by_wave("gemm_wmma_bf16_bf16", size, |v| (v.to_bits() >> 16) as u16),
    },
    Case { name: "gemm_wmma_iu8", problem: |size| integers_by_wave("gemm_wmma_iu8", size, 8) },
    Case { name: "gemm_wmma_iu4", problem: |size| integers_by_wave("gemm_wmma_iu4", size, 4) },
    Case { name: "gemm_dot4", problem: |_| dot4() },
    Case { name: "gemm_dot2", problem: |_| dot2() },
    Case { name: "dot_products", problem: |_| products() },
];

const SIDE: usize = 64;

/// C = A B of `n` x `n` f32 by one of the plain kernels, whose items compute `per_item` x `per_item` values each; `n` is
/// a multiple of `16 * per_item`.
pub fn square(kernel: &'static str, n: u32, per_item: u32) -> Problem {
    let mut r = Random(u64::from(n));
    let count = (n * n) as usize;
    Problem::grid(kernel, [n / per_item, n / per_item, 1], [16, 16, 1])
        .with(&r.list(count, Random::f32))
        .with(&r.list(count, Random::f32))
        .zeroes::<f32>(count, Check::Exact)
        .number(n)
}

/// A wave computes 16 x 16.
fn by_wave(kernel: &'static str, size: WaveSize) -> Problem {
    let (lanes, tiles) = (size.lanes(), SIDE as u32 / 16);
    Problem::grid(kernel, [tiles * u32::from(lanes), tiles, 1], [lanes, 1, 1])
}

fn floats_by_wave(kernel: &'static str, size: WaveSize, encode: fn(f32) -> u16) -> Problem {
    let mut r = Random(11);
    let mut matrix = || r.list(SIDE * SIDE, |r| encode(coarse(r)));
    by_wave(kernel, size)
        .with(&matrix())
        .with(&matrix())
        // The order of the sums is the machine's.
        .zeroes::<f32>(SIDE * SIDE, Check::Near { bytes: 4, relative: 1e-6, absolute: 1e-5 })
        .number(SIDE as u32)
}

/// Products of -1, 0 and 1: their sums are exact in 8 bits of fraction, so the results are too.
fn halves_by_wave(kernel: &'static str, size: WaveSize, encode: fn(f32) -> u16) -> Problem {
    let mut r = Random(16);
    let mut matrix = || r.list(SIDE * SIDE, |r| encode(r.below(3) as f32 - 1.0));
    by_wave(kernel, size)
        .with(&matrix())
        .with(&matrix())
        .zeroes::<u16>(SIDE * SIDE, Check::Exact)
        .number(SIDE as u32)
}

fn integers_by_wave(kernel: &'static str, size: WaveSize, bits: usize) -> Problem {
    let mut r = Random(12);
    let bytes = SIDE * SIDE * bits / 8;
    by_wave(kernel, size)
        .with(&r.list(bytes, |r| r.u32() as u8))
        .with(&r.list(bytes, |r| r.u32() as u8))
        .zeroes::<i32>(SIDE * SIDE, Check::Exact)
        .number(SIDE as u32)
}

fn dot4() -> Problem {
    let mut r = Random(13);
    Problem::grid("gemm_dot4", [64, 64, 1], [16, 16, 1])
        .with(&r.list(SIDE * SIDE / 4, Random::u32))
        .with(&r.list(SIDE * SIDE / 4, Random::u32))
        .zeroes::<i32>(SIDE * SIDE, Check::Exact)
        .number(SIDE as u32)
}

fn dot2() -> Problem {
    let mut r = Random(14);
    let mut matrix = || r.list(SIDE * SIDE, |r| half(coarse(r)));
    Problem::grid("gemm_dot2", [64, 64, 1], [16, 16, 1])
        .with(&matrix())
        .with(&matrix())
        .zeroes::<f32>(SIDE * SIDE, Check::Near { bytes: 4, relative: 1e-6, absolute: 1e-5 })
        .number(SIDE as u32)
}

fn products() -> Problem {
    let mut r = Random(15);
    Problem::line("dot_products", 512, 64)
        .with(&r.list(512, Random::u32))
        .with(&r.list(512, Random::u32))
        .with(&r.list(512, varied))
        .zeroes::<i32>(6 * 512, Check::Exact)
        .number(512)
}
