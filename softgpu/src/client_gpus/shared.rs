// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sealed memory that is shared with the client and accessed by this process through atomics only.
//!
//! INVARIANT: the memory behind a [`SharedPages`] can never shrink (`F_SEAL_SHRINK`), so a view of it never faults;
//! the client can change its contents at any time, so they are never trusted.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::SealFlag;

use crate::names;

/// A sealed memfd and this process's view of it.
#[derive(Debug)]
pub(super) struct SharedPages {
    fd: OwnedFd,
    memory: MmapRaw,
}

impl SharedPages {
    /// Makes `bytes` of zeroed shared memory (a multiple of 4096) that neither side can shrink or grow.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate`, `fcntl` and `mmap`, for a lack of memory or descriptors.
    pub(super) fn new(name: &str, bytes: usize) -> Result<Self, Errno> {
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        Self::map(kfd::linux::memfd(&names::unique(name)?, bytes as u64, seals)?, bytes)
    }

    /// Maps memory of another device of this kind, which has so many bytes.
    ///
    /// # Errors
    /// `EINVAL` when it can shrink or has another size; those of `fcntl` and `mmap`.
    pub(super) fn adopt(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        // CAST: usize to u64 on a 64-bit target.
        if crate::driver::sealed_bytes(fd) != Some(bytes as u64) {
            return Err(Errno::EINVAL);
        }
        Self::map(kfd::linux::duplicate(fd)?, bytes)
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<Self, Errno> {
        let memory = MmapOptions::new().len(bytes).map_raw(&fd);
        let memory = memory.map_err(|error| kfd::errno::of_io(&error).unwrap_or(Errno::ENOMEM))?;
        Ok(Self { fd, memory })
    }

    /// The descriptor behind the memory.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The u64 at a byte offset, or `None` when it is misaligned or out of range.
    pub(super) fn u64_at(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.memory.len() {
            return None;
        }
        // SAFETY: in bounds and aligned (the base is page aligned); the mapping lives as long as `self`.
        Some(unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) })
    }

    /// The u32 at a byte offset, or `None` when it is misaligned or out of range.
    pub(super) fn u32_at(&self, offset: usize) -> Option<&AtomicU32> {
        if !offset.is_multiple_of(4) || offset.checked_add(4)? > self.memory.len() {
            return None;
        }
        // SAFETY: in bounds and aligned (the base is page aligned); the mapping lives as long as `self`.
        Some(unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) })
    }
}
