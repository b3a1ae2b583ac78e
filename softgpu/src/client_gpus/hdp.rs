// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host data path (HDP) of a GPU: what the host stores through the PCI aperture waits in it.
//!
//! A GPU sees such stores when the HDP was flushed: by the register that the driver lets processes have
//! (`KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP`), or by a copy engine's packet. Here the stores to memory that was just allocated, or
//! restored, are held back until the first flush after that: a GPU that touches the memory before it finds zeros, and the
//! bytes arrive with the next flush, as late stores do. Later stores to the same memory are seen at once, which hardware does
//! not promise: to hold those back, too, every access of the host would have to be watched.
//!
//! INVARIANT: a GPU's first access to memory decides; from then on nothing of it is held back. Who flushed before it loses
//! nothing and pays nothing.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kfd::linux;
use nix::errno::Errno;
use parking_lot::Mutex;
use queues::words::size;
use softgpu_waves::{FirstTouch, Vm};

use super::shared::SharedPages;
use crate::misbehaviour::Misbehaviour;

/// Bytes of the page of registers, and of a page of memory.
pub(super) const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;
/// Bytes whose pages are asked for at once.
const WINDOW: u64 = 64 << 20;
/// What a client stores into the register.
const FLUSH: u32 = 1;
/// What the register holds when the GPU has taken notice. A real one reads as 0; this value tells tests of clients that
/// they have flushed at some time.
const TAKEN: u32 = 2;

/// A file's device and inode: what memory is, wherever it is mapped.
pub(super) type Identity = (u64, u64);

/// The bytes of a page that arrive later.
type Late = (u64, Box<[u64; WORDS]>);

/// The HDP of one GPU, as one process uses it.
#[derive(Debug, Default)]
pub(super) struct Hdp {
    /// The page of registers, once a client has it; `HDP_MEM_FLUSH_CNTL` is its first.
    page: OnceLock<SharedPages>,
    held: Mutex<HashMap<Identity, Arc<Held>>>,
    /// Held while the register is looked at, and while a flush that it told of lasts. Before all other locks.
    noticing: Mutex<()>,
    late: Mutex<Vec<Late>>,
    /// Whether `late` may hold something.
    is_late: AtomicBool,
    /// Whether there was a flush since then.
    is_due: AtomicBool,
}

impl Hdp {
    /// The page of registers, for the client; `gpu` is the GPU's number.
    ///
    /// # Errors
    /// As [`SharedPages::new`]; `EMFILE` when this process has no descriptor left.
    pub(super) fn descriptor(&self, gpu: usize) -> Result<OwnedFd, Errno> {
        if self.page.get().is_none() {
            // Of two at once, one is the page.
            let _ = self.page.set(SharedPages::new(&format!("softgpu:mmio:{gpu}"), PAGE)?);
        }
        self.page.get().ok_or(Errno::ENOMEM).and_then(|page| linux::duplicate(page.fd()))
    }

    /// That of a restored GPU, with the page that the client had. Nothing is held back: see
    /// [`ClientGpus::save`](super::ClientGpus::save).
    pub(super) fn restored(page: Option<SharedPages>) -> Self {
        Self { page: page.map_or_else(OnceLock::new, OnceLock::from), ..Self::default() }
    }

    /// The page of registers, if a client has it.
    pub(super) fn page(&self) -> Option<&SharedPages> {
        self.page.get()
    }

    /// Has everything arrive that is held back or late, and holds nothing back any more. `vms` are the address spaces of all
    /// GPUs, since a late store may be known by another GPU's address. No queue may be on the hardware.
    pub(super) fn settle_all(&self, vms: &[&Vm]) {
        let _one = self.noticing.lock();
        self.held.lock().drain().for_each(|(_, held)| held.open());
        self.arrive(vms);
        self.is_due.store(false, Ordering::Release);
    }

    /// Holds back what the host stores into this new memory until the next flush.
    pub(super) fn hold(&self, memory: Identity) {
        // A flush up to now is none for what is stored from now on.
        self.take_notice();
        self.held.lock().insert(memory, Arc::default());
    }

    /// Holds nothing of this memory back any more: other processes have it now, whose flushes are not seen here.
    pub(super) fn release(&self, memory: Identity) {
        let held = self.held.lock().remove(&memory);
        held.iter().for_each(|held| held.open());
    }

    /// What is to watch a GPU's mapping of this memory at `range`; nothing if nothing of it is held back.
    pub(super) fn watch(
        self: &Arc<Self>,
        memory: Identity,
        range: Range<u64>,
    ) -> Option<Arc<dyn FirstTouch>> {
        let held = Arc::clone(self.held.lock().get(&memory)?);
        Some(Arc::new(Watch { hdp: Arc::clone(self), held, range }))
    }

    /// A copy engine's flush.
    pub(super) fn flush(&self) {
        if Misbehaviour::HostWrites.is_on() {
            return;
        }
        self.held.lock().drain().for_each(|(_, held)| held.open());
        self.is_due.store(self.is_late.load(Ordering::Acquire), Ordering::Release);
    }

    /// Looks whether the register was written, and flushes then.
    fn take_notice(&self) {
        let Some(register) = self.page.get().and_then(|page| page.u32_at(0)) else { return };
        // Whoever finds the register taken goes on when the flush is done, not when it has begun.
        let _one = self.noticing.lock();
        // ORDERING: Acquire: what the client stored before it flushed is there.
        if register.compare_exchange(FLUSH, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.flush();
        }
    }

    /// Before a packet: has what came too late arrive, if there was a flush after that.
    pub(super) fn settle(&self, vm: &Vm) {
        if !self.is_late.load(Ordering::Acquire) {
            return;
        }
        self.take_notice();
        if self.is_due.swap(false, Ordering::AcqRel) {
            self.arrive(&[vm]);
        }
    }

    fn arrive(&self, vms: &[&Vm]) {
        let mut late = self.late.lock();
        for (address, words) in late.drain(..) {
            for (at, &word) in (address..).step_by(8).zip(words.iter()).filter(|(_, word)| **word != 0) {
                // What was unmapped meanwhile is nobody's.
                let _ = vms.iter().any(|vm| vm.host_store_u64(at, word).is_ok());
            }
        }
        self.is_late.store(false, Ordering::Release);
    }
}

/// Memory whose bytes may be held back.
#[derive(Debug, Default)]
struct Held {
    is_open: AtomicBool,
    /// Held by whoever takes out what was stored: until that is done nobody accesses the memory.
    taking: Mutex<()>,
}

impl Held {
    fn open(&self) {
        let _taken = self.taking.lock();
        self.is_open.store(true, Ordering::Release);
    }
}

/// Watches a mapping of such memory.
#[derive(Debug)]
struct Watch {
    hdp: Arc<Hdp>,
    held: Arc<Held>,
    range: Range<u64>,
}

impl FirstTouch for Watch {
    fn is_over(&self) -> bool {
        // ORDERING: Acquire: what was taken out is gone.
        self.held.is_open.load(Ordering::Acquire)
    }

    unsafe fn touch(&self) {
        if self.is_over() {
            return;
        }
        self.hdp.take_notice();
        let _taking = self.held.taking.lock();
        // Another GPU or thread was first, or it was flushed.
        if self.is_over() {
            return;
        }
        // SAFETY: the caller promises that the range is mapped.
        let late = unsafe { take_stored(&self.range) };
        if !late.is_empty() {
            tracing::warn!(
                target: "processor",
                va = self.range.start, bytes = self.range.end - self.range.start, pages = late.len(),
                "memory is used before the host's stores to it were flushed (HDP): they arrive later"
            );
            self.hdp.late.lock().extend(late);
            self.hdp.is_late.store(true, Ordering::Release);
        }
        self.held.is_open.store(true, Ordering::Release);
    }
}

/// Takes out of the pages of `range` what is not zero.
///
/// # Safety
/// The range is mapped readable and writable, and nobody has a Rust reference into it.
unsafe fn take_stored(range: &Range<u64>) -> Vec<Late> {
    let mut late = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let bytes = WINDOW.min(range.end - start);
        let (address, length) = (size(start), size(bytes));
        let mut present = vec![0u8; length.div_ceil(PAGE)];
        let (first, pages) = (std::ptr::with_exposed_provenance_mut(address), present.as_mut_ptr());
        // SAFETY: the caller promises the range, and the vector has a byte for each of its pages.
        let asked = unsafe { nix::libc::mincore(first, length, pages) };
        // Nothing is known of what cannot be asked for: it is looked at.
        let is_there = |flags: u8| asked != 0 || flags & 1 != 0;
        // Looking at a page that is not there would give it memory.
        for page in present.iter().enumerate().filter(|(_, flags)| is_there(**flags)).map(|(page, _)| page) {
            // SAFETY: a page of the range that the caller promises.
            if let Some(words) = unsafe { take_page(address + page * PAGE) } {
                late.push(((address + page * PAGE) as u64, words));
            }
        }
        start += bytes;
    }
    late
}

/// Takes the words of a page, if any of them is not zero.
///
/// # Safety
/// As for [`take_stored`].
unsafe fn take_page(address: usize) -> Option<Box<[u64; WORDS]>> {
    // SAFETY: the caller promises a mapped page, which is aligned; all access to it in this process is by raw copies and
    // atomics.
    let word = |n: usize| unsafe {
        AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut::<u64>(address + n * 8))
    };
    if (0..WORDS).all(|n| word(n).load(Ordering::Relaxed) == 0) {
        return None;
    }
    let mut words = Box::new([0; WORDS]);
    for (n, place) in words.iter_mut().enumerate() {
        *place = word(n).swap(0, Ordering::AcqRel);
    }
    Some(words)
}
