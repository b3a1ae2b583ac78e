// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the model's kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    device_cc::embed(
        "embed",
        "kernels/embed.c",
        &[
            "kernels/wave.h",
            "kernels/norm.h",
            "kernels/gelu.h",
            "kernels/gemm_f16.h",
            "kernels/attention_f16.h",
            "kernels/f32.h",
        ],
    )
}
