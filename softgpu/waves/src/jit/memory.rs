// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that hold generated code.
//!
//! INVARIANT: a page is never writable and executable at once. It is private and writable while the code is copied, and
//! then executable and read-only until it is unmapped.

use std::io;

use memmap2::{Mmap, MmapMut};

/// Executable pages, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Pages(Mmap);

impl Pages {
    /// Pages with `code`.
    ///
    /// # Errors
    /// The errors of `mmap` and `mprotect`: out of memory, or a policy against executable anonymous memory.
    pub(super) fn new(code: &[u8]) -> io::Result<Pages> {
        let bytes = code.len().max(1).next_multiple_of(4096);
        let mut pages = MmapMut::map_anon(bytes)?;
        pages[..code.len()].copy_from_slice(code);
        pages.make_exec().map(Self)
    }

    /// Address of the byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> *const u8 {
        self.0.as_ptr().wrapping_add(offset)
    }
}
