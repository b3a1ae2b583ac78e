// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels by the newest compiler that the package registries have, the LLVM inside Triton's wheel: the catalogue's, from
//! the same C sources, and some in Triton's own language.

mod catalogue;
mod triton;

use std::path::PathBuf;

/// A new directory below the target's, for one test.
fn directory(name: &str) -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("newest-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
