// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers of networks (`neural.c`). Their exponentials and roots are good to the last bits only.

use super::Case;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "softmax", problem: |_| softmax() },
    Case { name: "layernorm", problem: |_| layernorm() },
    Case { name: "activations", problem: |_| activations() },
    Case { name: "rope", problem: |_| rope() },
    Case { name: "attention", problem: |_| attention() },
    Case { name: "conv2d", problem: |_| conv2d() },
];

const NEAR: Check = Check::Near { bytes: 4, relative: 4e-6, absolute: 1e-6 };

fn softmax() -> Problem {
    let (rows, columns) = (8, 200);
    let mut r = Random(21);
    Problem::line("softmax", rows * 64, 64)
        .with(&r.list((rows * columns) as usize, |r| 8.0 * r.f32()))
        .zeroes::<f32>((rows * columns) as usize, NEAR)
        .number(columns)
}

fn layernorm() -> Problem {
    let (rows, columns) = (16, 100);
    let mut r = Random(22);
    Problem::line("layernorm", rows * 32, 128)
        .with(&r.list((rows * columns) as usize, |r| 3.0 * r.f32() + 1.0))
        .with(&r.list(columns as usize, Random::f32))
        .with(&r.list(columns as usize, Random::f32))
        .zeroes::<f32>((rows * columns) as usize, NEAR)
        .number(columns)
}

fn activations() -> Problem {
    let n = 1000;
    let mut r = Random(23);
    Problem::line("activations", 1024, 128)
        .with(&r.list(n, |r| 6.0 * r.f32()))
        .with(&r.list(n, Random::f32))
        .zeroes::<f32>(n, NEAR)
        .zeroes::<f32>(n, NEAR)
        .number(n as u32)
}

fn rope() -> Problem {
    let (positions, pairs) = (16, 32);
    let mut r = Random(24);
    let count = (2 * positions * pairs) as usize;
    Problem::line("rope", positions * pairs, 64)
        .with(&r.list(count, Random::f32))
        .zeroes::<f32>(count, NEAR)
        .number(pairs)
}

fn attention() -> Problem {
    let (length, width) = (64, 32);
    let mut r = Random(25);
    let mut matrix = || r.list(length * width, Random::f32);
    Problem::line("attention", 64 * 64, 64)
        .with(&matrix())
        .with(&matrix())
        .with(&matrix())
        .zeroes::<f32>(length * width, NEAR)
}

fn conv2d() -> Problem {
    let (width, height, channels, planes) = (32, 16, 3, 4);
    let mut r = Random(26);
    Problem::grid("conv2d", [width, height, planes], [16, 4, 2])
        .with(&r.list((width * height * channels) as usize, Random::f32))
        .with(&r.list((planes * channels * 9) as usize, Random::f32))
        .zeroes::<f32>((width * height * planes) as usize, Check::Exact)
        .number(width)
        .number(height)
        .number(channels)
}
