// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where barrier packets wait for signals: a poll that backs off, cut short when this process completes a packet.
//!
//! INVARIANT: no wait outlasts [`LONGEST_NAP`], because the host stores to signals without telling anyone.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a barrier looks at its signals without sleeping, from its first look on.
const SPIN: Duration = Duration::from_micros(40);
/// First sleep between two looks.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// Last sleep between two looks: what a host store to a signal waits at most.
const LONGEST_NAP: Duration = Duration::from_micros(800);

/// Tells waiting barriers that a signal may have changed.
#[derive(Debug, Default)]
pub(super) struct SignalBell {
    sleepers: AtomicUsize,
    strikes: Mutex<u64>,
    struck: Condvar,
}

impl SignalBell {
    /// Cuts short every wait under way. Costs one load when there is none.
    pub(super) fn strike(&self) {
        // ORDERING: pairs with the fence in `Patience::wait`: either we see the sleeper, or it sees what we stored.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            *self.strikes.lock() += 1;
            self.struck.notify_all();
        }
    }
}

/// One barrier's waiting: how often it looked and how long it may sleep next.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    bell: &'a SignalBell,
    since: Instant,
    nap: Duration,
}

impl<'a> Patience<'a> {
    /// Begins to wait.
    pub(super) fn new(bell: &'a SignalBell) -> Self {
        Self { bell, since: Instant::now(), nap: SHORTEST_NAP }
    }

    /// Lets a little time pass, more each time; returns at once if `over` holds once the wait is announced.
    pub(super) fn wait(&mut self, mut over: impl FnMut() -> bool) {
        if self.since.elapsed() < SPIN {
            std::hint::spin_loop();
            return;
        }
        self.bell.sleepers.fetch_add(1, Ordering::Relaxed);
        let mut strikes = self.bell.strikes.lock();
        fence(Ordering::SeqCst);
        if !over() {
            self.bell.struck.wait_for(&mut strikes, self.nap);
        }
        drop(strikes);
        self.bell.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.nap = (self.nap * 2).min(LONGEST_NAP);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn wait_grows_to_the_longest_nap_and_no_further() {
        let bell = SignalBell::default();
        let mut patience = Patience::new(&bell);
        std::thread::sleep(SPIN);
        for _ in 0..10 {
            patience.wait(|| false);
        }
        assert_eq!(patience.nap, LONGEST_NAP);
    }

    #[test]
    fn strike_ends_a_wait() {
        let bell = Arc::new(SignalBell::default());
        let done = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (bell, done) = (Arc::clone(&bell), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut patience = Patience::new(&bell);
                while !done.load(Ordering::SeqCst) {
                    patience.wait(|| done.load(Ordering::SeqCst));
                }
            })
        };
        std::thread::sleep(Duration::from_millis(5));
        done.store(true, Ordering::SeqCst);
        bell.strike();
        waiter.join().unwrap();
        assert_eq!(bell.sleepers.load(Ordering::SeqCst), 0);
    }
}
