// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a signal: its `amd_signal_t`, whose address is its handle.
//!
//! INVARIANT: a [`Slot`] is made for the address of a live signal only, and a page of signals stays mapped for the life of the process
//! (a checkpoint makes threads that touch it wait). So its fields may be accessed at any time, atomically, even after the signal was
//! destroyed. Only the page of a signal that other processes may have goes with it: that the program destroys no signal that it uses
//! is the header's contract.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use queues::hsa::AmdSignal;

/// The place of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u64);

const VALUE: u64 = offset_of!(AmdSignal, value) as u64;
const MAILBOX: u64 = offset_of!(AmdSignal, event_mailbox_ptr) as u64;
const EVENT: u64 = offset_of!(AmdSignal, event_id) as u64;
const START: u64 = offset_of!(AmdSignal, start_ts) as u64;
const END: u64 = offset_of!(AmdSignal, end_ts) as u64;

impl Slot {
    /// # Safety
    /// The address is one of a live signal's.
    pub(super) const unsafe fn new(address: u64) -> Self {
        Slot(address)
    }

    pub fn value_address(self) -> u64 {
        self.0 + VALUE
    }

    pub fn start_address(self) -> u64 {
        self.0 + START
    }

    pub fn end_address(self) -> u64 {
        self.0 + END
    }

    fn word<'a>(self, offset: u64) -> &'a AtomicU64 {
        let at = std::ptr::with_exposed_provenance_mut::<u64>(queues::words::size(self.0 + offset));
        // SAFETY: mapped by the type's invariant, aligned to 8, and accessed atomically only.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// The value, which whoever has the signal changes.
    #[inline]
    pub fn value<'a>(self) -> &'a AtomicI64 {
        let at = std::ptr::with_exposed_provenance_mut::<i64>(queues::words::size(self.0 + VALUE));
        // SAFETY: as above.
        unsafe { AtomicI64::from_ptr(at) }
    }

    /// The event that a completion raises: where its id is written, and its id.
    pub fn mailbox(self) -> Option<(u64, u32)> {
        let mailbox = self.word(MAILBOX).load(Ordering::Relaxed);
        let at = std::ptr::with_exposed_provenance_mut::<u32>(queues::words::size(self.0 + EVENT));
        // SAFETY: as above; the field has 32 bits.
        let event = unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Relaxed);
        (mailbox != 0).then_some((mailbox, event))
    }
}
