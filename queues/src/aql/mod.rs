// SPDX-License-Identifier: MIT OR Apache-2.0
//! AQL packets: kernel dispatch, barrier-and and barrier-or (HSA 1.2 §2.9).
//!
//! Invariant: `decode` accepts exactly the bit patterns that `encode` can produce from a consistent packet.
//! Reserved bits are written zero and refused when set. Whether the *values* make sense is a second question,
//! answered by [`Packet::validate`], because a dump must be able to print a packet that no processor would
//! run.

mod barrier;
mod dispatch;
mod error;
mod exception;
mod header;
#[cfg(test)]
mod tests;

use std::fmt;

pub use barrier::Barrier;
pub use dispatch::{KernelDispatch, MAX_WORKGROUP_ITEMS};
pub use error::PacketError;
pub use exception::ExceptionCode;
pub use header::{FenceScope, Header, PacketKind};

/// Bytes of every AQL packet.
pub const PACKET_BYTES: usize = 64;

/// A packet as the little-endian words that lie in the ring.
///
/// Word 0 holds the header in its low half. It must be stored last, with release ordering, because the packet
/// belongs to the processor as soon as the header's kind is valid.
pub type RawPacket = [u32; 16];

/// A packet that the command processor executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// Launches a grid.
    KernelDispatch(KernelDispatch),
    /// Completes when all its signals have reached zero.
    BarrierAnd(Barrier),
    /// Completes when any of its signals has reached zero.
    BarrierOr(Barrier),
}

impl Packet {
    /// The header, with the kind that the variant says.
    #[must_use]
    pub const fn header(&self) -> Header {
        let (header, kind) = match self {
            Self::KernelDispatch(dispatch) => (dispatch.header, PacketKind::KernelDispatch),
            Self::BarrierAnd(barrier) => (barrier.header, PacketKind::BarrierAnd),
            Self::BarrierOr(barrier) => (barrier.header, PacketKind::BarrierOr),
        };
        Header { kind, ..header }
    }

    /// Handle of the signal to decrement on completion, or 0.
    #[must_use]
    pub const fn completion_signal(&self) -> u64 {
        match self {
            Self::KernelDispatch(dispatch) => dispatch.completion_signal,
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.completion_signal,
        }
    }

    /// The packet's words. The kind is the variant's, whatever `header.kind` says.
    #[must_use]
    pub fn encode(&self) -> RawPacket {
        let header = self.header().encode();
        match self {
            Self::KernelDispatch(dispatch) => dispatch.encode_with(header),
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.encode_with(header),
        }
    }

    /// Reads a packet back from its words.
    ///
    /// # Errors
    /// [`PacketError::Unpublished`] for a slot whose header is still INVALID (a processor waits there, it is
    /// no fault), [`PacketError::Unsupported`] and [`PacketError::Vendor`] for kinds that are not packets of
    /// this type, [`PacketError::FenceScope`] and [`PacketError::Reserved`] for bits that must not be set.
    pub fn decode(raw: &RawPacket) -> Result<Self, PacketError> {
        let [low, high] = halves(raw[0]);
        match PacketKind::of(low) {
            None => Err(PacketError::Unsupported { kind: low.to_le_bytes()[0] }),
            Some(PacketKind::Invalid) => Err(PacketError::Unpublished),
            Some(PacketKind::VendorSpecific) => Err(PacketError::Vendor { format: high.to_le_bytes()[0] }),
            Some(kind @ PacketKind::AgentDispatch) => Err(PacketError::Unsupported { kind: kind as u8 }),
            Some(PacketKind::KernelDispatch) => {
                KernelDispatch::decode_body(Header::decode(low)?, raw).map(Self::KernelDispatch)
            }
            Some(PacketKind::BarrierAnd) => {
                Barrier::decode_body(Header::decode(low)?, raw).map(Self::BarrierAnd)
            }
            Some(PacketKind::BarrierOr) => {
                Barrier::decode_body(Header::decode(low)?, raw).map(Self::BarrierOr)
            }
        }
    }

    /// Whether a command processor would execute this packet, judged by the packet alone.
    ///
    /// What needs the device (group segment against the LDS, registers against the code object) is judged by
    /// the processor, with [`KernelDispatch::check_group_segment`] and [`PacketError::Registers`].
    ///
    /// # Errors
    /// Every [`PacketError`] about dimensions, sizes or a missing code object, and
    /// [`PacketError::KindMismatch`] when `header.kind` contradicts the variant.
    pub fn validate(&self) -> Result<(), PacketError> {
        let (found, wanted) = match self {
            Self::KernelDispatch(dispatch) => (dispatch.header.kind, PacketKind::KernelDispatch),
            Self::BarrierAnd(barrier) => (barrier.header.kind, PacketKind::BarrierAnd),
            Self::BarrierOr(barrier) => (barrier.header.kind, PacketKind::BarrierOr),
        };
        if found != wanted {
            return Err(PacketError::KindMismatch { found, wanted });
        }
        match self {
            Self::KernelDispatch(dispatch) => dispatch.validate(),
            Self::BarrierAnd(_) | Self::BarrierOr(_) => Ok(()),
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.header())?;
        match self {
            Self::KernelDispatch(dispatch) => dispatch.fmt_body(f),
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.fmt_body(f),
        }
    }
}

/// Splits a word into its low and high halves.
pub(crate) const fn halves(word: u32) -> [u16; 2] {
    let [a, b, c, d] = word.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// Joins two halves into a word.
pub(crate) const fn word(low: u16, high: u16) -> u32 {
    let ([a, b], [c, d]) = (low.to_le_bytes(), high.to_le_bytes());
    u32::from_le_bytes([a, b, c, d])
}

/// Splits 64 bits into little-endian words.
pub(crate) const fn words(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// Joins two little-endian words into 64 bits.
pub(crate) const fn double(low: u32, high: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (low.to_le_bytes(), high.to_le_bytes());
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
