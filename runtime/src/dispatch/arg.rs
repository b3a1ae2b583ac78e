// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of a kernel, with the buffers that a dispatch uses through them.

use std::sync::Arc;

use bytemuck::bytes_of;
use half::f16;
use queues::words::words;

use super::SMALL_BLOCK;
use crate::code_object::ExplicitArgument;
use crate::context::Context;
use crate::context::error::SubmitError;
use crate::copy::Span;
use crate::pool::{Buffer, TypedBuffer};

/// One argument of a kernel; its size must be the parameter's.
///
/// A buffer that is given whole or as a span counts as used by the queue until the dispatch has completed: it is not freed
/// before. What [`Arg::Address`] points at does not.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A buffer's address.
    Buffer(&'a Buffer),
    /// The address of a part of a buffer ([`Buffer::span`]). The part must lie in the buffer; the kernel is not kept from
    /// going beyond it.
    Span(Span<'a>),
    /// A GPU address. The caller keeps what is there alive.
    Address(u64),
    /// An 8-bit value.
    U8(u8),
    /// An 8-bit signed value.
    I8(i8),
    /// A 16-bit value.
    U16(u16),
    /// A 16-bit signed value.
    I16(i16),
    /// A 32-bit value.
    U32(u32),
    /// A 32-bit signed value.
    I32(i32),
    /// A 64-bit value.
    U64(u64),
    /// A 64-bit signed value.
    I64(i64),
    /// A 16-bit float.
    F16(f16),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A struct's bytes.
    Bytes(&'a [u8]),
}

impl AsRef<[u8]> for Arg<'_> {
    /// Its bytes as the kernel reads them. The host is little-endian, as the agents are.
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Arg::Buffer(buffer) => bytes_of(&buffer.0.va),
            Arg::Span(span) => bytes_of(&span.address),
            Arg::U8(value) => bytes_of(value),
            Arg::I8(value) => bytes_of(value),
            Arg::U16(value) => bytes_of(value),
            Arg::I16(value) => bytes_of(value),
            Arg::F16(value) => bytes_of(value),
            Arg::U32(value) => bytes_of(value),
            Arg::I32(value) => bytes_of(value),
            Arg::Address(value) | Arg::U64(value) => bytes_of(value),
            Arg::I64(value) => bytes_of(value),
            Arg::F32(value) => bytes_of(value),
            Arg::F64(value) => bytes_of(value),
            Arg::Bytes(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a Buffer> for Arg<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Arg::Buffer(buffer)
    }
}

impl<'a, T> From<&'a TypedBuffer<T>> for Arg<'a> {
    fn from(buffer: &'a TypedBuffer<T>) -> Self {
        Arg::Buffer(buffer.buffer())
    }
}

impl<'a> From<Span<'a>> for Arg<'a> {
    fn from(span: Span<'a>) -> Self {
        Arg::Span(span)
    }
}

impl<'a> Arg<'a> {
    /// The buffer that the dispatch uses through it.
    #[inline]
    pub(crate) fn buffer(&self) -> Option<&'a Buffer> {
        match *self {
            Arg::Buffer(buffer) => Some(buffer),
            Arg::Span(span) => Some(span.buffer),
            _ => None,
        }
    }

    /// Its value and its size in bytes, if it has 4 or 8 of them and a packet of this context can be given it. Otherwise a
    /// size of 0, and [`Arg::check`] says what is wrong, if anything is.
    #[inline(always)]
    fn word(&self, context: &Arc<Context>) -> (u64, usize) {
        let given = |buffer: &Buffer| buffer.is_of(context) && buffer.is_alive();
        match *self {
            Arg::Buffer(buffer) => (buffer.0.va, if given(buffer) { 8 } else { 0 }),
            Arg::Address(value) | Arg::U64(value) => (value, 8),
            Arg::U32(value) => (value.into(), 4),
            Arg::I32(value) => (value.cast_unsigned().into(), 4),
            Arg::F32(value) => (value.to_bits().into(), 4),
            Arg::Span(Span { buffer, offset, bytes, address, .. }) => {
                let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= buffer.len());
                (address, if is_inside && given(buffer) { 8 } else { 0 })
            }
            _ => (0, 0),
        }
    }

    /// Checks that the buffer it names can be given to a packet of this context. `index` is its place, for the error.
    #[inline]
    pub(crate) fn check(&self, context: &Arc<Context>, index: usize) -> Result<(), SubmitError> {
        let Some(buffer) = self.buffer() else { return Ok(()) };
        let is_inside = match *self {
            Arg::Span(Span { offset, bytes, .. }) => {
                offset.checked_add(bytes).is_some_and(|end| end <= buffer.len())
            }
            _ => true,
        };
        match buffer.is_of(context) && buffer.is_alive() && is_inside {
            true => Ok(()),
            false => Err(self.refuse(context, buffer, index)),
        }
    }

    /// What is wrong with an argument that [`Arg::check`] refuses.
    #[cold]
    fn refuse(&self, context: &Arc<Context>, buffer: &Buffer, index: usize) -> SubmitError {
        let key = buffer.key();
        match *self {
            _ if !buffer.is_of(context) => SubmitError::ForeignBuffer { index, key },
            Arg::Span(Span { offset, bytes, .. }) if buffer.is_alive() => {
                SubmitError::SpanRange { index, key, offset, bytes, len: buffer.len() }
            }
            _ => SubmitError::FreedBuffer { index, key },
        }
    }
}

/// Writes words where their parameters, as many, lie in `block`. Returns whether all arguments are words that can be given to a
/// packet of this context, as large as the parameters.
#[inline(never)]
pub(super) fn try_put_words(
    context: &Arc<Context>,
    places: &[ExplicitArgument],
    arguments: &[Arg<'_>],
    block: &mut [u8; SMALL_BLOCK],
) -> bool {
    for (place, argument) in places.iter().zip(arguments) {
        let (value, bytes) = argument.word(context);
        if bytes == 0 || bytes != place.bytes {
            return false;
        }
        // Stores of known length: a copy of another would be a call.
        let Some(to) = block.get_mut(place.offset..) else { return false };
        if bytes == 8 {
            let Some(to) = to.first_chunk_mut() else { return false };
            *to = value.to_le_bytes();
        } else {
            let Some(to) = to.first_chunk_mut() else { return false };
            *to = words(value)[0].to_le_bytes();
        }
    }
    true
}

/// Whether all arguments, as many as the parameters, are words that can be given to a packet of this context.
#[inline(never)]
pub(super) fn are_words(context: &Arc<Context>, places: &[ExplicitArgument], arguments: &[Arg<'_>]) -> bool {
    places.iter().zip(arguments).all(|(place, argument)| {
        let (_, bytes) = argument.word(context);
        bytes != 0 && bytes == place.bytes
    })
}
