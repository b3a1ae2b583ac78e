// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the benchmarks' kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    device_cc::embed("kernels", "kernels/kernels.c", &[])
}
