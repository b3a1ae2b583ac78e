// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells: one 64-bit store, and for the soft device a wake-up if it sleeps.
//!
//! INVARIANT: ringing makes no system call unless the device sleeps.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use nix::errno::Errno;

use super::Mapping;
use crate::linux;

/// Bytes of the page that holds the soft device's parked word.
const PARKED_PAGE_BYTES: usize = 4096;

/// The soft device's page whose first word is non-zero while the device sleeps.
#[derive(Debug)]
pub(super) struct ParkedPage(Mapping);

impl ParkedPage {
    /// Maps the page that came with a doorbell slice.
    pub(super) fn map(fd: &OwnedFd) -> Result<Self, Errno> {
        Mapping::shared(fd, PARKED_PAGE_BYTES).map(Self)
    }

    #[inline]
    fn wake(&self) {
        // ORDERING: the device stores its parked word, issues a fence, and reads the doorbells once more. This function
        // stores the doorbell, issues a fence, and reads the parked word. At least one side sees the other's store.
        fence(Ordering::SeqCst);
        let word = self.0.word();
        if word.load(Ordering::Relaxed) != 0 {
            self.wake_parked();
        }
    }

    #[cold]
    fn wake_parked(&self) {
        let word = self.0.word();
        word.store(0, Ordering::Release);
        // If the wake fails, the caller can do nothing.
        let _ = linux::wake_futex(word);
    }
}

#[derive(Debug)]
struct Slice {
    base: *mut u8,
    bytes: usize,
    parked: Option<ParkedPage>,
}

// SAFETY: the memory belongs to no thread: the caller of `DoorbellSlice::new` keeps it mapped, and all stores to it are
// atomic.
unsafe impl Send for Slice {}
// SAFETY: a shared reference only allows atomic stores to the memory.
unsafe impl Sync for Slice {}

/// A mapped doorbell slice of one GPU.
#[derive(Clone, Debug)]
pub struct DoorbellSlice(Arc<Slice>);

impl DoorbellSlice {
    /// Whether a slice can be at `base` and have `bytes` bytes.
    ///
    /// # Errors
    /// EINVAL unless `bytes` is a power of two from 8 on and `base` is aligned to 8.
    pub(super) fn check(base: *mut u8, bytes: usize) -> Result<(), Errno> {
        let fits = bytes.is_power_of_two() && bytes >= 8 && base.addr().is_multiple_of(8);
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// A slice over memory that is mapped already.
    ///
    /// # Errors
    /// As for [`DoorbellSlice::check`].
    ///
    /// # Safety
    /// `base..base + bytes` must stay writable for as long as a doorbell of the slice is rung.
    pub(super) unsafe fn new(base: *mut u8, bytes: usize, parked: Option<ParkedPage>) -> Result<Self, Errno> {
        Self::check(base, bytes)?;
        Ok(Self(Arc::new(Slice { base, bytes, parked })))
    }

    /// Bytes of the slice.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The doorbell at `byte_offset`. Bits of the offset above the slice are ignored, so that the low half of
    /// CREATE_QUEUE's `doorbell_offset` may be passed unchanged.
    pub fn doorbell(&self, byte_offset: u32) -> Doorbell {
        Doorbell { slice: Arc::clone(&self.0), offset: byte_offset as usize & (self.0.bytes - 1) & !7 }
    }
}

/// The doorbell of one queue.
#[derive(Clone, Debug)]
pub struct Doorbell {
    slice: Arc<Slice>,
    offset: usize,
}

impl Doorbell {
    /// Writes `value` for the device: the index of the last packet of an AQL queue, dwords of a PM4 queue, bytes of an
    /// SDMA queue. The device sees everything stored before when it sees the value.
    #[inline]
    pub fn ring(&self, value: u64) {
        // SAFETY: `DoorbellSlice::doorbell` made the offset a multiple of 8 below the slice's bytes, and `check` found
        // the base aligned to 8. The caller of `DoorbellSlice::new` keeps the slice mapped and writable.
        let word = unsafe { AtomicU64::from_ptr(self.slice.base.add(self.offset).cast()) };
        // ORDERING: Release publishes the packet and the write pointer that were stored before.
        word.store(value, Ordering::Release);
        if let Some(parked) = &self.slice.parked {
            parked.wake();
        }
    }

    /// The byte offset in the slice.
    pub fn offset(&self) -> usize {
        self.offset
    }
}
