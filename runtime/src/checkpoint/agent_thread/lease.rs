// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lease: how long the process waits for whoever ordered it to stop.
//!
//! INVARIANT: here is only what is seen; what is done about it is [`stasis_protocol::lease::decide`]'s, which is
//! model-checked. While the lease lasts, no look opens a file: CRIU may freeze the process in the middle of it.

use std::fs;
use std::time::{Duration, Instant};

use stasis_protocol::lease::Why;

use crate::linux::presence::has_ended;

/// How long a failed attempt to go on waits before the next.
const RETRY: Duration = Duration::from_secs(1);

/// What is watched while the process is checkpointed on a controller's order.
#[derive(Debug)]
pub(super) struct Lease {
    ends: Instant,
    /// By its pid.
    controller: Option<i32>,
    /// When to try again, after an attempt that failed.
    retry_at: Option<Instant>,
    /// Since when it has been clear that no attempt will do.
    stranded_since: Option<Instant>,
}

impl Lease {
    pub fn new(lasts: Duration, controller: Option<i32>) -> Self {
        Self { ends: Instant::now() + lasts, controller, retry_at: None, stranded_since: None }
    }

    /// Of a process that stayed shut after a checkpoint that failed: over already.
    pub fn unfinished() -> Self {
        let mut lease = Self::new(Duration::ZERO, None);
        lease.rest();
        lease
    }

    /// Whether an attempt to go on, or back, has failed.
    pub fn is_unfinished(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Whether an attempt that failed is too recent for another.
    pub fn is_resting(&self) -> bool {
        self.retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// Waits a while before the next attempt.
    pub fn rest(&mut self) {
        self.retry_at = Some(Instant::now() + RETRY);
        self.stranded_since = None;
    }

    /// Makes no further attempt.
    pub fn strand(&mut self) {
        self.retry_at = Some(Instant::now());
        self.stranded_since.get_or_insert_with(Instant::now);
    }

    /// For how long it has been clear that no attempt will do, if it is.
    pub fn stranded_for(&self) -> Option<Duration> {
        self.stranded_since.map(|since| since.elapsed())
    }

    /// Why nobody will freeze the process any more, if so.
    pub fn is_over(&self) -> Option<Why> {
        if self.controller.is_some_and(has_ended) {
            return Some(Why::ControllerGone);
        }
        (Instant::now() >= self.ends).then_some(Why::TimeUp)
    }
}

/// Whether a debugger or CRIU holds this process.
pub(super) fn is_traced() -> bool {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(|pid| pid.trim() != "0")
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn lease_ends_with_its_controller_reaped_or_not() {
        let mut child =
            Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().expect("sleep (coreutils)");
        let controller = child.id().cast_signed();
        let lease = Lease::new(Duration::from_secs(1000), Some(controller));
        assert_eq!(lease.is_over(), None);
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while lease.is_over().is_none() {
            assert!(Instant::now() < deadline, "a zombie counts as alive");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(lease.is_over(), Some(Why::ControllerGone));
        assert_eq!(Lease::new(Duration::ZERO, Some(1)).is_over(), Some(Why::TimeUp));
    }
}
