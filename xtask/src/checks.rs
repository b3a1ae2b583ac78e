// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is checked of the sources beside the tests: format, lints, documentation, and undefined behaviour under Miri.

use std::process::Command;

use anyhow::Result;

use crate::setup::Installed;
use crate::setup::process::shown;
use crate::workspace::{cargo, cargo_with, root};

/// Packages and filters of the tests that Miri runs: rings, the registry's tables and hostile ELF files. Miri starts no
/// processes, and takes minutes for the mappings' page arrays.
const UNDER_MIRI: [(&str, &[&str]); 2] = [
    ("stasis-queues", &["ring::"]),
    ("stasis", &["context::registry", "code_object::elf", "--skip", "registry::maps"]),
];

/// Format, lints and documentation, as `.ci/run` checks them.
pub fn check(installed: &Installed) -> Result<()> {
    cargo(&["fmt", "--all", "--", "--check"], installed)?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], installed)?;
    let doc = ["doc", "--workspace", "--no-deps", "--locked", "--quiet"];
    cargo_with(&doc, installed, &[("RUSTDOCFLAGS", "-D warnings")])
}

/// Runs the tests that Miri can bear, installing it with rustup if it is not there.
pub fn miri() -> Result<()> {
    let is_there = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("Installing Miri with rustup: toolchain nightly, components miri and rust-src");
        shown(Command::new("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]))?;
        shown(Command::new("rustup").args([
            "component",
            "add",
            "--toolchain",
            "nightly",
            "miri",
            "rust-src",
        ]))?;
    }
    for (package, filters) in UNDER_MIRI {
        println!("Miri: {package} {}", filters.join(" "));
        let mut command = Command::new("cargo");
        command.args(["+nightly", "miri", "test", "--locked", "--lib", "-p", package, "--"]).args(filters);
        // Miri is a thousand times slower than the tests: a few cases of a property have to do.
        command.env("PROPTEST_CASES", "4").env("MIRIFLAGS", "-Zmiri-disable-isolation").current_dir(root());
        shown(&mut command)?;
    }
    Ok(())
}
