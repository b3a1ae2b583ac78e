// SPDX-License-Identifier: MIT OR Apache-2.0
//! AQL packets (HSA 1.2 §2.9): kernel dispatch, barrier-and, barrier-or, agent dispatch, and AMD's vendor
//! packets PM4-IB and barrier-value.
//!
//! INVARIANT: `decode` accepts exactly the bit patterns that `encode` can produce from a consistent packet.
//! Reserved bits are written zero and refused when set. Whether the *values* make sense is a second question,
//! answered by [`Packet::validate`], because a dump must be able to print a packet that no processor would
//! run.

mod agent_dispatch;
mod barrier;
mod dispatch;
mod error;
mod exception;
mod header;
pub mod inactive;
mod raw;
#[cfg(test)]
mod tests;
mod vendor;
#[cfg(test)]
mod vendor_tests;

use std::fmt;

pub use agent_dispatch::AgentDispatch;
pub use barrier::Barrier;
pub use dispatch::{KernelDispatch, MAX_WORKGROUP_ITEMS};
pub use error::PacketError;
pub use exception::ExceptionCode;
pub use header::{FenceScope, Header, PacketKind};
pub use raw::{PACKET_BYTES, RawPacket};
pub use vendor::{BarrierValue, Condition, Pm4Ib};

use crate::words::halves;

/// A packet that a processor of a queue executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// Launches a grid.
    KernelDispatch(KernelDispatch),
    /// Completes when all its signals have reached zero.
    BarrierAnd(Barrier),
    /// Completes when any of its signals has reached zero.
    BarrierOr(Barrier),
    /// Calls a function of a host agent; GPU queues do not support it.
    AgentDispatch(AgentDispatch),
    /// Runs PM4 commands from memory.
    Pm4Ib(Pm4Ib),
    /// Completes when a signal's value meets a condition.
    BarrierValue(BarrierValue),
}

impl Packet {
    /// The header, with the kind that the variant says.
    #[must_use]
    pub const fn header(&self) -> Header {
        let (header, kind) = self.header_and_kind();
        Header { kind, ..header }
    }

    const fn header_and_kind(&self) -> (Header, PacketKind) {
        match self {
            Self::KernelDispatch(dispatch) => (dispatch.header, PacketKind::KernelDispatch),
            Self::BarrierAnd(barrier) => (barrier.header, PacketKind::BarrierAnd),
            Self::BarrierOr(barrier) => (barrier.header, PacketKind::BarrierOr),
            Self::AgentDispatch(dispatch) => (dispatch.header, PacketKind::AgentDispatch),
            Self::Pm4Ib(ib) => (ib.header, PacketKind::VendorSpecific),
            Self::BarrierValue(barrier) => (barrier.header, PacketKind::VendorSpecific),
        }
    }

    /// Handle of the signal to decrement on completion, or 0.
    #[must_use]
    pub const fn completion_signal(&self) -> u64 {
        match self {
            Self::KernelDispatch(dispatch) => dispatch.completion_signal,
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.completion_signal,
            Self::AgentDispatch(dispatch) => dispatch.completion_signal,
            Self::Pm4Ib(ib) => ib.completion_signal,
            Self::BarrierValue(barrier) => barrier.completion_signal,
        }
    }

    /// The packet's words. The kind is the variant's, whatever `header.kind` says.
    #[must_use]
    pub fn encode(&self) -> RawPacket {
        let header = self.header().encode();
        match self {
            Self::KernelDispatch(dispatch) => dispatch.encode_with(header),
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.encode_with(header),
            Self::AgentDispatch(dispatch) => dispatch.encode_with(header),
            Self::Pm4Ib(ib) => ib.encode_with(header),
            Self::BarrierValue(barrier) => barrier.encode_with(header),
        }
    }

    /// Reads a packet back from its words.
    ///
    /// # Errors
    /// [`PacketError::Unpublished`] for a slot whose header is still INVALID (a processor waits there, it is
    /// no fault), [`PacketError::Unsupported`] and [`PacketError::Vendor`] for kinds and formats that are not
    /// packets of this type, [`PacketError::FenceScope`], [`PacketError::Reserved`],
    /// [`PacketError::Condition`] and [`PacketError::Constant`] for bits that no such packet has.
    pub fn decode(raw: &RawPacket) -> Result<Self, PacketError> {
        let [low, high] = halves(raw[0]);
        match PacketKind::of(low) {
            None => Err(PacketError::Unsupported { kind: low.to_le_bytes()[0] }),
            Some(PacketKind::Invalid) => Err(PacketError::Unpublished),
            Some(PacketKind::VendorSpecific) => Self::decode_vendor(low, high, raw),
            Some(PacketKind::AgentDispatch) => {
                AgentDispatch::decode_body(Header::decode(low)?, raw).map(Self::AgentDispatch)
            }
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

    fn decode_vendor(header: u16, high: u16, raw: &RawPacket) -> Result<Self, PacketError> {
        let [format, reserved] = high.to_le_bytes();
        if !matches!(format, vendor::FORMAT_PM4_IB | vendor::FORMAT_BARRIER_VALUE) {
            return Err(PacketError::Vendor { format });
        }
        if reserved != 0 {
            return Err(PacketError::Reserved { field: "byte 3", value: u64::from(reserved) });
        }
        let header = Header::decode(header)?;
        match format {
            vendor::FORMAT_PM4_IB => Pm4Ib::decode_body(header, raw).map(Self::Pm4Ib),
            _ => BarrierValue::decode_body(header, raw).map(Self::BarrierValue),
        }
    }

    /// Whether a command processor would execute this packet, judged by the packet alone.
    ///
    /// What needs the device (group segment against the LDS, registers against the code object) is judged by
    /// the processor, with [`KernelDispatch::check_group_segment`] and [`PacketError::Registers`].
    ///
    /// # Errors
    /// Every [`PacketError`] about dimensions, sizes, a missing code object or an indirect buffer,
    /// [`PacketError::KindMismatch`] when `header.kind` contradicts the variant, and
    /// [`PacketError::Unsupported`] for an agent dispatch.
    pub fn validate(&self) -> Result<(), PacketError> {
        let (header, wanted) = self.header_and_kind();
        let found = header.kind;
        if found != wanted {
            return Err(PacketError::KindMismatch { found, wanted });
        }
        match self {
            Self::KernelDispatch(dispatch) => dispatch.validate(),
            Self::Pm4Ib(ib) => ib.validate(),
            Self::AgentDispatch(_) => Err(PacketError::Unsupported { kind: wanted.number() }),
            Self::BarrierAnd(_) | Self::BarrierOr(_) | Self::BarrierValue(_) => Ok(()),
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.header())?;
        match self {
            Self::KernelDispatch(dispatch) => dispatch.fmt_body(f),
            Self::BarrierAnd(barrier) | Self::BarrierOr(barrier) => barrier.fmt_body(f),
            Self::AgentDispatch(dispatch) => dispatch.fmt_body(f),
            Self::Pm4Ib(ib) => ib.fmt_body(f),
            Self::BarrierValue(barrier) => barrier.fmt_body(f),
        }
    }
}
