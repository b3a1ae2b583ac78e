// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process' memory at addresses that an ioctl's caller gave, copied by system calls so that a bad
//! address is an error and not a crash.
#![allow(unsafe_code)]

use rustix::io::Errno;

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
    // SAFETY: the kernel writes into `into` only; the other address is checked by it.
    finish(
        unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) },
        into.len(),
    )
}

/// Copies `bytes` to `address`.
///
/// # Errors
/// EFAULT if any byte cannot be written.
///
/// # Safety
/// The memory at `address`, where it exists, must be given to the driver for writing.
pub(super) unsafe fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = vector(address, bytes.len())?;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel reads `bytes` and checks the other address, whose memory the caller gave.
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
        // SAFETY: `target` is ours.
        unsafe { write(address, b"abcdefgh") }.unwrap();
        let mut copy = [0; 8];
        read(address, &mut copy).unwrap();
        assert_eq!((&target, &copy), (b"abcdefgh", b"abcdefgh"));
        assert_eq!(read(8, &mut copy), Err(Errno::FAULT));
        assert_eq!(read(u64::MAX - 3, &mut copy), Err(Errno::FAULT));
        // SAFETY: nothing is mapped there.
        assert_eq!(unsafe { write(0, b"x") }, Err(Errno::FAULT));
    }
}
