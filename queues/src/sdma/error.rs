// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a stream cannot be read, or a packet not be written.

use thiserror::Error;

/// A stream or packet that the engine would not understand.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SdmaError {
    /// The stream ends inside a packet.
    #[error("SDMA stream ends inside a packet: wanted {wanted} dwords, {available} are left")]
    Truncated {
        /// Dwords of the packet, as far as they are known.
        wanted: usize,
        /// Dwords from the packet's start to the stream's end.
        available: usize,
    },
    /// The operation is none that user queues are known to contain.
    #[error("SDMA operation {op} sub-operation {sub_op} is not supported")]
    UnknownOperation {
        /// Bits 0 to 7 of the header.
        op: u8,
        /// Bits 8 to 15 of the header.
        sub_op: u8,
    },
    /// An atomic operation other than a 64-bit addition.
    #[error("SDMA atomic operation {operation} is not supported, wanted 47 (add, 64 bits)")]
    AtomicOperation {
        /// Bits 25 to 31 of the header.
        operation: u8,
    },
    /// Bits that must be zero, or that ask for something this module does not know, are set.
    #[error("Bits of dword {dword} of an SDMA {packet} packet must be 0, found {bits:#x}")]
    Reserved {
        /// Which packet.
        packet: &'static str,
        /// Which of its dwords, counted from its header.
        dword: usize,
        /// The bits that are set.
        bits: u32,
    },
    /// A field cannot hold this value.
    #[error("The {field} of an SDMA {packet} packet must be {least} to {most}, found {value}")]
    OutOfRange {
        /// Which packet.
        packet: &'static str,
        /// Which field, with its unit.
        field: &'static str,
        /// What it would be.
        value: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// An address or size is not a multiple of what the engine moves at once.
    #[error("The {field} of an SDMA {packet} packet must be a multiple of {alignment}, found {value:#x}")]
    Unaligned {
        /// Which packet.
        packet: &'static str,
        /// Which field.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it must be a multiple of, bytes.
        alignment: u64,
    },
    /// A range of memory wraps around the end of the address space.
    #[error("{bytes} B at {address:#x} wrap around the end of the address space")]
    Wraps {
        /// Where the range starts.
        address: u64,
        /// How long it is.
        bytes: u64,
    },
    /// The packet does not fit a ring of this size, wherever it is put.
    #[error(
        "A packet of {packet_dwords} dwords at byte {position_bytes:#x} cannot be put into a ring of \
         {ring_bytes} B: the ring must be a multiple of 4 B, not shorter than the packet, and the position \
         a multiple of 4"
    )]
    Ring {
        /// The ring's size.
        ring_bytes: u32,
        /// Where the packet would start, in bytes written since the queue was created.
        position_bytes: u64,
        /// How long the packet is.
        packet_dwords: usize,
    },
}
