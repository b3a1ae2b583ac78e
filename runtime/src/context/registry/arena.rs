// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which addresses of the process's one VA window are taken: arithmetic only, no mapping is made here.
//!
//! INVARIANT: handed-out ranges never overlap, and at least one never-mapped guard page follows each, so that an
//! access past the end of a buffer faults instead of reaching its neighbour.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes of a page, and the granularity of the arena.
pub const PAGE: u64 = 4096;
/// First address of the first window tried.
pub const WINDOW_BASE: u64 = 16 << 40;
/// Bytes of a window, and the distance between the windows tried.
pub const WINDOW_BYTES: u64 = 1 << 40;
/// Windows tried before opening fails: up to 80 TiB, where the soft device keeps its own addresses away from.
pub const WINDOWS: u64 = 64;
/// Ranges of at least this size start on a multiple of it, so that large pages can back them.
const HUGE: u64 = 2 << 20;

/// Free ranges of the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    window: Window,
    /// start -> bytes, coalesced.
    free: BTreeMap<u64, u64>,
}

/// The reserved address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A range that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// No free range is long enough.
    #[error("The address window has no free range of {wanted} bytes (largest: {largest})")]
    Full {
        /// Bytes asked for.
        wanted: u64,
        /// Longest free range.
        largest: u64,
    },
    /// The range asked for by address is taken, outside the window, or not page aligned.
    #[error("Address range {va:#x}+{bytes:#x} is not free in the window")]
    Taken {
        /// First address asked for.
        va: u64,
        /// Bytes asked for.
        bytes: u64,
    },
}

/// `bytes` rounded up to whole pages.
pub const fn page_align(bytes: u64) -> Option<u64> {
    match bytes.checked_add(PAGE - 1) {
        Some(sum) => Some(sum & !(PAGE - 1)),
        None => None,
    }
}

impl Arena {
    /// An empty arena over `window`.
    pub fn new(window: Window) -> Self {
        Arena { window, free: BTreeMap::from([(window.base, window.bytes)]) }
    }

    /// The window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Takes `bytes` (rounded up to pages) plus a guard page; first fit. Returns the address.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn take(&mut self, bytes: u64) -> Result<u64, ArenaError> {
        self.take_aligned(bytes, PAGE)
    }

    /// As [`Arena::take`], at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn take_aligned(&mut self, bytes: u64, align: u64) -> Result<u64, ArenaError> {
        let full = |free: &BTreeMap<u64, u64>| ArenaError::Full {
            wanted: bytes,
            largest: free.values().copied().max().unwrap_or(0),
        };
        let Some(span) = Self::span(bytes) else { return Err(full(&self.free)) };
        let align = align.max(if bytes >= HUGE { HUGE } else { PAGE });
        let fit = self.free.iter().find_map(|(&start, &len)| {
            let va = start.checked_next_multiple_of(align)?;
            (va - start).checked_add(span).filter(|&need| need <= len).map(|_| va)
        });
        let va = fit.ok_or_else(|| full(&self.free))?;
        self.carve(va, span);
        Ok(va)
    }

    /// Takes exactly the range at `va` (as [`Arena::take`] once gave it).
    ///
    /// # Errors
    /// [`ArenaError::Taken`].
    pub fn claim(&mut self, va: u64, bytes: u64) -> Result<(), ArenaError> {
        let taken = ArenaError::Taken { va, bytes };
        let span = Self::span(bytes).filter(|_| va.is_multiple_of(PAGE)).ok_or(taken)?;
        let end = va.checked_add(span).ok_or(taken)?;
        let (&start, &len) = self.free.range(..=va).next_back().ok_or(taken)?;
        if end > start + len {
            return Err(taken);
        }
        self.carve(va, span);
        Ok(())
    }

    /// Gives a range back. `va` and `bytes` are as taken.
    pub fn give_back(&mut self, va: u64, bytes: u64) {
        let Some(mut span) = Self::span(bytes) else { return };
        let mut start = va;
        if let Some(next) = self.free.remove(&(va + span)) {
            span += next;
        }
        if let Some((&before, &len)) = self.free.range(..va).next_back()
            && before + len == va
        {
            start = before;
            span += len;
        }
        self.free.insert(start, span);
    }

    /// Bytes free, guard pages not deducted.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    fn span(bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return None;
        }
        page_align(bytes)?.checked_add(PAGE)
    }

    /// Cuts `[va, va + span)` out of the free range that holds it.
    fn carve(&mut self, va: u64, span: u64) {
        let Some((&start, &len)) = self.free.range(..=va).next_back() else { return };
        self.free.remove(&start);
        if va > start {
            self.free.insert(start, va - start);
        }
        let (end, old_end) = (va + span, start + len);
        if old_end > end {
            self.free.insert(end, old_end - end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small() -> Arena {
        Arena::new(Window { base: WINDOW_BASE, bytes: 64 << 20 })
    }

    #[test]
    fn take_leaves_a_guard_page() {
        let mut arena = small();
        let first = arena.take(100).unwrap();
        let second = arena.take(4096).unwrap();
        assert_eq!((first, second), (WINDOW_BASE, WINDOW_BASE + 2 * PAGE));
    }

    #[test]
    fn take_too_much_says_how_much_there_is() {
        let mut arena = small();
        assert_eq!(arena.take(1 << 40), Err(ArenaError::Full { wanted: 1 << 40, largest: 64 << 20 }));
        assert!(arena.take(u64::MAX).is_err());
        assert!(arena.take(0).is_err());
    }

    #[test]
    fn claim_taken_range_is_refused() {
        let mut arena = small();
        arena.claim(WINDOW_BASE + PAGE, 8192).unwrap();
        assert!(arena.claim(WINDOW_BASE + 2 * PAGE, PAGE).is_err());
        assert!(arena.claim(WINDOW_BASE - PAGE, PAGE).is_err());
        assert!(arena.claim(WINDOW_BASE + 100, PAGE).is_err());
        assert!(arena.claim(u64::MAX - PAGE + 1, PAGE).is_err());
        arena.give_back(WINDOW_BASE + PAGE, 8192);
        assert_eq!(arena, small());
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1u64..4 << 20), 1..80)) {
            let mut arena = small();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, n) in steps {
                if take || taken.is_empty() {
                    if let Ok(va) = arena.take(n) {
                        prop_assert!(n < HUGE || va.is_multiple_of(HUGE));
                        let end = va + page_align(n).unwrap() + PAGE;
                        prop_assert!(taken.iter().all(|&(v, b)| end <= v || v + page_align(b).unwrap() + PAGE <= va));
                        taken.push((va, n));
                    }
                } else {
                    let (va, bytes) = taken.swap_remove(n as usize % taken.len());
                    arena.give_back(va, bytes);
                }
            }
            // Claiming the same ranges afresh gives the same arena: what a restore does.
            let mut again = small();
            for &(va, bytes) in &taken {
                again.claim(va, bytes).unwrap();
            }
            prop_assert_eq!(&again, &arena);
            for (va, bytes) in taken {
                arena.give_back(va, bytes);
            }
            prop_assert_eq!(arena, small());
        }
    }
}
