// SPDX-License-Identifier: MIT OR Apache-2.0
//! 64-bit, 32-bit and 16-bit numbers taken apart and put together, the lowest part first.
//!
//! INVARIANT: every function is the inverse of another one here, so that what a decoder joins an encoder splits again.

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
