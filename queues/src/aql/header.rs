// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 16-bit packet header: kind, barrier bit and memory fences.
//!
//! ```text
//!  15 13 12    11 10     9  8        7        0
//! +-----+--------+--------+---------+----------+
//! |  0  | release| acquire| barrier |   kind   |
//! +-----+--------+--------+---------+----------+
//! ```

use std::fmt;

use super::PacketError;

const BARRIER_BIT: u16 = 8;
const ACQUIRE_SHIFT: u16 = 9;
const RELEASE_SHIFT: u16 = 11;
const RESERVED_MASK: u16 = 0xe000;

/// What a packet is (HSA 1.2 `hsa_packet_type_t`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKind {
    /// A packet whose meaning the vendor defines; AMD's carry PM4 or wait on a value.
    VendorSpecific = 0,
    /// A slot without a published packet. The processor waits there.
    Invalid = 1,
    /// Launch of a grid.
    KernelDispatch = 2,
    /// Wait for all of up to five signals.
    BarrierAnd = 3,
    /// A request to a host agent; GPU queues do not support it.
    AgentDispatch = 4,
    /// Wait for any of up to five signals.
    BarrierOr = 5,
}

impl PacketKind {
    /// The kind's number in a header's low byte.
    #[must_use]
    pub const fn number(self) -> u8 {
        // CAST: the discriminant itself.
        self as u8
    }

    /// The kind in a header's low byte, if it is one that HSA defines.
    ///
    /// Nothing else is read, as a processor that polls an unpublished slot must.
    #[must_use]
    pub const fn of(header: u16) -> Option<Self> {
        match header.to_le_bytes()[0] {
            0 => Some(Self::VendorSpecific),
            1 => Some(Self::Invalid),
            2 => Some(Self::KernelDispatch),
            3 => Some(Self::BarrierAnd),
            4 => Some(Self::AgentDispatch),
            5 => Some(Self::BarrierOr),
            _ => None,
        }
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VendorSpecific => "vendor_specific",
            Self::Invalid => "invalid",
            Self::KernelDispatch => "kernel_dispatch",
            Self::BarrierAnd => "barrier_and",
            Self::AgentDispatch => "agent_dispatch",
            Self::BarrierOr => "barrier_or",
        })
    }
}

/// How far a memory fence reaches (HSA 1.2 `hsa_fence_scope_t`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FenceScope {
    /// No fence.
    #[default]
    None = 0,
    /// Between packets of the same agent.
    Agent = 1,
    /// Between agents and the host.
    System = 2,
}

impl FenceScope {
    const fn from_bits(bits: u16) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::None),
            1 => Some(Self::Agent),
            2 => Some(Self::System),
            _ => None,
        }
    }
}

impl fmt::Display for FenceScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Agent => "agent",
            Self::System => "system",
        })
    }
}

/// The header of a packet.
///
/// ```
/// use queues::aql::{FenceScope, Header, PacketKind};
/// let header = Header { kind: PacketKind::KernelDispatch, barrier: true,
///     acquire: FenceScope::System, release: FenceScope::System };
/// assert_eq!(header.encode(), 0x1502);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the packet is.
    pub kind: PacketKind,
    /// Whether the packet waits until every earlier packet of the queue has completed.
    pub barrier: bool,
    /// Fence before the packet's work starts.
    pub acquire: FenceScope,
    /// Fence after the packet's work ends, before the completion signal changes.
    pub release: FenceScope,
}

impl Header {
    /// A header with no barrier and no fences.
    #[inline]
    #[must_use]
    pub const fn new(kind: PacketKind) -> Self {
        Self { kind, barrier: false, acquire: FenceScope::None, release: FenceScope::None }
    }

    /// The header's bits.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> u16 {
        // CAST: enum discriminants of one byte, and a bool, widened.
        self.kind as u16
            | ((self.barrier as u16) << BARRIER_BIT)
            | ((self.acquire as u16) << ACQUIRE_SHIFT)
            | ((self.release as u16) << RELEASE_SHIFT)
    }

    /// Reads a header back from its bits.
    ///
    /// # Errors
    /// [`PacketError::Unsupported`] for a kind that HSA does not define, [`PacketError::FenceScope`] for
    /// scope 3, [`PacketError::Reserved`] if a bit above 12 is set.
    pub fn decode(bits: u16) -> Result<Self, PacketError> {
        let kind = PacketKind::of(bits).ok_or(PacketError::Unsupported { kind: bits.to_le_bytes()[0] })?;
        if bits & RESERVED_MASK != 0 {
            return Err(PacketError::Reserved { field: "header", value: u64::from(bits & RESERVED_MASK) });
        }
        let scope = |shift: u16, fence: &'static str| {
            FenceScope::from_bits(bits >> shift).ok_or(PacketError::FenceScope { fence })
        };
        Ok(Self {
            kind,
            barrier: bits & (1 << BARRIER_BIT) != 0,
            acquire: scope(ACQUIRE_SHIFT, "acquire")?,
            release: scope(RELEASE_SHIFT, "release")?,
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let barrier = if self.barrier { " barrier" } else { "" };
        write!(f, "{}{barrier} acquire={} release={}", self.kind, self.acquire, self.release)
    }
}
