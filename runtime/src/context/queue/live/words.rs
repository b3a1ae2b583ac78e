// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of PM4 and SDMA packets into their ring.
//!
//! INVARIANT: such packets have no header that publishes them, so everything before the write pointer is complete:
//! one producer at a time writes, body before write pointer before doorbell. And the ring is never filled to its last
//! dword, since a processor that keeps its read pointer modulo the ring's size could not tell full from empty.

use std::sync::atomic::Ordering;

use kfd::Doorbell;
use parking_lot::MutexGuard;
use queues::sdma;
use queues::words::{size, words};
use stasis_protocol::gate::Pass;

use crate::context::queue::live::{QueueLive, WRITE_INDEX};
use crate::context::registry::state::QueueKind;

/// Dwords that are looked at to print the packet a processor stopped at.
const PRINTED: u64 = 16;

/// Why words were not taken. In units of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There is no room now.
    Now {
        /// What they take, padding to the ring's start included.
        wanted: u64,
        /// Written and not consumed.
        used: u64,
        /// Room.
        free: u64,
    },
    /// There never will be.
    Ever {
        /// What they take.
        wanted: u64,
        /// What the ring takes at once.
        most: u64,
    },
}

/// The right to write the ring, for one producer at a time.
pub(crate) type Producer<'q> = MutexGuard<'q, ()>;

impl QueueLive {
    /// Becomes the one producer; waits for the one before.
    pub(crate) fn produce(&self) -> Producer<'_> {
        self.producer.lock()
    }

    /// Becomes the one producer if nobody is within `limit`.
    pub(crate) fn try_produce(&self, limit: std::time::Duration) -> Option<Producer<'_>> {
        self.producer.try_lock_for(limit)
    }

    /// The most units that are in the ring at once.
    pub(crate) fn capacity(&self) -> u64 {
        match self.kind {
            QueueKind::Aql => self.ring.packets(),
            QueueKind::Pm4 => self.ring.packets() - 1,
            QueueKind::Sdma { .. } => self.ring.packets() - 4,
        }
    }

    /// Units that can be written now: their number in use, and their room.
    pub(crate) fn room(&self, write: u64) -> (u64, u64) {
        let used = match self.kind {
            QueueKind::Aql => write.wrapping_sub(self.hardware_read()),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => write.wrapping_sub(self.read_before(write)),
        };
        (used, self.capacity().saturating_sub(used))
    }

    /// Stores words from the place of a hardware index on, around the ring's end.
    pub(crate) fn store_words(&self, index: u64, words: &[u32]) {
        let ring = self.memory.ring;
        let mut at = self.offset(index) & !3;
        for &word in words {
            ring.store32(at, word, Ordering::Relaxed);
            // The ring's size is a power of two of at least a page.
            at = (at + 4) & (ring.bytes() - 1);
        }
    }

    /// Writes packets behind all others, publishes them and rings the doorbell; the hardware's write pointer after
    /// them. Packets of a copy engine do not straddle the ring's end: the whole of `words` is kept together, and the
    /// places left over at the end are no-ops. Behind `words` are no-ops if the engine must not be told of so little at
    /// once.
    #[inline]
    pub(crate) fn write_words(
        &self,
        pass: &Pass<'_>,
        producer: &Producer<'_>,
        words: &[u32],
    ) -> Result<u64, Full> {
        self.flush_host_writes(pass);
        self.place_words(producer, words, |end| self.publish(pass, end))
    }

    /// As [`QueueLive::write_words`], for a queue that no caller of the gate has: this doorbell is rung, and what the host
    /// wrote before is the caller's to flush.
    pub(crate) fn write_words_by(
        &self,
        bell: &Doorbell,
        producer: &Producer<'_>,
        words: &[u32],
    ) -> Result<u64, Full> {
        self.place_words(producer, words, |end| {
            // ORDERING: as in `publish`.
            self.memory.page.store(WRITE_INDEX, end, Ordering::Release);
            self.tell(bell, end);
        })
    }

    #[inline]
    fn place_words(
        &self,
        _producer: &Producer<'_>,
        words: &[u32],
        publish: impl Fn(u64),
    ) -> Result<u64, Full> {
        let unit = self.kind.unit_bytes();
        let write = self.hardware_write();
        let dwords = words.len() as u64;
        let least = match self.kind {
            QueueKind::Sdma { .. } => u64::from(self.target.sdma_submission_dwords),
            QueueKind::Aql | QueueKind::Pm4 => 0,
        };
        let filling = least.saturating_sub(dwords) * 4 / unit;
        let wanted = dwords * 4 / unit + filling;
        let most = self.capacity();
        if wanted > most {
            return Err(Full::Ever { wanted, most });
        }
        let padding = match self.kind {
            QueueKind::Sdma { .. } => self.padding(write, wanted),
            QueueKind::Aql | QueueKind::Pm4 => 0,
        };
        let (used, free) = self.room(write);
        if padding + wanted <= free {
            self.store_padding(write, padding);
            self.store_words(write + padding, words);
            let end = write + padding + wanted;
            self.store_padding(end - filling, filling);
            publish(end);
            return Ok(end);
        }
        if padding > 0 && padding <= free {
            // No-ops up to the ring's start are on the way in any case, and without them long packets would never
            // find room behind the middle of the ring. However few they are: ROCr, too, submits them by themselves
            // (`PadRingToEnd`).
            self.store_padding(write, padding);
            publish(write + padding);
        }
        Err(Full::Now { wanted: padding + wanted, used, free })
    }

    /// Bytes to the ring's start if `wanted` bytes would straddle it.
    fn padding(&self, write: u64, wanted: u64) -> u64 {
        // The ring has 32 bits of bytes, and `wanted` fits it.
        let dwords = sdma::pad_to_fit(write, words(self.ring.packets())[0], size(wanted / 4));
        // Pointers that a caller set to no whole dword are refused where they are set.
        dwords.map_or(0, |dwords| dwords as u64 * 4)
    }

    fn store_padding(&self, write: u64, bytes: u64) {
        // A zero dword is a no-op of a copy engine.
        if bytes > 0 {
            self.memory.ring.fill(self.offset(write), bytes, 0);
        }
    }

    /// Publishes everything before the hardware's `end`.
    #[inline]
    pub(crate) fn publish(&self, pass: &Pass<'_>, end: u64) {
        // ORDERING: the words belong to the processor from here on; the doorbell's store is a release, too.
        self.memory.page.store(WRITE_INDEX, end, Ordering::Release);
        self.tell_up_to(pass, end);
    }

    /// The first words that the processor has not consumed.
    pub(super) fn unread_words(&self) -> Vec<u32> {
        let (read, write) = (self.hardware_read(), self.hardware_write());
        let dwords = write.wrapping_sub(read) * self.kind.unit_bytes() / 4;
        let mut at = self.offset(read) & !3;
        let mut words = Vec::new();
        for _ in 0..dwords.min(PRINTED) {
            words.push(self.memory.ring.load32(at, Ordering::Acquire));
            at = (at + 4) & (self.memory.ring.bytes() - 1);
        }
        words
    }
}
