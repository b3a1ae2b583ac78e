// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sealed memory that is shared with the client and accessed by this process through atomics only.
//!
//! INVARIANT: the memory behind a [`SharedPages`] can never shrink (`F_SEAL_SHRINK`), so a view of it never faults;
//! the client can change its contents at any time, so they are never trusted.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A sealed memfd and this process's view of it.
#[derive(Debug)]
pub(super) struct SharedPages {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain shared memory reached through atomics only; nothing in it is tied to a thread.
unsafe impl Send for SharedPages {}
// SAFETY: every access through a shared reference is atomic.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Makes `bytes` of zeroed shared memory (a multiple of 4096) that neither side can shrink or grow.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate`, `fcntl` and `mmap`, for a lack of memory or descriptors.
    pub(super) fn new(name: &str, bytes: usize) -> Result<Self, Errno> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice; it overlaps no other mapping.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { fd, base, bytes })
    }

    /// The descriptor behind the memory.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The u64 at a byte offset, or `None` when it is misaligned or out of range.
    pub(super) fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.bytes {
            return None;
        }
        // SAFETY: in bounds and aligned (the base is page aligned); the mapping lives as long as `self`.
        Some(unsafe { AtomicU64::from_ptr(self.base.add(offset).cast::<u64>().as_ptr()) })
    }

    /// The u32 at a byte offset, or `None` when it is misaligned or out of range.
    pub(super) fn u32_at(&self, offset: usize) -> Option<&AtomicU32> {
        if !offset.is_multiple_of(4) || offset.checked_add(4)? > self.bytes {
            return None;
        }
        // SAFETY: in bounds and aligned (the base is page aligned); the mapping lives as long as `self`.
        Some(unsafe { AtomicU32::from_ptr(self.base.add(offset).cast::<u32>().as_ptr()) })
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped, and no reference into it outlives `self`.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::error!(target: "processor", %error, bytes = self.bytes, "shared pages not unmapped");
        }
    }
}
