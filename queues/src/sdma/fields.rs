// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bits of dwords, with errors that say which packet they belong to.
//!
//! INVARIANT: reading refuses every bit that writing cannot produce.

use super::SdmaError;

/// `count` ones from bit 0; `count` is 32 at most.
pub(super) const fn ones(count: u32) -> u32 {
    match 1_u32.checked_shl(count) {
        Some(next) => next - 1,
        None => u32::MAX,
    }
}

/// The `count` bits from bit `shift`.
pub(super) const fn bits(word: u32, shift: u32, count: u32) -> u32 {
    word >> shift & ones(count)
}

/// Refuses bits of a dword outside `known`.
pub(super) const fn only(packet: &'static str, dword: usize, word: u32, known: u32) -> Result<(), SdmaError> {
    match word & !known {
        0 => Ok(()),
        bits => Err(SdmaError::Reserved { packet, dword, bits }),
    }
}

/// Refuses a value outside `least..=most`.
pub(super) fn ranged(
    packet: &'static str,
    field: &'static str,
    value: u64,
    least: u32,
    most: u32,
) -> Result<u32, SdmaError> {
    let out_of_range =
        SdmaError::OutOfRange { packet, field, value, least: u64::from(least), most: u64::from(most) };
    match u32::try_from(value) {
        Ok(fits) if (least..=most).contains(&fits) => Ok(fits),
        _ => Err(out_of_range),
    }
}

/// Refuses a count outside `1..=2^bits` and takes one off, as count fields are written.
pub(super) fn less_one(
    packet: &'static str,
    field: &'static str,
    count: u64,
    bits: u32,
) -> Result<u32, SdmaError> {
    let most = u64::from(ones(bits)) + 1;
    let less =
        count.checked_sub(1).and_then(|less| u32::try_from(less).ok()).filter(|&less| less <= ones(bits));
    less.ok_or(SdmaError::OutOfRange { packet, field, value: count, least: 1, most })
}

/// Refuses an address or size that is not a multiple of `alignment`, a power of two.
pub(super) const fn aligned(
    packet: &'static str,
    field: &'static str,
    value: u64,
    alignment: u64,
) -> Result<(), SdmaError> {
    if value & (alignment - 1) != 0 {
        return Err(SdmaError::Unaligned { packet, field, value, alignment });
    }
    Ok(())
}

/// The packet's dwords, or how many are missing.
pub(super) fn take<const N: usize>(stream: &[u32]) -> Result<&[u32; N], SdmaError> {
    stream.first_chunk().ok_or(SdmaError::Truncated { wanted: N, available: stream.len() })
}
