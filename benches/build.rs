// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the benchmarks' kernels, and the host's own code that `bench isa` compares them with.
//!
//! INVARIANT: native/isa.c is compiled for vectors of 256 and of 512 bits, whatever the machine that compiles it has.
//! `isa::native` runs the code for the level in use, which this CPU was found to have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const NATIVE: &str = "native/isa.c";
/// As fast as the compiler can, but rounding as written: results are compared.
const FLAGS: [&str; 9] = [
    "-std=c17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
];

fn main() -> ExitCode {
    for (name, source) in [("kernels", "kernels/kernels.c"), ("isa", "kernels/isa.c")] {
        if device_cc::embed(name, source, &[]) == ExitCode::FAILURE {
            return ExitCode::FAILURE;
        }
    }
    println!("cargo::rerun-if-changed={NATIVE}");
    match native() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error={NATIVE}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Vectors of so many bits, and the instruction set with which the code is compiled for them.
#[cfg(target_arch = "x86_64")]
const WIDTHS: [(u32, &str); 2] = [(256, "x86-64-v3"), (512, "x86-64-v4")];
#[cfg(not(target_arch = "x86_64"))]
const WIDTHS: [(u32, &str); 2] = [(256, "native"), (512, "native")];

/// Compiles the code once for each width, with the width behind the functions' names.
fn native() -> Result<(), String> {
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| OsString::from("clang-19"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo set no OUT_DIR")?);
    for (bits, set) in WIDTHS {
        let object = out.join(format!("native-{bits}.o"));
        let mut command = Command::new(&clang);
        command.args(FLAGS).arg(format!("-DSUFFIX=_{bits}"));
        match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            // The compiler's tuning for some CPUs prefers 256 bits even in loops that are half as fast with them.
            Ok("x86_64") => command
                .arg(format!("-march={set}"))
                .arg("-mtune=native")
                .arg(format!("-mprefer-vector-width={bits}")),
            _ => command.arg("-mcpu=native"),
        };
        command.args(["-c", NATIVE, "-o"]).arg(&object);
        let output =
            command.output().map_err(|error| format!("{command:?} could not be started ({error})"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
            return Err(format!("{command:?} failed ({}): {said}", output.status));
        }
        println!("cargo::rustc-link-arg={}", object.display());
    }
    Ok(())
}
