// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of buffers.

use device_lib::DeviceLibError;

use crate::context::error::CopyError;
use crate::pool::Buffer;

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The address of its first byte. Whoever uses it has checked the range: an offset beyond the address space wraps.
    pub(crate) address: u64,
}

impl Buffer {
    /// `bytes` bytes from `offset` on. Whether they lie in the buffer is checked when the span is used.
    pub fn span(&self, offset: u64, bytes: u64) -> Span<'_> {
        Span { buffer: self, offset, bytes, address: self.va().wrapping_add(offset) }
    }

    /// All of it.
    pub fn all(&self) -> Span<'_> {
        self.span(0, self.len())
    }
}

impl Span<'_> {
    pub(super) fn va(&self) -> Result<u64, CopyError> {
        self.buffer.checked_range(self.offset, self.bytes)
    }
}

pub(super) fn from_library(buffer: &Buffer) -> impl Fn(DeviceLibError) -> CopyError {
    let (key, len) = (buffer.key(), buffer.len());
    move |error| match error {
        DeviceLibError::PatternLength { bytes } => CopyError::Pattern { found: bytes },
        DeviceLibError::Overlap { bytes, .. } => CopyError::Overlap { key, bytes },
        DeviceLibError::Range { bytes, .. } => CopyError::Range { key, offset: 0, bytes, len },
        other => CopyError::NoKernels(other),
    }
}
