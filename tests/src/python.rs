// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of the kernel's driver that are written in Python: where they are, and how they are to be started.
//!
//! INVARIANT: a client leaves no file in the repository or in the user's directories.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::on_device;

/// The Python that `cargo xtask setup --clients` installed.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn python() -> PathBuf {
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/clients-python/bin/python");
    let path = std::env::var_os("STASIS_CLIENTS_PYTHON").map_or(private, PathBuf::from);
    assert!(path.is_file(), "no {}: run `cargo xtask setup --clients`", path.display());
    path
}

/// A file of the tests for clients.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// tinygrad's Python on these devices, with kernels by LLVM and nothing kept from one run for the next; what Python is to
/// execute follows.
#[must_use]
pub fn tinygrad(devices: &str) -> Command {
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into());
    let mut command = on_device(devices);
    command.arg(python()).env("DEV", "KFD+AMD:LLVM;CPU:LLVM");
    // For the CPU tinygrad compiles four functions of its own with a C compiler whatever compiles the kernels.
    command.env("CC", clang).envs([("CACHELEVEL", "0"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    // Kernels are compiled by the process itself: it takes less time than to start others for the few of a test.
    command.env("PARALLEL", "0");
    for variable in ["AMD_AQL", "AMD_DISABLE_SDMA", "BEAM", "DEBUG", "NOOPT", "PYTEST_ADDOPTS", "PYTHONPATH"]
    {
        command.env_remove(variable);
    }
    command
}
