// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a piece of work in a fork of this process, for a limited time.
//!
//! INVARIANT: when [`in_fork`] returns, the fork is gone. A fork whose caller dies is killed by the kernel
//! (PR_SET_PDEATHSIG).
//!
//! The fork is not replaced by another program, because a library has none. It has one thread, and a lock that another
//! thread held at the fork stays locked. So the work must use no lock that other threads take: it opens the device
//! afresh, and nothing that it logs goes to the application's subscriber. malloc is safe (its locks are taken for the
//! time of a fork). If the work stops at a lock nevertheless, the deadline ends it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use kfd::forks;
use kfd::linux::{exit_now, memfd, pidfd_open, poll, retry};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stasis_protocol::Limit;
use thiserror::Error;

/// Where the answer's bytes begin; their number stands before them.
const ANSWER: u64 = 8;
/// A longer answer is not one of ours.
const LONGEST: u64 = 64 << 20;
/// How often the limit is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Why a fork gave no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForkError {
    /// A system call around it failed.
    #[error("Cannot {act} the process that tries it")]
    System {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// It was killed at its deadline.
    #[error("The process that tried it gave no answer within {} ms and was killed", waited.as_millis())]
    Silent {
        /// How long it had.
        waited: Duration,
    },
    /// It was killed because whoever wanted the answer gave up: by a deadline of its own, or cancelled.
    #[error("The process that tried it had no answer after {} ms, when it was no longer wanted", waited.as_millis())]
    GivenUp {
        /// How long it had.
        waited: Duration,
    },
    /// It ended without an answer.
    #[error("The process that tried it ended without an answer")]
    Ended,
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> ForkError {
    move |source| ForkError::System { act, source: source.into() }
}

/// What `work` answers in a fork of this process, until `deadline` and while the limit holds.
///
/// # Errors
/// [`ForkError`]; no process is left in any case.
pub(super) fn in_fork<T: Serialize + DeserializeOwned>(
    deadline: Instant,
    limit: &Limit,
    work: impl FnOnce() -> T,
) -> Result<T, ForkError> {
    let begun = Instant::now();
    let answer = memfd("stasis-probe", 0, SealFlag::empty()).map_err(system("make the answer of"))?;
    let answer = File::from(answer);
    let parent = getpid();
    // SAFETY: the child runs `serve` only, which ends in `_exit`; the module's documentation says what it may use.
    let child = match forks::own(|| unsafe { libc::fork() }) {
        -1 => return Err(system("fork")(io::Error::last_os_error())),
        0 => serve(parent, &answer, work),
        child => Pid::from_raw(child),
    };
    let over = wait_for_end(child, deadline, limit);
    if !matches!(over, Ok(true)) {
        // It is still there, and not reaped: the number is its own.
        let _ = kill(child, Signal::SIGKILL);
    }
    // The only failure is that somebody else has reaped it (SIGCHLD ignored): it is gone all the same.
    let _ = retry(|| waitpid(child, None));
    match over {
        Ok(true) => read(&answer).ok_or(ForkError::Ended),
        Ok(false) if limit.check().is_err() => Err(ForkError::GivenUp { waited: begun.elapsed() }),
        Ok(false) => Err(ForkError::Silent { waited: begun.elapsed() }),
        Err(error) => Err(system("wait for")(error)),
    }
}

/// Whether the process has ended in time.
fn wait_for_end(child: Pid, deadline: Instant, limit: &Limit) -> Result<bool, Errno> {
    let end: OwnedFd = match pidfd_open(child) {
        // The application ignores SIGCHLD: the child is gone and reaped.
        Err(Errno::ESRCH) => return Ok(true),
        opened => opened?,
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], Some(left.min(LOOK))) {
            Ok(0) if left.is_zero() || limit.check().is_err() => return Ok(false),
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Runs in the fork.
fn serve<T: Serialize>(parent: Pid, answer: &File, work: impl FnOnce() -> T) -> ! {
    // SAFETY: plain system calls on locals.
    unsafe {
        // The signal handlers are the application's, and not for this process to run.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"stasis-probe".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent may have died before the call above.
        if libc::getppid() != parent.as_raw() {
            libc::_exit(1);
        }
    }
    let quiet = tracing::Dispatch::none();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tracing::dispatcher::with_default(&quiet, work)
    }));
    let written = outcome.ok().and_then(|outcome| write(answer, &outcome));
    // No destructor of the application runs, and none of what its other threads own.
    exit_now(if written.is_some() { 0 } else { 1 })
}

/// Writes the length last, so that a part of an answer is none.
fn write<T: Serialize>(file: &File, outcome: &T) -> Option<()> {
    let bytes = rmp_serde::to_vec(outcome).ok()?;
    file.write_all_at(&bytes, ANSWER).ok()?;
    file.write_all_at(&(bytes.len() as u64).to_ne_bytes(), 0).ok()
}

fn read<T: DeserializeOwned>(file: &File) -> Option<T> {
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).ok()?;
    let length = u64::from_ne_bytes(length);
    let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| length <= LONGEST)?];
    file.read_exact_at(&mut bytes, ANSWER).ok()?;
    rmp_serde::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::WaitPidFlag;

    use super::*;
    use crate::linux::presence::has_ended;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Whether this process has no child with the name of a probe.
    fn nobody_is_left() -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let children = tasks.flat_map(|task| {
            let text = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        });
        let name = |pid: String| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        !children.map(name).any(|name| name.trim() == "stasis-probe")
    }

    #[test]
    fn answer_of_the_fork_arrives_and_its_process_is_reaped() {
        let (pid, text) = in_fork(soon(), &Limit::none(), || (getpid().as_raw(), "done".to_owned())).unwrap();
        assert_eq!((text.as_str(), pid == getpid().as_raw()), ("done", false));
        assert!(has_ended(pid) && nobody_is_left());
        assert_eq!(waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD));
    }

    #[test]
    fn fork_that_hangs_is_killed_at_its_deadline() {
        let begun = Instant::now();
        let hang = || -> u32 {
            loop {
                std::thread::sleep(Duration::from_secs(1000));
            }
        };
        let error = in_fork(begun + Duration::from_millis(200), &Limit::none(), hang).unwrap_err();
        assert!(matches!(error, ForkError::Silent { .. }), "{error:?}");
        let given_up = in_fork(soon(), &Limit::within(Duration::ZERO), hang).unwrap_err();
        assert!(matches!(given_up, ForkError::GivenUp { .. }), "{given_up:?}");
        assert!(begun.elapsed() < Duration::from_secs(50) && nobody_is_left());
    }

    #[test]
    fn fork_that_dies_or_panics_gives_no_answer() {
        let die = || -> u32 {
            let _ = kill(getpid(), Signal::SIGKILL);
            7
        };
        assert!(matches!(in_fork(soon(), &Limit::none(), die), Err(ForkError::Ended)));
        let panics = || -> u32 { std::panic::resume_unwind(Box::new("on purpose")) };
        assert!(matches!(in_fork(soon(), &Limit::none(), panics), Err(ForkError::Ended)));
        assert!(nobody_is_left());
    }

    #[test]
    fn fork_does_not_outlive_its_caller() {
        // The outer fork is the caller of an inner one that hangs, and is killed.
        let (ours, theirs) = nix::unistd::pipe().unwrap();
        let outer = || -> u32 {
            let inner = || -> u32 {
                let _ = nix::unistd::write(&theirs, &getpid().as_raw().to_ne_bytes());
                loop {
                    std::thread::sleep(Duration::from_secs(1000));
                }
            };
            in_fork(soon() + Duration::from_secs(3600), &Limit::none(), inner).unwrap_or(0)
        };
        let deadline = Instant::now() + Duration::from_millis(500);
        assert!(matches!(in_fork(deadline, &Limit::none(), outer), Err(ForkError::Silent { .. })));
        drop(theirs);
        let mut pid = [0; 4];
        // Not written if the machine was too busy for the inner fork; nothing is left to look at then.
        if nix::unistd::read(&ours, &mut pid) == Ok(4) {
            let begun = Instant::now();
            while !has_ended(i32::from_ne_bytes(pid)) {
                assert!(begun.elapsed() < Duration::from_secs(60), "the inner fork lives");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
