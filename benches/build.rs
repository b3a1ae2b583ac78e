// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the benchmarks' kernels, and the code of this machine's own that `bench isa` compares them with.
//!
//! INVARIANT: native/isa.c is compiled for the machine that compiles it. `isa::native` refuses to run it on one that lacks
//! what it was compiled for.

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

fn native() -> Result<(), String> {
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| OsString::from("clang-19"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo set no OUT_DIR")?).join("native.o");
    let mut command = Command::new(clang);
    command.args(FLAGS);
    match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        // The compiler's tuning for some CPUs prefers 256 bits even in loops that are half as fast with them.
        // On processors with AVX10, clang-19 warns of the features that `native` stands for.
        Ok("x86_64") => {
            command.args(["-march=native", "-mprefer-vector-width=512", "-Wno-invalid-feature-combination"])
        }
        _ => command.arg("-mcpu=native"),
    };
    command.args(["-c", NATIVE, "-o"]).arg(&out);
    let output = command.output().map_err(|error| format!("{command:?} could not be started ({error})"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
        return Err(format!("{command:?} failed ({}): {said}", output.status));
    }
    println!("cargo::rustc-link-arg={}", out.display());
    Ok(())
}
