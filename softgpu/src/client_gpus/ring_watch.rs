// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a sleeping queue learns of a doorbell that the client only stores to. Clients that use the soft transport wake the
//! queue themselves, and are not watched.
//!
//! Where the client's pages can be watched, they are protected while queues sleep: the first store waits, a thread here
//! lifts the protection, sees the store arrive, and wakes the queues. Otherwise queues take naps instead of sleeping.
//!
//! Of a restored client it is not known where its mappings are until it says so again. Queues take naps until it has said so
//! as often as it had mappings.
//!
//! INVARIANT: once a queue sleeps, either the client's pages are protected, or it wakes by itself within
//! [`LONGEST_NAP`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kfd::userfault::WatchedPages;
use nix::errno::Errno;
use parking_lot::Mutex;
use queues::words::count;
use std::sync::Arc;

/// The first nap after a ring, and while a store is on its way.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// The longest nap: what an idle queue costs is a look each time.
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// How long after the protection was lifted a store may take to arrive before pages are protected again.
const ARRIVAL: Duration = Duration::from_micros(500);

/// The client's mappings of one doorbell slice.
#[derive(Debug, Default)]
pub(super) struct RingWatch {
    /// Whether the client only stores.
    only_stores: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pages: Vec<Arc<WatchedPages>>,
    /// How many mappings there are that cannot be watched.
    unwatched: u32,
    /// How many mappings a restored client has that it did not name yet.
    unnamed: u32,
    is_protected: bool,
    /// When the protection was last lifted.
    lifted: Option<Instant>,
    nap: Duration,
}

impl RingWatch {
    /// Whether the client only stores.
    pub(super) fn is_on(&self) -> bool {
        // ORDERING: Relaxed, since a client that has just mapped its doorbells has not rung yet.
        self.only_stores.load(Ordering::Relaxed)
    }

    /// That of a restored client with so many mappings.
    pub(super) fn restored(mappings: u32) -> Self {
        let state = State { unnamed: mappings.max(1), ..State::default() };
        Self { only_stores: AtomicBool::new(true), state: Mutex::new(state) }
    }

    /// How many mappings the client has if it only stores. Some may be gone.
    pub(super) fn mappings(&self) -> Option<u32> {
        let state = self.state.lock();
        let known = count(state.pages.len()).saturating_add(state.unwatched).saturating_add(state.unnamed);
        self.is_on().then_some(known)
    }

    /// Watches a mapping of the client; without pages the queues take naps.
    pub(super) fn add(&self, pages: Option<Arc<WatchedPages>>) {
        let mut state = self.state.lock();
        match pages {
            // The next queue that sleeps protects it with the others.
            Some(pages) => {
                state.pages.push(pages);
                state.is_protected = false;
            }
            None => state.unwatched = state.unwatched.saturating_add(1),
        }
        state.unnamed = state.unnamed.saturating_sub(1);
        self.only_stores.store(true, Ordering::Relaxed);
    }

    /// Prepares a sleep of at most `limit`; answers how long it may last.
    pub(super) fn prepare(&self, limit: Option<Duration>) -> Option<Duration> {
        if !self.is_on() {
            return limit;
        }
        let mut state = self.state.lock();
        let at_most = |nap: Duration| Some(limit.map_or(nap, |limit| limit.min(nap)));
        if state.lifted.is_some_and(|lifted| lifted.elapsed() < ARRIVAL) {
            return at_most(SHORTEST_NAP);
        }
        if !state.is_protected {
            // A mapping that is gone needs no watching.
            state.pages.retain(|pages| pages.protect(true).is_ok());
            state.is_protected = true;
        }
        if state.unwatched == 0 && state.unnamed == 0 {
            return limit;
        }
        let nap = state.nap.clamp(SHORTEST_NAP, LONGEST_NAP);
        state.nap = nap * 2;
        at_most(nap)
    }

    /// A doorbell was rung.
    pub(super) fn rang(&self) {
        if self.is_on() {
            self.state.lock().nap = SHORTEST_NAP;
        }
    }

    /// Waits for a store to `pages` and lets it go on.
    ///
    /// # Errors
    /// When the pages cannot be watched any more.
    pub(super) fn wait_for_store(&self, pages: &WatchedPages) -> Result<(), Errno> {
        pages.wait()?;
        let mut state = self.state.lock();
        state.lifted = Some(Instant::now());
        state.is_protected = false;
        for pages in &state.pages {
            // Gone pages have no store that waits.
            let _ = pages.protect(false);
        }
        Ok(())
    }

    /// Whether a store that was let go on may still be on its way.
    pub(super) fn expects_store(&self) -> bool {
        self.state.lock().lifted.is_some_and(|lifted| lifted.elapsed() < ARRIVAL)
    }

    /// The store has arrived.
    pub(super) fn arrived(&self) {
        self.state.lock().lifted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping that is gone: it needs no protection.
    fn named() -> Option<Arc<WatchedPages>> {
        let file = std::fs::File::open("/dev/null").unwrap();
        Some(Arc::new(WatchedPages::new(file.into(), 0..4096)))
    }

    #[test]
    fn restored_client_is_not_watched_until_it_has_named_all_its_mappings() {
        let rings = RingWatch::restored(2);
        assert!(rings.is_on() && rings.prepare(None).is_some());
        assert_eq!(rings.mappings(), Some(2));
        rings.add(named());
        assert!(rings.prepare(None).is_some(), "a store to the other one would be lost");
        rings.add(named());
        assert_eq!(rings.prepare(None), None);
        rings.add(None);
        assert!(rings.prepare(None).is_some(), "one that cannot be watched");
        assert_eq!(rings.mappings(), Some(1), "the others are gone");
    }

    #[test]
    fn client_that_wakes_queues_itself_has_no_mappings_to_name() {
        assert_eq!(RingWatch::default().mappings(), None);
        let naps = RingWatch::default();
        naps.add(None);
        assert_eq!(naps.mappings(), Some(1));
        let again = RingWatch::restored(1);
        again.add(None);
        assert!(again.prepare(None).is_some());
    }
}
