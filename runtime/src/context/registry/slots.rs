// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which 64-byte slots of the signal pages are free.
//!
//! INVARIANT: a slot is free here exactly if no registered signal names it.

use std::collections::BTreeMap;

use crate::context::registry::state::BoKey;
use crate::context::signal::live::SLOT_BYTES;
use queues::words::{count, words};

/// Bytes of a page of signals.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Slots of a page of signals.
pub const PAGE_SLOTS: u32 = words(PAGE_BYTES / SLOT_BYTES)[0];

const WORDS: usize = PAGE_SLOTS as usize / 64;

/// The free slots of every signal page, a bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalSlots {
    pages: BTreeMap<BoKey, [u64; WORDS]>,
}

impl SignalSlots {
    /// Adds a page, all free.
    pub fn add_page(&mut self, page: BoKey) {
        self.pages.insert(page, [u64::MAX; WORDS]);
    }

    /// Takes the first free slot; `None` if a page must be added.
    pub fn take(&mut self) -> Option<(BoKey, u32)> {
        self.pages.iter_mut().find_map(|(page, words)| {
            let (index, word) = words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
            let bit = word.trailing_zeros();
            *word &= *word - 1;
            // 16 words.
            Some((*page, count(index) * 64 + bit))
        })
    }

    /// Takes a slot by name; `false` if it is taken or not there.
    pub fn claim(&mut self, page: BoKey, slot: u32) -> bool {
        let Some(word) = self.pages.get_mut(&page).and_then(|words| words.get_mut(slot as usize / 64)) else {
            return false;
        };
        let free = *word & (1 << (slot % 64)) != 0;
        *word &= !(1 << (slot % 64));
        free
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, page: BoKey, slot: u32) {
        if let Some(word) = self.pages.get_mut(&page).and_then(|words| words.get_mut(slot as usize / 64)) {
            *word |= 1 << (slot % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::registry::Key;

    #[test]
    fn take_gives_every_slot_once() {
        let mut slots = SignalSlots::default();
        assert_eq!(slots.take(), None);
        slots.add_page(Key::from_raw(1, 0));
        let taken: std::collections::BTreeSet<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), PAGE_SLOTS as usize);
        slots.give_back(Key::from_raw(1, 0), 77);
        assert_eq!(slots.take(), Some((Key::from_raw(1, 0), 77)));
    }

    #[test]
    fn claim_twice_is_refused() {
        let mut slots = SignalSlots::default();
        slots.add_page(Key::from_raw(1, 0));
        assert!(slots.claim(Key::from_raw(1, 0), 3));
        assert!(!slots.claim(Key::from_raw(1, 0), 3));
        assert!(!slots.claim(Key::from_raw(1, 0), PAGE_SLOTS));
        assert!(!slots.claim(Key::from_raw(2, 0), 0));
    }
}
