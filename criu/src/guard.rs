// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of a restore: a process between this command and CRIU. It leaves nothing half restored.
//!
//! ```text
//!  stasis restore ── stasis guard ── criu restore ── the tasks
//! ```
//!
//! The tasks that CRIU makes wait for CRIU in futexes without a time limit, so they do not end when CRIU ends; and a
//! command that was killed cannot end them. The guard adopts the orphans of CRIU (PR_SET_CHILD_SUBREAPER). The guard
//! kills them when CRIU fails, when CRIU's time is over, and when the command has ended, which the guard sees by a
//! hang-up of the pipe that is its standard input. If the guard itself is killed, the command kills what the guard has
//! left.
//!
//! INVARIANT: when the guard ends without being killed, either CRIU has restored all tasks or no task is left.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::dump_guard;
use crate::interrupt::Interrupt;
use crate::order::{Order, Ordered};
use crate::orphans::Orphans;
use crate::session;
use crate::watch::{Running, Stop, Target, Watch, until_ended};

/// How many ancestors of a process are looked at.
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

/// The result of an order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// How CRIU ended, as wait(2) gives it.
    status: i32,
    /// Why CRIU was told to end, if it was.
    pub stop: Option<Stop>,
}

impl Verdict {
    /// How CRIU ended.
    pub fn status(self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }
}

/// `stasis guard`: starts CRIU for a restore and waits until it has ended, and writes the verdict to the standard output; or watches over
/// dumps.
///
/// # Errors
/// [`GuardError`]; CRIU was not started then.
pub fn run(order: &str) -> Result<(), GuardError> {
    let order = match serde_json::from_str(order).map_err(GuardError::Order)? {
        Ordered::Restore(order) => order,
        Ordered::Dumps(dumps) => {
            dump_guard::run(&dumps);
            return Ok(());
        }
    };
    let verdict = guard(order).map_err(GuardError::Start)?;
    // The command that reads this may have ended.
    let _ = serde_json::to_writer(io::stdout().lock(), &verdict);
    Ok(())
}

fn guard(order: Order) -> io::Result<Verdict> {
    let interrupt = Interrupt::note()?;
    if !order.has_group {
        // CRIU puts the tasks into its own session, and that is this process's.
        session::begin_if_outside()?;
    }
    let orphans = Orphans::adopt()?;
    let mut command = Command::new(&order.program);
    // What CRIU prints goes to the guard's standard error; the guard's standard output is for the verdict.
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

/// Whether a guard is an ancestor of a process: then either CRIU is about to complete the process, or the guard is
/// about to kill it.
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

/// Whether no process holds the other end of the standard input.
fn has_hung_up() -> bool {
    let input = io::stdin();
    let mut ends = [PollFd::new(input.as_fd(), PollFlags::empty())];
    let found = poll(&mut ends, Some(Duration::ZERO));
    let events = ends[0].revents().unwrap_or(PollFlags::empty());
    found.is_ok_and(|count| count > 0) && events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)
}

/// Has a guard carry out an order, and waits until the guard has ended; `said` gets what the guard and CRIU print. A
/// signal to this command ends both.
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
    // A file instead of a pipe: processes that a killed guard leaves behind would keep the pipe open.
    let mut written = tempfile::tempfile()?;
    // Not by its path: the program may have been replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("stasis").arg("guard").arg(serde_json::to_string(&Ordered::Restore(order.clone()))?);
    command.stdin(Stdio::piped()).stdout(written.try_clone()?).stderr(said.try_clone()?);
    let mut running = Running::start(command, order.has_group)?;
    // The guard takes a hang-up of this pipe for the end of this command.
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
