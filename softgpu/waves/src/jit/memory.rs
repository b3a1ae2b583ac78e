// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that hold generated code.
//!
//! INVARIANT: never writable and executable at once: written while private and writable, then made executable for good.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Executable pages, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are never written again, and the pointer is only given out for reading and executing.
unsafe impl Send for Pages {}
// SAFETY: nothing is written through a shared reference.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages with `code`.
    ///
    /// # Errors
    /// What `mmap` or `mprotect` says: out of memory, or a policy against executable anonymous memory.
    pub(super) fn new(code: &[u8]) -> rustix::io::Result<Pages> {
        let bytes = code.len().max(1).next_multiple_of(4096);
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        let pages = Pages { start, bytes };
        // SAFETY: this process made the mapping just now; it is writable and at least `code.len()` bytes long.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), start.as_ptr(), code.len()) };
        // SAFETY: this process made the mapping just now, and no other code has its address yet.
        unsafe {
            mprotect(start.as_ptr().cast::<c_void>(), bytes, MprotectFlags::READ | MprotectFlags::EXEC)?
        };
        Ok(pages)
    }

    /// Address of the byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> *const u8 {
        self.start.as_ptr().cast_const().wrapping_add(offset)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and nothing runs in it: a thread that runs code borrows the program that owns it.
        let result = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
        if let Err(error) = result {
            tracing::warn!("Cannot unmap {} bytes of generated code: {error}", self.bytes);
        }
    }
}
