// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls of the server that rustix does not wrap.
//!
//! INVARIANT: nothing here keeps a pointer, and every descriptor that comes in or goes out is owned.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// `SO_PEERPIDFD` (`asm-generic/socket.h`, Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// A pidfd of the process at the other end of a connected Unix socket, exact even if the number was used again.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5, `ESRCH` or `EINVAL` when the process is gone.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: both pointers are to live locals, and `length` says how long the first one is.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            std::ptr::from_mut(&mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 || fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the kernel has just installed this descriptor for this call, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts `/dev/null` where stdin, stdout and (unless `keep_stderr`) stderr are.
///
/// # Errors
/// What `open` or `dup2` say.
pub(super) fn null_stdio(keep_stderr: bool) -> Result<(), Errno> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    let last = if keep_stderr { 1 } else { 2 };
    for standard in 0..=last {
        // SAFETY: dup2 onto a standard stream; Rust's std treats these as borrowed numbers that anyone may redirect.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
        }
    }
    Ok(())
}

/// Ends the process as a killed one ends: all threads at the same time (`exit_group`), and no destructor under one that
/// is still executing waves. A process that waits for this one may see the leader ended and its threads still
/// running, for as long as the kernel needs to end them.
pub(super) fn end_all_threads() -> ! {
    // SAFETY: does not return and touches no memory of this process.
    unsafe { libc::_exit(0) }
}
