// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue by the newest compiler, against the host's build of it.

use std::path::Path;

use device_cc::newest;
use softgpu_kernels::{Device, Engine, Host, WaveSize, cases};

use crate::directory;

const UNITS: [&str; 9] =
    ["atomics", "collective", "control", "floats", "gemm", "integer", "memory", "modes", "neural"];
/// What `build.rs` compiles with.
const FLAGS: [&str; 8] = [
    "-std=gnu17",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-mcode-object-version=5",
];

/// The code object of all kernels.
fn code_object(size: WaveSize) -> Vec<u8> {
    let lanes = size.lanes();
    let place = directory(&format!("catalogue-{lanes}"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let sources: Vec<_> = UNITS.iter().map(|unit| sources.join(format!("{unit}.c"))).collect();
    let wave = format!("-DWAVE={lanes}");
    let flags: Vec<_> = FLAGS.into_iter().chain(["-O3", &wave]).collect();
    let object = newest::compile(&sources, &flags, lanes, &place).unwrap_or_else(|why| panic!("{why}"));
    println!("wave{lanes} by LLVM {}", object.revision);
    std::fs::remove_dir_all(&place).expect("a directory of our own");
    object.file
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
