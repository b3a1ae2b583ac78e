// SPDX-License-Identifier: MIT OR Apache-2.0
//! 64-bit, 32-bit and 16-bit numbers taken apart and put together, the lowest part first.
//!
//! INVARIANT: of `halves`, `word`, `words` and `double` each is the inverse of another one, so that what a decoder joins an
//! encoder splits again.

/// Splits a word into its low and high halves.
#[inline]
#[must_use]
pub const fn halves(word: u32) -> [u16; 2] {
    let [a, b, c, d] = word.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// Joins two halves into a word.
#[inline]
#[must_use]
pub const fn word(low: u16, high: u16) -> u32 {
    let ([a, b], [c, d]) = (low.to_le_bytes(), high.to_le_bytes());
    u32::from_le_bytes([a, b, c, d])
}

/// A length or an address of 64 bits as this process counts memory.
#[inline]
#[must_use]
pub const fn size(bytes: u64) -> usize {
    const { assert!(usize::BITS == 64, "addresses of GPUs have 64 bits") };
    #[expect(clippy::cast_possible_truncation, reason = "both have 64 bits")]
    let bytes = bytes as usize;
    bytes
}

/// How many things a value of this process has, in a field of 32 bits; such a field has no larger number than `u32::MAX`.
#[inline]
#[must_use]
pub const fn count(things: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "not greater than u32::MAX")]
    let things = if things > u32::MAX as usize { u32::MAX } else { things as u32 };
    things
}

/// Splits 64 bits into little-endian words.
#[inline]
#[must_use]
pub const fn words(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// Joins two little-endian words into 64 bits.
#[inline]
#[must_use]
pub const fn double(low: u32, high: u32) -> u64 {
    // CAST: widened. Bytes put together one by one would be loaded one by one.
    low as u64 | (high as u64) << 32
}
