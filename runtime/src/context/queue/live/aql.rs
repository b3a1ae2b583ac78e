// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path every AQL packet takes into its ring: no lock, no syscall, no allocation.
//!
//! INVARIANT: a reserved slot is always published, with the packet it was reserved for or with a no-op, so the ring
//! never wedges on a slot that stays invalid; and a packet is published by the store of its header, its last.
//!
//! Reserving and publishing are inlined always, so that a reservation need not go through memory on a dispatch's path.
//!
//! # Why a kernel-argument slot can be reused
//! A ring of P packets has 2·P argument slots; packet i uses slot i mod 2P, so slot i is written again for packet
//! i + 2P. That packet is admitted when the read index r satisfies i + 2P - r < P, so r > i + P: the processor has
//! consumed every packet up to i + P. Among the P packets i+1 ..= i+P there is one whose index is a multiple of P/2,
//! and every such packet carries the barrier bit: the processor did not start it before all packets ahead of it, i
//! among them, had completed. So nothing reads slot i any more, although the processor may consume packets (and move
//! r) long before they complete. P slots would not do: admission then only says that i was consumed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queues::aql::{Barrier, Packet, PacketKind, RawPacket};
use stasis_protocol::gate::Pass;

use crate::context::error::SubmitError;
use crate::context::memory::mapped::Mapped;
use crate::context::queue::fault::QueueFault;
use crate::context::queue::live::{QueueLive, READ_INDEX, WRITE_INDEX};
use crate::context::registry::state::QueueKind;

pub(super) const BARRIER_BIT: u32 = 1 << 8;
/// The header of an unpublished slot, as the low half of word 0.
pub(super) const INVALID: u32 = PacketKind::Invalid as u32;
/// Where every packet kind has its completion signal.
const COMPLETION: u64 = 56;

/// Slots reserved in the ring. When it is dropped, those not published become no-ops, and the doorbell is rung once for all
/// of them.
#[derive(Debug)]
pub struct Reservation<'q> {
    queue: &'q QueueLive,
    pass: &'q Pass<'q>,
    /// Hardware index of the first slot.
    first: u64,
    /// Hardware index of the next slot to publish.
    next: u64,
    end: u64,
}

/// The kernel object of a dispatch packet. The processor has overwritten the header of one that it has `begun`, and left the
/// rest.
fn kernel_object(mut raw: RawPacket, begun: bool) -> Option<u64> {
    if begun {
        raw[0] = raw[0] & 0xffff_0000 | PacketKind::KernelDispatch as u32;
    }
    match Packet::decode(&raw) {
        Ok(packet @ Packet::KernelDispatch(dispatch)) if packet.validate().is_ok() => {
            Some(dispatch.kernel_object)
        }
        _ => None,
    }
}

#[cold]
fn refused(fault: &Arc<QueueFault>) -> SubmitError {
    Arc::clone(fault).into()
}

impl QueueLive {
    /// `kernel_object` of the dispatch that an AQL queue began last, which runs if any does; else of the one that it is to
    /// begin.
    pub fn running_object(&self) -> Option<u64> {
        if self.kind() != QueueKind::Aql {
            return None;
        }
        let (read, write) = (self.hardware_read(), self.hardware_write());
        // Slots before the read index that hold what they held, the last one first, and then the packet that is to begin.
        let oldest = write.saturating_sub(self.ring.packets());
        let begun = (oldest..read).rev().find_map(|index| kernel_object(self.packet_at(index), true));
        begun.or_else(|| kernel_object(self.packet_at(read), false))
    }

    pub(super) fn mark_unpublished(&self) {
        for index in 0..self.ring.packets() {
            self.memory.ring.store32(self.ring.byte_offset(index), INVALID, Ordering::Relaxed);
        }
    }

    /// Reserves `count` slots, all or none.
    ///
    /// The reservation is a compare-and-swap of the shared write index, not an unconditional add: a check followed by
    /// an add would let two producers pass the check for the last free slot, and the loser would have to wait inside
    /// a call that promises not to.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`], [`SubmitError::Queue`].
    #[inline(always)]
    pub fn reserve<'q>(&'q self, pass: &'q Pass<'q>, count: u64) -> Result<Reservation<'q>, SubmitError> {
        let first = self.claim(pass, count)?;
        Ok(Reservation { queue: self, pass, first, next: first, end: first.wrapping_add(count) })
    }

    /// Moves the write index: the hardware index of the first slot of [`QueueLive::reserve`].
    #[inline(always)]
    fn claim(&self, pass: &Pass<'_>, count: u64) -> Result<u64, SubmitError> {
        if let Some(fault) = self.fault() {
            return Err(refused(fault));
        }
        self.flush_host_writes(pass);
        let mut write = self.memory.page.load(WRITE_INDEX, Ordering::Relaxed);
        loop {
            // ORDERING: Acquire pairs with the processor's store of the read index after it has taken a packet.
            let read = self.memory.page.load(READ_INDEX, Ordering::Acquire);
            let free = self.ring.free(write, read);
            if count > free {
                let now = self.memory.page.load(WRITE_INDEX, Ordering::Relaxed);
                if now != write {
                    // `write` was stale, and a stale write index may lie behind the read index.
                    write = now;
                    continue;
                }
                return Err(SubmitError::WouldBlock { wanted: count, free, packets: self.ring.packets() });
            }
            match self.memory.page.replace(WRITE_INDEX, write, write.wrapping_add(count)) {
                Ok(first) => return Ok(first),
                Err(found) => write = found,
            }
        }
    }

    /// Writes a packet at a hardware index, body first, header last.
    #[inline]
    pub(crate) fn store_packet(&self, index: u64, packet: &RawPacket) {
        self.memory.ring.publish_packet(self.ring.byte_offset(index), packet);
    }

    /// The argument slot of the packet at a hardware index; see the module documentation. It goes by the caller's index: packets that
    /// are put back keep their slots.
    #[inline]
    fn kernarg_slot(&self, index: u64) -> Option<Mapped> {
        let slots = self.ring.packets() * 2;
        let bytes = self.memory.kernarg_slot;
        Some(self.memory.kernargs?.part((self.logical(index) & (slots - 1)) * bytes, bytes))
    }

    /// Whether the packet at this index must carry the barrier bit; see the module documentation.
    #[inline]
    fn is_fence(&self, index: u64) -> bool {
        // Without slots there is nothing to reuse, and packets of the caller's own are left as they are.
        self.memory.kernargs.is_some() && index & (self.ring.packets() / 2 - 1) == 0
    }

    /// The completion handles in the ring's slots whose promise may still be open, for a queue that stopped: those of
    /// packets consumed within the last lap and of all not consumed.
    pub(super) fn ring_handles(&self) -> Vec<u64> {
        let (read, write) = (self.hardware_read(), self.hardware_write());
        let first = read.saturating_sub(self.ring.packets() - self.ring.used(write, read).unwrap_or(0));
        (first..write)
            .map(|index| self.memory.ring.load(self.ring.byte_offset(index) + COMPLETION, Ordering::Acquire))
            .filter(|&handle| handle != 0)
            .collect()
    }

    /// The words of the packet in the slot of a hardware index.
    pub fn packet_at(&self, index: u64) -> RawPacket {
        self.memory.ring.packet(self.ring.byte_offset(index))
    }
}

impl Reservation<'_> {
    /// The hardware index of the next packet.
    #[inline]
    pub fn index(&self) -> u64 {
        self.next
    }

    /// The argument slot of the next packet, where the runtime places arguments.
    #[inline]
    pub fn kernargs(&self) -> Option<Mapped> {
        self.queue.kernarg_slot(self.next)
    }

    /// The logical index of the first packet.
    #[inline]
    pub fn first(&self) -> u64 {
        self.queue.logical(self.first)
    }

    /// Publishes the next packet; returns its logical index. The doorbell is rung when the reservation is dropped.
    ///
    /// # Panics
    /// If all reserved slots are published.
    #[inline(always)]
    pub fn publish(&mut self, mut packet: RawPacket) -> u64 {
        assert!(self.next != self.end, "INVARIANT: no more packets than slots were reserved");
        let index = self.next;
        if self.queue.is_fence(index) {
            packet[0] |= BARRIER_BIT;
        }
        self.queue.store_packet(index, &packet);
        self.next = index.wrapping_add(1);
        self.queue.logical(index)
    }
}

impl Reservation<'_> {
    #[cold]
    fn plug(&mut self) {
        while self.next != self.end {
            self.publish(Packet::BarrierAnd(Barrier::noop()).encode());
        }
    }
}

impl Drop for Reservation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.next != self.end {
            self.plug();
        }
        if self.first != self.end {
            self.queue.tell_up_to(self.pass, self.end);
        }
    }
}
