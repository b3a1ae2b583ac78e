// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a submission is made of: padding, copies and fills in pieces, and the signals at its end.
//!
//! ```text
//! poll dependency | hdp flush | gcr invalidate | copy .. copy
//! gcr write back | atomic -1 on the signal | fence to the mailbox | trap
//! ```
//!
//! INVARIANT: a helper that fails has pushed nothing, and every piece is at most what one packet may move.

use super::fields::aligned;
use super::header::{header, op};
use super::{
    Atomic, AtomicOperation, ConstFill, CopyLinear, Fence, FillCount, Generation, MAX_NOP_SKIP, Packet,
    SdmaError,
};

/// The most bytes that [`copy`] and [`fill`] take, 1 TiB: it bounds what they append.
pub const MAX_SPLIT_BYTES: u64 = 1 << 40;

/// The most bytes that one copy packet is given by [`copy`]: 4 MiB or 1 GiB.
///
/// gfx942 shares [`Generation::V4_4`] with gfx90a, whose counts are known to be wide, but is only ever driven
/// with 4 MiB packets by the kernel and by tinygrad: splitting stays at what both are sure to take.
#[must_use]
pub const fn max_copy_bytes(generation: Generation) -> u64 {
    match generation {
        Generation::V4 | Generation::V4_4 | Generation::V5 => 1 << 22,
        Generation::V5_2 | Generation::V6 | Generation::V7 => 1 << 30,
    }
}

/// The most bytes that one fill packet is given by [`fill`]: what the kernel gives every generation.
pub const MAX_FILL_BYTES: u64 = 1 << 22;

/// Appends exactly this many dwords of padding: as few NOPs as can be, each with zeros that it skips.
pub fn push_nops(out: &mut Vec<u32>, dwords: usize) {
    let mut left = dwords;
    while left > 0 {
        let skip = u32::try_from(left - 1).unwrap_or(u32::MAX).min(MAX_NOP_SKIP);
        out.push(header(op::NOP, 0) | skip << 16);
        out.resize(out.len() + skip as usize, 0);
        left -= 1 + skip as usize;
    }
}

/// How many dwords of padding must precede a packet so that it does not straddle the ring's end.
///
/// `position_bytes` is the queue's write index, which counts bytes and never wraps; `ring_bytes` the ring's
/// size; `packet_dwords` the packet's length. The answer is 0, or the rest of the ring. A packet may end
/// exactly at the ring's end.
///
/// # Errors
/// [`SdmaError::Ring`] if the packet is longer than the ring, or ring or position are no whole dwords.
pub fn pad_to_fit(position_bytes: u64, ring_bytes: u32, packet_dwords: usize) -> Result<usize, SdmaError> {
    // CAST: u32 to usize, and usize to u64, are lossless on every host KFD runs on.
    let ring_dwords = ring_bytes as usize / 4;
    if ring_bytes == 0
        || !ring_bytes.is_multiple_of(4)
        || !position_bytes.is_multiple_of(4)
        || packet_dwords > ring_dwords
    {
        return Err(SdmaError::Ring { ring_bytes, position_bytes, packet_dwords });
    }
    // CAST: less than `ring_dwords`.
    let at = (position_bytes % u64::from(ring_bytes) / 4) as usize;
    let left = ring_dwords - at;
    Ok(if packet_dwords > left { left } else { 0 })
}

/// Appends the packets that copy `bytes` bytes, in pieces of at most [`max_copy_bytes`].
///
/// No bytes are no packets. The ranges must not overlap: engines read ahead of what they write.
///
/// # Errors
/// [`SdmaError::OutOfRange`] for more than [`MAX_SPLIT_BYTES`], [`SdmaError::Wraps`] if a range leaves the
/// address space. Nothing is appended then.
pub fn copy(
    out: &mut Vec<u32>,
    generation: Generation,
    dst: u64,
    src: u64,
    bytes: u64,
) -> Result<(), SdmaError> {
    check_range("linear copy", dst, bytes)?;
    check_range("linear copy", src, bytes)?;
    for (offset, bytes) in pieces(bytes, max_copy_bytes(generation)) {
        CopyLinear { bytes, src: src + offset, dst: dst + offset }.encode(generation, out)?;
    }
    Ok(())
}

/// Appends the packets that fill `bytes` bytes with a dword, in pieces of at most [`MAX_FILL_BYTES`].
///
/// # Errors
/// [`SdmaError::Unaligned`] unless `dst` and `bytes` are multiples of 4, else as [`copy`]. Nothing is
/// appended then.
pub fn fill(
    out: &mut Vec<u32>,
    generation: Generation,
    dst: u64,
    value: u32,
    bytes: u64,
) -> Result<(), SdmaError> {
    aligned("constant fill", "address", dst, 4)?;
    aligned("constant fill", "bytes", bytes, 4)?;
    check_range("constant fill", dst, bytes)?;
    for (offset, bytes) in pieces(bytes, MAX_FILL_BYTES) {
        ConstFill { dst: dst + offset, value, bytes, element_log2: 2, count: FillCount::LastByte }
            .encode(generation, out)?;
    }
    Ok(())
}

/// The packet that takes 1 from a signal's value at this GPU address, atomically for host and agents.
///
/// It needs 64-bit atomics on the link to the signal's memory; [`Fence`] is what clients use without them.
#[must_use]
pub const fn signal_decrement(address: u64) -> Packet<'static> {
    Packet::Atomic(Atomic {
        operation: AtomicOperation::Add64,
        address,
        source: u64::MAX,
        compare: 0,
        repeat: false,
        interval: 0,
    })
}

/// The packets that wake a waiter of KFD event `event_id`: its id into the signal's mailbox, then a trap.
#[must_use]
pub const fn interrupt(generation: Generation, mailbox: u64, event_id: u32) -> [Packet<'static>; 2] {
    let mtype = generation.uncached_mtype();
    [Packet::Fence(Fence { address: mailbox, value: event_id, mtype }), Packet::Trap { event_id }]
}

fn check_range(packet: &'static str, address: u64, bytes: u64) -> Result<(), SdmaError> {
    if bytes > MAX_SPLIT_BYTES {
        let (least, most) = (0, MAX_SPLIT_BYTES);
        return Err(SdmaError::OutOfRange { packet, field: "bytes", value: bytes, least, most });
    }
    match address.checked_add(bytes) {
        Some(_) => Ok(()),
        None => Err(SdmaError::Wraps { address, bytes }),
    }
}

/// Offsets and lengths of the pieces of a range; `most` is at most 2^30.
fn pieces(bytes: u64, most: u64) -> impl Iterator<Item = (u64, u32)> {
    (0..bytes.div_ceil(most)).map(move |piece| {
        let offset = piece * most;
        (offset, u32::try_from((bytes - offset).min(most)).unwrap_or(u32::MAX))
    })
}
