// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings that this crate makes, and mappings that replace others.
//!
//! INVARIANT: a [`Mapping`] is unmapped when it is dropped. Its memory is only accessed through atomics, since another
//! process may share it.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

/// Memory that was mapped readable and writable at an address of the kernel's choice.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping and not to a thread, and `Mapping` gives access to it through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives access to the memory through atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory that only this process has.
    pub fn private(bytes: usize) -> Result<Self, Errno> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so that the call replaces no mapping.
        let address =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, rw, MapFlags::PRIVATE)? };
        Ok(Self { address: address.cast(), bytes })
    }

    /// The first `bytes` of a file, shared with whoever else maps it.
    pub fn shared(fd: &OwnedFd, bytes: usize) -> Result<Self, Errno> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so that the call replaces no mapping.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, rw, MapFlags::SHARED, fd, 0)? };
        Ok(Self { address: address.cast(), bytes })
    }

    /// Private memory that holds `bytes` bytes of a file from `offset`.
    ///
    /// # Errors
    /// EIO if the file ends before.
    pub fn copy_of(fd: &OwnedFd, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let copy = Self::private(bytes)?;
        let mut done = 0;
        while done < bytes {
            let at = libc::off_t::try_from(offset + done as u64).map_err(|_| Errno::OVERFLOW)?;
            // SAFETY: `copy` has `bytes - done` bytes from `done` on, and no reference to them exists.
            let read =
                unsafe { libc::pread(fd.as_raw_fd(), copy.address.add(done).cast(), bytes - done, at) };
            done += progress(read)?;
        }
        Ok(copy)
    }

    /// The first address; system calls may access the memory by it.
    #[cfg(test)]
    pub fn address(&self) -> usize {
        self.address.expose_provenance()
    }

    /// The 32-bit word at the start.
    pub fn word(&self) -> &AtomicU32 {
        assert!(self.bytes >= size_of::<AtomicU32>(), "INVARIANT: a mapping has at least one page");
        // SAFETY: the first four bytes are mapped until `self` is dropped, which the result's lifetime precedes; the
        // start of a page is aligned; and this process accesses the memory through atomics only.
        unsafe { AtomicU32::from_ptr(self.address.cast()) }
    }

    /// Moves the memory to `at`, where it gets the protection `prot` and replaces what was mapped, in one step.
    ///
    /// # Errors
    /// The errno of mprotect or mremap; nothing has moved then.
    ///
    /// # Safety
    /// Nothing may rely on what was mapped in as many bytes at `at`, unless it finds the same there.
    pub unsafe fn move_over(self, at: usize, prot: ProtFlags) -> Result<(), Errno> {
        let (from, bytes) = (self.address.cast(), self.bytes);
        let target = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the range belongs to `self`, and no reference into it exists.
        unsafe { rustix::mm::mprotect(from, bytes, MprotectFlags::from_bits_truncate(prot.bits()))? };
        // SAFETY: the source belongs to `self`; the caller vouches for what is replaced at the target.
        unsafe { rustix::mm::mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, target)? };
        // The range is unmapped, and may belong to another mapping by now.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by a constructor, and the references that `word` gave have ended.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
    }
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
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller gives up what is mapped in the range.
    unsafe { rustix::mm::mmap(at.cast(), len, prot, flags, fd.as_fd(), offset) }.map(drop)
}

/// Bytes that a system call moved; none of them is an error, unless a signal interrupted the call.
///
/// # Errors
/// EIO for no bytes, else what the call says.
pub(crate) fn progress(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(0) => Err(Errno::IO),
        Ok(moved) => Ok(moved),
        Err(_) => match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => Ok(0),
            errno => Err(errno.unwrap_or(Errno::IO)),
        },
    }
}
