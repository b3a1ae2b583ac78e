// SPDX-License-Identifier: MIT OR Apache-2.0
//! The jobs: kernel, shape, data, what is counted, and what a result may differ by.
//!
//! INVARIANT: a case's buffers are what its kernel and its native code need for its size, and the data are the same in
//! every process: results of several processes may be compared.

use anyhow::{Context, Result, ensure};
use softgpu_kernels::values_of;

use super::native::{self, Job};
use crate::interpreter::jobs::{Scalar, numbers};
use crate::interpreter::machine::Shape;

/// What a case counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Of a figure.
    pub name: &'static str,
    /// Of a figure; 10⁹ of what `amount` counts, a second.
    pub unit: &'static str,
}

const FLOPS: Metric = Metric { name: "arithmetic", unit: "GFLOP/s" };
const INTEGERS: Metric = Metric { name: "integer_arithmetic", unit: "GIOP/s" };
const TURNS: Metric = Metric { name: "iterations", unit: "G/s" };
const BYTES: Metric = Metric { name: "bytes", unit: "GB/s" };

/// The peer that a case is compared with: the same job on this machine without a GPU.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// Of native/isa.c.
    C(Job),
    /// Single precision matrix multiplication of OpenBLAS; the function where that is missing.
    Blas(Job),
    /// The function gives the result; what is compared is the rate of nothing but fused multiplications and additions.
    Peak(Job),
}

/// What a result may differ by.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// Not at all.
    Exact,
    /// A number by so much of itself, or of 1 if it is smaller.
    Close(f32),
}

/// One case.
#[derive(Debug)]
pub struct Case {
    /// As reported.
    pub name: &'static str,
    /// In kernels/isa.c.
    pub kernel: &'static str,
    /// Work-items.
    pub grid: [u32; 3],
    /// Work-items of a workgroup, as the kernel has it.
    pub block: [u16; 3],
    /// The kernel's first arguments.
    pub buffers: Vec<Vec<u8>>,
    /// The kernel's last argument: elements or a side.
    pub last: Option<u32>,
    /// Which buffer has the result.
    pub result: usize,
    /// The size, as native code takes it.
    pub size: u32,
    /// What is counted.
    pub metric: Metric,
    /// How much of it one run does; none where the sum of the result says it.
    pub amount: Option<f64>,
    /// Native code for the same job.
    pub peer: Peer,
    /// Of the result.
    pub check: Check,
}

/// Makes a case: only when it is run, for its data.
type Make = fn() -> Case;

/// Every case, in the order they are run.
pub const CASES: [(&str, Make); 13] = [
    ("gemm_f32_naive", || gemm("gemm_f32_naive", "gemm_naive", 256, (1, 1), [32, 8, 1])),
    // Native code of the same algorithm, which has no more registers for sums than a tile takes.
    ("gemm_f32_lds16", || Case {
        peer: Peer::C(native::GEMM_LDS16),
        ..gemm("gemm_f32_lds16", "gemm_lds16", SIDE, (1, 1), [16, 16, 1])
    }),
    ("gemm_f32_4x4", || gemm("gemm_f32_4x4", "gemm_4x4", SIDE, (4, 4), [256, 1, 1])),
    ("gemm_f32_8x8", || gemm_8x8(SIDE)),
    ("gemm_f16_wmma", wmma),
    ("hash", hash),
    ("mandelbrot", mandelbrot),
    ("poly", poly),
    ("axpy", || Case { last: Some(STREAM), ..stream("axpy", 12, STREAM, native::AXPY) }),
    ("copy", || stream("copy", 8, STREAM / 4, native::COPY)),
    ("gelu", || Case { last: Some(STREAM), ..stream("gelu", 8, STREAM, native::GELU) }),
    ("softmax", || rows("softmax", &[], native::SOFTMAX)),
    ("layernorm", || rows("layernorm", &[11, 12], native::LAYERNORM)),
];

/// Of most matrices.
pub const SIDE: u32 = 512;
const HASHES: u32 = 1 << 16;
const POINTS: u32 = 512;
const POLYNOMIALS: u32 = 1 << 18;
/// Floats of a buffer that no second-level cache holds: 16 MiB.
const STREAM: u32 = 1 << 22;
const ROWS: u32 = 1024;
const COLUMNS: u32 = 1024;

fn floats(count: u32, salt: u32) -> Vec<u8> {
    bytemuck::cast_slice(&numbers(count as usize, salt)).to_vec()
}

fn zeros(count: u32) -> Vec<u8> {
    vec![0; count as usize * 4]
}

/// n x n matrices in tiles of 16 x 16 work-items, or 32 x 8 for 1 x 1 blocks; each work-item does `block` elements.
fn gemm(name: &'static str, kernel: &'static str, n: u32, block: (u32, u32), group: [u16; 3]) -> Case {
    // The blocked kernels' workgroups are 16x16 in one dimension.
    let grid = if group[1] == 1 { [n / block.0 * 16, n / block.1 / 16, 1] } else { [n, n, 1] };
    Case {
        name,
        kernel,
        grid,
        block: group,
        buffers: vec![floats(n * n, 4), floats(n * n, 5), zeros(n * n)],
        last: Some(n),
        result: 2,
        size: n,
        metric: FLOPS,
        amount: Some(2.0 * f64::from(n).powi(3)),
        peer: Peer::Blas(native::GEMM),
        check: Check::Close(1e-4),
    }
}

/// `gemm_f32_8x8` for a size that is a multiple of 128.
pub fn gemm_8x8(n: u32) -> Case {
    gemm("gemm_f32_8x8", "gemm_8x8", n, (8, 8), [256, 1, 1])
}

fn wmma() -> Case {
    let n = SIDE;
    let halves = |salt| bytemuck::cast_slice(&native::halves(&numbers((n * n) as usize, salt))).to_vec();
    Case {
        grid: [n, n / 128, 1],
        buffers: vec![halves(4), halves(5), zeros(n * n)],
        peer: Peer::Peak(native::GEMM_F16),
        ..gemm("gemm_f16_wmma", "gemm_wmma", n, (8, 8), [128, 1, 1])
    }
}

/// One work-item an element, workgroups of 256.
fn line(name: &'static str, items: u32, buffers: Vec<Vec<u8>>, peer: Job) -> Case {
    Case {
        name,
        kernel: name,
        grid: [items, 1, 1],
        block: [256, 1, 1],
        result: buffers.len() - 1,
        buffers,
        last: None,
        size: items,
        metric: FLOPS,
        amount: None,
        peer: Peer::C(peer),
        check: Check::Close(1e-4),
    }
}

fn hash() -> Case {
    let inputs: Vec<u32> = (0..HASHES).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    let buffers = vec![bytemuck::cast_slice(&inputs).to_vec(), zeros(HASHES)];
    Case {
        metric: INTEGERS,
        // Two multiplications, three shifts and three exclusive ors a round.
        amount: Some(f64::from(HASHES) * 256.0 * 8.0),
        check: Check::Exact,
        ..line("hash", HASHES, buffers, native::HASH)
    }
}

fn mandelbrot() -> Case {
    let points = POINTS * POINTS;
    Case {
        last: Some(POINTS),
        size: POINTS,
        metric: TURNS,
        check: Check::Exact,
        ..line("mandelbrot", points, vec![zeros(points)], native::MANDELBROT)
    }
}

fn poly() -> Case {
    let buffers = vec![floats(POLYNOMIALS, 7), zeros(POLYNOMIALS)];
    Case { amount: Some(f64::from(POLYNOMIALS) * 128.0), ..line("poly", POLYNOMIALS, buffers, native::POLY) }
}

/// Through two buffers of [`STREAM`] floats; `bytes` are moved for each.
fn stream(name: &'static str, bytes: u32, items: u32, peer: Job) -> Case {
    Case {
        size: STREAM,
        metric: BYTES,
        amount: Some(f64::from(bytes) * f64::from(STREAM)),
        ..line(name, items, vec![floats(STREAM, 8), floats(STREAM, 9)], peer)
    }
}

/// Rows of 1024, a wave each, between the first buffer and the last; the others are a row.
fn rows(name: &'static str, others: &[u32], peer: Job) -> Case {
    let mut buffers = vec![floats(ROWS * COLUMNS, 10)];
    buffers.extend(others.iter().map(|salt| floats(COLUMNS, *salt)));
    buffers.push(zeros(ROWS * COLUMNS));
    Case {
        size: ROWS,
        metric: BYTES,
        amount: Some(8.0 * f64::from(ROWS * COLUMNS)),
        ..line(name, ROWS * 32, buffers, peer)
    }
}

/// The case of a name.
pub fn case(name: &str) -> Result<Case> {
    let found = CASES.iter().find(|(known, _)| *known == name);
    found.map(|(_, make)| make()).with_context(|| format!("there is no case {name}"))
}

impl Case {
    /// How the kernel is launched; `scalars` comes from [`Case::scalars`].
    pub fn shape<'a>(&'a self, scalars: &'a [Scalar]) -> Shape<'a> {
        Shape { kernel: self.kernel, grid: self.grid, block: self.block, scalars }
    }

    /// The arguments behind the buffers.
    pub fn scalars(&self) -> Vec<Scalar> {
        self.last.map(Scalar::U32).into_iter().collect()
    }

    /// What one run does, of what the metric counts.
    pub fn amount(&self, result: &[u8]) -> f64 {
        let sum = || values_of::<u32>(result).into_iter().map(f64::from).sum();
        self.amount.unwrap_or_else(sum)
    }

    /// Whether `ours`, by `who`, is the expected result.
    pub fn compare(&self, who: &str, ours: &[u8], expected: &[u8]) -> Result<()> {
        ensure!(ours.len() == expected.len(), "{}: {who}'s result has {} bytes", self.name, ours.len());
        let (ours, expected) = (values_of::<u32>(ours), values_of::<u32>(expected));
        let same = |(a, b): (&u32, &u32)| match self.check {
            Check::Exact => a == b,
            Check::Close(by) => {
                let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
                (a - b).abs() <= by * b.abs().max(1.0)
            }
        };
        let wrong = ours.iter().zip(&expected).position(|pair| !same(pair));
        match wrong {
            None => Ok(()),
            Some(at) => anyhow::bail!(
                "{}: element {at} is {:#x} by {who} and {:#x} by native code",
                self.name,
                ours[at],
                expected[at]
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_takes_small_differences_and_no_nan() {
        let case = gemm_8x8(128);
        let bytes = |value: f32| value.to_le_bytes();
        assert!(case.compare("it", &bytes(1.000_05), &bytes(1.0)).is_ok());
        assert!(case.compare("it", &bytes(1.001), &bytes(1.0)).is_err());
        assert!(case.compare("it", &bytes(f32::NAN), &bytes(1.0)).is_err());
        assert!(case.compare("it", &[], &bytes(1.0)).is_err());
    }

    #[test]
    fn cases_have_the_names_they_are_found_by() {
        for (name, _) in CASES {
            assert_eq!(case(name).unwrap().name, name);
        }
    }

    #[test]
    fn compare_exact_refuses_one_bit() {
        let case = Case { buffers: Vec::new(), ..hash() };
        assert!(case.compare("it", &[1, 0, 0, 0], &[1, 0, 0, 0]).is_ok());
        assert!(case.compare("it", &[1, 0, 0, 0], &[0, 0, 0, 0]).is_err());
    }
}
