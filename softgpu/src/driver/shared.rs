// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with other processes, seen only as atomic words.
//!
//! INVARIANT: the mapped file is sealed against shrinking, or was created here, so that no access can raise SIGBUS.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

/// A shared, writable mapping of the first `len` u64 of a file.
#[derive(Debug)]
pub(super) struct SharedWords {
    memory: MmapRaw,
    len: usize,
}

impl SharedWords {
    /// Maps `len` words of `fd`.
    ///
    /// # Errors
    /// `EINVAL` for zero words, otherwise what `mmap` says.
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let bytes = len.checked_mul(8).filter(|bytes| *bytes > 0).ok_or(Errno::EINVAL)?;
        let memory = MmapOptions::new().len(bytes).map_raw(fd.as_raw_fd());
        let memory = memory.map_err(|error| kfd::errno::of_io(&error).unwrap_or(Errno::ENOMEM))?;
        Ok(Self { memory, len })
    }

    /// The words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page and is `len` words long. It is mapped until drop, which the result's
        // lifetime precedes. Every bit pattern is a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }
}
