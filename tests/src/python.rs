// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of the kernel's driver that are written in Python, unmodified, on a software device of their own.
//!
//! INVARIANT: a client ends by its deadline, with all processes that it started, and leaves no file in the repository or in the
//! user's directories.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::program;

/// TIMEOUT: for a client on a busy machine; on a quiet one none takes half a minute.
pub const PATIENCE: Duration = Duration::from_secs(400);

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

/// `stasis run` with these devices; the program and its arguments follow.
#[must_use]
pub fn on_device(devices: &str) -> Command {
    let mut command = Command::new(program("stasis"));
    command.args(["run", "--verbose", "--device", devices, "--"]);
    command
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

/// How a client ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

impl Ended {
    /// Everything that it printed, for a failure.
    #[must_use]
    pub fn said(&self) -> String {
        format!("{}\n{}\n{}", self.status, self.output, self.errors)
    }

    /// A number in the line in which `stasis run --verbose` says what the device did.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let lines = self.errors.lines().filter_map(|line| line.strip_prefix("stasis run: "));
        let mut fields = lines.flat_map(str::split_whitespace).filter_map(|field| field.split_once('='));
        let found = fields.find_map(|(key, value)| (key == name).then(|| value.parse().ok()).flatten());
        found.unwrap_or_else(|| panic!("no {name}= in what stasis run says: {}", self.said()))
    }

    /// Checks that it succeeded, and that the device executed its kernels.
    ///
    /// # Panics
    /// When it did not.
    pub fn computed(&self) {
        assert!(self.status.success(), "{}", self.said());
        for name in ["ioctls", "dispatches", "waves", "instructions"] {
            assert!(self.count(name) > 0, "no {name}: {}", self.said());
        }
    }
}

/// Waits for a client; its output goes to files, so that it never waits for a reader.
///
/// # Panics
/// When it cannot be started or does not end within [`PATIENCE`].
pub fn ended(command: &mut Command) -> Ended {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (output, errors) = (directory.path().join("output"), directory.path().join("errors"));
    let create = |path: &Path| File::create(path).expect("a file");
    // A group of its own: a deadline ends the processes of the client, too.
    command.process_group(0).stdin(Stdio::null()).stdout(create(&output)).stderr(create(&errors));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let deadline = Instant::now() + PATIENCE;
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return Ended { status, output: text(&output), errors: text(&errors) };
        }
        if Instant::now() > deadline {
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
            let (seconds, said) = (PATIENCE.as_secs(), text(&output) + &text(&errors));
            panic!("{command:?} did not end within {seconds} s: {said}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
