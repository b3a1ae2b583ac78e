// SPDX-License-Identifier: MIT OR Apache-2.0
//! A GPU's buffers by handle, and by the offset that the client maps them at.
//!
//! INVARIANT: `by_offset` names exactly the buffers that are there, but for those that no offset names
//! ([`has_offset`]). A buffer's offset never changes.

use std::collections::BTreeSet;

use super::bo::{Bo, Domain, Slots};

/// The buffers of a process on one GPU.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    slots: Slots<Bo>,
    /// Offset and index.
    by_offset: BTreeSet<(u64, u32)>,
}

/// Whether the client maps it through its render node.
fn has_offset(bo: &Bo) -> bool {
    !matches!(bo.backing.domain, Domain::Userptr | Domain::Mmio)
}

impl Buffers {
    /// Adds a buffer under the lowest free index, which it answers.
    pub(super) fn insert(&mut self, bo: Bo) -> u32 {
        let index = self.slots.insert(bo);
        self.note_offset(index);
        index
    }

    /// Adds a buffer under its old index; fails if that is taken.
    #[must_use]
    pub(super) fn insert_at(&mut self, index: u32, bo: Bo) -> bool {
        let is_free = self.slots.insert_at(index, bo);
        if is_free {
            self.note_offset(index);
        }
        is_free
    }

    fn note_offset(&mut self, index: u32) {
        if let Some(bo) = self.slots.get(index).filter(|bo| has_offset(bo)) {
            self.by_offset.insert((bo.mmap_offset, index));
        }
    }

    /// Takes a buffer out.
    pub(super) fn remove(&mut self, index: u32) -> Option<Bo> {
        let bo = self.slots.remove(index)?;
        self.by_offset.remove(&(bo.mmap_offset, index));
        Some(bo)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Bo> {
        self.slots.get(index)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Bo> {
        self.slots.get_mut(index)
    }

    /// The buffer that the client maps at this offset.
    pub(super) fn at_offset(&self, offset: u64) -> Option<&Bo> {
        let (_, index) = self.by_offset.range((offset, 0)..=(offset, u32::MAX)).next()?;
        self.slots.get(*index)
    }

    /// By index.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Bo)> {
        self.slots.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
