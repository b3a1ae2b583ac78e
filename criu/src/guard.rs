// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of a restore: a process between this command and CRIU. It leaves nothing half restored.
//!
//! ```text
//!  stasis restore ── stasis guard ── criu restore ── the tasks
//! ```
//!
//! The tasks that CRIU makes wait for it in futexes without a limit, so they do not end with it; and a command that is
//! killed cannot end them. The guard is the one that orphans of CRIU fall to (PR_SET_CHILD_SUBREAPER). It ends them when
//! CRIU fails, when its time is over, and when the command has ended: then the pipe that is the guard's standard input
//! hangs up. The command does the same to what a guard leaves that was killed.
//!
//! INVARIANT: when the guard ends by itself, CRIU has restored all tasks, or none is left.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::interrupt::Interrupt;
use crate::orphans::Orphans;
use crate::watch::{Running, Stop, Target, Watch, until_ended};

/// Processes above one that are looked at.
const MOST_ABOVE: usize = 1000;
/// How often the guard and its command look at each other.
const PACE: Duration = Duration::from_millis(20);
/// TIMEOUT: how long a guard may take beyond CRIU's deadline: the end of what it leaves.
const CLEANING: Duration = Duration::from_secs(40);

/// Why a guard did not begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The order cannot be read.
    #[error("The order is not one of this version's")]
    Order(#[source] serde_json::Error),
    /// The system refused what a guard needs, or CRIU itself.
    #[error("Cannot start CRIU")]
    Start(#[source] io::Error),
}

/// What a guard is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// CRIU.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it looks for plugins.
    pub plugins: OsString,
    /// Roots and runtimes that it restores.
    pub targets: Vec<i32>,
    /// How long it may take.
    pub limit: Duration,
    /// In a process group of its own, where no signal of the terminal reaches it. A job of a shell must stay in that of
    /// the command, which it inherits.
    pub has_group: bool,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// How CRIU ended, as wait(2) gives it.
    status: i32,
    /// Why it was to end, if it did not by itself.
    pub stop: Option<Stop>,
}

impl Verdict {
    /// How CRIU ended.
    pub fn status(self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }
}

/// `stasis guard`: starts CRIU and sees to its end. The verdict goes to the standard output.
///
/// # Errors
/// [`GuardError`]; CRIU was not started then.
pub fn run(order: &str) -> Result<(), GuardError> {
    let order: Order = serde_json::from_str(order).map_err(GuardError::Order)?;
    let verdict = guard(order).map_err(GuardError::Start)?;
    // The command that reads this may have ended.
    let _ = serde_json::to_writer(io::stdout().lock(), &verdict);
    Ok(())
}

fn guard(order: Order) -> io::Result<Verdict> {
    let interrupt = Interrupt::note()?;
    let orphans = Orphans::adopt()?;
    let mut command = Command::new(&order.program);
    // What CRIU prints goes where the guard's own errors do; its standard output is for the verdict.
    let to = Stdio::from(io::stderr().as_fd().try_clone_to_owned()?);
    command.args(&order.arguments).env("CRIU_LIBS_DIR", &order.plugins).stdin(Stdio::null()).stdout(to);
    let mut running = [Running::start(command, order.has_group)?];
    let targets = order.targets.into_iter().map(Target::to_come).collect();
    let is_told = || interrupt.is_told() || has_hung_up();
    let mut watch = Watch::new(targets, Instant::now() + order.limit, &is_told, Duration::ZERO);
    let stop = until_ended(&mut running, &mut watch, PACE, &mut |_, _| {});
    let status = running[0].status();
    if !status.success() {
        orphans.end();
    }
    Ok(Verdict { status: status.into_raw(), stop })
}

/// Whether a guard is above a process: CRIU is about to restore it, or to be ended with it.
pub fn is_above(pid: i32) -> bool {
    let parent = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let is_guard = |pid: i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"stasis\0guard\0"))
    };
    std::iter::successors(parent(&pid), parent).take(MOST_ABOVE).any(is_guard)
}

/// Whether nobody holds the other end of the standard input.
fn has_hung_up() -> bool {
    let input = io::stdin();
    let mut ends = [PollFd::new(&input, PollFlags::empty())];
    let found = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|count| count > 0) && ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Has a guard carry out an order, and waits for its end; `said` gets what it and CRIU print. A signal to this command
/// ends both.
///
/// # Errors
/// The system's answer, or what the guard said, if it ended without a verdict; nothing is left of CRIU then.
pub(crate) fn order(order: &Order, said: &File) -> io::Result<Verdict> {
    let orphans = Orphans::adopt()?;
    let verdict = try_order(order, said);
    // A guard that was killed, or one that failed, leaves CRIU and its tasks to this process.
    if verdict.is_err() {
        orphans.end();
    }
    verdict
}

fn try_order(order: &Order, said: &File) -> io::Result<Verdict> {
    let interrupt = Interrupt::note()?;
    // A file and no pipe: whatever a killed guard leaves behind would keep that open.
    let mut written = tempfile::tempfile()?;
    // Not by its path: the program may have been replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("stasis").arg("guard").arg(serde_json::to_string(order)?);
    command.stdin(Stdio::piped()).stdout(written.try_clone()?).stderr(said.try_clone()?);
    let mut running = Running::start(command, order.has_group)?;
    // As long as it is there the guard knows that this command is.
    let mut life = running.take_input();
    let deadline = Instant::now() + order.limit + CLEANING;
    let mut watch = Watch::new(Vec::new(), deadline, &|| false, Duration::ZERO);
    let mut meanwhile = |_: &[bool], _: Option<Stop>| {
        if interrupt.is_told() {
            life = None;
        }
    };
    let late = until_ended(std::slice::from_mut(&mut running), &mut watch, PACE, &mut meanwhile);
    let status = running.status();
    written.flush()?;
    written.rewind()?;
    let mut text = String::new();
    written.read_to_string(&mut text)?;
    let no_verdict =
        |_| io::Error::other(format!("the guard of the restore ended without a verdict ({status})"));
    match late {
        None => serde_json::from_str(&text).map_err(no_verdict),
        Some(_) => Err(io::Error::other("the guard of the restore did not end in time")),
    }
}
