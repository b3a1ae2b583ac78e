// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are in a buffer that is allocated once.

/// Every part begins at a multiple of this: a cache line of the largest agents.
const ALIGNMENT: u64 = 256;

/// Allocates parts of a buffer, one after the other.
#[derive(Debug, Default)]
pub struct Layout {
    end: u64,
}

impl Layout {
    /// The offset of a part of `count` numbers of type `T`.
    pub fn take<T>(&mut self, count: usize) -> u64 {
        let at = self.end;
        // CAST: usize to u64 widens.
        self.end = (at + (count * size_of::<T>()) as u64).next_multiple_of(ALIGNMENT);
        at
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.end
    }
}
