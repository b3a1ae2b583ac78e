// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mmap` of the device's files.

use std::ffi::c_void;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc::{self, c_int, off_t, size_t};
use nix::sys::mman::ProtFlags;

use super::wrap::exports;
use crate::busy;
use crate::device::{self, Opened};

/// Maps memory of the device where `next` is told to.
fn map(
    opened: &Opened,
    bytes: size_t,
    prot: c_int,
    offset: off_t,
    next: impl FnOnce(c_int, off_t) -> *mut c_void,
) -> Result<*mut c_void, Errno> {
    let memory =
        opened.file.memory(bytes as u64, ProtFlags::from_bits_retain(prot), offset.cast_unsigned())?;
    let at = next(memory.fd.as_raw_fd(), off_t::try_from(memory.offset).map_err(|_| Errno::EOVERFLOW)?);
    if at != libc::MAP_FAILED && memory.parked.is_some() {
        // KFD marks doorbells VM_DONTCOPY: a forked child must not ring its parent's queues.
        // SAFETY: the range was mapped just now, and the advice changes nothing for this process.
        unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
        // Without it a store to a doorbell would wake nobody.
        let start = at.expose_provenance() as u64;
        opened.file.expect_stores(offset.cast_unsigned(), &(start..start + bytes as u64))?;
    }
    Ok(at)
}

fn map_any(
    fd: c_int,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    offset: off_t,
    next: impl FnOnce(c_int, off_t) -> *mut c_void,
) -> *mut c_void {
    match device::find(fd).filter(|_| flags & libc::MAP_ANONYMOUS == 0) {
        None => next(fd, offset),
        Some(opened) => busy::inside(|| map(opened, bytes, prot, offset, next)).unwrap_or_else(|errno| {
            errno.set();
            libc::MAP_FAILED
        }),
    }
}

exports! {
    fn mmap(at: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void =
        |next| map_any(fd, bytes, prot, flags, offset, |fd, offset| next(at, bytes, prot, flags, fd, offset));
    fn mmap64(at: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void =
        |next| map_any(fd, bytes, prot, flags, offset, |fd, offset| next(at, bytes, prot, flags, fd, offset));
}
