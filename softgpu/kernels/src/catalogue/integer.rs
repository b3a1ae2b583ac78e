// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integer arithmetic (`integer.c`); all of it exact.

use super::{Case, varied, varied_wide};
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "hash", problem: |_| hash() },
    Case { name: "int32", problem: |_| words("int32", 24) },
    Case { name: "int64", problem: |_| int64() },
    Case { name: "bits", problem: |_| words("bits", 27) },
    Case { name: "bytes_and_shorts", problem: |_| bytes_and_shorts() },
    Case { name: "packed_shorts", problem: |_| words("packed_shorts", 19) },
    Case { name: "saturating", problem: |_| words("saturating", 14) },
    Case { name: "byte_instructions", problem: |_| words("byte_instructions", 15) },
];

const N: usize = 1024;

fn hash() -> Problem {
    let mut r = Random(61);
    Problem::line("hash", N as u32, 128).with(&r.list(N, Random::u32)).zeroes::<u32>(N, Check::Exact)
}

/// Two words in, `results` words out for each item.
fn words(kernel: &'static str, results: usize) -> Problem {
    let mut r = Random(62);
    Problem::line(kernel, N as u32, 128)
        .with(&r.list(N, varied))
        .with(&r.list(N, varied))
        .zeroes::<u32>(results * N, Check::Exact)
        .number(N as u32)
}

fn int64() -> Problem {
    let mut r = Random(63);
    Problem::line("int64", N as u32, 128)
        .with(&r.list(N, varied_wide))
        .with(&r.list(N, varied_wide))
        .zeroes::<u64>(26 * N, Check::Exact)
        .number(N as u32)
}

fn bytes_and_shorts() -> Problem {
    // Odd, so that rows of results are not aligned.
    let n = 1001;
    let mut r = Random(64);
    Problem::line("bytes_and_shorts", N as u32, 128)
        .with(&r.list(n, |r| r.u32() as u8))
        .with(&r.list(n, |r| r.u32() as i8))
        .with(&r.list(n, |r| r.u32() as u16))
        .with(&r.list(n, |r| r.u32() as i16))
        .zeroes::<u8>(3 * n, Check::Exact)
        .zeroes::<u16>(3 * n, Check::Exact)
        .zeroes::<i32>(2 * n, Check::Exact)
        .number(n as u32)
}
