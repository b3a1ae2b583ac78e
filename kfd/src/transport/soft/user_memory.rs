// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies memory of this process at addresses that the caller of an ioctl gave. System calls do the copying, so that a
//! bad address is an error and not a crash.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::linux;
use crate::transport::mapping::progress;

fn vector(address: u64, bytes: usize) -> Result<RemoteIoVec, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    Ok(RemoteIoVec { base, len: bytes })
}

fn finish(result: Result<usize, Errno>, wanted: usize) -> Result<(), Errno> {
    if result? == wanted { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Fills `into` from `address`.
///
/// # Errors
/// EFAULT if any byte cannot be read.
pub(super) fn read(address: u64, into: &mut [u8]) -> Result<(), Errno> {
    if into.is_empty() {
        return Ok(());
    }
    let wanted = into.len();
    let remote = vector(address, wanted)?;
    finish(process_vm_readv(Pid::this(), &mut [IoSliceMut::new(into)], &[remote]), wanted)
}

/// Bytes copied at a time, through the stack: pages change hands while nothing may be allocated.
const CHUNK: usize = 16 << 10;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// Copies `bytes` bytes from `address` to the start of a file that has nothing but zeros. Zeros are not written, so that
/// memory which was never used, such as most of a queue's save area, takes none in the file either.
///
/// # Errors
/// EFAULT if any byte cannot be read, else the errno of writing the file.
pub(super) fn copy_to_file(address: u64, bytes: u64, file: &OwnedFd) -> Result<(), Errno> {
    let mut chunk = ZEROS;
    let mut at = 0;
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(CHUNK).min(CHUNK);
        let chunk = chunk.get_mut(..length).ok_or(Errno::EFAULT)?;
        read(address.checked_add(at).ok_or(Errno::EFAULT)?, chunk)?;
        let mut rest = if *chunk == ZEROS[..length] { &[][..] } else { chunk };
        while !rest.is_empty() {
            let (from, offset) = (rest.as_ptr().expose_provenance(), at + (length - rest.len()) as u64);
            let done = progress(linux::pwrite(file.as_fd(), from, rest.len(), offset))?;
            rest = rest.get(done..).unwrap_or_default();
        }
        at += length as u64;
    }
    Ok(())
}

/// Copies `bytes` to `address`.
///
/// # Errors
/// EFAULT if any byte cannot be written.
///
/// # Safety
/// Where memory exists at `address`, the driver must be allowed to write it.
pub(super) unsafe fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let remote = vector(address, bytes.len())?;
    // The kernel writes to the memory at `address`, which the caller lets it write, and answers EFAULT where there is
    // none.
    finish(process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &[remote]), bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_write_copy_and_refuse_bad_addresses() {
        let mut target = [0_u8; 8];
        let address = target.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: `target` is a local array that nothing borrows.
        unsafe { write(address, b"abcdefgh") }.unwrap();
        let mut copy = [0; 8];
        read(address, &mut copy).unwrap();
        assert_eq!((&target, &copy), (b"abcdefgh", b"abcdefgh"));
        assert_eq!(read(8, &mut copy), Err(Errno::EFAULT));
        assert_eq!(read(u64::MAX - 3, &mut copy), Err(Errno::EFAULT));
        // SAFETY: no process has memory at address 0.
        assert_eq!(unsafe { write(0, b"x") }, Err(Errno::EFAULT));
    }
}
