// SPDX-License-Identifier: MIT OR Apache-2.0
//! The jobs: kernel, shape, data, and native code that does the same.

use super::native;

/// A scalar argument after the buffers.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// A float.
    F32(f32),
    /// An unsigned number.
    U32(u32),
}

/// One job.
#[derive(Debug)]
pub struct Job {
    /// As reported.
    pub case: &'static str,
    /// In kernels.c.
    pub kernel: &'static str,
    /// Work-items.
    pub grid: [u32; 3],
    /// Work-items of a workgroup, as kernels.c has it.
    pub block: [u16; 3],
    /// The kernel's first arguments.
    pub buffers: Vec<Vec<f32>>,
    /// The others.
    pub scalars: Vec<Scalar>,
    /// Which buffer has the result.
    pub result: usize,
    /// The same by the CPU.
    pub native: fn(&mut [Vec<f32>]),
}

const AXPY: usize = 1 << 20;
const SIDE: usize = 1024;
const MATRIX: usize = 256;
const FACTOR: f32 = 0.001;
const LOOPS: usize = 1 << 16;
const TURNS: u32 = 512;

/// Small numbers without a pattern that a bug would fit.
pub fn numbers(count: usize, salt: u32) -> Vec<f32> {
    let number =
        |n: u32| f32::from((n.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 20) as u16) / 4096.0 - 0.5;
    (0..count as u32).map(number).collect()
}

fn axpy(buffers: &mut [Vec<f32>]) {
    if let [x, y] = buffers {
        native::axpy(x, y, FACTOR);
    }
}

fn stencil(buffers: &mut [Vec<f32>]) {
    if let [from, to] = buffers {
        native::stencil(from, to, SIDE);
    }
}

fn gemm(buffers: &mut [Vec<f32>]) {
    if let [a, b, c] = buffers {
        native::gemm(a, b, c, MATRIX);
    }
}

fn turn(buffers: &mut [Vec<f32>]) {
    if let [x] = buffers {
        native::turn(x, TURNS);
    }
}

/// Nothing but backward branches, each behind three instructions: where looking at the control costs most.
pub fn tight_loop() -> Job {
    Job {
        case: "loop of 4 instructions, 64 Ki items",
        kernel: "turn",
        // CAST: the sizes above are small.
        grid: [LOOPS as u32, 1, 1],
        block: [256, 1, 1],
        buffers: vec![numbers(LOOPS, 6)],
        scalars: vec![Scalar::U32(TURNS)],
        result: 0,
        native: turn,
    }
}

/// What the interpreter is measured by.
pub fn jobs() -> [Job; 3] {
    // CAST: the sizes above are small.
    let (n, side, matrix) = (AXPY as u32, SIDE as u32, MATRIX as u32);
    [
        Job {
            case: "axpy, 1 Mi elements",
            kernel: "axpy",
            grid: [n, 1, 1],
            block: [256, 1, 1],
            buffers: vec![numbers(AXPY, 1), numbers(AXPY, 2)],
            scalars: vec![Scalar::F32(FACTOR), Scalar::U32(n)],
            result: 1,
            native: axpy,
        },
        Job {
            case: "5-point stencil, 1024x1024",
            kernel: "stencil",
            grid: [side, side, 1],
            block: [32, 8, 1],
            buffers: vec![numbers(SIDE * SIDE, 3), vec![0.0; SIDE * SIDE]],
            scalars: vec![Scalar::U32(side), Scalar::U32(side)],
            result: 1,
            native: stencil,
        },
        Job {
            case: "gemm in 16x16 LDS tiles, 256x256",
            kernel: "gemm",
            grid: [matrix, matrix, 1],
            block: [16, 16, 1],
            buffers: vec![
                numbers(MATRIX * MATRIX, 4),
                numbers(MATRIX * MATRIX, 5),
                vec![0.0; MATRIX * MATRIX],
            ],
            scalars: vec![Scalar::U32(matrix)],
            result: 2,
            native: gemm,
        },
    ]
}
