// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that wait, signal or order: polls, the flush of host writes, traps and cache requests.
//!
//! INVARIANT: the one poll of a register that means an HDP flush is always
//! [`Packet::HdpFlush`](super::Packet::HdpFlush) when decoded, never a [`PollRegMem`].

use std::fmt;

use super::fields::{aligned, bits, ones, only, ranged, take};
use super::header::{header, op, sub_op};
use super::{Generation, SdmaError};
use crate::words::{double, halves, word, words};

/// What ROCr writes for an HDP flush: a poll of register space that always succeeds.
pub(super) const HDP_FLUSH: [u32; 6] = [8, 0, 0x8000_0000, 0, 0, 0];

/// How a polled value must stand to the wanted one. Values are unsigned.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// No condition.
    Always = 0,
    /// Less than.
    Less = 1,
    /// Less than or equal.
    LessEqual = 2,
    /// Equal.
    Equal = 3,
    /// Not equal.
    NotEqual = 4,
    /// Greater than or equal.
    GreaterEqual = 5,
    /// Greater than.
    Greater = 6,
}

impl Compare {
    const ALL: [Self; 7] = [
        Self::Always,
        Self::Less,
        Self::LessEqual,
        Self::Equal,
        Self::NotEqual,
        Self::GreaterEqual,
        Self::Greater,
    ];

    /// Whether `found` stands so to `wanted`.
    #[must_use]
    pub const fn holds(self, found: u32, wanted: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Less => found < wanted,
            Self::LessEqual => found <= wanted,
            Self::Equal => found == wanted,
            Self::NotEqual => found != wanted,
            Self::GreaterEqual => found >= wanted,
            Self::Greater => found > wanted,
        }
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::GreaterEqual => ">=",
            Self::Greater => ">",
        })
    }
}

/// Waits until a dword meets a condition (op 8, sub-op 0, 6 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollRegMem {
    /// Whether `address` is a GPU address of memory, else of a register.
    pub memory: bool,
    /// Where the dword is, a multiple of 4.
    pub address: u64,
    /// What the masked dword is compared with.
    pub value: u32,
    /// Bits of the dword that count.
    pub mask: u32,
    /// How they must compare.
    pub compare: Compare,
    /// Pause between two looks, in engine clocks.
    pub interval: u16,
    /// How often to look again, 12 bits; 0xfff is for ever.
    pub retry: u16,
}

impl PollRegMem {
    pub(super) const DWORDS: usize = 6;
    const NAME: &'static str = "poll";
    const MAX_RETRY: u32 = ones(12);

    /// A wait, for as long as it takes, for a dword of memory; interval and retries are ROCr's.
    #[must_use]
    pub const fn memory(address: u64, compare: Compare, value: u32) -> Self {
        Self { memory: true, address, value, mask: u32::MAX, compare, interval: 4, retry: 0xfff }
    }

    /// Whether a dword that holds `found` ends the wait.
    #[must_use]
    pub const fn is_satisfied_by(&self, found: u32) -> bool {
        self.compare.holds(found & self.mask, self.value)
    }

    pub(super) fn decode(stream: &[u32]) -> Result<Self, SdmaError> {
        let &[first, low, high, value, mask, pause]: &[u32; Self::DWORDS] = take(stream)?;
        only(Self::NAME, 0, first, 0xf000_ffff)?;
        only(Self::NAME, 5, pause, 0x0fff_ffff)?;
        let address = double(low, high);
        aligned(Self::NAME, "address", address, 4)?;
        let code = bits(first, 28, 3);
        let compare = Compare::ALL.into_iter().find(|&compare| compare as u32 == code);
        let [interval, retry] = halves(pause);
        Ok(Self {
            memory: bits(first, 31, 1) != 0,
            address,
            value,
            mask,
            compare: compare.ok_or(SdmaError::Reserved { packet: Self::NAME, dword: 0, bits: code << 28 })?,
            interval,
            retry,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        aligned(Self::NAME, "address", self.address, 4)?;
        ranged(Self::NAME, "count of retries", u64::from(self.retry), 0, Self::MAX_RETRY)?;
        // CAST: one-byte discriminant, widened.
        let compare = self.compare as u32;
        let first = header(op::POLL_REGMEM, 0) | compare << 28 | u32::from(self.memory) << 31;
        let [low, high] = words(self.address);
        out.extend([first, low, high, self.value, self.mask, word(self.interval, self.retry)]);
        Ok(())
    }
}

impl fmt::Display for PollRegMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.memory { "memory" } else { "register" };
        write!(
            f,
            "poll {space} {:#x} & {:#x} {} {:#x} interval={} retry={}",
            self.address, self.mask, self.compare, self.value, self.interval, self.retry
        )
    }
}

/// Name of the packet that raises an interrupt, for errors.
const TRAP: &str = "trap";
/// The largest event id that a trap can carry: 28 bits.
pub const MAX_EVENT_ID: u32 = ones(28);

pub(super) fn decode_trap(stream: &[u32]) -> Result<u32, SdmaError> {
    let &[first, event_id] = take(stream)?;
    only(TRAP, 0, first, 0xffff)?;
    only(TRAP, 1, event_id, MAX_EVENT_ID)?;
    Ok(event_id)
}

pub(super) fn encode_trap(event_id: u32, out: &mut Vec<u32>) -> Result<(), SdmaError> {
    ranged(TRAP, "event id", u64::from(event_id), 0, MAX_EVENT_ID)?;
    out.extend([header(op::TRAP, 0), event_id]);
    Ok(())
}

/// Name of the packet that stores the time, for errors.
const TIMESTAMP: &str = "timestamp";

pub(super) fn decode_timestamp(stream: &[u32]) -> Result<u64, SdmaError> {
    let &[first, low, high] = take(stream)?;
    only(TIMESTAMP, 0, first, 0xffff)?;
    let address = double(low, high);
    aligned(TIMESTAMP, "address", address, 8)?;
    Ok(address)
}

pub(super) fn encode_timestamp(address: u64, out: &mut Vec<u32>) -> Result<(), SdmaError> {
    aligned(TIMESTAMP, "address", address, 8)?;
    let [low, high] = words(address);
    out.extend([header(op::TIMESTAMP, sub_op::TIMESTAMP_GET_GLOBAL), low, high]);
    Ok(())
}

/// Writes back or invalidates the GPU's caches (op 17, sub-op 1, 5 dwords), from [`Generation::V5`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcr {
    /// GPU address where the range starts, a multiple of 128 below 2^48.
    pub base: u64,
    /// GPU address of the range's end, likewise; clients write 0 for both and mean everything.
    pub limit: u64,
    /// `GCR_CONTROL`, 19 bits: which caches and what to do with them.
    pub control: u32,
}

impl Gcr {
    pub(super) const DWORDS: usize = 5;
    const NAME: &'static str = "cache request";
    const CONTROL_BITS: u32 = 19;
    /// Bits 7 to 31: the low dword of an address in units of 128 bytes.
    const ADDRESS_LOW: u32 = !ones(7);

    /// `GL2_WB` and `GLK_WB`: what the GPU has written reaches memory.
    pub const WRITE_BACK: u32 = 1 << 15 | 1 << 6;
    /// `GL2_INV`, `GL1_INV`, `GLV_INV` and `GLK_INV`: what others have written reaches the GPU.
    pub const INVALIDATE: u32 = 1 << 14 | 1 << 9 | 1 << 8 | 1 << 7;

    /// The request that ROCr puts behind a copy.
    #[must_use]
    pub const fn write_back() -> Self {
        Self { base: 0, limit: 0, control: Self::WRITE_BACK }
    }

    /// The request that ROCr puts before a copy.
    #[must_use]
    pub const fn invalidate() -> Self {
        Self { base: 0, limit: 0, control: Self::WRITE_BACK | Self::INVALIDATE }
    }

    pub(super) fn decode(stream: &[u32]) -> Result<Self, SdmaError> {
        let &[first, base_low, high_control, limit_low, limit_high]: &[u32; Self::DWORDS] = take(stream)?;
        only(Self::NAME, 0, first, 0xffff)?;
        only(Self::NAME, 1, base_low, Self::ADDRESS_LOW)?;
        only(Self::NAME, 3, limit_low, Self::ADDRESS_LOW | 7)?;
        only(Self::NAME, 4, limit_high, 0xffff)?;
        let [base_high, control_low] = halves(high_control);
        Ok(Self {
            base: double(base_low, u32::from(base_high)),
            limit: double(limit_low & Self::ADDRESS_LOW, limit_high),
            control: u32::from(control_low) | bits(limit_low, 0, 3) << 16,
        })
    }

    pub(super) fn encode(&self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        if !generation.has_gcr() {
            return Err(SdmaError::UnknownOperation { op: op::GCR, sub_op: sub_op::GCR_USER });
        }
        let control = u64::from(self.control);
        let control = ranged(Self::NAME, "control word", control, 0, ones(Self::CONTROL_BITS))?;
        for (field, address) in [("base address", self.base), ("limit address", self.limit)] {
            aligned(Self::NAME, field, address, 128)?;
            // Above bit 47 is what the 16 bits of the high dword cannot hold.
            ranged(Self::NAME, field, address >> 32, 0, 0xffff)?;
        }
        let ([base, base_high], [limit, limit_high]) = (words(self.base), words(self.limit));
        let [control_low, control_high] = halves(control);
        out.extend([
            header(op::GCR, sub_op::GCR_USER),
            base,
            word(halves(base_high)[0], control_low),
            limit | u32::from(control_high),
            limit_high,
        ]);
        Ok(())
    }
}

impl fmt::Display for Gcr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gcr base={:#x} limit={:#x} control={:#x}", self.base, self.limit, self.control)
    }
}
