// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a command whose device does not answer: a call in the driver cannot be taken back, a process can be ended.
//!
//! INVARIANT: no step of the command lasts longer than the limit; what the command had of the device goes with it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// TIMEOUT: how much later than the limit a step is ended from outside: one that keeps its limit by itself says more.
const GRACE: Duration = Duration::from_secs(1);

/// What is being done, and since when.
#[derive(Debug)]
struct Step {
    what: &'static str,
    since: Instant,
    ended: bool,
}

/// Ends the process when a step takes too long, until it is dropped.
#[derive(Debug)]
pub struct Watchdog(Arc<(Mutex<Step>, Condvar)>);

impl Watchdog {
    /// Begins with the first step.
    ///
    /// # Errors
    /// What spawning a thread fails with.
    pub fn start(limit: Duration, what: &'static str) -> std::io::Result<Self> {
        let step = Step { what, since: Instant::now(), ended: false };
        let shared = Arc::new((Mutex::new(step), Condvar::new()));
        let watched = Arc::clone(&shared);
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            if let Some(what) = late_step(&watched, limit.saturating_add(GRACE)) {
                eprintln!(
                    "Error: The device has not answered for {} ms ({what}): it is stopped or short of time. It was left \
                     as it is",
                    limit.as_millis()
                );
                std::process::exit(1);
            }
        })?;
        Ok(Self(shared))
    }

    /// Begins with another step.
    pub fn step(&self, what: &'static str) {
        self.change(|step| (step.what, step.since) = (what, Instant::now()));
    }

    fn change(&self, change: impl FnOnce(&mut Step)) {
        let (step, changed) = &*self.0;
        change(&mut step.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.change(|step| step.ended = true);
    }
}

/// Waits until a step is late, and says which; `None` at the end.
fn late_step((step, changed): &(Mutex<Step>, Condvar), limit: Duration) -> Option<&'static str> {
    let mut step = step.lock().unwrap_or_else(PoisonError::into_inner);
    while !step.ended {
        let left = limit.saturating_sub(step.since.elapsed());
        if left.is_zero() {
            return Some(step.what);
        }
        step = changed.wait_timeout(step, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_that_lasts_too_long_is_named_and_one_that_ends_is_not() {
        let step = Step { what: "the first", since: Instant::now(), ended: false };
        let watchdog = Watchdog(Arc::new((Mutex::new(step), Condvar::new())));
        assert_eq!(late_step(&watchdog.0, Duration::ZERO), Some("the first"));
        watchdog.step("the second");
        assert_eq!(late_step(&watchdog.0, Duration::from_millis(20)), Some("the second"));
        let shared = Arc::clone(&watchdog.0);
        drop(watchdog);
        assert_eq!(late_step(&shared, Duration::from_secs(3600)), None);
    }
}
