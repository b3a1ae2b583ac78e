// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells: one 64-bit store, and for the soft device a wake-up if it sleeps.
//!
//! INVARIANT: ringing makes no system call unless the device has parked itself.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

/// Bytes of the page that holds the soft device's parked word.
const PARKED_PAGE_BYTES: usize = 4096;

/// The soft device's page whose first word is non-zero while it sleeps; unmapped on drop.
#[derive(Debug)]
pub(super) struct ParkedPage {
    address: *mut u8,
}

// SAFETY: the page is only accessed through an atomic, and unmapped by the last owner.
unsafe impl Send for ParkedPage {}
// SAFETY: a shared reference gives access through an atomic only.
unsafe impl Sync for ParkedPage {}

impl ParkedPage {
    /// Maps the page that came with a doorbell slice.
    pub(super) fn map(fd: &OwnedFd) -> Result<Self, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses replaces nothing.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), PARKED_PAGE_BYTES, prot, MapFlags::SHARED, fd, 0)?
        };
        Ok(Self { address: address.cast() })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped writable until drop, page aligned, and shared memory is touched
        // through this atomic only.
        unsafe { AtomicU32::from_ptr(self.address.cast()) }
    }

    fn wake(&self) {
        // ORDERING: the device stores its parked word, fences, and looks at the doorbells once more; we
        // store the doorbell, fence, and look at the parked word. One of the two sees the other's store.
        fence(Ordering::SeqCst);
        let word = self.word();
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Release);
            // Not PRIVATE: the sleeper is another process. A failing wake has no remedy here.
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}

impl Drop for ParkedPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference to the word outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), PARKED_PAGE_BYTES) };
    }
}

#[derive(Debug)]
struct Slice {
    base: *mut u8,
    bytes: usize,
    parked: Option<ParkedPage>,
}

// SAFETY: the slice is written by atomic stores only; `File::map_doorbells` obliges its caller to keep
// the mapping.
unsafe impl Send for Slice {}
// SAFETY: a shared reference gives atomic stores only.
unsafe impl Sync for Slice {}

/// A mapped doorbell slice of one GPU.
#[derive(Clone, Debug)]
pub struct DoorbellSlice(Arc<Slice>);

impl DoorbellSlice {
    /// A slice over memory that is mapped already; EINVAL unless `bytes` is a power of two from 8 on and
    /// `base` is aligned to 8.
    ///
    /// # Safety
    /// `base..base + bytes` must stay writable for as long as a doorbell of the slice is rung.
    pub(super) unsafe fn new(base: *mut u8, bytes: usize, parked: Option<ParkedPage>) -> Result<Self, Errno> {
        if !bytes.is_power_of_two() || bytes < 8 || !base.addr().is_multiple_of(8) {
            return Err(Errno::INVAL);
        }
        Ok(Self(Arc::new(Slice { base, bytes, parked })))
    }

    /// Bytes of the slice.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The doorbell at `byte_offset`. Only the offset's bits inside the slice count, so the low half of
    /// CREATE_QUEUE's `doorbell_offset` may be passed as it is.
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
    /// Tells the device `value`: the index of the last packet of an AQL queue, dwords of a PM4 queue, bytes
    /// of an SDMA queue. Everything stored before is visible to the device when it sees the value.
    #[inline]
    pub fn ring(&self, value: u64) {
        // SAFETY: the offset is inside the slice and aligned by construction, and the slice is mapped by
        // the contract of `DoorbellSlice::new`.
        let word = unsafe { AtomicU64::from_ptr(self.slice.base.add(self.offset).cast()) };
        // ORDERING: publishes the packet and the write pointer stored before.
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
