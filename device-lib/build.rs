// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the device library, if its kernels are asked for.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (kernels, handlers) = if std::env::var_os("CARGO_FEATURE_KERNELS").is_none() {
        (device_cc::embed_nothing("objects"), device_cc::embed_nothing_flat("trap_handlers"))
    } else {
        let included = ["src/fill.c", "src/copy.c", "src/device.h"];
        (
            device_cc::embed("objects", "src/kernels.c", &included),
            device_cc::embed_flat("trap_handlers", "src/trap.s"),
        )
    };
    if kernels == ExitCode::SUCCESS { handlers } else { kernels }
}
