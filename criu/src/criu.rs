// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs CRIU: dump, restore, and the reason when it fails.
//!
//! INVARIANT: when a function of this module returns, every CRIU that the function started has ended, and a CRIU that
//! failed has left nothing behind. Each CRIU is watched ([`crate::watch`]), and a restore also has a guard
//! ([`crate::guard`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::Seek;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use stasis::checkpoint::{Ended, Process};
use stasis::criu::{
    CRIU_DIRECTORY, CommitGate, CriuOptions, MANIFEST_FILE, ManifestError, NotFound, Program, last_error,
    withdraw,
};
use thiserror::Error;

use crate::dump_guard::DumpGuard;
use crate::guard;
use crate::interrupt::Interrupt;
use crate::order::Order;
use crate::orphans::Orphans;
use crate::watch::{Running, Stop, Target, Watch, until_ended};

/// How often pending dumps are looked at: each dump waits at its gate for the others, with its tree frozen.
const LOOK: Duration = Duration::from_millis(1);

/// How long a dump that is late, or that was cancelled, may take to undo itself. Then CRIU is killed, if possible at an instant at which
/// its code is in no task.
const GRACE: Duration = Duration::from_secs(5);

/// TIMEOUT: how long the tasks of a CRIU that was killed may take to end, or to be seen to go on.
const SETTLING: Duration = Duration::from_secs(5);

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
    /// A process that CRIU worked on has ended.
    #[error(
        "criu {verb} failed because process {pid} ended before it was complete ({how}); its last error: {reason}; the \
         whole log is {}", log.display()
    )]
    TargetEnded {
        /// `dump` or `restore`.
        verb: &'static str,
        /// The process.
        pid: i32,
        /// How it ended.
        how: Ended,
        /// The last error in CRIU's log.
        reason: String,
        /// The log.
        log: PathBuf,
    },
    /// CRIU took too long, and was ended.
    #[error(
        "criu {verb} was ended after {} ms, its deadline; its last error: {reason}; the whole log is {}",
        limit.as_millis(), log.display()
    )]
    Deadline {
        /// `dump` or `restore`.
        verb: &'static str,
        /// How long it had.
        limit: Duration,
        /// The last error in its log.
        reason: String,
        /// The log.
        log: PathBuf,
    },
    /// A signal asked this command to end.
    #[error("criu {verb} was ended: this command got SIGINT, SIGTERM or SIGHUP")]
    Interrupted {
        /// `dump` or `restore`.
        verb: &'static str,
    },
    /// Another dump failed, so this dump was told not to commit.
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

    /// Dumps trees at the same time, together for at most `limit`. Where there are several, each dump waits at a gate.
    /// The dumps pass their gates only when all have arrived, so that all trees are dumped or none is, except when a
    /// CRIU fails in its last steps.
    ///
    /// # Errors
    /// For each tree any of [`CriuError`]; those of its processes that have not ended run on then.
    pub fn dump(&self, dumps: &[Dump<'_>], limit: Duration) -> Vec<Result<(), CriuError>> {
        let prepared = Orphans::adopt().and_then(|orphans| Ok((orphans, Interrupt::note()?)));
        let (orphans, interrupt) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let mut first = Some(self.start_error(error));
                // The rest was not tried for the same reason.
                return dumps.iter().map(|_| Err(first.take().unwrap_or(CriuError::HeldBack))).collect();
            }
        };
        let mut running = Vec::new();
        let mut logs = Vec::new();
        for dump in dumps {
            let started = self.start_dump(dump);
            logs.push(started.map(|(one, said)| {
                running.push(one);
                Log { said, path: dump.images().join("dump.log") }
            }));
        }
        let targets = dumps.iter().flat_map(Dump::targets);
        let is_told = || interrupt.is_told();
        let mut watch = Watch::new(targets.collect(), Instant::now() + limit, &is_told, GRACE);
        let guard = guard_of(dumps, &running);
        let mut gates = Gates { dumps, all_started: running.len() == dumps.len(), guard, ..Gates::default() };
        let stop =
            until_ended(&mut running, &mut watch, LOOK, &mut |at_work, stop| gates.attend(at_work, stop));
        // It is a child of this process, and no orphan.
        drop(gates.guard.take());
        let mut ended = running.iter().zip(&gates.held_back);
        let judge = |(dump, log): (&Dump<'_>, Result<Log, CriuError>)| {
            let log = log?;
            let (one, is_held_back) = ended.next().ok_or(CriuError::HeldBack)?;
            let status = one.status();
            if status.signal().is_some() {
                // Its death is told before a task has run into the trap that it left there.
                let until = Instant::now() + SETTLING;
                dump.targets().for_each(|target| target.settle(until));
            }
            match dump.targets().find_map(|mut target| Some((target.pid(), target.end()?))) {
                _ if status.success() => Ok(()),
                Some((pid, how)) => Err(log.failed("dump", Stop::TargetEnded { pid, how }, limit)),
                None => match stop {
                    // A process of another tree ended: the other dumps were told to give up.
                    Some(Stop::TargetEnded { .. }) => Err(CriuError::HeldBack),
                    Some(stop) => Err(log.failed("dump", stop, limit)),
                    None if *is_held_back => Err(CriuError::HeldBack),
                    None => Err(log.failed_by_itself("dump", status)),
                },
            }
        };
        let judged: Vec<_> = dumps.iter().zip(logs).map(judge).collect();
        if judged.iter().any(Result::is_err) {
            orphans.end();
        }
        judged
    }

    fn start_dump(&self, dump: &Dump<'_>) -> Result<(Running, File), CriuError> {
        let (images, options) = (dump.images(), &dump.options);
        let mut command = Command::new(self.0.path());
        command.arg("dump").arg("--tree").arg(dump.pid.to_string()).arg("--images-dir").arg(&images);
        command.args(["--log-file", "dump.log", "-v2"]).arg("--action-script").arg(dump.commit);
        if options.leave_running {
            command.arg("--leave-running");
        }
        command.args(options.criu.dump_arguments()).args(options.extra);
        command.env("CRIU_LIBS_DIR", empty_libdir(&images));
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        let started = tempfile::tempfile().and_then(|said| {
            // A file instead of a pipe: processes that a killed CRIU leaves behind would keep the pipe open.
            command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
            let mut running = Running::start(command, true)?;
            running.has_tasks = dump.may_be_released();
            Ok((running, said))
        });
        started.map_err(|source| self.start_error(source))
    }

    /// Restores a tree, detached, within `limit`. `targets` are processes of it that were alive when it was dumped.
    ///
    /// # Errors
    /// Any of [`CriuError`]; nothing of the tree is left then.
    pub fn restore(
        &self,
        images: &Path,
        options: &CriuOptions,
        extra: &[String],
        targets: Vec<i32>,
        limit: Duration,
    ) -> Result<(), CriuError> {
        let log = images.join("restore.log");
        let mut arguments: Vec<OsString> =
            vec!["restore".into(), "--restore-detached".into(), "--images-dir".into(), images.into()];
        arguments.extend(["--log-file", "restore.log", "-v2"].map(OsString::from));
        arguments.extend(options.restore_arguments().into_iter().map(OsString::from));
        arguments.extend(extra.iter().map(OsString::from));
        let order = Order {
            program: self.0.path().into(),
            arguments,
            plugins: empty_libdir(images).into(),
            targets,
            limit,
            has_group: !options.shell_job,
        };
        let said = tempfile::tempfile().map_err(|source| self.start_error(source))?;
        let verdict = guard::order(&order, &said).map_err(|source| self.start_error(source))?;
        let log = Log { said, path: log };
        match verdict.stop {
            _ if verdict.status().success() => Ok(()),
            Some(stop) => Err(log.failed("restore", stop, limit)),
            None => Err(log.failed_by_itself("restore", verdict.status())),
        }
    }

    fn start_error(&self, source: io::Error) -> CriuError {
        CriuError::Start { program: self.0.path().into(), source }
    }
}

/// What a CRIU has said.
#[derive(Debug)]
struct Log {
    /// What it printed.
    said: File,
    path: PathBuf,
}

impl Log {
    fn reason(&self) -> String {
        // Before CRIU has opened its log it prints all messages.
        let early = || {
            (&self.said).rewind()?;
            io::read_to_string(&self.said)
        };
        let text = fs::read_to_string(&self.path).ok().filter(|text| !text.is_empty());
        last_error(&text.unwrap_or_else(|| early().unwrap_or_default()))
    }

    fn failed_by_itself(self, verb: &'static str, status: std::process::ExitStatus) -> CriuError {
        CriuError::Failed { verb, status, reason: self.reason(), log: self.path }
    }

    fn failed(self, verb: &'static str, stop: Stop, limit: Duration) -> CriuError {
        let reason = self.reason();
        match stop {
            Stop::TargetEnded { pid, how } => {
                CriuError::TargetEnded { verb, pid, how, reason, log: self.path }
            }
            Stop::Deadline => CriuError::Deadline { verb, limit, reason, log: self.path },
            Stop::Told => CriuError::Interrupted { verb },
        }
    }
}

/// A tree to dump.
#[derive(Debug)]
pub struct Dump<'a> {
    /// The root of the tree.
    pub pid: i32,
    /// The root and the processes with a runtime, as they were before.
    pub members: Vec<Target>,
    /// The checkpoint's directory.
    pub directory: &'a Path,
    /// The script CRIU calls when the images are complete and the tasks still frozen; a failure of it lets them run on.
    pub commit: &'a Path,
    /// How.
    pub options: DumpOptions<'a>,
    /// The gate where the dump waits for the others.
    pub gate: Option<&'a CommitGate>,
    /// What is to be done while the tasks are frozen and CRIU's images complete, before the gate opens; if it fails, no dump
    /// commits.
    pub before_commit: Option<&'a dyn BeforeCommit>,
}

/// What is to be done before a dump commits.
pub trait BeforeCommit: std::fmt::Debug {
    /// Does it; whether the dump may commit. It keeps its own error.
    fn prepare(&self) -> bool;
}

/// How to dump.
#[derive(Clone, Copy, Debug)]
pub struct DumpOptions<'a> {
    /// Let the tasks run on afterwards.
    pub leave_running: bool,
    /// CRIU's options that follow from the process.
    pub criu: &'a CriuOptions,
    /// More arguments, as they are.
    pub extra: &'a [String],
    /// Environment variables for CRIU.
    pub environment: &'a [(&'static str, OsString)],
}

impl Dump<'_> {
    /// The processes `pids` of a tree whose checkpoint goes into `directory`, as they are now.
    pub fn members(pids: impl Iterator<Item = i32>, directory: &Path) -> Vec<Target> {
        pids.map(|pid| Target::living(pid, directory.join(MANIFEST_FILE))).collect()
    }

    /// Whether CRIU changes nothing but the tasks that it would have to undo itself.
    fn may_be_released(&self) -> bool {
        const UNDONE: [&str; 3] = ["--tcp-established", "--freeze-cgroup", "--network-lock"];
        let is_undone = |argument: &String| UNDONE.iter().any(|option| argument.starts_with(option));
        !self.options.criu.tcp_established && !self.options.extra.iter().any(is_undone)
    }

    fn images(&self) -> PathBuf {
        self.directory.join(CRIU_DIRECTORY)
    }

    fn targets(&self) -> impl Iterator<Item = Target> {
        self.members.iter().cloned()
    }
}

/// The gates of pending dumps.
#[derive(Debug, Default)]
struct Gates<'a> {
    dumps: &'a [Dump<'a>],
    all_started: bool,
    /// Lets the tasks go on if this command is killed.
    guard: Option<DumpGuard>,
    has_withdrawn: bool,
    has_said: bool,
    /// The dumps that were at work when the others were told to give up.
    held_back: Vec<bool>,
}

impl Gates<'_> {
    /// Opens all gates when all dumps have arrived, or closes all when one dump has failed or all are to stop.
    fn attend(&mut self, at_work: &[bool], stop: Option<Stop>) {
        let log = |said: Result<(), ManifestError>| {
            if let Err(error) = said {
                tracing::error!(target: "criu", %error, "a dump is not told whether to commit");
            }
        };
        if stop.is_some() && !self.has_withdrawn {
            self.has_withdrawn = true;
            self.dumps.iter().for_each(|dump| log(withdraw(dump.directory)));
        }
        if self.has_said {
            return;
        }
        let gates = || self.dumps.iter().filter_map(|dump| dump.gate);
        // A dump that has ended by now has failed.
        if !self.all_started || stop.is_some() || at_work.contains(&false) {
            gates().for_each(|gate| log(gate.refuse()));
            (self.has_said, self.held_back) = (true, at_work.to_vec());
        } else if gates().all(CommitGate::is_prepared) {
            let may_commit =
                self.dumps.iter().filter_map(|dump| dump.before_commit).all(BeforeCommit::prepare);
            if let Some(guard) = &mut self.guard {
                guard.let_go();
            }
            match may_commit {
                true => gates().for_each(|gate| log(gate.commit())),
                false => gates().for_each(|gate| log(gate.refuse())),
            }
            (self.has_said, self.held_back) = (true, vec![!may_commit; at_work.len()]);
        }
    }
}

/// A guard of dumps that wait for word to commit. CRIU itself undoes what it does to the network.
fn guard_of(dumps: &[Dump<'_>], running: &[Running]) -> Option<DumpGuard> {
    if !dumps.iter().all(|dump| dump.gate.is_some() && dump.may_be_released()) {
        return None;
    }
    let criu: Vec<Process> = running.iter().filter_map(Running::process).collect();
    // Without a guard CRIU ends when it comes to its gate.
    let started = DumpGuard::start(&criu);
    started.map_err(|error| tracing::warn!(target: "criu", %error, "the dump has no guard")).ok()
}

/// Plugins of other devices that are installed must not run; an empty directory keeps them out.
fn empty_libdir(images: &Path) -> PathBuf {
    let directory = images.join("no-plugins");
    // A directory that cannot be made makes CRIU fail with its name, which says enough.
    let _ = fs::create_dir(&directory);
    directory
}
