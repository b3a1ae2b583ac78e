// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends a verb early: its deadline, or a cancellation.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thiserror::Error;

use crate::sync::{AtomicBool, Instant};

/// How long a piece of work may take. Clones share the cancellation.
#[derive(Clone, Debug)]
pub struct Limit {
    started: Instant,
    /// `None`: too late for the clock to represent.
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
}

/// The work was stopped before its end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Stopped {
    /// The deadline passed.
    #[error("its deadline of {} ms has passed", limit.as_millis())]
    Deadline {
        /// The time that it was given.
        limit: Duration,
    },
    /// It was cancelled.
    #[error("it was cancelled after {} ms", elapsed.as_millis())]
    Cancelled {
        /// How long it had taken so far.
        elapsed: Duration,
    },
}

impl Limit {
    /// A limit of `within` from now on, which cannot be cancelled.
    #[must_use]
    pub fn within(within: Duration) -> Self {
        Self::cancellable(within, Arc::default())
    }

    /// No limit.
    #[must_use]
    pub fn none() -> Self {
        Self::within(Duration::MAX)
    }

    /// A limit of `within` from now on, or until `cancelled` is set.
    #[must_use]
    pub fn cancellable(within: Duration, cancelled: Arc<AtomicBool>) -> Self {
        let started = Instant::now();
        Self { started, deadline: started.checked_add(within), cancelled }
    }

    /// A limit of `within` from now on, with the same cancellation.
    #[must_use]
    pub fn again(&self, within: Duration) -> Self {
        Self::cancellable(within, Arc::clone(&self.cancelled))
    }

    /// The flag that cancels it.
    #[must_use]
    pub fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    /// The deadline, or `longest` from now if that comes first.
    #[must_use]
    pub fn deadline(&self, longest: Duration) -> Instant {
        let latest = Instant::now() + longest;
        self.deadline.map_or(latest, |deadline| deadline.min(latest))
    }

    /// How long the work has taken so far.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Checks that the work may continue.
    ///
    /// # Errors
    /// [`Stopped`] once it may not.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Stopped::Cancelled { elapsed: self.started.elapsed() });
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Stopped::Deadline { limit: deadline.duration_since(self.started) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn limit_ends_by_time_and_by_cancellation() {
        assert_eq!(Limit::none().check(), Ok(()));
        let over = Limit::within(Duration::ZERO);
        assert_eq!(over.check(), Err(Stopped::Deadline { limit: Duration::ZERO }));
        let limit = Limit::within(Duration::from_secs(1000));
        let other = limit.clone();
        limit.cancelled().store(true, Ordering::Relaxed);
        assert!(matches!(other.check(), Err(Stopped::Cancelled { .. })));
    }
}
