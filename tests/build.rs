// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the tests' kernels for every target.

use std::process::ExitCode;

fn main() -> ExitCode {
    for name in ["compute", "faults"] {
        let code = device_cc::embed(name, &format!("kernels/{name}.c"), &["kernels/device.h"]);
        if code != ExitCode::SUCCESS {
            return code;
        }
    }
    ExitCode::SUCCESS
}
