// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches CRIUs at work: their end, the end of the processes they work on, a deadline, and an order to stop.
//!
//! CRIU itself waits without a time limit, for example for a task that ended while CRIU seized it, or for a task that
//! reads a truncated image for ever.
//!
//! INVARIANT: [`until_ended`] returns with every CRIU ended and reaped, at most a grace after the first reason to stop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::time::{Duration, Instant};

use kfd::linux::{pidfd_open, poll};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use stasis::checkpoint::{Ended, Process};

use crate::release::{release, settle};

/// How long CRIU may take to notice that a task has ended. CRIU mostly does notice, and its log then says more than
/// this process can see.
const NOTICE: Duration = Duration::from_millis(800);
/// TIMEOUT: how long CRIU's code may stay in a task before CRIU is killed nevertheless.
const RELEASING: Duration = Duration::from_secs(2);
/// How often the processes that CRIU works on are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Exit code 1, as wait(2) gives it: for a CRIU of whose end nothing is known.
const UNKNOWN: i32 = 1 << 8;

/// A CRIU that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    has_group: bool,
    /// Whether it traces tasks that go on if it is killed while its code is in none of them ([`release`]).
    pub has_tasks: bool,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts a CRIU, with `has_group` in a process group of its own, where no signal of the terminal reaches it.
    ///
    /// # Errors
    /// The system's answer.
    pub fn start(mut command: Command, has_group: bool) -> io::Result<Self> {
        if has_group {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        match pidfd_open(Pid::from_raw(child.id().cast_signed())) {
            Ok(end) => Ok(Self { child, end, has_group, has_tasks: false, status: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// CRIU's process, unless it is gone.
    pub fn process(&self) -> Option<Process> {
        Process::of(self.child.id().cast_signed())
    }

    /// This process's end of CRIU's standard input, if that is a pipe; once.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Whether CRIU has not ended.
    pub fn is_at_work(&mut self) -> bool {
        if self.status.is_none() {
            // CRIU is a child of this process, and no other thread waits for it: an error means that there is nothing
            // to wait for.
            self.status = self.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::from_raw(UNKNOWN)));
        }
        self.status.is_none()
    }

    /// How CRIU ended; a failure while it is at work.
    pub fn status(&self) -> ExitStatus {
        self.status.unwrap_or_else(|| ExitStatus::from_raw(UNKNOWN))
    }

    /// Kills CRIU, and all other processes of its group if it has one.
    pub fn kill(&mut self) {
        if self.is_at_work() {
            let released = self.process().filter(|_| self.has_tasks);
            if released.is_some_and(|criu| release(criu, RELEASING)) {
                return;
            }
            if self.has_group {
                let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
            }
            let _ = self.child.kill();
        }
    }
}

/// A process that CRIU works on.
#[derive(Clone, Debug)]
pub struct Target {
    pid: i32,
    /// As it was seen first.
    process: Option<Process>,
    /// When this file exists, the process may end: CRIU kills what it has dumped.
    complete: Option<PathBuf>,
}

impl Target {
    /// A process that CRIU dumps; once the file `complete` exists, the process may end.
    pub fn living(pid: i32, complete: PathBuf) -> Self {
        let process = Process::of(pid).unwrap_or(Process { pid, started: 0 });
        Self { pid, process: Some(process), complete: Some(complete) }
    }

    /// A process that CRIU is about to make.
    pub fn to_come(pid: i32) -> Self {
        Self { pid, process: None, complete: None }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits, at most until `until`, until it is certain whether the process goes on after its CRIU was killed.
    pub fn settle(&self, until: Instant) {
        if let Some(process) = self.process {
            settle(process, until);
        }
    }

    /// How the process ended, if it has ended and may not.
    pub fn end(&mut self) -> Option<Ended> {
        let Some(process) = self.process else {
            self.process = Process::of(self.pid);
            return None;
        };
        let how = process.end()?;
        // The file is looked for after the end was seen: CRIU makes the file before it kills the process.
        let is_complete = self.complete.as_ref().is_some_and(|path| path.exists());
        (!is_complete).then_some(how)
    }
}

/// Why CRIU is not to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// A process it works on has ended.
    TargetEnded {
        /// Which one.
        pid: i32,
        /// How.
        how: Ended,
    },
    /// The deadline has passed.
    Deadline,
    /// The caller wants CRIU to stop.
    Told,
}

/// What is watched beside CRIU itself.
pub struct Watch<'a> {
    targets: Vec<Target>,
    deadline: Instant,
    is_told: &'a dyn Fn() -> bool,
    grace: Duration,
    looked: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// Watches `targets`, the clock, and what `is_told` says. A CRIU that is late, or that is to stop, has `grace` to
    /// end by itself.
    pub fn new(
        targets: Vec<Target>,
        deadline: Instant,
        is_told: &'a dyn Fn() -> bool,
        grace: Duration,
    ) -> Self {
        Self { targets, deadline, is_told, grace, looked: None }
    }

    /// How long CRIU may take to end by itself.
    fn grace(&self, stop: Stop) -> Duration {
        match stop {
            Stop::TargetEnded { .. } => NOTICE,
            Stop::Deadline | Stop::Told => self.grace,
        }
    }

    fn look(&mut self) -> Option<Stop> {
        if (self.is_told)() {
            return Some(Stop::Told);
        }
        let now = Instant::now();
        if now >= self.deadline {
            return Some(Stop::Deadline);
        }
        if self.looked.is_some_and(|looked| now < looked + LOOK) {
            return None;
        }
        self.looked = Some(now);
        let mut ends = self.targets.iter_mut().filter_map(|target| Some((target.pid, target.end()?)));
        ends.next().map(|(pid, how)| Stop::TargetEnded { pid, how })
    }
}

/// Waits until all CRIUs have ended. When there is a reason to stop, kills those that do not end by themselves.
/// `meanwhile` is called at least every `pace`, and at the end, with the CRIUs at work and the reason to stop; it is
/// `meanwhile` that asks a CRIU to end by itself.
pub fn until_ended(
    running: &mut [Running],
    watch: &mut Watch<'_>,
    pace: Duration,
    meanwhile: &mut dyn FnMut(&[bool], Option<Stop>),
) -> Option<Stop> {
    let mut stop: Option<(Stop, Instant)> = None;
    loop {
        let at_work: Vec<bool> = running.iter_mut().map(Running::is_at_work).collect();
        let works = at_work.contains(&true);
        if stop.is_none() && works {
            stop = watch.look().map(|reason| (reason, Instant::now() + watch.grace(reason)));
        }
        meanwhile(&at_work, stop.map(|(reason, _)| reason));
        if !works {
            return stop.map(|(reason, _)| reason);
        }
        if stop.is_some_and(|(_, until)| Instant::now() >= until) {
            running.iter_mut().for_each(Running::kill);
        }
        wait(running, pace);
    }
}

/// Waits until one CRIU has ended, at most for `pace`.
fn wait(running: &[Running], pace: Duration) {
    let ends = running.iter().filter(|one| one.status.is_none());
    let mut ends: Vec<PollFd<'_>> = ends.map(|one| PollFd::new(one.end.as_fd(), PollFlags::POLLIN)).collect();
    // After a signal or a failure the caller only looks earlier.
    let _ = poll(&mut ends, Some(pace));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const PACE: Duration = Duration::from_millis(5);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn watch_over(script: &str, targets: Vec<Target>, limit: Duration) -> (Option<Stop>, ExitStatus) {
        let mut running = [Running::start(sh(script), true).unwrap()];
        let mut watch = Watch::new(targets, Instant::now() + limit, &|| false, PACE);
        let stop = until_ended(&mut running, &mut watch, PACE, &mut |_, _| {});
        (stop, running[0].status())
    }

    #[test]
    fn one_that_ends_is_left_alone() {
        let (stop, status) = watch_over("exit 3", Vec::new(), LONG);
        assert_eq!((stop, status.code()), (None, Some(3)));
    }

    #[test]
    fn group_of_one_that_does_not_end_is_killed_at_its_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("pid");
        let script =
            format!("trap '' INT TERM; sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", told.display());
        let mut running = [Running::start(sh(&script), true).unwrap()];
        while !told.exists() {
            std::thread::sleep(PACE);
        }
        let child: i32 = std::fs::read_to_string(&told).unwrap().trim().parse().unwrap();
        let child = Process::of(child).unwrap();
        let mut watch = Watch::new(Vec::new(), Instant::now(), &|| false, PACE);
        let stop = until_ended(&mut running, &mut watch, PACE, &mut |_, _| {});
        assert_eq!((stop, running[0].status().signal()), (Some(Stop::Deadline), Some(9)));
        let deadline = Instant::now() + LONG;
        while child.is_alive() {
            assert!(Instant::now() < deadline, "what it has started lives");
            std::thread::sleep(PACE);
        }
    }

    #[test]
    fn one_that_ends_when_asked_is_not_killed() {
        let directory = tempfile::tempdir().unwrap();
        let asked = directory.path().join("asked");
        let script = format!("until [ -e {} ]; do sleep 0.01; done; exit 5", asked.display());
        let mut running = [Running::start(sh(&script), true).unwrap()];
        let mut watch = Watch::new(Vec::new(), Instant::now() + LONG, &|| true, LONG);
        let stop = until_ended(&mut running, &mut watch, PACE, &mut |_, stop| {
            if stop.is_some() {
                std::fs::write(&asked, "").unwrap();
            }
        });
        assert_eq!((stop, running[0].status().code()), (Some(Stop::Told), Some(5)));
    }

    #[test]
    fn target_that_ends_is_named_though_nobody_reaps_it_unless_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let complete = directory.path().join("complete");
        for may_end in [false, true] {
            let mut target = sh("read line").stdin(std::process::Stdio::piped()).spawn().unwrap();
            let pid = target.id().cast_signed();
            let targets = vec![Target::living(pid, complete.clone())];
            target.kill().unwrap();
            if may_end {
                std::fs::write(&complete, "").unwrap();
            }
            let (stop, status) = watch_over("sleep 0.3; exit 4", targets.clone(), LONG);
            let named = Stop::TargetEnded { pid, how: Ended::Killed(9) };
            assert_eq!((stop, status.code()), ((!may_end).then_some(named), Some(4)));
            let (stop, status) = match may_end {
                true => continue,
                false => watch_over("sleep 1000", targets, LONG),
            };
            assert_eq!((stop, status.signal()), (Some(named), Some(9)));
            target.wait().unwrap();
        }
    }

    #[test]
    fn target_to_come_is_known_from_when_it_is_there() {
        let mut target = Target::to_come(i32::MAX);
        assert_eq!((target.end(), target.end()), (None, None));
        let mut child = sh("exit 0").spawn().unwrap();
        let mut target = Target::to_come(child.id().cast_signed());
        assert_eq!(target.end(), None);
        child.wait().unwrap();
        assert_eq!(target.end(), Some(Ended::Unknown));
    }
}
