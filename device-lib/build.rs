// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the device library.

use std::process::ExitCode;

fn main() -> ExitCode {
    device_cc::embed("objects", "src/kernels.c", &["src/fill.c", "src/copy.c", "src/device.h"])
}
