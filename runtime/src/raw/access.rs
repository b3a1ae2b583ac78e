// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing a ring by hand.
//!
//! INVARIANT: the views exist only inside an [`Access`], which holds a pass of the gate and the ring's one place for a
//! producer; so memory is there, and nobody else writes, whenever they are used.

use std::sync::atomic::Ordering;

use queues::aql::RawPacket;
use stasis_protocol::gate::Pass;

use crate::context::queue::live::{Producer, QueueLive, READ_INDEX, WRITE_INDEX};
use crate::context::registry::state::QueueKind;

/// The right to write a queue's ring by hand. While it is held, a lock or checkpoint of the process waits for it, and so
/// do other producers of the queue.
///
/// Under it, write packets into free places of the ring ([`Access::free`] says how many there are), then move the write
/// pointer over them, then ring the doorbell, in this order. Take it for one batch and let it go: do not wait for
/// packets under it, and call nothing of the queue but its own views. When it is let go, what lies before the write
/// pointer must be whole packets (a checkpoint drains them, and rings the doorbell if you have not); what lies behind
/// the write pointer is yours only while you hold it, and is gone after a checkpoint, as is what was consumed.
///
/// What the host writes into an agent's memory may be on its way when a packet looks for it. Making an access and
/// [`Doorbell::ring`] flush what was written before. A packet processor that is reading a ring already does not wait for
/// a doorbell, though: to it an AQL packet is published by its header ([`Ring::publish`], [`Ring::store`]). So whoever
/// writes into an agent's memory ([`Buffer::write`](crate::Buffer::write), a [`HostGuard`](crate::HostGuard)) while an
/// access is held, for a packet that is published under the same access, calls
/// [`Agent::flush_host_writes`](crate::Agent::flush_host_writes) between the two. Signals need no flush: their values
/// are in host memory.
#[derive(Debug)]
pub struct Access<'q> {
    live: &'q QueueLive,
    // Before the pass, in the order of dropping: whoever has closed the gate finds the ring free.
    _producer: Producer<'q>,
    pass: Pass<'q>,
}

impl<'q> Access<'q> {
    pub(super) fn new(live: &'q QueueLive, pass: Pass<'q>) -> Self {
        let access = Access { _producer: live.produce(), live, pass };
        live.flush_host_writes(&access.pass);
        access
    }

    /// The words of the ring.
    pub fn ring(&self) -> Ring<'_> {
        Ring { live: self.live }
    }

    /// How far the processor has read.
    pub fn read_pointer(&self) -> ReadPointer<'_> {
        ReadPointer { live: self.live }
    }

    /// How far has been written.
    pub fn write_pointer(&self) -> WritePointer<'_> {
        WritePointer { live: self.live }
    }

    /// What tells the processor.
    pub fn doorbell(&self) -> Doorbell<'_> {
        Doorbell { live: self.live, pass: &self.pass }
    }

    /// Units that have been written and not consumed.
    pub fn used(&self) -> u64 {
        self.live.room(self.live.hardware_write()).0
    }

    /// Units that can be written now.
    pub fn free(&self) -> u64 {
        self.live.room(self.live.hardware_write()).1
    }
}

/// The words of a ring by position. Positions wrap around it by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    live: &'a QueueLive,
}

impl Ring<'_> {
    /// GPU and CPU address of its start.
    pub fn va(&self) -> u64 {
        self.live.memory().ring.va()
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.live.memory().ring.bytes()
    }

    /// Where the `nth` dword behind a position lies, bytes from the ring's start.
    fn at(&self, position: u64, nth: u64) -> u64 {
        (self.live.offset(position) & !3).wrapping_add(nth.wrapping_mul(4)) & (self.bytes() - 1)
    }

    /// The `nth` dword behind a position. (The position of an SDMA ring counts bytes; the dword that holds it counts.)
    pub fn load(&self, position: u64, nth: u64) -> u32 {
        self.live.memory().ring.load32(self.at(position, nth), Ordering::Acquire)
    }

    /// Stores the `nth` dword behind a position, with release order: what was stored before it is seen by whoever sees
    /// it, as the header of an AQL packet needs.
    pub fn store(&self, position: u64, nth: u64, word: u32) {
        self.live.memory().ring.store32(self.at(position, nth), word, Ordering::Release);
    }

    /// Stores dwords from a position on.
    pub fn write(&self, position: u64, words: &[u32]) {
        self.live.store_words(position, words);
    }

    /// The 16 dwords from a position on: the packet there, of an AQL ring.
    pub fn packet(&self, position: u64) -> RawPacket {
        std::array::from_fn(|word| self.load(position, word as u64))
    }

    /// Stores an AQL packet, its header last, by which the processor takes it for published.
    pub fn publish(&self, position: u64, packet: &RawPacket) {
        for (nth, &word) in packet.iter().enumerate().skip(1) {
            self.live.memory().ring.store32(self.at(position, nth as u64), word, Ordering::Relaxed);
        }
        self.store(position, 0, packet[0]);
    }
}

/// How far the processor has read.
#[derive(Clone, Copy, Debug)]
pub struct ReadPointer<'a> {
    live: &'a QueueLive,
}

impl ReadPointer<'_> {
    /// GPU and CPU address of the word the processor publishes it in. What is there counts from the last time the queue
    /// was put on the hardware, not as positions do.
    pub fn va(&self) -> u64 {
        self.live.memory().page.va() + READ_INDEX
    }

    /// Position of the first unit that the processor has not consumed.
    pub fn load(&self) -> u64 {
        self.live.logical(self.live.hardware_read())
    }
}

/// How far has been written.
#[derive(Clone, Copy, Debug)]
pub struct WritePointer<'a> {
    live: &'a QueueLive,
}

impl WritePointer<'_> {
    /// GPU and CPU address of the word. What is there counts from the last time the queue was put on the hardware, not
    /// as positions do.
    pub fn va(&self) -> u64 {
        self.live.memory().page.va() + WRITE_INDEX
    }

    /// Position behind the last unit written.
    pub fn load(&self) -> u64 {
        self.live.logical(self.live.hardware_write())
    }

    /// Moves it, with release order: the packets before it are in the ring. (The position of an SDMA queue is rounded
    /// down to a whole dword.)
    pub fn store(&self, position: u64) {
        let whole = match self.live.kind() {
            QueueKind::Sdma { .. } => position & !3,
            QueueKind::Aql | QueueKind::Pm4 => position,
        };
        // ORDERING: pairs with the processor's load; the packets were stored before.
        self.live.memory().page.store(WRITE_INDEX, self.live.hardware(whole), Ordering::Release);
    }
}

/// What tells the processor that there is something to read.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    live: &'a QueueLive,
    pass: &'a Pass<'a>,
}

impl Doorbell<'_> {
    /// Says that everything before `position` is in the ring, whatever the kind. (The hardware's doorbell of an AQL
    /// queue takes the last packet's index; this is one more, like the write pointer.)
    pub fn ring(&self, position: u64) {
        self.live.flush_host_writes(self.pass);
        self.live.tell_up_to(self.pass, self.live.hardware(position));
    }
}
