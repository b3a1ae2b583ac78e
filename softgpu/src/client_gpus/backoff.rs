// SPDX-License-Identifier: MIT OR Apache-2.0
//! How barrier packets wait for signals: by polls with growing sleeps between them, which end early when a queue of this
//! process completes a packet.
//!
//! INVARIANT: no wait outlasts [`LONGEST_SLEEP`], because a store of the host to a signal wakes nobody.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a barrier polls its signals without sleeping.
const SPIN: Duration = Duration::from_micros(40);
/// First sleep between two looks.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
/// Last sleep between two looks: what a host store to a signal waits at most.
const LONGEST_SLEEP: Duration = Duration::from_micros(800);

/// The queues of a process that wait for signals.
#[derive(Debug, Default)]
pub(super) struct SignalWaiters {
    sleepers: AtomicUsize,
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl SignalWaiters {
    /// Ends the sleep of every waiting queue, since a signal may have changed. Costs one load when no queue sleeps.
    pub(super) fn wake(&self) {
        // ORDERING: pairs with the fence in `Backoff::wait`: either this thread sees the sleeper, or the sleeper sees
        // what this thread stored before.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            *self.wakes.lock() += 1;
            self.woken.notify_all();
        }
    }
}

/// One barrier's wait: when it began, and how long its next sleep is.
#[derive(Debug)]
pub(super) struct Backoff<'a> {
    waiters: &'a SignalWaiters,
    since: Instant,
    sleep: Duration,
}

impl<'a> Backoff<'a> {
    /// Begins to wait.
    pub(super) fn new(waiters: &'a SignalWaiters) -> Self {
        Self { waiters, since: Instant::now(), sleep: SHORTEST_SLEEP }
    }

    /// Spins or sleeps, longer each time; returns at once if `over` holds after the sleep was announced.
    pub(super) fn wait(&mut self, mut over: impl FnMut() -> bool) {
        if self.since.elapsed() < SPIN {
            std::hint::spin_loop();
            return;
        }
        self.waiters.sleepers.fetch_add(1, Ordering::Relaxed);
        let mut wakes = self.waiters.wakes.lock();
        fence(Ordering::SeqCst);
        if !over() {
            self.waiters.woken.wait_for(&mut wakes, self.sleep);
        }
        drop(wakes);
        self.waiters.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn wait_grows_to_the_longest_sleep_and_no_further() {
        let waiters = SignalWaiters::default();
        let mut backoff = Backoff::new(&waiters);
        std::thread::sleep(SPIN);
        for _ in 0..10 {
            backoff.wait(|| false);
        }
        assert_eq!(backoff.sleep, LONGEST_SLEEP);
    }

    #[test]
    fn wake_ends_a_wait() {
        let waiters = Arc::new(SignalWaiters::default());
        let done = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (waiters, done) = (Arc::clone(&waiters), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut backoff = Backoff::new(&waiters);
                while !done.load(Ordering::SeqCst) {
                    backoff.wait(|| done.load(Ordering::SeqCst));
                }
            })
        };
        std::thread::sleep(Duration::from_millis(5));
        done.store(true, Ordering::SeqCst);
        waiters.wake();
        waiter.join().unwrap();
        assert_eq!(waiters.sleepers.load(Ordering::SeqCst), 0);
    }
}
