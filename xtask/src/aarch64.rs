// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask aarch64`: builds what runs on any CPU for aarch64, and runs tests of it.

use std::path::PathBuf;

use anyhow::Result;

use crate::setup::aarch64::TARGET;
use crate::setup::{self, Installed};
use crate::workspace::{cargo_with, target};

/// What is built: the software device, the runtime and the command.
const BUILT: [&str; 3] = ["stasis-softgpu", "stasis", "stasis-cli"];
/// What is tested: all that needs neither a second process nor more of the kernel than an emulator of programs has.
const TESTED: [&str; 4] =
    ["stasis-queues", "stasis-softgpu-isa", "stasis-softgpu-waves", "stasis-softgpu-kernels"];

/// Builds, the programs if they are wanted, and tests; `arguments` are nextest's.
pub fn run(with_programs: bool, arguments: &[String], installed: &Installed) -> Result<()> {
    let rustc = setup::install_aarch64()?;
    let directory: PathBuf = target().join("aarch64");
    let (rustc, directory) = (rustc.display().to_string(), directory.display().to_string());
    let mut environment = vec![
        ("RUSTC", rustc.as_str()),
        // Another compiler would have everything built again in the directory of the machine's own.
        ("CARGO_TARGET_DIR", directory.as_str()),
    ];
    if std::env::consts::ARCH != "aarch64" {
        environment.extend([
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
        ]);
    }
    let named =
        |packages: &[&'static str]| packages.iter().flat_map(|package| ["-p", *package]).collect::<Vec<_>>();
    if with_programs {
        let build = [&["build", "--locked", "--target", TARGET][..], &named(&BUILT)].concat();
        cargo_with(&build, installed, &environment)?;
    }
    let mut test = [&["nextest", "run", "--locked", "--target", TARGET][..], &named(&TESTED)].concat();
    test.extend(arguments.iter().map(String::as_str));
    cargo_with(&test, installed, &environment)
}
