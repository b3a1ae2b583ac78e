// SPDX-License-Identifier: MIT OR Apache-2.0
//! Client memory that is too large for a message: a copy in a memfd, for the time of one ioctl.
//!
//! INVARIANT: the device sees and changes only the copy. The caller decides which changes are copied back.

use queues::words::size;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::SealFlag;

use super::marshal::Pointer;
use super::user_memory;
use crate::linux;
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
    /// The errno of making the memfd.
    pub fn copy_of(pointer: &Pointer) -> Result<Option<Self>, Errno> {
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let fd = linux::memfd("stasis-arguments", pointer.bytes, seals)?;
        match user_memory::copy_to_file(pointer.address, pointer.bytes, &fd) {
            Ok(()) => Ok(Some(Self { pointer: *pointer, fd })),
            Err(Errno::EFAULT) => Ok(None),
            Err(errno) => Err(errno),
        }
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

    /// Passes a range that [`SharedMemory::holds`] to `write`, in parts, with their addresses.
    ///
    /// # Errors
    /// What `write` says, EPROTO if the range is no part of the copy.
    pub fn copy_back(
        &self,
        address: u64,
        bytes: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut offset = address.checked_sub(self.pointer.address).ok_or(Errno::EPROTO)?;
        let end = offset.checked_add(bytes).ok_or(Errno::EPROTO)?;
        let mut buffer = vec![0; CHUNK];
        while offset < end {
            let wanted = size((end - offset).min(CHUNK as u64));
            let at = i64::try_from(offset).map_err(|_| Errno::EPROTO)?;
            let read = nix::sys::uio::pread(&self.fd, &mut buffer[..wanted], at)?;
            if read == 0 {
                return Err(Errno::EPROTO);
            }
            write(self.pointer.address + offset, &buffer[..read])?;
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
