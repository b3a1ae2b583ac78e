// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue's shared memory, of whatever kind, and its pointers: `aql` and `words` are the paths packets take into it.
//!
//! INVARIANT: the hardware's pointers start at 0 with every hardware queue; the caller's count on for ever. Both name
//! the same place in the ring, since their difference (`bias`) is a multiple of the ring's size.
//!
//! Pointers count units of the kind ([`QueueKind::unit_bytes`]): packets of an AQL queue, dwords of a PM4 queue, bytes
//! of an SDMA queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use kfd::Doorbell;
use parking_lot::Mutex;
use queues::aql::{Barrier, Packet};
use queues::hsa::AmdQueue;
use queues::ring::{Rebase, Ring};
use queues::target::Target;
use stasis_protocol::gate::{Closed, Gate, GatedCell, Pass};

use crate::context::hostcall::Hostcall;
use crate::context::memory::host_writes::HostWrites;
use crate::context::memory::mapped::Mapped;
use crate::context::queue::fault::QueueFault;
pub(crate) use crate::context::queue::live::words::{Full, Producer};
use crate::context::queue::packets;
use crate::context::registry::state::{AgentIndex, QueueKind, QueueState};
use crate::context::signal::live::SignalLive;

/// Where the write pointer lies in the queue's page, whatever its kind.
pub const WRITE_INDEX: u64 = std::mem::offset_of!(AmdQueue, write_dispatch_id) as u64;
/// Where the read pointer lies in the queue's page, whatever its kind.
pub const READ_INDEX: u64 = std::mem::offset_of!(AmdQueue, read_dispatch_id) as u64;

/// The memory a queue's producers touch.
#[derive(Clone, Copy, Debug)]
pub struct QueueMemory {
    /// The packets.
    pub ring: Mapped,
    /// The page of the pointers.
    pub page: Mapped,
    /// The kernel-argument slots, where the runtime places arguments.
    pub kernargs: Option<Mapped>,
    /// Bytes of a slot.
    pub kernarg_slot: u64,
}

/// The part of a queue that its handles and the event thread share.
pub struct QueueLive {
    kind: QueueKind,
    target: &'static Target,
    ring: Ring,
    memory: QueueMemory,
    /// Where it runs.
    pub agent: AgentIndex,
    /// Scratch bytes a lane of a queue just made has, which is what kernels with a dynamic stack can count on.
    pub scratch_lane_bytes: u32,
    bell: GatedCell<Option<Doorbell>>,
    /// What must be flushed before a packet can be seen.
    host_writes: Option<Arc<HostWrites>>,
    bias: AtomicU64,
    /// It is off the hardware with packets that wait for signals; see `waiting`.
    waits: AtomicBool,
    failed: AtomicBool,
    fault: OnceLock<Arc<QueueFault>>,
    destroyed: AtomicBool,
    /// Held by whoever writes a ring whose packets have no header to publish them by.
    producer: Mutex<()>,
    /// The packets of a drain's marker, of a queue of words; see `marker`.
    marker: Vec<u32>,
    /// What its kernels call the host through, from the first one that may.
    hostcall: OnceLock<Hostcall>,
    /// Signals that packets written by the caller will complete.
    promised: Mutex<Vec<Weak<SignalLive>>>,
}

impl fmt::Debug for QueueLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLive")
            .field("kind", &self.kind)
            .field("ring", &self.memory.ring)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl QueueLive {
    /// A queue over `memory`, not yet on any hardware: see [`QueueLive::attach`]. `ring` counts units of its kind.
    pub fn new(
        gate: &Arc<Gate>,
        target: &'static Target,
        ring: Ring,
        memory: QueueMemory,
        state: &QueueState,
    ) -> Self {
        QueueLive {
            kind: state.kind,
            target,
            ring,
            memory,
            agent: state.agent,
            scratch_lane_bytes: state.scratch_lane_bytes,
            bell: GatedCell::new(gate, None),
            host_writes: None,
            bias: AtomicU64::new(state.bias),
            waits: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            fault: OnceLock::new(),
            destroyed: AtomicBool::new(false),
            producer: Mutex::new(()),
            marker: marker::words(state.kind, target, memory.page),
            hostcall: OnceLock::new(),
            promised: Mutex::new(Vec::new()),
        }
    }

    /// A queue that has its doorbell from the start.
    pub fn with_doorbell(mut self, gate: &Arc<Gate>, bell: Doorbell) -> Self {
        self.bell = GatedCell::new(gate, Some(bell));
        self
    }

    /// A queue whose packets see what the host wrote before.
    pub fn behind(mut self, writes: &Arc<HostWrites>) -> Self {
        self.host_writes = Some(Arc::clone(writes));
        self
    }

    /// Flushes host writes to agents' memory. Before anything of a packet is written that a processor could take for it:
    /// the doorbell of a later packet may publish an earlier one.
    #[inline]
    pub(crate) fn flush_host_writes(&self, pass: &Pass<'_>) {
        if let Some(writes) = &self.host_writes {
            writes.flush(pass);
        }
    }

    /// What its kernels call the host through, if they can.
    #[inline]
    pub fn hostcall(&self) -> Option<&Hostcall> {
        self.hostcall.get()
    }

    /// Has its kernels call the host through this, unless they can already.
    pub fn set_hostcall(&self, hostcall: Hostcall) {
        self.hostcall.get_or_init(|| hostcall);
    }

    /// Lets go of the doorbell, whose slice must not outlive the device.
    pub fn detach(&self, closed: &mut Closed) {
        self.bell.set(closed, None);
    }

    /// Takes the doorbell of a hardware queue made anew for this ring after [`QueueLive::prepare`], and rings it for
    /// the no-ops that are there already.
    pub fn attach(&self, closed: &mut Closed, bell: Doorbell) {
        self.tell(&bell, self.hardware_write());
        self.bell.set(closed, Some(bell));
    }

    /// Takes the doorbell of the hardware queue that this ring had all along, without ringing it.
    pub fn reattach(&self, closed: &mut Closed, bell: Doorbell) {
        self.bell.set(closed, Some(bell));
    }

    /// Rings a doorbell for everything before the hardware's `end`.
    #[inline]
    fn tell(&self, bell: &Doorbell, end: u64) {
        match self.kind {
            // The doorbell of an AQL queue names the last packet.
            QueueKind::Aql if end == 0 => {}
            QueueKind::Aql => bell.ring(end - 1),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => bell.ring(end),
        }
    }

    /// Rings the doorbell for everything before the hardware's `end`. A queue that was let go has none.
    #[inline]
    pub(crate) fn tell_up_to(&self, pass: &Pass<'_>, end: u64) {
        if let Some(bell) = self.bell.get(pass) {
            self.tell(bell, end);
        }
    }

    /// Empties the ring, fills the places up to where `logical` lies with no-ops, and writes both pointers, for a
    /// hardware queue that starts at 0 and continues at `logical`. No such queue may exist yet.
    pub fn prepare(&self, logical: u64) -> Rebase {
        let rebase = self.ring.rebase(logical);
        self.clear_ring();
        self.memory.page.store(READ_INDEX, 0, Ordering::Relaxed);
        match self.kind {
            QueueKind::Aql => {
                for index in 0..rebase.padding() {
                    self.store_packet(index, &Packet::BarrierAnd(Barrier::noop()).encode());
                }
            }
            QueueKind::Pm4 | QueueKind::Sdma { .. } => {
                // CAST: less than a ring, which fits the address space.
                let dwords = (rebase.padding() * self.kind.unit_bytes() / 4) as usize;
                self.store_words(0, &packets::noops(self.kind, dwords));
            }
        }
        self.bias.store(rebase.bias(), Ordering::Relaxed);
        // ORDERING: publishes the no-ops.
        self.memory.page.store(WRITE_INDEX, rebase.padding(), Ordering::Release);
        rebase
    }

    /// Leaves nothing in the ring that a processor would take for a packet of ours.
    pub fn clear_ring(&self) {
        self.memory.ring.fill(0, self.memory.ring.bytes(), 0);
        if self.kind == QueueKind::Aql {
            self.mark_unpublished();
        }
    }

    /// Its packet language.
    pub fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Its agent's instruction set, by which packets differ.
    pub fn target(&self) -> &'static Target {
        self.target
    }

    /// Its size in units and its arithmetic.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Where the unit with this index, the hardware's or the caller's, lies in the ring, bytes from its start.
    #[inline]
    pub(crate) fn offset(&self, index: u64) -> u64 {
        self.ring.slot(index) * self.kind.unit_bytes()
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// The hardware's read pointer: what lies before it has been consumed, not necessarily completed.
    pub fn hardware_read(&self) -> u64 {
        if self.kind == QueueKind::Aql {
            return self.memory.page.load(READ_INDEX, Ordering::Acquire);
        }
        loop {
            let write = self.hardware_write();
            let read = self.read_before(write);
            // A producer that went on meanwhile may have been overtaken by the processor.
            if self.hardware_write() == write {
                return read;
            }
        }
    }

    /// The hardware's read pointer of a queue of words whose write pointer is `write` and stays so.
    ///
    /// Whether a processor publishes all 64 bits of it or only as many as the ring needs differs between firmwares;
    /// as such a ring is never filled completely, the low bits and the write pointer say it all.
    fn read_before(&self, write: u64) -> u64 {
        // ORDERING: Acquire pairs with the processor's store after it has read the packets.
        let published = self.memory.page.load(READ_INDEX, Ordering::Acquire);
        write.wrapping_sub(self.ring.slot(write.wrapping_sub(published)))
    }

    /// The hardware's write pointer: what lies before it is reserved.
    pub fn hardware_write(&self) -> u64 {
        self.memory.page.load(WRITE_INDEX, Ordering::Acquire)
    }

    /// The caller's index of what the hardware calls `hardware`.
    pub fn logical(&self, hardware: u64) -> u64 {
        hardware.wrapping_add(self.bias.load(Ordering::Relaxed))
    }

    /// The hardware's index of what the caller calls `logical`.
    pub fn hardware(&self, logical: u64) -> u64 {
        logical.wrapping_sub(self.bias.load(Ordering::Relaxed))
    }

    /// Units written and not consumed.
    pub fn pending(&self) -> u64 {
        self.hardware_write().wrapping_sub(self.hardware_read())
    }

    /// Its present plain state. The queue's page must be mapped, and its ring if it waits.
    pub fn with_indices(&self, state: &QueueState) -> QueueState {
        let bias = self.bias.load(Ordering::Relaxed);
        match self.waits() {
            true => QueueState {
                bias,
                write_index: self.logical(self.hardware_read()),
                waiting: self.unread_packets(),
                ..state.clone()
            },
            false => QueueState { bias, write_index: self.logical(self.hardware_write()), ..state.clone() },
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

    /// Refuses submissions from now on; or takes them again, after a destruction that failed.
    pub fn mark_destroyed(&self, destroyed: bool) {
        self.destroyed.store(destroyed, Ordering::SeqCst);
    }

    /// Whether it was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::SeqCst)
    }

    /// Notes that a packet of the caller's will complete `signal`, so that a fault of the queue breaks it.
    pub(crate) fn promise(&self, signal: &Arc<SignalLive>) {
        signal.promise();
        let mut promised = self.promised.lock();
        // Amortised: at most half of what is kept is over.
        if promised.len() == promised.capacity() {
            promised.retain(|signal| signal.upgrade().is_some_and(|signal| !signal.is_settled()));
            let room = promised.len().max(16);
            promised.reserve(room);
        }
        promised.push(Arc::downgrade(signal));
    }

    /// The handles of signals whose completion may still be owed, for a queue that stopped.
    pub fn completion_handles(&self) -> Vec<u64> {
        let mut handles = match self.kind {
            QueueKind::Aql => self.ring_handles(),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => Vec::new(),
        };
        let promised = self.promised.lock();
        handles.extend(promised.iter().filter_map(|signal| Some(signal.upgrade()?.handle())));
        handles
    }

    /// The packet at the read pointer, as text.
    pub fn next_packet(&self) -> String {
        match self.kind {
            QueueKind::Aql => packets::print_aql(&self.packet_at(self.hardware_read())),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => {
                packets::print(self.kind, self.target, &self.unread_words())
            }
        }
    }
}

pub(crate) mod aql;
mod marker;
#[cfg(test)]
mod tests;
mod waiting;
mod words;
