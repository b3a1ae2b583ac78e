// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which addresses are those of live signals: looked up without a lock by every operation on a signal.
//!
//! INVARIANT: a page of the table stays in its place once it is there, so a look-up that finds it may use it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes of a page, of a signal, and signals of a page.
const PAGE: u64 = 4096;
const SIGNAL: u64 = 64;
/// Pages that the table has room for, a power of two: 2^20 signals.
const PAGES: usize = 1 << 14;

/// A page of signals: its address, and a bit for each live signal in it.
#[derive(Debug, Default)]
struct Page {
    address: AtomicU64,
    live: AtomicU64,
}

/// The live signals.
#[derive(Debug)]
pub struct LiveSignals {
    pages: Box<[Page]>,
    adding: Mutex<()>,
}

impl LiveSignals {
    pub fn new() -> Self {
        LiveSignals { pages: (0..PAGES).map(|_| Page::default()).collect(), adding: Mutex::new(()) }
    }

    /// Places of a page in the order in which they are looked at.
    fn places(page: u64) -> impl Iterator<Item = usize> {
        // CAST: the low bits of a hash.
        let first = ((page / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PAGES).map(move |step| (first + step) % PAGES)
    }

    /// The page of an address that a signal may have.
    fn page_of(&self, address: u64) -> Option<&Page> {
        let page = address & !(PAGE - 1);
        if page == 0 || !address.is_multiple_of(SIGNAL) {
            return None;
        }
        for place in Self::places(page) {
            let entry = &self.pages[place];
            match entry.address.load(Ordering::Acquire) {
                found if found == page => return Some(entry),
                0 => return None,
                _ => {}
            }
        }
        None
    }

    const fn bit(address: u64) -> u64 {
        1 << (address % PAGE / SIGNAL)
    }

    /// Whether an address is that of a live signal.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.page_of(address).is_some_and(|page| page.live.load(Ordering::Acquire) & Self::bit(address) != 0)
    }

    /// Adds an address; false where there is no room.
    pub fn add(&self, address: u64) -> bool {
        let page = address & !(PAGE - 1);
        let _adding = self.adding.lock();
        let vacant = |place: &usize| matches!(self.pages[*place].address.load(Ordering::Relaxed), found if found == 0 || found == page);
        let Some(place) = Self::places(page).find(vacant) else { return false };
        self.pages[place].live.fetch_or(Self::bit(address), Ordering::Relaxed);
        self.pages[place].address.store(page, Ordering::Release);
        true
    }

    /// Takes an address away; whether it was there.
    pub fn remove(&self, address: u64) -> bool {
        let bit = Self::bit(address);
        self.page_of(address).is_some_and(|page| page.live.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_signal_is_live_until_it_is_removed() {
        let live = LiveSignals::new();
        for address in [0x7000_0000_1000, 0x7000_0000_1040, 0x7000_0400_1fc0] {
            assert!(!live.contains(address));
            assert!(live.add(address) && live.contains(address));
        }
        assert!(!live.contains(0x7000_0000_1080) && !live.contains(0x7000_0000_1008));
        assert!(live.remove(0x7000_0000_1000) && !live.remove(0x7000_0000_1000));
        assert!(live.contains(0x7000_0000_1040) && !live.contains(0x7000_0000_1000));
        assert!(!live.contains(0) && !live.contains(u64::MAX) && !live.contains(64));
    }

    #[test]
    fn full_table_takes_no_more_pages() {
        let live = LiveSignals::new();
        for page in 1..=PAGES as u64 {
            assert!(live.add(page * PAGE));
        }
        assert!(!live.add((PAGES as u64 + 1) * PAGE));
        assert!(live.add(PAGE + SIGNAL));
        assert!(!live.contains((PAGES as u64 + 2) * PAGE));
    }
}
