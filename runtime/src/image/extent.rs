// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process memory that an image is made of or fills.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::CHUNK_BYTES;

/// A range of process memory that is written to or filled from an image: one buffer's host mapping.
///
/// INVARIANT: `address..address + bytes` stays mapped (readable for writing an image, writable for filling from one)
/// while the value is in use; whoever makes one promises that.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    address: NonNull<u8>,
    bytes: u64,
}

// SAFETY: an Extent is a promise about an address range, not an owner; the workers only copy bytes through it with
// raw pointers, and the maker promises that it stays mapped.
unsafe impl Send for Extent {}
// SAFETY: as above; concurrent use touches disjoint chunks.
unsafe impl Sync for Extent {}

impl Extent {
    /// Names `bytes` bytes at `address`.
    ///
    /// # Safety
    /// The range must stay mapped with the access the operation needs for as long as the value is used, and nothing
    /// else may write it meanwhile in a way that matters (torn bytes are copied as they are).
    #[must_use]
    pub unsafe fn new(address: NonNull<u8>, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        debug_assert!(offset + into.len() as u64 <= self.bytes);
        // SAFETY: `new` promises the range; callers stay within `bytes` (chunk_ranges). A plain copy of memory others
        // may write is a torn read at worst: the device is stopped while images are made.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address.as_ptr().add(offset as usize),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    pub(super) fn copy_in(&self, offset: u64, from: &[u8]) {
        debug_assert!(offset + from.len() as u64 <= self.bytes);
        // SAFETY: as in `copy_out`, with write access.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.address.as_ptr().add(offset as usize),
                from.len(),
            );
        }
    }

    pub(super) fn zero(&self, offset: u64, bytes: u64) {
        debug_assert!(offset + bytes <= self.bytes);
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::write_bytes(self.address.as_ptr().add(offset as usize), 0, bytes as usize) }
    }

    /// The chunk ranges `(offset, length)` that cover the extent.
    pub(super) fn chunk_ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.bytes;
        (0..bytes.div_ceil(CHUNK_BYTES))
            .map(move |n| (n * CHUNK_BYTES, CHUNK_BYTES.min(bytes - n * CHUNK_BYTES)))
    }
}
