// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handles of one open render node.

use std::sync::Arc;

use crate::driver::bo::{Backing, Slots};
use crate::driver::memfd::Identity;

/// What a handle stands for.
#[derive(Debug)]
pub(in super::super) struct Gem {
    pub(in super::super) backing: Arc<Backing>,
    /// Offset at which this file, and no other, maps it.
    pub(in super::super) mmap_offset: u64,
    /// The DMABuf that it came from does not allow writing by the CPU.
    pub(in super::super) read_only: bool,
}

/// The handles of one open file.
#[derive(Debug, Default)]
pub(in super::super) struct GemTable {
    /// Handle 1 is the first slot.
    pub(in super::super) slots: Slots<Gem>,
}

impl GemTable {
    /// How many handles there are.
    pub(in super::super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(in super::super) fn get(&self, handle: u32) -> Option<&Gem> {
        self.slots.get(handle.checked_sub(1)?)
    }

    pub(super) fn remove(&mut self, handle: u32) -> Option<Gem> {
        self.slots.remove(handle.checked_sub(1)?)
    }

    pub(super) fn insert(&mut self, gem: Gem) -> u32 {
        self.slots.insert(gem) + 1
    }

    pub(in super::super) fn find(&self, memory: Identity) -> Option<u32> {
        self.slots.iter().find(|(_, gem)| gem.backing.identity == memory).map(|(slot, _)| slot + 1)
    }
}
