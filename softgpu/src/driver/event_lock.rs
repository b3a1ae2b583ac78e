// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock around all events of a process.
//!
//! INVARIANT: the lock is held only while the state changes. Each change wakes all waits, and each wait tests its own
//! condition.

use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::event_state::EventState;

/// The events of a process.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) state: Mutex<EventState>,
    /// Notified after every change that can end a wait.
    pub(super) changed: Condvar,
}

impl Events {
    pub(super) fn lock(&self) -> MutexGuard<'_, EventState> {
        self.state.lock()
    }

    /// Changes events and wakes every wait, which tests its condition again.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut EventState) -> R) -> R {
        let answer = change(&mut self.state.lock());
        self.changed.notify_all();
        answer
    }

    /// Has all waits, running and future, answer `ERESTART`, and waits until none is in progress. Whether that was before
    /// the deadline.
    pub(super) fn restart_waits(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        state.restarts = true;
        self.changed.notify_all();
        while state.waiters_now() > 0 {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.waiters_now() == 0;
            }
        }
        true
    }

    /// The end of [`Events::restart_waits`].
    pub(super) fn let_wait(&self) {
        self.state.lock().restarts = false;
    }

    /// Ends all waits for good.
    pub(super) fn cancel(&self) {
        self.change(|state| state.cancelled = true);
    }
}
