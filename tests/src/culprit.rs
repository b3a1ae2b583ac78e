// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that holds one resource that CRIU may refuse (`src/bin/culprit.rs`), which `stasis preflight` must find.

use std::fs::{self, File, OpenOptions};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::worker::{is_alive, kill, stasis, wait_until};
use crate::{criu, program};

/// A process that holds one resource. It ends with its handle.
#[derive(Debug)]
pub struct Culprit {
    directory: TempDir,
    child: Child,
    /// Its pid.
    pub pid: i32,
}

impl Culprit {
    /// Starts a process that holds `thing`, made from `argument` or in its directory; `None`, with a printed reason, if
    /// the kernel does not have such a resource.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(thing: &str, argument: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let append =
            OpenOptions::new().create(true).append(true).open(directory.path().join("log")).expect("a log");
        Self::start_in(directory, append, thing, argument)
    }

    /// The same with its directory and the file it writes to.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_in(directory: TempDir, log: File, thing: &str, argument: Option<&str>) -> Option<Self> {
        let path = directory.path().to_str().expect("a temporary path is UTF-8").to_owned();
        let mut command = Command::new("setsid");
        command.arg(program("culprit")).args([thing, argument.unwrap_or(&path)]);
        Self::run(directory, log, &mut command, thing)
    }

    /// The same by a command that starts it.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn run(directory: TempDir, log: File, command: &mut Command, thing: &str) -> Option<Self> {
        let command = command
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("the log"))
            .stdout(log);
        let mut child = command.spawn().expect("setsid (util-linux)");
        let mut pid = None;
        wait_until("a culprit", || {
            let log = fs::read_to_string(directory.path().join("log")).expect("the log");
            pid = log.lines().find_map(|line| line.strip_prefix("ready ")?.parse().ok());
            pid.is_some() || child.try_wait().expect("the culprit").is_some()
        });
        let Some(pid) = pid else {
            assert_eq!(child.wait().expect("the culprit").code(), Some(77), "{thing}");
            eprintln!("{thing}: this kernel does not have it, so nothing is tested");
            return None;
        };
        Some(Self { directory, child, pid })
    }

    /// Runs `stasis preflight --json` on it.
    ///
    /// # Panics
    /// When that cannot be started.
    #[must_use]
    pub fn preflight(&self, more: &[&str]) -> Output {
        let pid = self.pid.to_string();
        let mut arguments = vec!["preflight", "--json", &pid];
        arguments.extend(more);
        stasis(&arguments, &criu())
    }

    /// Has CRIU itself dump it into `name`; the process runs on in any case.
    ///
    /// # Errors
    /// CRIU's log.
    ///
    /// # Panics
    /// When CRIU cannot be started, or ends the process.
    pub fn dump(&self, name: &str, more: &[&str]) -> Result<(), String> {
        let images = self.directory.path().join(name);
        fs::create_dir(&images).expect("a directory for images");
        let mut command = Command::new(criu());
        command.args(["dump", "--leave-running", "-o", "dump.log", "-t", &self.pid.to_string(), "-D"]);
        let output = command.arg(&images).args(more).output().expect("criu");
        assert!(is_alive(self.pid));
        if output.status.success() {
            return Ok(());
        }
        Err(fs::read_to_string(images.join("dump.log")).unwrap_or_default())
    }
}

impl Drop for Culprit {
    fn drop(&mut self) {
        kill(self.pid);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
