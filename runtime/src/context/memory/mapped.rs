// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only place where memory shared with a device is touched: ranges of the window, through atomics and copies.
//!
//! INVARIANT: a [`Mapped`] is made for a range that stays mapped readable and writable for as long as the gate can be
//! passed and its buffer object is registered; while the device is let go the range is reserved but inaccessible,
//! and nobody who keeps the gate's rule is looking. Nothing ever forms a `&[u8]` or `&mut [u8]` over it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use queues::aql::{PACKET_BYTES, RawPacket};
use queues::words::{double, size, words};

use crate::linux::pages::HugePages;

/// A range of memory shared with a device. Offsets are in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: it is an address; all access goes through atomics, or through copies whose races the caller orders.
unsafe impl Send for Mapped {}
// SAFETY: it gives out references to atomics only; copies through it are of bytes whose races the caller orders.
unsafe impl Sync for Mapped {}

/// A view of a registered buffer object that is mapped for the CPU.
pub(crate) fn view(va: u64, bytes: u64) -> Option<Mapped> {
    // SAFETY: this is the module's invariant: the ranges of CPU-mapped entries are mapped whenever the gate can be
    // passed, and views are used only by holders of a pass or of the closed gate before the device is let go.
    unsafe { Mapped::new(va, bytes) }
}

impl Mapped {
    /// A view of `[va, va + bytes)`; `None` for a null address.
    ///
    /// # Safety
    /// The range must be mapped readable and writable whenever a method is called (see the module's invariant), and
    /// no Rust reference into it may exist.
    pub unsafe fn new(va: u64, bytes: u64) -> Option<Self> {
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(size(va)))?;
        Some(Mapped { base, bytes })
    }

    /// The address of its start.
    #[inline]
    pub fn va(self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// The part at `offset` of length `bytes`.
    ///
    /// # Panics
    /// If it is not inside.
    #[inline]
    pub fn part(self, offset: u64, bytes: u64) -> Self {
        Mapped { base: self.at(offset, bytes), bytes }
    }

    /// Has its whole pages be given their memory at once ([`HugePages::populate`]).
    pub fn populate(self, huge: &HugePages) {
        // SAFETY: mapped by the type's contract.
        unsafe { huge.populate(self.base.as_ptr(), size(self.bytes)) }
    }

    /// Whether `bytes` at `offset` are inside.
    #[inline]
    pub fn holds(self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    #[inline]
    fn at(self, offset: u64, bytes: u64) -> NonNull<u8> {
        assert!(self.holds(offset, bytes), "INVARIANT: accesses stay inside their buffer object");
        // SAFETY: `offset` is inside the range, as just checked. CAST: see `new`.
        unsafe { self.base.add(size(offset)) }
    }

    #[inline]
    fn aligned<T>(self, offset: u64) -> *mut T {
        let at = self.at(offset, size_of::<T>() as u64).cast::<T>();
        assert!(at.is_aligned(), "INVARIANT: atomics are naturally aligned");
        at.as_ptr()
    }

    #[inline]
    fn u64_at(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: inside, aligned, mapped by the type's contract, and all accesses to shared words are atomic.
        unsafe { AtomicU64::from_ptr(self.aligned(offset)) }
    }

    /// Loads 64 bits.
    #[inline]
    pub fn load(self, offset: u64, order: Ordering) -> u64 {
        self.u64_at(offset).load(order)
    }

    /// Stores 64 bits.
    #[inline]
    pub fn store(self, offset: u64, value: u64, order: Ordering) {
        self.u64_at(offset).store(value, order);
    }

    /// Adds to 64 signed bits and returns what they were.
    #[inline]
    pub fn add_signed(self, offset: u64, value: i64, order: Ordering) -> i64 {
        // SAFETY: `aligned` checks place and alignment; mapped by the type's contract, and accessed only atomically.
        unsafe { AtomicI64::from_ptr(self.aligned(offset)) }.fetch_add(value, order)
    }

    /// Replaces 64 bits if they are `current`; `Err` with what they are instead.
    ///
    /// # Errors
    /// The value found.
    #[inline]
    pub fn replace(self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.u64_at(offset).compare_exchange_weak(current, new, Ordering::AcqRel, Ordering::Relaxed)
    }

    /// Swaps 64 bits.
    #[inline]
    pub fn swap(self, offset: u64, value: u64) -> u64 {
        self.u64_at(offset).swap(value, Ordering::AcqRel)
    }

    /// Loads 32 bits.
    #[inline]
    pub fn load32(self, offset: u64, order: Ordering) -> u32 {
        // SAFETY: `aligned` checks place and alignment; mapped by the type's contract, and accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }.load(order)
    }

    /// Stores 32 bits.
    #[inline]
    pub fn store32(self, offset: u64, value: u32, order: Ordering) {
        // SAFETY: `aligned` checks place and alignment; mapped by the type's contract, and accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }.store(value, order);
    }

    /// Publishes a packet at `offset`: its first word is stored last.
    ///
    /// # Panics
    /// If it does not fit or is not aligned to 8 bytes.
    #[inline]
    pub fn publish_packet(self, offset: u64, packet: &RawPacket) {
        let at = self.at(offset, PACKET_BYTES as u64);
        assert!(at.cast::<u64>().is_aligned(), "INVARIANT: packets are aligned");
        let at = at.as_ptr();
        let [first, second, rest @ ..] = packet;
        let (pairs, _) = rest.as_chunks::<2>();
        for (index, &[low, high]) in pairs.iter().enumerate() {
            // SAFETY: inside and aligned, as just checked: there are 7 pairs behind the first one. Mapped by the type's
            // contract, and accessed only atomically, in these sizes.
            let pair = unsafe { AtomicU64::from_ptr(at.add(8 + 8 * index).cast()) };
            pair.store(double(low, high), Ordering::Relaxed);
        }
        // SAFETY: as above.
        let (head, tail) = unsafe { (AtomicU32::from_ptr(at.cast()), AtomicU32::from_ptr(at.add(4).cast())) };
        tail.store(*second, Ordering::Relaxed);
        // ORDERING: the packet belongs to the processor from this store on.
        head.store(*first, Ordering::Release);
    }

    /// The packet at `offset`, in loads of the sizes of [`Mapped::publish_packet`]'s stores.
    ///
    /// # Panics
    /// If it is not inside or not aligned to 8 bytes.
    pub fn packet(self, offset: u64) -> RawPacket {
        let part = self.part(offset, PACKET_BYTES as u64);
        let mut packet = [0; PACKET_BYTES / 4];
        packet[0] = part.load32(0, Ordering::Acquire);
        packet[1] = part.load32(4, Ordering::Acquire);
        let (pairs, _) = packet[2..].as_chunks_mut::<2>();
        for (pair, at) in pairs.iter_mut().zip((8..).step_by(8)) {
            *pair = words(part.load(at, Ordering::Acquire));
        }
        packet
    }

    /// Copies `from` to `offset`. A device or thread that looks at the same bytes meanwhile sees any mixture; order
    /// it with a signal.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline]
    pub fn write(self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len() as u64);
        // SAFETY: `to` is mapped for `from.len()` bytes; `from` is a Rust slice and cannot overlap the window, into
        // which no reference exists. The bytes have no validity to break.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Copies from `offset` into `to`. See [`Mapped::write`] about concurrent writers.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn read(self, offset: u64, to: &mut [u8]) {
        let from = self.at(offset, to.len() as u64);
        // SAFETY: `from` is mapped for `to.len()` bytes; `to` is a Rust slice and cannot overlap the window.
        unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies `bytes` from another range; the two may overlap.
    ///
    /// # Panics
    /// If either is too short.
    pub fn copy_from(self, offset: u64, from: Mapped, from_offset: u64, bytes: u64) {
        let (to, from) = (self.at(offset, bytes), from.at(from_offset, bytes));
        // SAFETY: both are mapped for `bytes`; overlap is allowed. CAST: see `new`.
        unsafe { to.as_ptr().copy_from(from.as_ptr(), size(bytes)) };
    }

    /// Sets `bytes` from `offset` to `value`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn fill(self, offset: u64, bytes: u64, value: u8) {
        let to = self.at(offset, bytes);
        // SAFETY: mapped for `bytes`. CAST: see `new`.
        unsafe { to.as_ptr().write_bytes(value, size(bytes)) };
    }

    /// Its start as a pointer, for callers that want to do it themselves.
    pub fn as_ptr(self) -> *mut u8 {
        self.base.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(words: &mut [u64; 8]) -> Mapped {
        let va = words.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the array outlives the view in every test and is not touched meanwhile.
        unsafe { Mapped::new(va, 64) }.unwrap()
    }

    #[test]
    fn write_then_read_gives_the_bytes() {
        let mut words = [0; 8];
        let mapped = over(&mut words);
        mapped.write(3, b"stasis");
        let mut back = [0; 6];
        mapped.read(3, &mut back);
        assert_eq!(&back, b"stasis");
        mapped.copy_from(4, mapped, 3, 6);
        mapped.read(4, &mut back);
        assert_eq!(&back, b"stasis");
    }

    #[test]
    #[should_panic(expected = "INVARIANT")]
    fn access_past_the_end_panics() {
        let mut words = [0; 8];
        over(&mut words).load(60, Ordering::Relaxed);
    }

    #[test]
    fn packet_published_is_the_packet_read() {
        let mut words = [0; 8];
        let packet = std::array::from_fn(|word| 0x1111_0000 + word as u32);
        over(&mut words).publish_packet(0, &packet);
        assert_eq!(over(&mut words).packet(0), packet);
        assert_eq!(words[1], 0x1111_0003_1111_0002);
    }

    #[test]
    fn replace_fails_with_what_it_found() {
        let mut words = [7; 8];
        let mapped = over(&mut words);
        assert_eq!(mapped.replace(8, 1, 2), Err(7));
        while mapped.replace(8, 7, 9).is_err() {}
        assert_eq!(mapped.load(8, Ordering::Relaxed), 9);
        assert_eq!(mapped.add_signed(8, -10, Ordering::Relaxed), 9);
        assert_eq!(mapped.load(8, Ordering::Relaxed), u64::MAX);
    }
}
