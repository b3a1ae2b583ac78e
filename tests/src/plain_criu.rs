// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU as users run it, with plugins in a directory of the test's own.
//!
//! INVARIANT: plugins that are installed on the machine are never loaded: CRIU loads the plugins of one directory,
//! which is always the test's own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::{criu, program};

/// File name of this repository's plugin, as cargo builds it.
pub const PLUGIN: &str = "libstasis_criu_plugin.so";

/// A directory of plugins.
#[derive(Debug)]
pub struct Plugins {
    directory: TempDir,
}

impl Plugins {
    /// Without plugins.
    ///
    /// # Panics
    /// When there is no temporary directory.
    #[must_use]
    pub fn none() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// With this repository's plugin.
    ///
    /// # Panics
    /// When it was not built.
    #[must_use]
    pub fn ours() -> Self {
        let plugins = Self::none();
        fs::copy(program(PLUGIN), plugins.path().join(PLUGIN)).expect("a copy of the plugin");
        plugins
    }

    /// With this repository's plugin, and another one that CRIU loads before or after it.
    ///
    /// # Panics
    /// When the C compiler does not take its source.
    #[must_use]
    pub fn with_another(source: &str, first: bool) -> Self {
        let plugins = Self::ours();
        let text = plugins.path().join("another.c");
        fs::write(&text, source).expect("a source file");
        // CRIU loads plugins in the order of the directory, which the file system decides: names are tried until the
        // order fits.
        for number in 0..1000 {
            let other = plugins.path().join(format!("another-{number}.so"));
            fs::write(&other, "").expect("a name");
            let listed: Vec<_> =
                fs::read_dir(plugins.path()).expect("a directory").flatten().map(|e| e.path()).collect();
            let at = |path: &Path| listed.iter().position(|p| p == path);
            if (at(&other) < at(&plugins.path().join(PLUGIN))) == first {
                // Written into the existing file of that name, so that the order stays.
                let built = plugins.path().join("another.built");
                let mut compiler = Command::new("clang-19");
                compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(&text);
                let output = compiler.output().expect("clang-19");
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                fs::write(&other, fs::read(&built).expect("what was built")).expect("the plugin");
                return plugins;
            }
            fs::remove_file(&other).expect("a name less");
        }
        panic!("a file system that gives every name the same place");
    }

    /// Where they are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// What CRIU did.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit status and its output.
    pub output: Output,
    /// Its log.
    pub log: String,
}

impl Outcome {
    /// Makes sure that it succeeded.
    ///
    /// # Panics
    /// With its log when it failed.
    pub fn succeeded(&self) {
        assert!(self.output.status.success(), "{:?}: {}", self.output, self.log);
    }

    /// What the plugin logged when CRIU failed.
    ///
    /// # Panics
    /// When it succeeded.
    #[must_use]
    pub fn refused(&self) -> String {
        assert!(!self.output.status.success(), "{}", self.log);
        self.log.lines().filter(|line| line.contains("Error (stasis)")).collect()
    }
}

/// `criu dump` of a tree into a new directory, as a command to which options can be added.
///
/// # Panics
/// When the directory cannot be made.
#[must_use]
pub fn dump_command(pid: i32, images: &Path, plugins: &Plugins) -> Command {
    if !images.exists() {
        fs::create_dir(images).expect("a directory for the images");
    }
    let mut command = Command::new(criu());
    command.args(["dump", "-v4", "-o", "dump.log", "-t", &pid.to_string(), "-D"]).arg(images);
    command.arg("-L").arg(plugins.path()).stdin(Stdio::null());
    command
}

/// `criu dump` of a tree into a directory.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn dump<A: AsRef<OsStr>>(pid: i32, images: &Path, plugins: &Plugins, arguments: &[A]) -> Outcome {
    run(dump_command(pid, images, plugins).args(arguments), &images.join("dump.log"))
}

/// Detached `criu restore` from a directory.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn restore(images: &Path, plugins: &Plugins) -> Outcome {
    let mut command = Command::new(criu());
    command.args(["restore", "-v4", "-o", "restore.log", "-d", "-D"]).arg(images);
    run(command.arg("-L").arg(plugins.path()).stdin(Stdio::null()), &images.join("restore.log"))
}

/// Runs CRIU and reads its log.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn run(command: &mut Command, log: &Path) -> Outcome {
    let output = command.output().expect("criu");
    let log = fs::read(log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
    Outcome { output, log }
}

/// An action script that runs `text` when the images are complete and the tasks still frozen.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn at_post_dump(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("action");
    let script = format!("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n{text}\n");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a script that runs");
    path
}
