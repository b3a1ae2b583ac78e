// SPDX-License-Identifier: MIT OR Apache-2.0
//! A packet's dwords, copied out of the ring.
//!
//! INVARIANT: what is decoded and executed is this copy, so the client cannot change a packet during its
//! execution. The copy is contiguous even where the packet crosses the ring's end.

use softgpu_waves::{MemoryFault, Vm};

use super::DWORD;
use crate::hardware::HwQueue;

/// The most bytes that are read under one hold of the address space's lock.
const PIECE: u64 = 1 << 20;

/// The copy, reused from packet to packet.
#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    dwords: Vec<u32>,
}

impl Window {
    /// The `dwords` dwords of the ring from byte position `next` on; they must be announced, so at most a ring's.
    ///
    /// # Errors
    /// The fault, when the ring is no longer mapped.
    pub(super) fn read(
        &mut self,
        vm: &Vm,
        queue: &HwQueue,
        next: u64,
        dwords: u64,
    ) -> Result<&[u32], MemoryFault> {
        self.dwords.clear();
        let (mut at, mut left) = (next, dwords * DWORD);
        while left > 0 {
            let offset = at % queue.ring_bytes.max(DWORD);
            let piece = left.min(PIECE).min(queue.ring_bytes.max(DWORD) - offset);
            // CAST: at most `PIECE`.
            self.bytes.resize(piece as usize, 0);
            vm.read_bytes(queue.ring_va.wrapping_add(offset), &mut self.bytes)?;
            self.dwords.extend(self.bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)));
            (at, left) = (at.wrapping_add(piece), left - piece);
        }
        Ok(&self.dwords)
    }
}
