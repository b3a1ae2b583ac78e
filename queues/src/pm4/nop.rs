// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that fill space.

use std::fmt;
use std::iter::repeat_n;

use super::NOP_SINGLE;
use super::control::Words;
use super::field::MAX_BODY;
use super::opcode::NOP;

/// A packet that does nothing, in one of its three forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nop<'a> {
    /// The type 2 packet of one dword.
    Filler,
    /// A header without a body, one dword (gfx9 and later).
    Single,
    /// A header and 1 to 0x3fff dwords that are ignored.
    Payload(&'a [u32]),
}

impl fmt::Display for Nop<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filler => f.write_str("NOP type 2"),
            Self::Single => f.write_str("NOP"),
            Self::Payload(payload) => write!(f, "NOP {}", Words(payload)),
        }
    }
}

/// Appends exactly this many dwords that do nothing, in as few packets as there can be.
///
/// ```
/// let mut stream = Vec::new();
/// queues::pm4::push_nops(&mut stream, 3);
/// assert_eq!(stream, [0xC001_1000, 0, 0]);
/// ```
pub fn push_nops(out: &mut Vec<u32>, dwords: usize) {
    // A NOP's largest count stands for no body, so the longest packet is a header and one dword less.
    const LONGEST: usize = MAX_BODY;
    let mut left = dwords;
    while left > 0 {
        let packet = left.min(LONGEST);
        let count = packet.checked_sub(2).and_then(|count| u32::try_from(count).ok());
        let header = count.map(|count| 3 << 30 | count << 16 | u32::from(NOP) << 8);
        out.push(header.unwrap_or(NOP_SINGLE));
        out.extend(repeat_n(0, packet - 1));
        left -= packet;
    }
}
