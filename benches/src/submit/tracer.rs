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
    Other(i32),
}

struct Traced(libc::pid_t);

impl Traced {
    fn ptrace(&self, request: libc::c_uint, address: usize, data: usize) -> Result<libc::c_long> {
        // SAFETY: the requests made here take numbers, or (GET_SYSCALL_INFO) a buffer of the size given.
        let result = unsafe { libc::ptrace(request, self.0, address, data) };
        ensure!(result >= 0, "ptrace request {request:#x}: {}", std::io::Error::last_os_error());
        Ok(result)
    }

    /// Lets it run, delivering `signal` if it is not 0, until it stops again.
    fn resume(&self, how: libc::c_uint, signal: i32) -> Result<Stop> {
        self.ptrace(how, 0, signal as usize)?;
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        ensure!(waited == self.0, "waitpid: {}", std::io::Error::last_os_error());
        ensure!(libc::WIFSTOPPED(status), "the traced process ended (status {status:#x})");
        Ok(match libc::WSTOPSIG(status) {
            libc::SIGUSR1 => Stop::Mark,
            libc::SIGTRAP => Stop::Step,
            signal if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            signal => Stop::Other(signal),
        })
    }

    /// The number of the call it is about to make; none when it returns from one.
    fn entering(&self) -> Result<Option<u64>> {
        // SAFETY: the struct is plain numbers, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let place = (&raw mut info).expose_provenance();
        self.ptrace(libc::PTRACE_GET_SYSCALL_INFO, size_of_val(&info), place)?;
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(None);
        }
        // SAFETY: the kernel says that this is an entry.
        Ok(Some(unsafe { info.u.entry.nr }))
    }

    fn until_mark(&self) -> Result<()> {
        let mut signal = 0;
        loop {
            match self.resume(libc::PTRACE_CONT, signal)? {
                Stop::Mark => return Ok(()),
                Stop::Other(other) => signal = other,
                Stop::Syscall | Stop::Step => signal = 0,
            }
        }
    }

    fn instructions(&self) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        let mut steps = 0u64;
        loop {
            match self.resume(libc::PTRACE_SINGLESTEP, 0)? {
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
        let mut signal = 0;
        loop {
            match self.resume(libc::PTRACE_SYSCALL, signal)? {
                Stop::Mark => return Ok(calls),
                Stop::Other(other) => signal = other,
                Stop::Step => signal = 0,
                Stop::Syscall => {
                    signal = 0;
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
    let traced = Traced(libc::pid_t::try_from(child.id())?);
    // CAST: flags.
    let options = (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize;
    traced.ptrace(libc::PTRACE_SEIZE, 0, options)?;
    traced.ptrace(libc::PTRACE_INTERRUPT, 0, 0)?;
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    let waited = unsafe { libc::waitpid(traced.0, &raw mut status, libc::__WALL) };
    ensure!(waited == traced.0 && libc::WIFSTOPPED(status), "the process cannot be stopped");
    child.stdin.as_mut().context("no input")?.write_all(b"!")?;
    for part in PARTS {
        traced.until_mark()?;
        if part.is_stepped() {
            counted.instructions.insert(part, traced.instructions()?);
        } else {
            counted.syscalls.insert(part, traced.syscalls()?);
        }
    }
    traced.ptrace(libc::PTRACE_DETACH, 0, 0)?;
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
