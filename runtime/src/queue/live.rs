// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue's shared memory and the path every packet takes into it: no lock, no syscall, no allocation.
//!
//! INVARIANT: a reserved slot is always published, with the packet it was reserved for or with a no-op, so the ring
//! never wedges on a slot that stays invalid; and a packet is published by the store of its header, its last.
//!
//! # Why a kernel-argument slot can be reused
//! A ring of P packets has 2·P argument slots; packet i uses slot i mod 2P, so slot i is written again for packet
//! i + 2P. That packet is admitted when the read index r satisfies i + 2P - r < P, so r > i + P: the processor has
//! consumed every packet up to i + P. Among the P packets i+1 ..= i+P there is one whose index is a multiple of P/2,
//! and every such packet carries the barrier bit: the processor did not start it before all packets ahead of it, i
//! among them, had completed. So nothing reads slot i any more, although the processor may consume packets (and move
//! r) long before they complete. P slots would not do: admission then only says that i was consumed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kfd::Doorbell;
use queues::aql::{Barrier, Packet, PacketKind, RawPacket};
use queues::hsa::AmdQueue;
use queues::ring::{Rebase, Ring};

use super::fault::QueueFault;
use crate::error::SubmitError;
use crate::gate::{Closed, Gate, GatedCell, Pass};
use crate::pool::mapped::Mapped;
use crate::registry::state::{AgentIndex, QueueState};

/// Where the write index lies in the queue's page.
pub const WRITE_INDEX: u64 = std::mem::offset_of!(AmdQueue, write_dispatch_id) as u64;
/// Where the read index lies in the queue's page.
pub const READ_INDEX: u64 = std::mem::offset_of!(AmdQueue, read_dispatch_id) as u64;

const PACKET: u64 = queues::aql::PACKET_BYTES as u64;
const BARRIER_BIT: u32 = 1 << 8;
/// The header of an unpublished slot, as the low half of word 0.
const INVALID: u32 = PacketKind::Invalid as u32;

/// The memory a queue's producers touch.
#[derive(Clone, Copy, Debug)]
pub struct QueueMemory {
    /// The packets.
    pub ring: Mapped,
    /// The page of the `amd_queue_t`.
    pub page: Mapped,
    /// The kernel-argument slots.
    pub kernargs: Mapped,
    /// Bytes of a slot.
    pub kernarg_slot: u64,
}

/// The part of a queue that its handles and the event thread share.
pub struct QueueLive {
    ring: Ring,
    memory: QueueMemory,
    /// Where it runs.
    pub agent: AgentIndex,
    /// Scratch bytes a lane can have.
    pub scratch_lane_bytes: u32,
    bell: GatedCell<Option<Doorbell>>,
    bias: AtomicU64,
    failed: AtomicBool,
    fault: OnceLock<Arc<QueueFault>>,
    destroyed: AtomicBool,
}

impl fmt::Debug for QueueLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLive")
            .field("packets", &self.ring.packets())
            .field("ring", &self.memory.ring)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Slots reserved in the ring; those not published when it is dropped become no-ops.
#[derive(Debug)]
pub struct Reservation<'q> {
    queue: &'q QueueLive,
    pass: &'q Pass<'q>,
    /// Hardware index of the next slot to publish.
    next: u64,
    end: u64,
}

impl QueueLive {
    /// A queue over `memory`, not yet on any hardware: see [`QueueLive::attach`].
    pub fn new(gate: &Arc<Gate>, ring: Ring, memory: QueueMemory, state: &QueueState) -> Self {
        QueueLive {
            ring,
            memory,
            agent: state.agent,
            scratch_lane_bytes: state.scratch_lane_bytes,
            bell: GatedCell::new(gate, None),
            bias: AtomicU64::new(state.bias),
            failed: AtomicBool::new(false),
            fault: OnceLock::new(),
            destroyed: AtomicBool::new(false),
        }
    }

    /// A queue that has its doorbell from the start.
    pub fn with_doorbell(mut self, gate: &Arc<Gate>, bell: Doorbell) -> Self {
        self.bell = GatedCell::new(gate, Some(bell));
        self
    }

    /// Lets go of the doorbell, whose slice must not outlive the device.
    pub fn detach(&self, closed: &mut Closed) {
        self.bell.set(closed, None);
    }

    /// Takes the doorbell of a hardware queue made anew for this ring after [`QueueLive::prepare`], and rings it for
    /// the no-ops that are there already.
    pub fn attach(&self, closed: &mut Closed, bell: Doorbell) {
        let written = self.hardware_write();
        if written > 0 {
            bell.ring(written - 1);
        }
        self.bell.set(closed, Some(bell));
    }

    /// Empties the ring, fills the slots up to where `logical` lies with no-ops, and writes both indices, for a
    /// hardware queue that starts at 0 and continues at `logical`. No such queue may exist yet.
    pub fn prepare(&self, logical: u64) -> Rebase {
        let rebase = self.ring.rebase(logical);
        self.clear_ring();
        self.memory.page.store(READ_INDEX, 0, Ordering::Relaxed);
        for index in 0..rebase.padding() {
            self.store_packet(index, &Packet::BarrierAnd(Barrier::noop()).encode());
        }
        self.bias.store(rebase.bias(), Ordering::Relaxed);
        // ORDERING: publishes the no-ops.
        self.memory.page.store(WRITE_INDEX, rebase.padding(), Ordering::Release);
        rebase
    }

    /// Marks every slot as unpublished.
    pub fn clear_ring(&self) {
        self.memory.ring.fill(0, self.memory.ring.bytes(), 0);
        for index in 0..self.ring.packets() {
            self.memory.ring.store32(self.ring.byte_offset(index), INVALID, Ordering::Relaxed);
        }
    }

    /// Its size and arithmetic.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// The hardware's read index: packets before it have been consumed, not necessarily completed.
    pub fn hardware_read(&self) -> u64 {
        self.memory.page.load(READ_INDEX, Ordering::Acquire)
    }

    /// The hardware's write index: packets before it are reserved.
    pub fn hardware_write(&self) -> u64 {
        self.memory.page.load(WRITE_INDEX, Ordering::Acquire)
    }

    /// The caller's index of the packet the hardware calls `hardware`.
    pub fn logical(&self, hardware: u64) -> u64 {
        hardware.wrapping_add(self.bias.load(Ordering::Relaxed))
    }

    /// Packets reserved and not consumed.
    pub fn pending(&self) -> u64 {
        self.hardware_write().wrapping_sub(self.hardware_read())
    }

    /// Its present plain state. The queue's page must be mapped.
    pub fn save(&self, state: &QueueState) -> QueueState {
        QueueState {
            bias: self.bias.load(Ordering::Relaxed),
            write_index: self.logical(self.hardware_write()),
            ..state.clone()
        }
    }

    /// Why it stopped, if it did.
    pub fn fault(&self) -> Option<&Arc<QueueFault>> {
        // ORDERING: SeqCst pairs with `fail`: a producer looks here after it has published, see `submitted`.
        if self.failed.load(Ordering::SeqCst) { self.fault.get() } else { None }
    }

    /// Puts the queue in the error state. The first fault stays.
    pub fn fail(&self, fault: Arc<QueueFault>) -> &Arc<QueueFault> {
        let fault = self.fault.get_or_init(|| fault);
        self.failed.store(true, Ordering::SeqCst);
        fault
    }

    /// Refuses submissions from now on.
    pub fn mark_destroyed(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    /// Whether it was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::SeqCst)
    }

    /// Reserves `count` slots, all or none.
    ///
    /// The reservation is a compare-and-swap of the shared write index, not an unconditional add: a check followed by
    /// an add would let two producers pass the check for the last free slot, and the loser would have to wait inside
    /// a call that promises not to.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`], [`SubmitError::Queue`].
    #[inline]
    pub fn reserve<'q>(&'q self, pass: &'q Pass<'q>, count: u64) -> Result<Reservation<'q>, SubmitError> {
        if let Some(fault) = self.fault() {
            return Err(Arc::clone(fault).into());
        }
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
                Ok(first) => {
                    return Ok(Reservation {
                        queue: self,
                        pass,
                        next: first,
                        end: first.wrapping_add(count),
                    });
                }
                Err(found) => write = found,
            }
        }
    }

    /// Writes a packet at a hardware index, body first, header last.
    #[inline]
    fn store_packet(&self, index: u64, packet: &RawPacket) {
        let slot = self.memory.ring.part(self.ring.byte_offset(index), PACKET);
        for (word, &value) in packet.iter().enumerate().skip(1) {
            slot.store32(word as u64 * 4, value, Ordering::Relaxed);
        }
        // ORDERING: the packet belongs to the processor from this store on.
        slot.store32(0, packet[0], Ordering::Release);
    }

    /// The argument slot of the packet at a hardware index; see the module documentation.
    #[inline]
    fn kernarg_slot(&self, index: u64) -> Mapped {
        let slots = self.ring.packets() * 2;
        let bytes = self.memory.kernarg_slot;
        self.memory.kernargs.part((index & (slots - 1)) * bytes, bytes)
    }

    /// Whether the packet at this index must carry the barrier bit; see the module documentation.
    #[inline]
    fn is_fence(&self, index: u64) -> bool {
        index & (self.ring.packets() / 2 - 1) == 0
    }

    /// The completion handles in the ring's slots whose promise may still be open, for a queue that stopped: those of
    /// packets consumed within the last lap and of all not consumed.
    pub fn completion_handles(&self) -> Vec<u64> {
        let (read, write) = (self.hardware_read(), self.hardware_write());
        let first = read.saturating_sub(self.ring.packets() - self.ring.used(write, read).unwrap_or(0));
        (first..write)
            .map(|index| self.memory.ring.load(self.ring.byte_offset(index) + COMPLETION, Ordering::Acquire))
            .filter(|&handle| handle != 0)
            .collect()
    }

    /// The words of the packet in the slot of a hardware index.
    pub fn packet_at(&self, index: u64) -> RawPacket {
        let slot = self.memory.ring.part(self.ring.byte_offset(index), PACKET);
        std::array::from_fn(|word| slot.load32(word as u64 * 4, Ordering::Acquire))
    }
}

/// Where every packet kind has its completion signal.
const COMPLETION: u64 = 56;

impl Reservation<'_> {
    /// The hardware index of the next packet.
    #[inline]
    pub fn index(&self) -> u64 {
        self.next
    }

    /// The argument slot of the next packet.
    #[inline]
    pub fn kernargs(&self) -> Mapped {
        self.queue.kernarg_slot(self.next)
    }

    /// Publishes the next packet and rings the doorbell; returns its logical index.
    ///
    /// # Panics
    /// If all reserved slots are published.
    #[inline]
    pub fn publish(&mut self, mut packet: RawPacket) -> u64 {
        assert!(self.next != self.end, "INVARIANT: no more packets than slots were reserved");
        let index = self.next;
        if self.queue.is_fence(index) {
            packet[0] |= BARRIER_BIT;
        }
        self.queue.store_packet(index, &packet);
        self.next = index.wrapping_add(1);
        // A failed queue, or one let go, has no doorbell to hear.
        if let Some(bell) = self.queue.bell.get(self.pass) {
            bell.ring(index);
        }
        self.queue.logical(index)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        while self.next != self.end {
            self.publish(Packet::BarrierAnd(Barrier::noop()).encode());
        }
    }
}

mod marker;
#[cfg(test)]
mod tests;
