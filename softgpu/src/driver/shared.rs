// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with other processes, seen only as atomic words.
//!
//! INVARIANT: the mapped file is sealed against shrinking, or was created here, so that no access can raise SIGBUS.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared, writable mapping of the first `len` u64 of a file.
#[derive(Debug)]
pub(super) struct SharedWords {
    base: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to the value and not to a thread, and is accessed through atomics only.
unsafe impl Send for SharedWords {}
// SAFETY: a shared reference only gives `&[AtomicU64]`.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps `len` words of `fd`.
    ///
    /// # Errors
    /// `EINVAL` for zero words, otherwise what `mmap` says.
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let bytes = len.checked_mul(8).filter(|bytes| *bytes > 0).ok_or(Errno::INVAL)?;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so that the call replaces no mapping.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// The words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is aligned to a page and `len` words long. It is mapped until drop, which the result's
        // lifetime precedes. Every bit pattern is a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range, and every reference into it borrows `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len * 8) };
        debug_assert!(unmapped.is_ok());
    }
}
