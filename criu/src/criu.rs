// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs CRIU: dump, restore, and the reason when it fails.

use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use stasis::criu::{CommitGate, CriuOptions, NotFound, Program, last_error};
use thiserror::Error;

use crate::orphans::Orphans;

/// How often dumps under way are looked at.
const LOOK: Duration = Duration::from_millis(1);

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
    /// It was told not to go on.
    #[error("The dump was given up because another one of the session failed")]
    HeldBack,
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
        let orphans = self.adopt()?;
        self.start_dump(pid, images, options)?.end(Some(orphans))
    }

    /// Dumps several trees at the same time. Each stops at its gate; only when all are there may they go through, so that
    /// all are dumped or none is, short of a CRIU that fails in its very last steps.
    ///
    /// # Errors
    /// For each tree [`CriuError::Start`], [`CriuError::Failed`]; it runs on then.
    pub fn dump_all(&self, dumps: &[GatedDump<'_>]) -> Vec<Result<(), CriuError>> {
        let orphans = match self.adopt() {
            Ok(orphans) => orphans,
            Err(error) => {
                let mut first = Some(error);
                // The rest was not tried for the same reason.
                let not_tried = || self.start_error(io::ErrorKind::Interrupted.into());
                return dumps.iter().map(|_| Err(first.take().unwrap_or_else(not_tried))).collect();
            }
        };
        let start = |dump: &GatedDump<'_>| self.start_dump(dump.pid, dump.images, &dump.options);
        let mut dumping: Vec<Result<Running, CriuError>> = dumps.iter().map(start).collect();
        let mut is_at_work: Vec<bool>;
        let may_commit = loop {
            let at_work =
                |dump: &mut Result<Running, CriuError>| dump.as_mut().is_ok_and(Running::is_at_work);
            is_at_work = dumping.iter_mut().map(at_work).collect();
            // Whoever has ended by now has failed.
            if is_at_work.contains(&false) {
                break false;
            }
            if dumps.iter().all(|dump| dump.gate.is_prepared()) {
                break true;
            }
            std::thread::sleep(LOOK);
        };
        for dump in dumps {
            let said = if may_commit { dump.gate.commit() } else { dump.gate.refuse() };
            if let Err(error) = said {
                tracing::error!(target: "criu", %error, "a dump is not told whether to commit");
            }
        }
        let end = |(dump, was_at_work): (Result<Running, CriuError>, bool)| {
            let ended = dump.and_then(|dump| dump.end(None));
            let is_held_back = was_at_work && !may_commit;
            ended.map_err(|error| if is_held_back { CriuError::HeldBack } else { error })
        };
        let ended: Vec<_> = dumping.into_iter().zip(is_at_work).map(end).collect();
        if ended.iter().any(Result::is_err) {
            orphans.end();
        }
        ended
    }

    fn start_dump(&self, pid: i32, images: &Path, options: &DumpOptions<'_>) -> Result<Running, CriuError> {
        let mut command = Command::new(self.0.path());
        command.arg("dump").arg("--tree").arg(pid.to_string()).arg("--images-dir").arg(images);
        command.args(["--log-file", "dump.log", "-v2"]).arg("--action-script").arg(options.commit);
        if options.leave_running {
            command.arg("--leave-running");
        }
        command.args(options.criu.dump_arguments()).args(options.extra);
        self.start("dump", command, images.join("dump.log"))
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
        let orphans = self.adopt()?;
        self.start("restore", command, images.join("restore.log"))?.end(Some(orphans))
    }

    fn start_error(&self, source: io::Error) -> CriuError {
        CriuError::Start { program: self.0.path().into(), source }
    }

    fn adopt(&self) -> Result<Orphans, CriuError> {
        Orphans::adopt().map_err(|source| self.start_error(source))
    }

    fn start(&self, verb: &'static str, mut command: Command, log: PathBuf) -> Result<Running, CriuError> {
        command.env("CRIU_LIBS_DIR", empty_libdir(&log));
        let start = |source| self.start_error(source);
        // A file and no pipe: whatever a killed CRIU leaves behind would keep that open.
        let said = tempfile::tempfile().map_err(start)?;
        let (to, also) = (said.try_clone().map_err(start)?, said.try_clone().map_err(start)?);
        let child = command.stdin(Stdio::null()).stdout(to).stderr(also).spawn().map_err(start)?;
        Ok(Running { verb, program: self.0.path().into(), child, said, log })
    }
}

/// A CRIU at work.
#[derive(Debug)]
struct Running {
    verb: &'static str,
    program: PathBuf,
    child: Child,
    /// What it prints.
    said: File,
    log: PathBuf,
}

impl Running {
    fn is_at_work(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; what it leaves behind if it fails ends with it, unless others still work.
    fn end(mut self, orphans: Option<Orphans>) -> Result<(), CriuError> {
        let start = |source| CriuError::Start { program: self.program.clone(), source };
        let status = self.child.wait().map_err(start)?;
        if status.success() {
            return Ok(());
        }
        if let Some(orphans) = orphans {
            orphans.end();
        }
        // Before it has opened its log it says everything there.
        let early = || {
            (&self.said).rewind()?;
            io::read_to_string(&self.said)
        };
        let text = fs::read_to_string(&self.log).ok().filter(|text| !text.is_empty());
        let reason = last_error(&text.unwrap_or_else(|| early().unwrap_or_default()));
        Err(CriuError::Failed { verb: self.verb, status, reason, log: self.log })
    }
}

/// One of several dumps that are made together.
#[derive(Debug)]
pub struct GatedDump<'a> {
    /// The root of the tree.
    pub pid: i32,
    /// Where CRIU's images go.
    pub images: &'a Path,
    /// How; the commit is the gate's script.
    pub options: DumpOptions<'a>,
    /// Where it waits.
    pub gate: &'a CommitGate,
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
