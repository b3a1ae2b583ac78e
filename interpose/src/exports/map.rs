// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mmap` of the device's files, and calls that take registered pages away.
//!
//! Where registered pages are unmapped by the kernel or by the C library itself (`free`, `realloc`), nobody learns of it.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc::{self, c_int, off_t, size_t};
use nix::sys::mman::ProtFlags;

use super::wrap::exports;
use crate::busy;
use crate::device::{self, Opened};

/// The smallest page of x86-64.
const PAGE: usize = 4096;

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

/// The arguments of `mmap`.
struct Arguments {
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

/// Answers `mmap`; `next` gets the file and the offset to map instead.
fn map_any(arguments: &Arguments, next: impl FnOnce(c_int, off_t) -> *mut c_void) -> *mut c_void {
    let &Arguments { at, bytes, prot, flags, fd, offset } = arguments;
    let opened = device::find(fd).filter(|_| flags & libc::MAP_ANONYMOUS == 0);
    let replaced = if flags & libc::MAP_FIXED != 0 { pages(at, bytes) } else { 0..0 };
    device::unmap(&replaced, is_mapped, || match opened {
        None => next(fd, offset),
        Some(opened) => busy::inside(|| map(opened, bytes, prot, offset, next)).unwrap_or_else(|errno| {
            errno.set();
            libc::MAP_FAILED
        }),
    })
}

/// The pages that a call with these arguments is about.
fn pages(at: *mut c_void, bytes: size_t) -> Range<usize> {
    let start = at.addr();
    start..start.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

fn is_mapped(at: &*mut c_void) -> bool {
    *at != libc::MAP_FAILED
}

exports! {
    fn mmap(at: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void =
        |next| map_any(&Arguments { at, bytes, prot, flags, fd, offset }, |fd, offset| next(at, bytes, prot, flags, fd, offset));

    fn munmap(at: *mut c_void, bytes: size_t) -> c_int =
        |next| device::unmap(&pages(at, bytes), |answer| *answer == 0, || next(at, bytes));

    fn mremap(at: *mut c_void, old: size_t, new: size_t, flags: c_int; to: *mut c_void) -> *mut c_void = |next| {
        device::withdraw(&pages(at, old));
        let target = if flags & libc::MREMAP_FIXED != 0 { pages(to, new) } else { 0..0 };
        device::unmap(&target, is_mapped, || next(at, old, new, flags, to))
    };
}
