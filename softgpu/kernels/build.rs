// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles every file of `kernels/` for gfx1100 and for the host, with waves of 32 and of 64 lanes, and links each of the
//! four to `gpu-<lanes>.so` or `host-<lanes>.so` in `OUT_DIR`.
//!
//! INVARIANT: both sides see the same sources, lane count and floating-point rules (no contraction, no excess precision,
//! wrapping integers); only the target differs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const UNITS: [&str; 9] =
    ["atomics", "collective", "control", "floats", "gemm", "integer", "memory", "modes", "neural"];
const COMMON: [&str; 7] =
    ["-std=gnu17", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"];
const GPU: [&str; 6] = [
    "--target=amdgcn-amd-amdhsa",
    "-mcpu=gfx1100",
    "-O3",
    "-nogpulib",
    "-ffreestanding",
    "-mcode-object-version=5",
];
// The host rounds f16 after every operation, as the GPU does.
const HOST: [&str; 4] = ["-O2", "-fPIC", "-Xclang", "-ffloat16-excess-precision=none"];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=STASIS_CLANG");
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error=softgpu-kernels: {why}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo set no OUT_DIR")?);
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| OsString::from("clang-19"));
    let jobs = [(true, 32), (true, 64), (false, 32), (false, 64)];
    std::thread::scope(|scope| {
        let threads = jobs.map(|(gpu, lanes)| {
            let (clang, out) = (&clang, &out);
            scope.spawn(move || library(clang, out, gpu, lanes))
        });
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err("a compile job panicked".into())))
    })
}

/// Compiles and links one of the four libraries.
fn library(clang: &OsString, out: &Path, gpu: bool, lanes: u32) -> Result<(), String> {
    let side = if gpu { "gpu" } else { "host" };
    let mut flags: Vec<String> =
        COMMON.iter().chain(if gpu { &GPU[..] } else { &HOST[..] }).map(ToString::to_string).collect();
    flags.push(format!("-DWAVE={lanes}"));
    if gpu && lanes == 64 {
        flags.push("-mwavefrontsize64".into());
    }
    let target = std::env::var("TARGET").map_err(|_| "cargo set no TARGET")?;
    let native = std::env::var("HOST").is_ok_and(|host| host == target);
    // The tests' machine, which need not be the one that builds them.
    if !gpu && !native {
        flags.push(format!("--target={target}"));
    }
    #[cfg(target_arch = "x86_64")]
    if !gpu
        && native
        && std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
    {
        // A fused multiply-add in software would be most of the host's time. A named level, not `native`: clang-19 warns
        // of its own choice of features on processors with AVX10, and warnings are errors here.
        flags.push("-march=x86-64-v3".into());
    }
    let mut objects = Vec::new();
    for unit in UNITS.into_iter().chain(if gpu { None } else { Some("host") }) {
        let object = out.join(format!("{unit}-{side}-{lanes}.o"));
        let mut command = Command::new(clang);
        run(command.args(&flags).arg("-c").arg(format!("kernels/{unit}.c")).arg("-o").arg(&object))?;
        objects.push(object);
    }
    let mut command = Command::new(clang);
    command.args(objects).arg("-o").arg(out.join(format!("{side}-{lanes}.so")));
    if gpu {
        return run(command.args(&GPU[..2]).arg("-nogpulib"));
    }
    if !native {
        command.arg(format!("--target={target}"));
    }
    run(command.args(["-shared", "-lm"]))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| {
        format!(
            "{command:?} could not be started ({error}): install packages clang-19 and lld-19 \
             (`cargo xtask setup`) or set STASIS_CLANG"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    // cargo::error takes one line.
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
    Err(format!("{command:?} failed ({}): {said}", output.status))
}
