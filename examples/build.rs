// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the examples' kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    device_cc::embed("heat", "heat/heat.c", &[])
}
