// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs that were written for AMD's driver take under `stasis run`.
//!
//! | case | peer |
//! | --- | --- |
//! | rocminfo, from start to end | rocminfo alone, which ends when it finds no driver |
//! | HIP: an empty kernel and hipStreamSynchronize | a word passed to another process and back, under the same rhythm |
//! | HIP: a program that sleeps | a core |
//! | tinygrad: a forward pass of a network for MNIST | tinygrad's own CPU device, same Python, same compiler, all cores |
//! | calls of an HSA runtime, ours (`bench hsa`) | AMD's runtime under `stasis run` |
//! | the Python package (`bench python`) | numpy |
//! | tinygrad with 1 GiB, frozen and thawed | a write of as many bytes to the same place |
//!
//! INVARIANT: nothing is measured of a run whose device executed nothing, or whose results are wrong.

mod frozen;
mod hip;
pub mod hsa;
pub mod package;
mod rocminfo;
mod tinygrad;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::figure::Report;

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    rocminfo::run(report)?;
    hip::run(report)?;
    tinygrad::run(report)?;
    frozen::run(report)
}

/// A file of this benchmark.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// What the setup installed, by the variable that names it.
fn installed(variable: &str, default: &str) -> Result<PathBuf> {
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis").join(default);
    let path = std::env::var_os(variable).map_or(private, PathBuf::from);
    let found = path.exists();
    ensure!(found, "{} is missing: run `cargo xtask setup --clients`, or set {variable}", path.display());
    Ok(path)
}

/// `stasis run --verbose --` on one gfx1100; the program follows.
fn stasis_run() -> Result<Command> {
    let stasis = std::env::current_exe()?.with_file_name("stasis");
    ensure!(stasis.exists(), "{} is missing: `cargo xtask bench` builds it", stasis.display());
    let mut command = Command::new(stasis);
    command.args(["run", "--verbose", "--device", "soft:gfx1100", "--"]);
    Ok(command)
}

/// Checks by what `stasis run --verbose` said that a device executed waves.
fn check_executed(errors: &str) -> Result<()> {
    let line = errors.lines().find(|line| line.starts_with("stasis run: processes="));
    let line = line.with_context(|| format!("stasis run told no counts: {errors}"))?;
    for count in ["dispatches", "waves", "instructions"] {
        let value = line.split(' ').find_map(|word| word.strip_prefix(count)?.strip_prefix('='));
        ensure!(value.is_some_and(|value| value != "0"), "the device had no {count}: {line}");
    }
    Ok(())
}
