// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs CRIU: dump, restore, and the reason when it fails.

use std::io::Seek;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use stasis::criu::{CriuOptions, NotFound, Program, last_error};
use thiserror::Error;

use crate::orphans::Orphans;

/// Why CRIU could not be used, or what it said when it failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CriuError {
    /// No candidate is usable.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The program could not be started.
    #[error("Cannot start {}", program.display())]
    Start {
        /// Which program.
        program: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// CRIU ran and failed.
    #[error("criu {verb} failed ({status}): {reason}; the whole log is {}", log.display())]
    Failed {
        /// `dump` or `restore`.
        verb: &'static str,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The last error in its log.
        reason: String,
        /// The log.
        log: PathBuf,
    },
}

/// A CRIU known to be new enough.
#[derive(Clone, Debug)]
pub struct Criu(Program);

impl Criu {
    /// Finds one.
    ///
    /// # Errors
    /// [`CriuError::NotFound`].
    pub fn find() -> Result<Self, CriuError> {
        Ok(Self(Program::find()?))
    }

    /// Where it is.
    pub fn program(&self) -> &Path {
        self.0.path()
    }

    /// The version as CRIU prints it.
    pub fn version(&self) -> &str {
        self.0.version()
    }

    /// Dumps the tree of `pid` into `images`; `commit` is run by CRIU when the images are complete and the tasks are
    /// still frozen, and a failure of it lets them run on.
    ///
    /// # Errors
    /// [`CriuError::Start`], [`CriuError::Failed`]; the process runs on then.
    pub fn dump(&self, pid: i32, images: &Path, options: &DumpOptions<'_>) -> Result<(), CriuError> {
        let mut command = Command::new(self.0.path());
        command.arg("dump").arg("--tree").arg(pid.to_string()).arg("--images-dir").arg(images);
        command.args(["--log-file", "dump.log", "-v2"]).arg("--action-script").arg(options.commit);
        if options.leave_running {
            command.arg("--leave-running");
        }
        command.args(options.criu.dump_arguments()).args(options.extra);
        self.run("dump", command, &images.join("dump.log"))
    }

    /// Restores the tree in `images`, detached.
    ///
    /// # Errors
    /// [`CriuError::Start`], [`CriuError::Failed`].
    pub fn restore(&self, images: &Path, options: &CriuOptions, extra: &[String]) -> Result<(), CriuError> {
        let mut command = Command::new(self.0.path());
        command.args(["restore", "--restore-detached", "--images-dir"]).arg(images);
        command.args(["--log-file", "restore.log", "-v2"]);
        command.args(options.restore_arguments()).args(extra);
        self.run("restore", command, &images.join("restore.log"))
    }

    fn run(&self, verb: &'static str, mut command: Command, log: &Path) -> Result<(), CriuError> {
        command.env("CRIU_LIBS_DIR", empty_libdir(log));
        let start = |source| CriuError::Start { program: self.0.path().into(), source };
        // A file and no pipe: whatever a killed CRIU leaves behind would keep that open.
        let said = tempfile::tempfile().map_err(start)?;
        let (to, also) = (said.try_clone().map_err(start)?, said.try_clone().map_err(start)?);
        let orphans = Orphans::adopt().map_err(start)?;
        let status = command.stdin(Stdio::null()).stdout(to).stderr(also).status().map_err(start)?;
        if status.success() {
            return Ok(());
        }
        orphans.end();
        // Before it has opened its log it says everything there.
        let early = || {
            (&said).rewind()?;
            io::read_to_string(&said)
        };
        let text = fs::read_to_string(log).ok().filter(|text| !text.is_empty());
        let reason = last_error(&text.unwrap_or_else(|| early().unwrap_or_default()));
        Err(CriuError::Failed { verb, status, reason, log: log.into() })
    }
}

/// How to dump.
#[derive(Clone, Copy, Debug)]
pub struct DumpOptions<'a> {
    /// The action script CRIU calls.
    pub commit: &'a Path,
    /// Let the tasks run on afterwards.
    pub leave_running: bool,
    /// What CRIU is told of the process.
    pub criu: &'a CriuOptions,
    /// More arguments, as they are.
    pub extra: &'a [String],
}

/// Plugins installed for other devices are not ours to run; an empty directory keeps them out.
fn empty_libdir(log: &Path) -> PathBuf {
    let directory = log.with_file_name("no-plugins");
    // A directory that cannot be made makes CRIU fail with its name, which says enough.
    let _ = fs::create_dir(&directory);
    directory
}
