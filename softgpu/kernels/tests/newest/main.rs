// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels by the newest compiler that the package registries have, the LLVM inside Triton's wheel: the catalogue's, from
//! the same C sources, and some in Triton's own language.
//!
//! INVARIANT: a compiler that is not there is a failure that says how to install it, never a pass.

mod catalogue;
mod triton;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python that has Triton: the one that `STASIS_TRITON` names, else the one that the setup makes.
fn python() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.stasis/triton/bin/python");
    let python = std::env::var_os("STASIS_TRITON").map_or(made, PathBuf::from);
    assert!(python.exists(), "{} is not there: run `cargo xtask setup`", python.display());
    python
}

/// Runs one of the scripts beside this package's sources, and answers what it printed.
fn script(name: &str, arguments: &[PathBuf], cache: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("newest").join(name);
    // Triton keeps what it compiled; not between runs, so that each run compiles.
    run(Command::new(python()).arg("-I").arg(script).args(arguments).env("TRITON_CACHE_DIR", cache))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} could not be started: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed ({}): {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A new directory below the target's, for one test.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("newest-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
