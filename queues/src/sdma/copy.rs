// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two copies: a run of bytes, and a box of elements out of one pitched array into another.
//!
//! INVARIANT: counts, pitches and extents are held as the numbers they mean; the stream holds them less one.

use std::fmt;

use super::fields::{aligned, bits, less_one, ones, only, ranged, take};
use super::header::{header, op, sub_op};
use super::{Generation, SdmaError};
use crate::target::RectBits;
use crate::words::{double, words};

/// Moves bytes (op 1, sub-op 0, 7 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyLinear {
    /// How many bytes, 1 to 2^22 or 2^30 by [`Generation::copy_count_bits`].
    pub bytes: u32,
    /// GPU address of the first byte to read; any alignment.
    pub src: u64,
    /// GPU address of the first byte to write; any alignment.
    pub dst: u64,
}

impl CopyLinear {
    pub(super) const DWORDS: usize = 7;
    const NAME: &'static str = "linear copy";

    pub(super) fn decode(stream: &[u32], generation: Generation) -> Result<Self, SdmaError> {
        let raw: &[u32; Self::DWORDS] = take(stream)?;
        only(Self::NAME, 0, raw[0], 0xffff)?;
        only(Self::NAME, 1, raw[1], ones(generation.copy_count_bits()))?;
        only(Self::NAME, 2, raw[2], 0)?;
        Ok(Self { bytes: raw[1] + 1, src: double(raw[3], raw[4]), dst: double(raw[5], raw[6]) })
    }

    pub(super) fn encode(self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        let count = less_one(Self::NAME, "bytes", u64::from(self.bytes), generation.copy_count_bits())?;
        let ([src_low, src_high], [dst_low, dst_high]) = (words(self.src), words(self.dst));
        out.extend([header(op::COPY, sub_op::COPY_LINEAR), count, 0, src_low, src_high, dst_low, dst_high]);
        Ok(())
    }
}

impl fmt::Display for CopyLinear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy bytes={} src={:#x} dst={:#x}", self.bytes, self.src, self.dst)
    }
}

/// One of the two arrays of a [`CopyRect`]. Everything but the address counts elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RectSide {
    /// GPU address of the array, a multiple of 4.
    pub address: u64,
    /// Where the box starts in x, y and z.
    pub offset: [u32; 3],
    /// From one row to the next, 1 to 2^19 or, from [`Generation::V7`] on, 2^16.
    pub pitch: u32,
    /// From one slice to the next, 1 to 2^28 or, from [`Generation::V7`] on, 2^32; ROCr writes 1 where the box has one slice
    /// only.
    pub slice_pitch: u64,
}

impl RectSide {
    fn decode(raw: &[u32; 5], dword: usize, generation: Generation) -> Result<Self, SdmaError> {
        let RectBits { xy, z, pitch, slice } = generation.rect_bits();
        only(CopyRect::NAME, dword + 2, raw[2], ones(xy) | ones(xy) << 16)?;
        only(CopyRect::NAME, dword + 3, raw[3], ones(z) | ones(pitch) << (32 - pitch))?;
        only(CopyRect::NAME, dword + 4, raw[4], ones(slice))?;
        let address = double(raw[0], raw[1]);
        aligned(CopyRect::NAME, "address", address, 4)?;
        Ok(Self {
            address,
            offset: [bits(raw[2], 0, xy), bits(raw[2], 16, xy), bits(raw[3], 0, z)],
            pitch: bits(raw[3], 32 - pitch, pitch) + 1,
            slice_pitch: u64::from(raw[4]) + 1,
        })
    }

    fn encode(&self, generation: Generation) -> Result<[u32; 5], SdmaError> {
        let name = CopyRect::NAME;
        aligned(name, "address", self.address, 4)?;
        let width = generation.rect_bits();
        let [x, y, z] = self.offset.map(u64::from);
        let x = ranged(name, "x offset", x, 0, ones(width.xy))?;
        let y = ranged(name, "y offset", y, 0, ones(width.xy))?;
        let z = ranged(name, "z offset", z, 0, ones(width.z))?;
        let pitch = less_one(name, "pitch in elements", u64::from(self.pitch), width.pitch)?;
        let slice = less_one(name, "slice pitch in elements", self.slice_pitch, width.slice)?;
        let [low, high] = words(self.address);
        Ok([low, high, x | y << 16, z | pitch << (32 - width.pitch), slice])
    }
}

impl fmt::Display for RectSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.offset;
        write!(f, "{:#x}+({x},{y},{z}) pitch {} slice {}", self.address, self.pitch, self.slice_pitch)
    }
}

/// Moves a box of elements (op 1, sub-op 4, 13 dwords).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyRect {
    /// Logarithm to base 2 of an element's bytes, 0 to 4.
    pub element_log2: u8,
    /// Where from.
    pub src: RectSide,
    /// Where to.
    pub dst: RectSide,
    /// Size of the box in elements: x and y 1 to 2^14, z 1 to 2^11 or, from [`Generation::V5`] on, 2^13; from
    /// [`Generation::V7`] on x and y to 2^16, z to 2^14.
    pub extent: [u32; 3],
}

impl CopyRect {
    pub(super) const DWORDS: usize = 13;
    const NAME: &'static str = "rectangle copy";
    const MAX_ELEMENT_LOG2: u32 = 4;

    /// Bytes of one element, 1 to 16.
    #[must_use]
    pub const fn element_bytes(&self) -> u32 {
        // CAST: a byte, widened.
        1_u32.wrapping_shl(self.element_log2 as u32)
    }

    pub(super) fn decode(stream: &[u32], generation: Generation) -> Result<Self, SdmaError> {
        let raw: &[u32; Self::DWORDS] = take(stream)?;
        let width = generation.rect_bits();
        only(Self::NAME, 0, raw[0], 0xe000_ffff)?;
        only(Self::NAME, 11, raw[11], ones(width.xy) | ones(width.xy) << 16)?;
        only(Self::NAME, 12, raw[12], ones(width.z))?;
        let &[_, s0, s1, s2, s3, s4, d0, d1, d2, d3, d4, xy, z] = raw;
        let element = bits(raw[0], 29, 3);
        let element = ranged(Self::NAME, "element size code", u64::from(element), 0, Self::MAX_ELEMENT_LOG2)?;
        Ok(Self {
            element_log2: element.to_le_bytes()[0],
            src: RectSide::decode(&[s0, s1, s2, s3, s4], 1, generation)?,
            dst: RectSide::decode(&[d0, d1, d2, d3, d4], 6, generation)?,
            extent: [bits(xy, 0, width.xy) + 1, bits(xy, 16, width.xy) + 1, z + 1],
        })
    }

    pub(super) fn encode(&self, generation: Generation, out: &mut Vec<u32>) -> Result<(), SdmaError> {
        let name = Self::NAME;
        let log2 = u64::from(self.element_log2);
        let element = ranged(name, "element size code", log2, 0, Self::MAX_ELEMENT_LOG2)?;
        let [x, y, z] = self.extent.map(u64::from);
        let width = generation.rect_bits();
        let x = less_one(name, "width in elements", x, width.xy)?;
        let y = less_one(name, "height in elements", y, width.xy)?;
        let z = less_one(name, "depth in elements", z, width.z)?;
        let (src, dst) = (self.src.encode(generation)?, self.dst.encode(generation)?);
        out.push(header(op::COPY, sub_op::COPY_RECT) | element << 29);
        out.extend(src);
        out.extend(dst);
        out.extend([x | y << 16, z]);
        Ok(())
    }
}

impl fmt::Display for CopyRect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([x, y, z], bytes) = (self.extent, self.element_bytes());
        write!(f, "copy_rect {x}x{y}x{z} of {bytes} B src={} dst={}", self.src, self.dst)
    }
}
