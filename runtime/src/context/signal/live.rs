// SPDX-License-Identifier: MIT OR Apache-2.0
//! A signal's slot in shared memory and what the process remembers beside it.
//!
//! INVARIANT: `expected` is the value the slot will have once every submitted completion has happened, so a signal
//! is settled, and its slot may be reused, exactly when the two are equal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering, fence};

use offset::*;
use parking_lot::Mutex;
use queues::hsa::{AmdSignal, signal_kind};

use crate::context::clocks::Stamps;
use crate::context::memory::mapped::Mapped;
use crate::context::queue::fault::QueueFault;
use crate::context::signal::event::EventLive;

/// Bytes of a signal slot.
pub const SLOT_BYTES: u64 = size_of::<AmdSignal>() as u64;

/// Offsets of the fields that are shared, from the ABI's struct.
mod offset {
    use queues::hsa::AmdSignal;
    use std::mem::offset_of;

    pub const KIND: u64 = offset_of!(AmdSignal, kind) as u64;
    pub const VALUE: u64 = offset_of!(AmdSignal, value) as u64;
    pub const MAILBOX: u64 = offset_of!(AmdSignal, event_mailbox_ptr) as u64;
    pub const EVENT_ID: u64 = offset_of!(AmdSignal, event_id) as u64;
    pub const START: u64 = offset_of!(AmdSignal, start_ts) as u64;
    pub const END: u64 = offset_of!(AmdSignal, end_ts) as u64;
}

/// The part of a signal that its handles and the packets share.
#[derive(Debug)]
pub struct SignalLive {
    slot: Mapped,
    /// The event its completion raises.
    pub event: Option<Arc<EventLive>>,
    expected: AtomicI64,
    broken: AtomicBool,
    fault: Mutex<Option<Arc<QueueFault>>>,
    /// Its times at the last checkpoint.
    pub stamps: Mutex<Stamps>,
}

impl SignalLive {
    /// Writes a fresh slot. `page_va` is the event page's address.
    pub fn create(slot: Mapped, event: Option<Arc<EventLive>>, page_va: u64, initial: i64) -> Self {
        let live = SignalLive {
            slot,
            event,
            expected: AtomicI64::new(initial),
            broken: AtomicBool::new(false),
            fault: Mutex::new(None),
            stamps: Mutex::default(),
        };
        slot.fill(0, SLOT_BYTES, 0);
        slot.store(KIND, signal_kind::USER.cast_unsigned(), Ordering::Relaxed);
        slot.store(VALUE, initial.cast_unsigned(), Ordering::Relaxed);
        live.rebind(page_va);
        live
    }

    /// A signal whose slot is in memory already (after a restore into a fresh registry).
    pub fn adopt(slot: Mapped, event: Option<Arc<EventLive>>) -> Self {
        let expected = slot.load(VALUE, Ordering::Acquire).cast_signed();
        SignalLive {
            slot,
            event,
            expected: AtomicI64::new(expected),
            broken: AtomicBool::new(false),
            fault: Mutex::new(None),
            stamps: Mutex::default(),
        }
    }

    /// Whether the slot is one that a runtime has written.
    pub fn is_signal(slot: Mapped) -> bool {
        slot.load(KIND, Ordering::Relaxed) == signal_kind::USER.cast_unsigned()
    }

    /// Writes the event's present id and mailbox into the slot: after the event was made again.
    pub fn rebind(&self, page_va: u64) {
        let id = self.event.as_ref().map_or(0, |event| event.id.load(Ordering::Relaxed));
        let mailbox = if id == 0 { 0 } else { page_va + u64::from(id) * 8 };
        self.slot.store(MAILBOX, mailbox, Ordering::Relaxed);
        self.slot.store32(EVENT_ID, id, Ordering::Release);
    }

    /// The signal's handle in packets: its address.
    #[inline]
    pub fn handle(&self) -> u64 {
        self.slot.va()
    }

    /// The address of its value.
    pub fn value_va(&self) -> u64 {
        self.slot.va() + VALUE
    }

    /// Where a processor that completes it without knowing signals writes the event's id before it interrupts, and
    /// that id.
    pub fn mailbox(&self) -> Option<(u64, u32)> {
        let mailbox = self.slot.load(MAILBOX, Ordering::Relaxed);
        (mailbox != 0).then(|| (mailbox, self.slot.load32(EVENT_ID, Ordering::Relaxed)))
    }

    /// Its value.
    #[inline]
    pub fn load(&self) -> i64 {
        // ORDERING: pairs with the processor's release of what its packet wrote before it decremented.
        self.slot.load(VALUE, Ordering::Acquire).cast_signed()
    }

    /// Sets the value, and forgets a fault: the signal starts a new life.
    pub fn store(&self, value: i64) {
        self.expected.store(value, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        self.slot.store(VALUE, value.cast_unsigned(), Ordering::Release);
    }

    /// Adds to the value and returns what it was.
    pub fn add(&self, value: i64) -> i64 {
        self.expected.fetch_add(value, Ordering::Relaxed);
        self.slot.add_signed(VALUE, value, Ordering::AcqRel)
    }

    /// Takes all bits of the value, leaving 0 (the exception word of a queue).
    pub fn take_bits(&self) -> u64 {
        // Not written where there is nothing: a write opens a page that is guarded at the moment.
        match self.slot.load(VALUE, Ordering::Acquire) {
            0 => 0,
            _ => self.slot.swap(VALUE, 0),
        }
    }

    /// Counts a completion to come. Before the packet is published.
    #[inline]
    pub fn promise(&self) {
        self.promise_many(1);
    }

    /// Counts `packets` completions to come. Before the first of the packets is published.
    #[inline]
    pub fn promise_many(&self, packets: i64) {
        self.expected.fetch_sub(packets, Ordering::Relaxed);
    }

    /// Takes a promise back whose packet was not published.
    pub fn unpromise(&self) {
        self.expected.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether all promised completions have happened.
    pub fn is_settled(&self) -> bool {
        self.load() == self.expected.load(Ordering::Relaxed)
    }

    /// Takes its present value for the one after all completions.
    pub fn settle(&self) {
        self.expected.store(self.load(), Ordering::Relaxed);
    }

    /// What the agent's counter said at start and end of the last packet that completed it.
    pub fn raw_timestamps(&self) -> (u64, u64) {
        (self.slot.load(START, Ordering::Relaxed), self.slot.load(END, Ordering::Relaxed))
    }

    /// Says that a promised completion will never come.
    pub fn break_with(&self, fault: &Arc<QueueFault>) {
        *self.fault.lock() = Some(Arc::clone(fault));
        // ORDERING: pairs with the load in `fault`, after the waiter has announced itself.
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Why its completion will never come, if so.
    pub fn fault(&self) -> Option<Arc<QueueFault>> {
        if !self.broken.load(Ordering::SeqCst) {
            return None;
        }
        self.fault.lock().clone()
    }

    /// Whether a thread may be asleep on the signal's event. Called after the value was changed by the host.
    pub fn has_sleepers(&self) -> Option<&Arc<EventLive>> {
        // ORDERING: the host stored the value, fences, and looks for sleepers; a sleeper announces itself, fences,
        // and looks at the value. One of the two sees the other's store.
        fence(Ordering::SeqCst);
        self.event.as_ref().filter(|event| event.waiters.load(Ordering::Relaxed) > 0)
    }
}
