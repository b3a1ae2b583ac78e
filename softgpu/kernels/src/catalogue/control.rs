// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control flow, calls and scratch (`control.c`).

use super::Case;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "mandelbrot", problem: |_| mandelbrot() },
    Case { name: "collatz", problem: |_| Problem::line("collatz", 512, 64).with(&[0u32; 512]).number(1) },
    Case { name: "nested_loops", problem: |_| nested_loops() },
    Case { name: "early_end", problem: |_| mapped("early_end", 1024, 256) },
    Case { name: "private_array", problem: |_| mapped("private_array", 256, 64) },
    Case { name: "forced_spills", problem: |_| forced_spills() },
    Case { name: "register_index", problem: |_| register_index() },
    Case { name: "recursion", problem: |_| Problem::line("recursion", 64, 32).with(&[0u32; 128]).number(64) },
    Case { name: "function_table", problem: |_| mapped("function_table", 256, 64) },
    Case { name: "stack_arguments", problem: |_| mapped("stack_arguments", 256, 64) },
    Case { name: "flat_addresses", problem: |_| flat_addresses() },
    Case { name: "shape", problem: |_| shape() },
];

/// A word in and a word out for each item.
fn mapped(kernel: &'static str, items: u32, workgroup: u16) -> Problem {
    let mut r = Random(81);
    Problem::line(kernel, items, workgroup)
        .with(&r.list(items as usize, Random::u32))
        .zeroes::<u32>(items as usize, Check::Exact)
}

fn mandelbrot() -> Problem {
    Problem::grid("mandelbrot", [64, 32, 1], [16, 8, 1])
        .zeroes::<u32>(64 * 32, Check::Exact)
        .number(64)
        .number(100)
}

fn nested_loops() -> Problem {
    let mut r = Random(82);
    Problem::line("nested_loops", 1024, 128)
        .with(&r.list(1000, Random::u32))
        .zeroes::<u32>(1000, Check::Exact)
        .number(1000)
}

fn forced_spills() -> Problem {
    let mut r = Random(83);
    Problem::line("forced_spills", 128, 64)
        .with(&r.list(96 * 128, Random::u32))
        .zeroes::<u32>(96 * 128, Check::Exact)
        .number(128)
}

fn register_index() -> Problem {
    let mut r = Random(85);
    Problem::line("register_index", 128, 64)
        .with(&r.list(16 * 128, Random::u32))
        .zeroes::<u32>(128, Check::Exact)
        .number(128)
}

fn flat_addresses() -> Problem {
    let mut r = Random(84);
    Problem::line("flat_addresses", 192, 64).with(&r.list(2 * 192, Random::u32)).number(192)
}

fn shape() -> Problem {
    let [width, height, depth] = [32, 12, 6];
    Problem::grid("shape", [width, height, depth], [8, 4, 3])
        .zeroes::<u32>((width * height * depth) as usize, Check::Exact)
        .number(width)
        .number(height)
}
