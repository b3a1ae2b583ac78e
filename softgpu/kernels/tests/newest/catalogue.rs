// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue by the newest compiler, against the host's build of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use softgpu_kernels::{Device, Engine, Host, WaveSize, cases};

use crate::{directory, run, script};

const UNITS: [&str; 9] =
    ["atomics", "collective", "control", "floats", "gemm", "integer", "memory", "modes", "neural"];
/// What `build.rs` compiles with, up to bitcode.
const FLAGS: [&str; 14] = [
    "-std=gnu17",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "--target=amdgcn-amd-amdhsa",
    "-mcpu=gfx1100",
    "-O3",
    "-nogpulib",
    "-ffreestanding",
    "-mcode-object-version=5",
    "-emit-llvm",
];

/// The code object of all kernels: C to bitcode by clang-19, bitcode to objects by the newest LLVM, linked by lld-19.
fn code_object(size: WaveSize) -> Vec<u8> {
    let lanes = size.lanes();
    let place = directory(&format!("catalogue-{lanes}"));
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into());
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut files: Vec<PathBuf> = vec![lanes.to_string().into()];
    for unit in UNITS {
        let (bitcode, object) = (place.join(format!("{unit}.bc")), place.join(format!("{unit}.o")));
        let mut command = Command::new(&clang);
        command.args(FLAGS).arg(format!("-DWAVE={lanes}"));
        command.args((size == WaveSize::W64).then_some("-mwavefrontsize64"));
        run(command.arg("-c").arg(sources.join(format!("{unit}.c"))).arg("-o").arg(&bitcode));
        files.extend([bitcode, object]);
    }
    let revision = script("codegen.py", &files, &place);
    println!("wave{lanes} by LLVM {}", revision.trim());
    let library = place.join("gpu.so");
    let objects = files.iter().skip(2).step_by(2);
    run(Command::new("ld.lld-19").args(["-shared", "-o"]).arg(&library).args(objects));
    let file = std::fs::read(&library).expect("the linked file");
    std::fs::remove_dir_all(&place).expect("a directory of our own");
    file
}

fn check(size: WaveSize) {
    let file = code_object(size);
    let device = Device::with_code(&file, 2, softgpu_waves::Engine::Jit).expect("device");
    let host = Host::new(size).expect("host library");
    let mut wrong = Vec::new();
    for case in cases() {
        let problem = (case.problem)(size);
        let want = host.run(&problem).expect("host run");
        match device.run(&problem) {
            Ok(got) => wrong.extend(problem.compare(&got, &want).err().map(|error| error.to_string())),
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
        }
    }
    println!("{} kernels", cases().count());
    assert!(wrong.is_empty(), "{} kernels are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn kernels_by_the_newest_compiler_agree_in_wave32() {
    check(WaveSize::W32);
}

#[test]
fn kernels_by_the_newest_compiler_agree_in_wave64() {
    check(WaveSize::W64);
}
