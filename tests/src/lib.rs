// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that the integration tests share: the paths of the programs under test, a test's own runtime, workers to
//! freeze.
#![deny(unsafe_code)]

pub mod clients;
pub mod container;
pub mod culprit;
pub mod foreign;
pub mod gpu;
pub mod hsa;
pub mod images;
pub mod linux;
pub mod packets;
pub mod plain_criu;
pub mod python;
pub mod s3;
pub mod sample;
pub mod server;
pub mod sharer;
pub mod shell;
pub mod slurm;
pub mod stepper;
pub mod survivor;
pub mod tally;
pub mod tree;
pub mod worker;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program of this workspace, where cargo put it for this build.
///
/// # Panics
/// When it was not built: `cargo xtask test` builds everything first.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let found = own.ancestors().skip(1).take(3).map(|d| d.join(name)).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("{name} is not beside {}: run `cargo xtask test`", own.display()))
}

/// A command in a session of its own, since CRIU takes no process that hangs on a terminal. It has no input, and what it
/// prints goes to the end of the file `log` in `directory`. The program and its arguments follow.
///
/// # Panics
/// When there can be no log.
#[must_use]
pub fn detached(directory: &Path) -> Command {
    let log = OpenOptions::new().create(true).append(true).open(directory.join("log")).expect("a log");
    let mut command = Command::new("setsid");
    command.current_dir("/").stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log);
    command
}

/// The CRIU that `cargo xtask setup` found or installed.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn criu() -> PathBuf {
    let named = std::env::var_os("STASIS_CRIU").map(PathBuf::from);
    let prefix = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/criu/bin/criu");
    named
        .into_iter()
        .chain([prefix, "/usr/sbin/criu".into()])
        .find(|p| p.is_file())
        .expect("no CRIU: run `cargo xtask setup`")
}

/// The model that `cargo xtask setup` fetched.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn model() -> PathBuf {
    let named = std::env::var_os("STASIS_MODEL").map(PathBuf::from);
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/models/all-MiniLM-L6-v2");
    named
        .into_iter()
        .chain([fetched])
        .find(|path| path.join("model.safetensors").is_file())
        .expect("no model: run `cargo xtask setup`")
}
