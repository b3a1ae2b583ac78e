// SPDX-License-Identifier: MIT OR Apache-2.0
//! Client memory that is too large for a message: a copy in a memfd, for the time of one ioctl.
//!
//! INVARIANT: the device sees and changes the copy only; what it changed is copied back by the caller's word.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::marshal::Pointer;
use super::user_memory;
use crate::transport::wire::SharedSegment;

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// A copy.
#[derive(Debug)]
pub(super) struct SharedMemory {
    pointer: Pointer,
    fd: OwnedFd,
}

impl SharedMemory {
    /// Copies what `pointer` names; `None` if it cannot be read.
    ///
    /// # Errors
    /// What making the memfd says.
    pub fn copy_of(pointer: &Pointer) -> Result<Option<Self>, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("stasis-arguments", flags)?;
        rustix::fs::ftruncate(&fd, pointer.bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let mut done = 0;
        while done < pointer.bytes {
            let Some(address) = pointer.address.checked_add(done) else { return Ok(None) };
            let Ok(source) = usize::try_from(address) else { return Ok(None) };
            // CAST: at most MAX_SHARED_BYTES.
            let (length, offset) = ((pointer.bytes - done) as usize, done as libc::off_t);
            let source: *const libc::c_void = std::ptr::with_exposed_provenance(source);
            // SAFETY: the kernel reads the memory and answers EFAULT where there is none.
            let written = unsafe { libc::pwrite(fd.as_raw_fd(), source, length, offset) };
            match u64::try_from(written) {
                Ok(0) => return Err(Errno::IO),
                Ok(moved) => done += moved,
                Err(_) => {
                    match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
                        Some(Errno::INTR) => {}
                        Some(Errno::FAULT) => return Ok(None),
                        errno => return Err(errno.unwrap_or(Errno::IO)),
                    }
                }
            }
        }
        Ok(Some(Self { pointer: *pointer, fd }))
    }

    /// How the message describes it.
    pub fn segment(&self) -> SharedSegment {
        let Pointer { address, bytes, writable } = self.pointer;
        SharedSegment { address, bytes, writable }
    }

    /// Whether the range is a writable part of it.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        super::marshal::may_write(&[self.pointer], address, bytes)
    }

    /// Copies a range back that [`SharedMemory::holds`].
    ///
    /// # Errors
    /// EFAULT if any of it cannot be written, EPROTO if it is no part of the copy.
    ///
    /// # Safety
    /// The memory that the copy is of must be given to the driver for writing.
    pub unsafe fn copy_back(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        let mut offset = address.checked_sub(self.pointer.address).ok_or(Errno::PROTO)?;
        let end = offset.checked_add(bytes).ok_or(Errno::PROTO)?;
        let mut buffer = vec![0; CHUNK];
        while offset < end {
            // CAST: at most CHUNK.
            let wanted = (end - offset).min(CHUNK as u64) as usize;
            let read = rustix::io::pread(&self.fd, &mut buffer[..wanted], offset)?;
            if read == 0 {
                return Err(Errno::PROTO);
            }
            // SAFETY: the caller's contract.
            unsafe { user_memory::write(self.pointer.address + offset, &buffer[..read])? };
            offset += read as u64;
        }
        Ok(())
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
