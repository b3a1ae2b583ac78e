// SPDX-License-Identifier: MIT OR Apache-2.0
//! An AQL packet as it lies in the ring.
//!
//! INVARIANT: the words are little-endian, and nothing about their values has been checked.

/// Bytes of every AQL packet.
pub const PACKET_BYTES: usize = 64;

/// A packet as the little-endian words that lie in the ring.
///
/// Word 0 holds the header in its low half. It must be stored last, with release ordering, because the packet
/// belongs to the processor as soon as the header's kind is valid.
pub type RawPacket = [u32; 16];
