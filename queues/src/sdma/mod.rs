// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packet stream of an SDMA queue, versions 4 to 6.
//!
//! A packet is a run of dwords whose first names it: operation in bits 0 to 7, sub-operation in bits 8 to 15.
//! Its length follows from its contents. Positions count bytes and never wrap.
//!
//! | op | sub-op | dwords | packet |
//! |---|---|---|---|
//! | 0 | 0 | 1 + n | [`Packet::Nop`] |
//! | 1 | 0, 4 | 7, 13 | [`CopyLinear`], [`CopyRect`] |
//! | 2 | 0 | 4 + n | [`Packet::Write`] |
//! | 5 | 0 | 4 | [`Fence`] |
//! | 6 | 0 | 2 | [`Packet::Trap`] |
//! | 8 | 0 | 6 | [`PollRegMem`], [`Packet::HdpFlush`] |
//! | 10 | 0 | 8 | [`Atomic`] |
//! | 11 | 0 | 5 | [`ConstFill`] |
//! | 13 | 2 | 3 | [`Packet::Timestamp`] |
//! | 17 | 1 | 5 | [`Gcr`] |
//!
//! Sources: the kernel's `*_sdma_pkt_open.h`, ROCr's `sdma_registers.h`, and the streams that ROCr 6.1.2 and
//! tinygrad 0.14.0 were seen to write. User queues contain no other packets with these clients.
//!
//! INVARIANT: what decodes encodes to the same dwords. Every bit that no [`Packet`] stands for (cache
//! policies, swaps, protected memory) is refused when set, so that nothing less than what was asked is
//! silently executed.

mod build;
mod copy;
mod error;
mod fields;
mod header;
#[cfg(test)]
mod properties;
mod store;
mod sync;
#[cfg(test)]
mod tests;

use std::fmt;

pub use build::{
    MAX_FILL_BYTES, MAX_SPLIT_BYTES, copy, fill, interrupt, max_copy_bytes, pad_to_fit, push_nops,
    signal_decrement,
};
pub use copy::{CopyLinear, CopyRect, RectSide};
pub use error::SdmaError;
pub use header::MAX_NOP_SKIP;
pub use store::{Atomic, AtomicOperation, ConstFill, Fence, FillCount};
pub use sync::{Compare, Gcr, MAX_EVENT_ID, PollRegMem};

pub use crate::target::Generation;

use header::{header, op, sub_op};

/// A packet of an SDMA queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet<'a> {
    /// Does nothing. A zero dword is the shortest.
    Nop {
        /// Dwords behind the header that the engine steps over, at most [`MAX_NOP_SKIP`].
        skipped: &'a [u32],
    },
    /// Moves bytes.
    CopyLinear(CopyLinear),
    /// Moves a box of elements.
    CopyRect(CopyRect),
    /// Stores dwords from the stream.
    Write {
        /// GPU address of the first dword to store, a multiple of 4.
        dst: u64,
        /// What to store, 1 to 2^20 dwords.
        data: &'a [u32],
    },
    /// Stores a dword behind everything before it.
    Fence(Fence),
    /// Interrupts the host.
    Trap {
        /// KFD event to signal, at most [`MAX_EVENT_ID`].
        event_id: u32,
    },
    /// Waits for a dword.
    PollRegMem(PollRegMem),
    /// Makes what the host wrote to VRAM through PCIe visible to the GPU.
    HdpFlush,
    /// Changes a value in memory atomically.
    Atomic(Atomic),
    /// Repeats an element over memory.
    ConstFill(ConstFill),
    /// Stores the 64-bit count of the GPU's global clock.
    Timestamp {
        /// GPU address to store to, a multiple of 8.
        address: u64,
    },
    /// Writes back or invalidates caches.
    Gcr(Gcr),
}

/// Reads the packet at the start of a stream, and how many dwords it takes.
///
/// # Errors
/// [`SdmaError::Truncated`] if the stream ends before the packet does, so an empty stream is an error too;
/// [`SdmaError::UnknownOperation`] and [`SdmaError::AtomicOperation`] for what this module does not know;
/// [`SdmaError::Reserved`], [`SdmaError::OutOfRange`] and [`SdmaError::Unaligned`] for fields that
/// [`Packet::encode`] would not write.
///
/// ```
/// use queues::sdma::{Generation, Packet, decode};
/// let (packet, dwords) = decode(&[6, 42, 0], Generation::V6)?;
/// assert_eq!((packet, dwords), (Packet::Trap { event_id: 42 }, 2));
/// # Ok::<(), queues::sdma::SdmaError>(())
/// ```
pub fn decode(stream: &[u32], generation: Generation) -> Result<(Packet<'_>, usize), SdmaError> {
    let &[first] = fields::take(stream)?;
    let [op, sub_op, ..] = first.to_le_bytes();
    let packet = match (op, sub_op) {
        (op::NOP, 0) => Packet::Nop { skipped: decode_nop(first, stream)? },
        (op::COPY, sub_op::COPY_LINEAR) => Packet::CopyLinear(CopyLinear::decode(stream, generation)?),
        (op::COPY, sub_op::COPY_RECT) => Packet::CopyRect(CopyRect::decode(stream, generation)?),
        (op::WRITE, 0) => {
            let (dst, data) = store::decode_write(stream)?;
            Packet::Write { dst, data }
        }
        (op::FENCE, 0) => Packet::Fence(Fence::decode(stream, generation)?),
        (op::TRAP, 0) => Packet::Trap { event_id: sync::decode_trap(stream)? },
        (op::POLL_REGMEM, 0) if stream.starts_with(&sync::HDP_FLUSH) => Packet::HdpFlush,
        (op::POLL_REGMEM, 0) => Packet::PollRegMem(PollRegMem::decode(stream)?),
        (op::ATOMIC, 0) => Packet::Atomic(Atomic::decode(stream)?),
        (op::CONST_FILL, 0) => Packet::ConstFill(ConstFill::decode(stream, generation)?),
        (op::TIMESTAMP, sub_op::TIMESTAMP_GET_GLOBAL) => {
            Packet::Timestamp { address: sync::decode_timestamp(stream)? }
        }
        (op::GCR, sub_op::GCR_USER) if generation.has_gcr() => Packet::Gcr(Gcr::decode(stream)?),
        _ => return Err(SdmaError::UnknownOperation { op, sub_op }),
    };
    Ok((packet, packet.dwords()))
}

/// The packets of a stream, each with the dword where it starts; the last item is the first error, if any.
pub fn packets(
    stream: &[u32],
    generation: Generation,
) -> impl Iterator<Item = (usize, Result<Packet<'_>, SdmaError>)> {
    let mut next = (!stream.is_empty()).then_some(0);
    std::iter::from_fn(move || {
        let start = next.take()?;
        let decoded = decode(stream.get(start..)?, generation);
        if let Ok((_, dwords)) = decoded {
            next = Some(start + dwords).filter(|&end| end < stream.len());
        }
        Some((start, decoded.map(|(packet, _)| packet)))
    })
}

impl Packet<'_> {
    /// Dwords that the packet takes in the stream.
    #[must_use]
    pub const fn dwords(&self) -> usize {
        match self {
            Self::Nop { skipped } => 1 + skipped.len(),
            Self::CopyLinear(_) => CopyLinear::DWORDS,
            Self::CopyRect(_) => CopyRect::DWORDS,
            Self::Write { data, .. } => 4 + data.len(),
            Self::Fence(_) => Fence::DWORDS,
            Self::Trap { .. } => 2,
            Self::PollRegMem(_) | Self::HdpFlush => PollRegMem::DWORDS,
            Self::Atomic(_) => Atomic::DWORDS,
            Self::ConstFill(_) => ConstFill::DWORDS,
            Self::Timestamp { .. } => 3,
            Self::Gcr(_) => Gcr::DWORDS,
        }
    }

    /// Appends the packet's dwords.
    ///
    /// # Errors
    /// [`SdmaError::OutOfRange`] and [`SdmaError::Unaligned`] for values that the packet cannot hold, and
    /// [`SdmaError::UnknownOperation`] for a [`Gcr`] on engines without it. Nothing is appended then.
    pub fn encode(&self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        match self {
            Self::Nop { skipped } => encode_nop(skipped, out),
            Self::CopyLinear(copy) => copy.encode(generation, out),
            Self::CopyRect(copy) => copy.encode(generation, out),
            Self::Write { dst, data } => store::encode_write(*dst, data, out),
            Self::Fence(fence) => fence.encode(generation, out),
            Self::Trap { event_id } => sync::encode_trap(*event_id, out),
            Self::PollRegMem(poll) => poll.encode(out),
            Self::HdpFlush => {
                out.extend(sync::HDP_FLUSH);
                Ok(())
            }
            Self::Atomic(atomic) => atomic.encode(out),
            Self::ConstFill(fill) => fill.encode(generation, out),
            Self::Timestamp { address } => sync::encode_timestamp(*address, out),
            Self::Gcr(gcr) => gcr.encode(generation, out),
        }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nop { skipped } => write!(f, "nop skip={}", skipped.len()),
            Self::CopyLinear(copy) => copy.fmt(f),
            Self::CopyRect(copy) => copy.fmt(f),
            Self::Write { dst, data } => {
                write!(f, "write dst={dst:#x} dwords={}", data.len())?;
                data.first().map_or(Ok(()), |first| write!(f, " first={first:#x}"))
            }
            Self::Fence(fence) => fence.fmt(f),
            Self::Trap { event_id } => write!(f, "trap event={event_id}"),
            Self::PollRegMem(poll) => poll.fmt(f),
            Self::HdpFlush => f.write_str("hdp_flush"),
            Self::Atomic(atomic) => atomic.fmt(f),
            Self::ConstFill(fill) => fill.fmt(f),
            Self::Timestamp { address } => write!(f, "timestamp address={address:#x}"),
            Self::Gcr(gcr) => gcr.fmt(f),
        }
    }
}

/// Name of the packet that does nothing, for errors.
const NOP: &str = "nop";

fn decode_nop(first: u32, stream: &[u32]) -> Result<&[u32], SdmaError> {
    fields::only(NOP, 0, first, 0xffff | MAX_NOP_SKIP << 16)?;
    // CAST: 14 bits.
    let wanted = 1 + fields::bits(first, 16, 14) as usize;
    stream.get(1..wanted).ok_or(SdmaError::Truncated { wanted, available: stream.len() })
}

fn encode_nop(skipped: &[u32], out: &mut Vec<u32>) -> Result<(), SdmaError> {
    // CAST: usize is at most 64 bits.
    let skip = fields::ranged(NOP, "count of dwords to skip", skipped.len() as u64, 0, MAX_NOP_SKIP)?;
    out.push(header(op::NOP, 0) | skip << 16);
    out.extend_from_slice(skipped);
    Ok(())
}
