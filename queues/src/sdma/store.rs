// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that store something the stream itself holds: data, a fence's value, a fill pattern, an addend.
//!
//! INVARIANT: every address is aligned to what is stored there.

use std::fmt;

use super::fields::{aligned, bits, less_one, ones, only, ranged, take};
use super::header::{header, op};
use super::{Generation, SdmaError};
use crate::words::{double, words};

/// Name of the packet that writes dwords, for errors.
const WRITE: &str = "write";
/// Bits of the write packet's count of dwords.
const WRITE_COUNT_BITS: u32 = 20;

/// Reads a write packet (op 2, sub-op 0): its destination and its data, 1 to 2^20 dwords.
pub(super) fn decode_write(stream: &[u32]) -> Result<(u64, &[u32]), SdmaError> {
    let &[first, low, high, count] = take(stream)?;
    only(WRITE, 0, first, 0xffff)?;
    only(WRITE, 3, count, ones(WRITE_COUNT_BITS))?;
    let dst = double(low, high);
    aligned(WRITE, "address", dst, 4)?;
    // CAST: 20 bits.
    let wanted = 5 + count as usize;
    let data = stream.get(4..wanted).ok_or(SdmaError::Truncated { wanted, available: stream.len() })?;
    Ok((dst, data))
}

pub(super) fn encode_write(dst: u64, data: &[u32], out: &mut Vec<u32>) -> Result<(), SdmaError> {
    aligned(WRITE, "address", dst, 4)?;
    // CAST: usize is at most 64 bits.
    let count = less_one(WRITE, "count of dwords", data.len() as u64, WRITE_COUNT_BITS)?;
    let [low, high] = words(dst);
    out.extend([header(op::WRITE, 0), low, high, count]);
    out.extend_from_slice(data);
    Ok(())
}

/// Stores a dword once everything before it has been written (op 5, 4 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// GPU address to store to, a multiple of 4.
    pub address: u64,
    /// What to store.
    pub value: u32,
    /// Memory type of the store, 0 to 7, from [`Generation::V5`] on, else 0: see
    /// [`Generation::uncached_mtype`].
    pub mtype: u8,
}

impl Fence {
    pub(super) const DWORDS: usize = 4;
    const NAME: &'static str = "fence";

    const fn max_mtype(generation: Generation) -> u32 {
        if generation.has_mtype() { 7 } else { 0 }
    }

    pub(super) fn decode(stream: &[u32], generation: Generation) -> Result<Self, SdmaError> {
        let &[first, low, high, value]: &[u32; Self::DWORDS] = take(stream)?;
        only(Self::NAME, 0, first, 0xffff | Self::max_mtype(generation) << 16)?;
        let address = double(low, high);
        aligned(Self::NAME, "address", address, 4)?;
        Ok(Self { address, value, mtype: bits(first, 16, 3).to_le_bytes()[0] })
    }

    pub(super) fn encode(&self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        aligned(Self::NAME, "address", self.address, 4)?;
        let most = Self::max_mtype(generation);
        let mtype = ranged(Self::NAME, "memory type", u64::from(self.mtype), 0, most)?;
        let [low, high] = words(self.address);
        out.extend([header(op::FENCE, 0) | mtype << 16, low, high, self.value]);
        Ok(())
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence address={:#x} value={:#x} mtype={}", self.address, self.value, self.mtype)
    }
}

/// What the count field of a [`ConstFill`] counts up to. Engines round it down to whole elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FillCount {
    /// The last byte, as the kernel and kfdtest write it: bytes less 1.
    #[default]
    LastByte,
    /// The last element, as ROCr writes it: bytes less one element.
    LastElement,
}

/// Repeats an element over memory (op 11, 5 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConstFill {
    /// GPU address of the first element to write, a multiple of the element's bytes.
    pub dst: u64,
    /// The element, in the low bits.
    pub value: u32,
    /// How many bytes, a multiple of the element's, up to 2^22 or 2^30 by [`Generation::fill_count_bits`].
    pub bytes: u32,
    /// Logarithm to base 2 of an element's bytes, 0 to 2.
    pub element_log2: u8,
    /// Which of the two spellings of `bytes` the stream has; no difference for elements of one byte.
    pub count: FillCount,
}

impl ConstFill {
    pub(super) const DWORDS: usize = 5;
    const NAME: &'static str = "constant fill";
    const MAX_ELEMENT_LOG2: u32 = 2;

    /// Bytes of one element: 1, 2 or 4.
    #[must_use]
    pub const fn element_bytes(&self) -> u32 {
        // CAST: a byte, widened.
        1_u32.wrapping_shl(self.element_log2 as u32)
    }

    pub(super) fn decode(stream: &[u32], generation: Generation) -> Result<Self, SdmaError> {
        let &[first, low, high, value, count]: &[u32; Self::DWORDS] = take(stream)?;
        only(Self::NAME, 0, first, 0xc000_ffff)?;
        only(Self::NAME, 4, count, ones(generation.fill_count_bits()))?;
        let log2 = bits(first, 30, 2);
        let log2 = ranged(Self::NAME, "element size code", u64::from(log2), 0, Self::MAX_ELEMENT_LOG2)?;
        let (element, dst) = (1_u32 << log2, double(low, high));
        aligned(Self::NAME, "address", dst, u64::from(element))?;
        let (spelling, bytes) = match count & (element - 1) {
            inside if inside == element - 1 => (FillCount::LastByte, count + 1),
            0 => (FillCount::LastElement, count + element),
            _ => return Err(Self::unaligned(u64::from(count) + 1, element)),
        };
        Ok(Self { dst, value, bytes, element_log2: log2.to_le_bytes()[0], count: spelling })
    }

    pub(super) fn encode(&self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        let log2 = u64::from(self.element_log2);
        let log2 = ranged(Self::NAME, "element size code", log2, 0, Self::MAX_ELEMENT_LOG2)?;
        let element = 1_u32 << log2;
        aligned(Self::NAME, "address", self.dst, u64::from(element))?;
        let last = less_one(Self::NAME, "bytes", u64::from(self.bytes), generation.fill_count_bits())?;
        if self.bytes & (element - 1) != 0 {
            return Err(Self::unaligned(u64::from(self.bytes), element));
        }
        let count = match self.count {
            FillCount::LastByte => last,
            FillCount::LastElement => last & !(element - 1),
        };
        let [low, high] = words(self.dst);
        out.extend([header(op::CONST_FILL, 0) | log2 << 30, low, high, self.value, count]);
        Ok(())
    }

    fn unaligned(value: u64, element: u32) -> SdmaError {
        SdmaError::Unaligned { packet: Self::NAME, field: "bytes", value, alignment: u64::from(element) }
    }
}

impl fmt::Display for ConstFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = self.element_bytes();
        write!(f, "fill dst={:#x} bytes={} value={:#x} element={element} B", self.dst, self.bytes, self.value)
    }
}

/// Which atomic operation; the numbers are the GPU caches' own.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicOperation {
    /// Wrapping 64-bit addition.
    Add64 = 47,
}

/// Changes a 64-bit value in memory atomically (op 10, 8 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Atomic {
    /// What to do.
    pub operation: AtomicOperation,
    /// GPU address of the value, a multiple of 8.
    pub address: u64,
    /// The operand.
    pub source: u64,
    /// What operations that compare would compare with; an addition ignores it.
    pub compare: u64,
    /// Whether operations that compare are repeated until they succeed; an addition ignores it.
    pub repeat: bool,
    /// Pause between repetitions in engine clocks, 13 bits.
    pub interval: u16,
}

impl Atomic {
    pub(super) const DWORDS: usize = 8;
    const NAME: &'static str = "atomic";
    const MAX_INTERVAL: u32 = ones(13);

    pub(super) fn decode(stream: &[u32]) -> Result<Self, SdmaError> {
        let &[first, low, high, src_low, src_high, cmp_low, cmp_high, interval]: &[u32; Self::DWORDS] =
            take(stream)?;
        let operation = bits(first, 25, 7).to_le_bytes()[0];
        if operation != AtomicOperation::Add64 as u8 {
            return Err(SdmaError::AtomicOperation { operation });
        }
        only(Self::NAME, 0, first, 0xfe01_ffff)?;
        only(Self::NAME, 7, interval, Self::MAX_INTERVAL)?;
        let address = double(low, high);
        aligned(Self::NAME, "address", address, 8)?;
        Ok(Self {
            operation: AtomicOperation::Add64,
            address,
            source: double(src_low, src_high),
            compare: double(cmp_low, cmp_high),
            repeat: bits(first, 16, 1) != 0,
            interval: crate::words::halves(interval)[0],
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        aligned(Self::NAME, "address", self.address, 8)?;
        let interval = u64::from(self.interval);
        let interval = ranged(Self::NAME, "interval in clocks", interval, 0, Self::MAX_INTERVAL)?;
        // CAST: one-byte discriminant, widened.
        let operation = self.operation as u32;
        out.push(header(op::ATOMIC, 0) | u32::from(self.repeat) << 16 | operation << 25);
        out.extend([self.address, self.source, self.compare].map(words).as_flattened());
        out.push(interval);
        Ok(())
    }
}

impl fmt::Display for Atomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            AtomicOperation::Add64 => write!(f, "atomic add64 address={:#x}", self.address)?,
        }
        write!(f, " source={:#x} compare={:#x}", self.source, self.compare)?;
        let repeat = if self.repeat { " repeat" } else { "" };
        write!(f, " interval={}{repeat}", self.interval)
    }
}
