// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies memory of this process at addresses that the caller of an ioctl gave. System calls do the copying, so that a
//! bad address is an error and not a crash.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::transport::mapping::progress;

fn vector(address: u64, bytes: usize) -> Result<libc::iovec, Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    Ok(libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: bytes })
}

fn finish(result: isize, wanted: usize) -> Result<(), Errno> {
    match usize::try_from(result) {
        Ok(done) if done == wanted => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => {
            let raw = std::io::Error::last_os_error().raw_os_error();
            Err(raw.map_or(Errno::FAULT, Errno::from_raw_os_error))
        }
    }
}

/// Fills `into` from `address`.
///
/// # Errors
/// EFAULT if any byte cannot be read.
pub(super) fn read(address: u64, into: &mut [u8]) -> Result<(), Errno> {
    if into.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = vector(address, into.len())?;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel writes into `into`, which is borrowed mutably. It only reads at `address`, and answers EFAULT
    // where there is no memory.
    finish(
        unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) },
        into.len(),
    )
}

/// Copies `bytes` bytes from `address` to the start of a file.
///
/// # Errors
/// EFAULT if any byte cannot be read, else the errno of writing the file.
pub(super) fn copy_to_file(address: u64, bytes: u64, file: &OwnedFd) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let source = address.checked_add(done).ok_or(Errno::FAULT)?;
        let source = vector(source, usize::try_from(bytes - done).map_err(|_| Errno::FAULT)?)?;
        let offset = libc::off_t::try_from(done).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: the kernel only reads the memory, and answers EFAULT where there is none.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), source.iov_base, source.iov_len, offset) };
        done += progress(written)? as u64;
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
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = vector(address, bytes.len())?;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel only reads `bytes`. It writes to the memory at `address`, which the caller lets it write, and
    // answers EFAULT where there is none.
    finish(
        unsafe { libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0) },
        bytes.len(),
    )
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
        assert_eq!(read(8, &mut copy), Err(Errno::FAULT));
        assert_eq!(read(u64::MAX - 3, &mut copy), Err(Errno::FAULT));
        // SAFETY: no process has memory at address 0.
        assert_eq!(unsafe { write(0, b"x") }, Err(Errno::FAULT));
    }
}
