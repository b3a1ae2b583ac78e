// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the private blob of RESTORE from the client's memory in parts.
//!
//! INVARIANT: one read takes at most one known struct or one buffer of the caller, and no read passes the size that the
//! client gave.

use kfd::sys::{kfd_criu_bo_priv_data, kfd_ioctl_criu_args};
use nix::errno::Errno;

use crate::driver::Call;

/// A position in the blob.
#[derive(Debug)]
pub(super) struct Cursor {
    base: u64,
    bytes: u64,
    offset: u64,
}

impl Cursor {
    pub(super) fn new(args: &kfd_ioctl_criu_args) -> Self {
        Self { base: args.priv_data, bytes: args.priv_data_size, offset: 0 }
    }

    /// Whether everything was read.
    pub(super) fn at_end(&self) -> bool {
        self.offset == self.bytes
    }

    /// Checks that `count` elements of `size` bytes follow.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn expect(&self, count: u64, size: usize) -> Result<(), Errno> {
        // CAST: usize to u64 on a 64-bit target.
        let end = count.checked_mul(size as u64).and_then(|bytes| self.offset.checked_add(bytes));
        if end.is_some_and(|end| end <= self.bytes) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Skips `count` elements of `size` bytes.
    ///
    /// # Errors
    /// `EINVAL` beyond the end.
    pub(super) fn skip(&mut self, count: u64, size: usize) -> Result<(), Errno> {
        self.expect(count, size)?;
        // `expect` has computed the product and the sum without overflow.
        self.offset += count * size as u64;
        Ok(())
    }

    /// The next struct, without moving on.
    ///
    /// # Errors
    /// `EINVAL` beyond the end, `EFAULT`.
    pub(super) fn peek<T: bytemuck::Pod>(&self, call: &Call<'_>) -> Result<T, Errno> {
        self.expect(1, size_of::<T>())?;
        let address = self.base.checked_add(self.offset).ok_or(Errno::EFAULT)?;
        let mut value = T::zeroed();
        call.memory.read(address, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// The next struct.
    ///
    /// # Errors
    /// As for [`Cursor::peek`].
    pub(super) fn take<T: bytemuck::Pod>(&mut self, call: &Call<'_>) -> Result<T, Errno> {
        let value = self.peek(call)?;
        self.skip(1, size_of::<T>())?;
        Ok(value)
    }

    /// The next `buffer.len()` bytes.
    ///
    /// # Errors
    /// As for [`Cursor::peek`].
    pub(super) fn fill(&mut self, buffer: &mut [u8], call: &Call<'_>) -> Result<(), Errno> {
        self.expect(1, buffer.len())?;
        let address = self.base.checked_add(self.offset).ok_or(Errno::EFAULT)?;
        call.memory.read(address, buffer)?;
        self.skip(1, buffer.len())
    }
}

/// Bytes of a buffer's entry.
pub(super) const BO_BYTES: usize = size_of::<kfd_criu_bo_priv_data>();
