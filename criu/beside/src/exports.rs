// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function of the C library that is replaced, under its two names.
#![allow(unsafe_code)]

use std::ffi::c_int;

use nix::errno::Errno;
use nix::libc::{self, off64_t};

use super::is_left_out;

/// `lseek64(3)`; of memory that is left out there is no data anywhere.
#[unsafe(no_mangle)]
pub extern "C" fn lseek64(fd: c_int, offset: off64_t, whence: c_int) -> off64_t {
    if whence == libc::SEEK_DATA && is_left_out(fd) {
        Errno::ENXIO.set();
        return -1;
    }
    // SAFETY: the system call takes three numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) }
}

/// `lseek(3)`, which is the same where offsets have 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn lseek(fd: c_int, offset: off64_t, whence: c_int) -> off64_t {
    lseek64(fd, offset, whence)
}
