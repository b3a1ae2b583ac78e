// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the sources beside the tests: format, spelling, lints, documentation, dependencies, and undefined
//! behaviour under Miri.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::process::shown;
use crate::setup::{self, Installed};
use crate::workspace::{cargo, cargo_with, root};

/// Packages and filters of the tests that Miri runs: rings, the registry's tables and hostile ELF files. Miri starts no
/// processes, and takes minutes for the mappings' page arrays.
const UNDER_MIRI: [(&str, &[&str]); 2] = [
    ("stasis-queues", &["ring::"]),
    ("stasis", &["context::registry", "code_object::elf", "--skip", "registry::maps"]),
];

/// What is checked.
#[derive(Debug, Clone, Args)]
pub struct CheckOptions {
    /// Leave out the licences, sources and versions of dependencies, whose checker takes minutes to install.
    #[arg(long)]
    pub without_deny: bool,
    /// Leave out the fuzz targets, for which all dependencies are checked again.
    #[arg(long)]
    pub without_fuzz: bool,
}

/// Format, spelling, lints, documentation and dependencies.
pub fn check(options: &CheckOptions, installed: &Installed) -> Result<()> {
    cargo(&["fmt", "--all", "--", "--check"], installed)?;
    let checkers = setup::checkers()?;
    shown(Command::new(checkers.join("typos")).current_dir(root()))?;
    manifests(&checkers)?;
    if !options.without_deny {
        deny(installed)?;
    }
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], installed)?;
    let doc = ["doc", "--workspace", "--no-deps", "--locked", "--quiet"];
    cargo_with(&doc, installed, &[("RUSTDOCFLAGS", "-D warnings")])?;
    // As on the documentation's machine, which has no compiler for kernels.
    let without = ["check", "-p", "stasis", "--no-default-features", "--locked"];
    cargo_with(&without, installed, &[("STASIS_CLANG", "/nonexistent/clang")])?;
    if options.without_fuzz {
        return Ok(());
    }
    // No part of the workspace: they are run seldom, and cease to build unseen.
    cargo(&["check", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--locked"], installed)
}

/// Compares the manifests for Kubernetes with its schemas.
fn manifests(checkers: &Path) -> Result<()> {
    let directory = root().join("deploy/kubernetes");
    let entries = fs::read_dir(&directory).with_context(|| format!("Cannot read {}", directory.display()))?;
    let files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let mut validate = Command::new(checkers.join("kubernetes-validate"));
    shown(validate.args(["--strict", "--quiet"]).args(files))
}

/// Licences, sources and versions of dependencies, as `deny.toml` allows them. Advisories are not among them: their
/// database is fetched from a host that machines for builds need not reach.
fn deny(installed: &Installed) -> Result<()> {
    let found = Command::new("cargo-deny").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("Installing cargo-deny with cargo (takes some minutes)");
        cargo(&["install", "--locked", "cargo-deny"], installed)?;
    }
    cargo(&["deny", "--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"], installed)
}

/// Runs the tests that Miri can run. Installs Miri with rustup if it is missing.
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
        // Miri is a thousand times slower than the tests: a few cases of a property must suffice.
        command.env("PROPTEST_CASES", "4").env("MIRIFLAGS", "-Zmiri-disable-isolation").current_dir(root());
        shown(&mut command)?;
    }
    Ok(())
}
