// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings that this crate makes, and mappings that replace others.
//!
//! INVARIANT: a [`Mapping`] is unmapped when it is dropped. Its memory is only accessed through atomics, since another
//! process may share it.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::libc::c_void;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mprotect, mremap};

use crate::{errno, linux};

/// Memory that was mapped readable and writable at an address of the kernel's choice.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// Zeroed memory that only this process has.
    pub fn private(bytes: usize) -> Result<Self, Errno> {
        let memory = MmapOptions::new().len(bytes).map_anon();
        memory.map(|memory| Self(memory.into())).map_err(of_mmap)
    }

    /// The first `bytes` of a file, shared with whoever else maps it.
    pub fn shared(fd: &OwnedFd, bytes: usize) -> Result<Self, Errno> {
        MmapOptions::new().len(bytes).map_raw(fd).map(Self).map_err(of_mmap)
    }

    /// The first address; system calls may access the memory by it.
    #[cfg(test)]
    pub fn address(&self) -> usize {
        self.0.as_mut_ptr().expose_provenance()
    }

    /// One past the last address, for a stack in it.
    pub fn end(&self) -> usize {
        self.0.as_mut_ptr().expose_provenance() + self.0.len()
    }

    /// Copies what this process has at `address` into it.
    ///
    /// # Errors
    /// EFAULT if any byte cannot be read.
    pub fn fill_from(&self, address: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < self.0.len() {
            // SAFETY: `done` is less than the bytes of the mapping.
            let into = unsafe { self.0.as_mut_ptr().add(done) };
            let base = usize::try_from(address).ok().and_then(|address| address.checked_add(done));
            let from = base.ok_or(Errno::EFAULT)?;
            // SAFETY: the mapping has `len - done` bytes from `into` on, and no reference to them exists.
            done += progress(unsafe { linux::copy_from_self(from, into, self.0.len() - done) })?;
        }
        Ok(())
    }

    /// The 32-bit word at the start.
    #[inline]
    pub fn word(&self) -> &AtomicU32 {
        assert!(self.0.len() >= size_of::<AtomicU32>(), "INVARIANT: a mapping has at least one page");
        // SAFETY: the first four bytes are mapped until `self` is dropped, which the result's lifetime precedes; the
        // start of a page is aligned; and this process accesses the memory through atomics only.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().cast()) }
    }

    /// Moves the memory to `at`, where it gets the protection `prot` and replaces what was mapped, in one step.
    ///
    /// # Errors
    /// The errno of mprotect or mremap; nothing has moved then.
    ///
    /// # Safety
    /// Nothing may rely on what was mapped in as many bytes at `at`, unless it finds the same there.
    pub unsafe fn move_over(self, at: usize, prot: ProtFlags) -> Result<(), Errno> {
        let (from, bytes) = (non_null(self.0.as_mut_ptr())?, self.0.len());
        let target = non_null(std::ptr::with_exposed_provenance_mut(at))?;
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        // SAFETY: the range belongs to `self`, and no reference into it exists.
        unsafe { mprotect(from, bytes, prot)? };
        // SAFETY: the source belongs to `self`; the caller vouches for what is replaced at the target.
        unsafe { mremap(from, bytes, bytes, flags, Some(target))? };
        // The range is unmapped, and may belong to another mapping by now.
        std::mem::forget(self);
        Ok(())
    }
}

/// The errno of a mapping that could not be made.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` wants")]
fn of_mmap(error: std::io::Error) -> Errno {
    errno::of_io(&error).unwrap_or(Errno::ENOMEM)
}

fn non_null(address: *mut u8) -> Result<NonNull<c_void>, Errno> {
    NonNull::new(address.cast()).ok_or(Errno::EINVAL)
}

/// Maps `len` bytes of a descriptor from byte `offset` shared and fixed at `at`. A DMABuf's descriptor maps itself, on
/// both transports.
///
/// # Errors
/// The errno of `mmap`.
///
/// # Safety
/// What was mapped in `at..at + len` is replaced; nothing may rely on it.
pub unsafe fn map_fixed(
    fd: BorrowedFd<'_>,
    at: *mut u8,
    len: usize,
    prot: ProtFlags,
    offset: u64,
) -> Result<(), Errno> {
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    let length = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
    // KFD's cookies use the sign bit (`KFD_MMAP_TYPE_SHIFT`).
    let offset = offset.cast_signed();
    let at = NonZeroUsize::new(at.expose_provenance());
    // SAFETY: the caller gives up what is mapped in the range.
    unsafe { mmap(at, length, prot, flags, fd, offset) }.map(drop)
}

/// Bytes that a system call moved; none of them is an error, unless a signal interrupted the call.
///
/// # Errors
/// EIO for no bytes, else what the call says.
pub(crate) fn progress(result: Result<usize, Errno>) -> Result<usize, Errno> {
    match result {
        Ok(0) => Err(Errno::EIO),
        Err(Errno::EINTR) => Ok(0),
        moved => moved,
    }
}
