// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the examples' kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    for (name, source) in [
        ("heat", "heat/heat.c"),
        ("endless", "endless/endless.c"),
        ("axpy", "custom_dispatcher/axpy.c"),
        ("allreduce", "p2p_allreduce/allreduce.c"),
        ("kv_cache", "kv_cache/kv_cache.c"),
        ("train", "train/train.c"),
    ] {
        let code = device_cc::embed(name, source, &[]);
        if code != ExitCode::SUCCESS {
            return code;
        }
    }
    ExitCode::SUCCESS
}
