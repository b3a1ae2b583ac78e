// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask aarch64`: builds what runs on any CPU for aarch64, and runs tests of it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::setup::aarch64::TARGET;
use crate::setup::{self, Installed};
use crate::workspace::{cargo_with, target};

/// What is built: the software device, the runtime and the command.
const BUILT: [&str; 3] = ["stasis-softgpu", "stasis", "stasis-cli"];
/// What is tested: all that needs neither a second process nor more of the kernel than an emulator of programs has.
const TESTED: [&str; 4] =
    ["stasis-queues", "stasis-softgpu-isa", "stasis-softgpu-waves", "stasis-softgpu-kernels"];

/// Of these, what takes a submission's time: packets, and whole kernels by the interpreter.
const TESTED_BRIEFLY: [&str; 2] = ["stasis-queues", "stasis-softgpu-kernels"];

/// What is built and tested.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only build what the tests need, not the software device, the runtime and the command.
    #[arg(long)]
    without_programs: bool,
    /// Only run packets and whole kernels, not every instruction by itself, whose tests take minutes to compile.
    #[arg(long)]
    briefly: bool,
    /// Arguments for `cargo nextest run`, such as a filter.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and tests.
pub fn run(options: &Options, installed: &Installed) -> Result<()> {
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
    if !options.without_programs {
        let build = [&["build", "--locked", "--target", TARGET][..], &named(&BUILT)].concat();
        cargo_with(&build, installed, &environment)?;
    }
    let tested = if options.briefly { &TESTED_BRIEFLY[..] } else { &TESTED };
    let mut test = [&["nextest", "run", "--locked", "--target", TARGET][..], &named(tested)].concat();
    test.extend(options.arguments.iter().map(String::as_str));
    cargo_with(&test, installed, &environment)
}
