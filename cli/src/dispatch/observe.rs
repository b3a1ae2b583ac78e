// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--engine`, `--trace` and `--stats`: wishes to the software device, and what it writes down.
//!
//! The runtime does not know which device it drives, so the wishes travel past it: in the environment that a `softgpud`
//! is started with. `stasis` executes itself again with that environment and the name of an instance of its own.
//!
//! INVARIANT: the instance's name holds our process id, which executing keeps and no child shares: only the process that
//! asked takes the wishes for granted.
//!
//! Counts and traces come from the interpreter, instruction by instruction. Where an engine is named, or runs are timed,
//! they are taken by a process of their own: the same command again, which runs the kernel once from the same arguments.
//! Both engines do the same, bit for bit, so its counts are those of the runs that were timed; a kernel whose waves race
//! each other may count differently from one run to the next, with any engine.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use stasis::Runtime;

use super::report::Report;
use super::stats::Stats;

const INSTANCE: &str = "STASIS_SOFTGPU_INSTANCE";
const DIRECTORY: &str = "STASIS_DISPATCH_DIRECTORY";
/// Names the process that another counts for.
const COUNTER: &str = "STASIS_DISPATCH_COUNTS_FOR";
const STATS: &str = "stats";
const TRACE: &str = "trace";

/// What executes waves on the software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The interpreter.
    Interp,
    /// Generated code.
    Jit,
    /// Code that is generated in less time, and slower.
    Quick,
    /// The interpreter until generating code pays.
    Auto,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Interp => "interp",
            Self::Jit => "jit",
            Self::Quick => "quick",
            Self::Auto => "auto",
        }
    }
}

/// What only the software device can do.
#[derive(Debug, Args)]
pub struct ObserveArgs {
    /// What executes waves (software device).
    #[arg(long, value_enum, requires = "extent")]
    pub engine: Option<Engine>,
    /// Print the first N instructions of the first wave and what each changes (software device).
    #[arg(long, value_name = "N", requires = "extent", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    trace: Option<u64>,
    /// Print instructions by class, bytes moved, active lanes and occupancy (software device). With --engine, --repeat or
    /// --warm-up they are of one more run from the same arguments, interpreted, so that the times are those of the engine.
    #[arg(long, requires = "extent")]
    stats: bool,
}

impl ObserveArgs {
    /// The session of a process that has the wishes in its environment; executes the process again if it has not.
    ///
    /// Nothing if nothing is wished. `timed` says that runs are compared by their times.
    pub fn session(&self, timed: bool) -> Result<Option<Session>> {
        if self.engine.is_none() && self.trace.is_none() && !self.stats {
            return Ok(None);
        }
        let apart = self.is_watched() && (self.engine.is_some() || timed);
        if std::env::var_os("STASIS_DEVICE").is_some_and(|device| device == "kfd") {
            return Err(only_software("kfd"));
        }
        let instance = format!("dispatch-{}", std::process::id());
        if std::env::var_os(INSTANCE).is_some_and(|found| found == *instance) {
            let directory = std::env::var_os(DIRECTORY).context("The environment lost its directory")?;
            return Ok(Some(Session { directory: directory.into(), apart }));
        }
        let program = std::env::current_exe().context("Cannot find this program to execute it again")?;
        let session = Session {
            directory: tempfile::Builder::new().prefix("stasis-dispatch-").tempdir()?.keep(),
            apart,
        };
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env(INSTANCE, instance).env(DIRECTORY, &session.directory);
        for variable in ["SOFTGPU_ENGINE", "SOFTGPU_STATS", "SOFTGPU_TRACE"] {
            command.env_remove(variable);
        }
        if let Some(engine) = self.engine {
            command.env("SOFTGPU_ENGINE", engine.name());
        }
        if self.stats && !apart {
            command.env("SOFTGPU_STATS", session.path(STATS));
        }
        if let Some(count) = self.trace.filter(|_| !apart) {
            let mut value = OsString::from(session.path(TRACE));
            value.push(format!(":{count}"));
            command.env("SOFTGPU_TRACE", value);
        }
        Err(command.exec()).context("Cannot execute this program again")
    }

    /// Puts what was written about the kernel whose descriptor is at `object` where it was asked for.
    pub fn fill(&self, report: &mut Report, session: &Session, object: u64) -> Result<()> {
        let (trace, stats) = match session.apart {
            true => count_apart()?,
            false => session.read(object)?,
        };
        report.trace = self.trace.map(|_| trace);
        report.stats = self.stats.then_some(stats);
        Ok(())
    }

    /// Whether the device is to write something down.
    pub fn is_watched(&self) -> bool {
        self.stats || self.trace.is_some()
    }
}

/// Whether this process only counts and traces for the one that started it.
pub fn counts_for_another() -> bool {
    // 0: the parent is in another pid namespace.
    let parent = nix::unistd::getppid().as_raw();
    parent != 0 && std::env::var(COUNTER).is_ok_and(|named| named == parent.to_string())
}

/// What is taken of a counting process's report.
#[derive(Debug, Deserialize)]
struct Counted {
    #[serde(default)]
    trace: Vec<String>,
    #[serde(default)]
    stats: Vec<Stats>,
}

/// Has this command run once more, watched.
fn count_apart() -> Result<(Vec<String>, Vec<Stats>)> {
    let program = std::env::current_exe().context("Cannot find this program to count with it")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(COUNTER, std::process::id().to_string());
    for variable in [INSTANCE, DIRECTORY] {
        command.env_remove(variable);
    }
    let output = command.stdin(Stdio::null()).output().context("Cannot start a process that counts")?;
    // A kernel that fails is counted as far as it came; why it failed has been said.
    let counted: Counted = serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("The run that was to be counted failed: {}", said.trim())
    })?;
    Ok((counted.trace, counted.stats))
}

fn only_software(device: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "--engine, --trace and --stats: only the software device can be watched, and this is {device}; set \
         STASIS_DEVICE=soft"
    )
}

/// A private software device's files; removed with it.
#[derive(Debug)]
pub struct Session {
    directory: PathBuf,
    /// Whether another process counts.
    apart: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        // What is left of it is in the way of nobody.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Session {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Refuses a runtime on any other device.
    pub fn check(&self, runtime: &Runtime) -> Result<()> {
        match &*runtime.transport_name() {
            name if name.starts_with("soft") => Ok(()),
            name => Err(only_software(name)),
        }
    }

    /// What was written about the kernel whose descriptor is at `object`.
    fn read(&self, object: u64) -> Result<(Vec<String>, Vec<Stats>)> {
        let mut stats = Vec::new();
        for line in self.text(STATS)?.lines() {
            let one: Stats = serde_json::from_str(line).context("softgpud wrote statistics that are none")?;
            stats.extend((one.kernel_object == object).then_some(one));
        }
        Ok((ours(&self.text(TRACE)?, object), stats))
    }

    /// A file's text; empty if nothing was written.
    fn text(&self, name: &str) -> Result<String> {
        match fs::read_to_string(self.path(name)) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => bail!("Cannot read {}: {error}", self.path(name).display()),
        }
    }
}

/// The lines about one kernel: each dispatch begins with a line that names it.
fn ours(text: &str, object: u64) -> Vec<String> {
    let name = format!("kernel_object {object:#x} ");
    let mut wanted = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("dispatch ") {
            wanted = line.contains(&name);
        } else if wanted {
            lines.push(line.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_other_kernels_are_left_out() {
        let text = "dispatch 0 kernel_object 0x10 entry 0x1\na\ndispatch 1 kernel_object 0x100 entry 0x2\nb\nc\n\
                    dispatch 2 kernel_object 0x10 entry 0x1\nd\n";
        assert_eq!(ours(text, 0x10), ["a", "d"]);
        assert_eq!(ours(text, 0x100), ["b", "c"]);
        assert!(ours(text, 0x1).is_empty());
    }
}
