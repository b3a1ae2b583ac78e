// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts another process's system calls and instructions by ptrace.
//!
//! Exact where hardware counters are missing, as in most virtual machines: a single step is one instruction. What runs
//! at full speed in between is not disturbed.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::traced::{PARTS, Part};

/// TIMEOUT: stepping is slow; where it is slower than this for one part it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was counted in each part.
#[derive(Debug, Default)]
pub struct Counted {
    /// System calls by number.
    syscalls: BTreeMap<Part, BTreeMap<u64, u64>>,
    instructions: BTreeMap<Part, u64>,
}

impl Counted {
    /// System calls in a part, those of its marks included; none if it did not come to that.
    pub fn syscalls(&self, part: Part) -> Option<u64> {
        self.syscalls.get(&part).map(|calls| calls.values().sum())
    }

    /// Futex calls among them.
    pub fn futexes(&self, part: Part) -> u64 {
        let number = libc::SYS_futex.cast_unsigned();
        self.syscalls.get(&part).and_then(|calls| calls.get(&number)).copied().unwrap_or(0)
    }

    /// Instructions in a part, those of its marks included; none if it did not come to that.
    pub fn instructions(&self, part: Part) -> Option<u64> {
        self.instructions.get(&part).copied()
    }
}

/// Why a traced process stands still.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Mark,
    Syscall,
    Step,
    Other(Signal),
}

struct Traced(Pid);

/// A request that lets a traced process go on, with a signal or without.
type Resume = fn(Pid, Option<Signal>) -> nix::Result<()>;

impl Traced {
    /// Lets it run, delivering the signal, until it stops again.
    fn resume(&self, how: Resume, signal: Option<Signal>) -> Result<Stop> {
        how(self.0, signal).context("ptrace")?;
        self.wait()
    }

    fn wait(&self) -> Result<Stop> {
        Ok(match waitpid(self.0, Some(WaitPidFlag::__WALL)).context("waitpid")? {
            WaitStatus::PtraceSyscall(_) => Stop::Syscall,
            WaitStatus::Stopped(_, Signal::SIGUSR1) => Stop::Mark,
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(_, Signal::SIGTRAP, _) => {
                Stop::Step
            }
            WaitStatus::Stopped(_, signal) | WaitStatus::PtraceEvent(_, signal, _) => Stop::Other(signal),
            status => bail!("the traced process ended ({status:?})"),
        })
    }

    /// The number of the call it is about to make; none when it returns from one.
    fn entering(&self) -> Result<Option<u64>> {
        let info = ptrace::syscall_info(self.0).context("PTRACE_GET_SYSCALL_INFO")?;
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(None);
        }
        // SAFETY: the kernel says that this is an entry.
        Ok(Some(unsafe { info.u.entry.nr }))
    }

    fn until_mark(&self) -> Result<()> {
        let mut signal = None;
        loop {
            match self.resume(ptrace::cont, signal)? {
                Stop::Mark => return Ok(()),
                Stop::Other(other) => signal = Some(other),
                Stop::Syscall | Stop::Step => signal = None,
            }
        }
    }

    fn instructions(&self) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        let mut steps = 0u64;
        loop {
            match self.resume(ptrace::step, None)? {
                Stop::Mark => return Ok(steps),
                Stop::Step | Stop::Syscall => steps += 1,
                Stop::Other(signal) => bail!("signal {signal} while stepping"),
            }
            if steps.is_multiple_of(4096) {
                ensure!(Instant::now() < deadline, "{steps} single steps took {} s", PATIENCE.as_secs());
            }
        }
    }

    fn syscalls(&self) -> Result<BTreeMap<u64, u64>> {
        let mut calls = BTreeMap::new();
        let mut signal = None;
        loop {
            match self.resume(ptrace::syscall, signal)? {
                Stop::Mark => return Ok(calls),
                Stop::Other(other) => signal = Some(other),
                Stop::Step => signal = None,
                Stop::Syscall => {
                    signal = None;
                    if let Some(number) = self.entering()? {
                        *calls.entry(number).or_default() += 1;
                    }
                }
            }
        }
    }
}

fn all_parts(child: &mut Child, counted: &mut Counted) -> Result<()> {
    let mut ready = [0; 6];
    child.stdout.as_mut().context("no output")?.read_exact(&mut ready)?;
    let traced = Traced(Pid::from_raw(child.id().try_into()?));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(traced.0, options).context("PTRACE_SEIZE")?;
    ptrace::interrupt(traced.0).context("PTRACE_INTERRUPT")?;
    traced.wait().context("the process cannot be stopped")?;
    child.stdin.as_mut().context("no input")?.write_all(b"!")?;
    for part in PARTS {
        traced.until_mark()?;
        if part.is_stepped() {
            counted.instructions.insert(part, traced.instructions()?);
        } else {
            counted.syscalls.insert(part, traced.syscalls()?);
        }
    }
    ptrace::detach(traced.0, None).context("PTRACE_DETACH")?;
    Ok(())
}

/// Starts this program in `role` and counts what it does into `counted`, as far as it comes.
pub fn trace(role: &str, counted: &mut Counted) -> Result<()> {
    let mut child = crate::spawn(role, &[])?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let result = all_parts(&mut child, counted);
    if result.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    result?;
    ensure!(status.success(), "the traced process failed ({status})");
    Ok(())
}
