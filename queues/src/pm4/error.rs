// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why words are no packet, and why a packet has no words.

use thiserror::Error;

/// A packet that cannot be read or cannot be written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pm4Error {
    /// The packet is longer than the words that are there: fetch more.
    #[error("Packet of {wanted} dwords is cut off after {available}")]
    Truncated {
        /// Dwords of the packet, header included.
        wanted: usize,
        /// Dwords that are there.
        available: usize,
    },
    /// The word is no type 3 header.
    #[error("Word {header:#010x} is a type {kind} packet, wanted type 3 or the type 2 filler 0x80000000")]
    Kind {
        /// The two highest bits.
        kind: u8,
        /// The word.
        header: u32,
    },
    /// The opcode is none that this module knows.
    #[error("Opcode {opcode:#04x} is not supported, its packet has {dwords} dwords")]
    Opcode {
        /// Bits 8..16 of the header.
        opcode: u8,
        /// Dwords of the packet, header included.
        dwords: usize,
    },
    /// The header has bits that a compute queue's packets must not have.
    #[error("Header {header:#010x} must not have bits {bits:#x} (predication or reserved)")]
    Header {
        /// The word.
        header: u32,
        /// The bits that are set.
        bits: u32,
    },
    /// The header's count contradicts the opcode.
    #[error("{packet} has {body} dwords behind its header, wanted {wanted}")]
    Length {
        /// Name of the packet.
        packet: &'static str,
        /// Dwords behind the header.
        body: usize,
        /// How many there must be.
        wanted: &'static str,
    },
    /// Bits without a meaning here are set.
    #[error("Bits {bits:#x} of dword {dword} of {packet} are reserved or not supported")]
    Reserved {
        /// Name of the packet.
        packet: &'static str,
        /// Which dword, the header being 0.
        dword: u8,
        /// The bits that are set.
        bits: u32,
    },
    /// A field has a value without a meaning here.
    #[error("{field} of {packet} is {value}, which is reserved or not supported")]
    Value {
        /// Name of the packet.
        packet: &'static str,
        /// Name of the field.
        field: &'static str,
        /// What it holds.
        value: u32,
    },
    /// An address is not aligned.
    #[error("Address {address:#x} of {packet} must be a multiple of {align} B")]
    Misaligned {
        /// Name of the packet.
        packet: &'static str,
        /// The GPU address.
        address: u64,
        /// What it must be a multiple of, bytes.
        align: u64,
    },
    /// Registers lie outside what the packet can write.
    #[error("{packet} of {count} registers from {register:#x} leaves {first:#x}..{end:#x}")]
    Registers {
        /// Name of the packet.
        packet: &'static str,
        /// First register, absolute dword address.
        register: u32,
        /// How many there are.
        count: usize,
        /// First register that the packet can write.
        first: u32,
        /// The register behind the last it can write.
        end: u32,
    },
    /// A field is too narrow for its value.
    #[error("{field} of {packet} must not exceed {limit:#x}, found {value:#x}")]
    Range {
        /// Name of the packet.
        packet: &'static str,
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The most it can hold.
        limit: u64,
    },
    /// The packet is longer than a header can say.
    #[error("{packet} has {body} dwords behind its header, no more than {limit} fit")]
    TooLong {
        /// Name of the packet.
        packet: &'static str,
        /// Dwords behind the header.
        body: usize,
        /// The most there can be.
        limit: usize,
    },
    /// The kernel's first instruction is where a PM4 dispatch cannot start.
    #[error("Kernel entry {address:#x} must be a multiple of 256 B below 2^48")]
    Entry {
        /// Its GPU address.
        address: u64,
    },
    /// The work-group is empty or too large.
    #[error(
        "Work-group must have 1 to {limit} work-items, found {}x{}x{}",
        workgroup[0], workgroup[1], workgroup[2]
    )]
    WorkgroupSize {
        /// Work-items in each dimension.
        workgroup: [u16; 3],
        /// The most work-items it may have.
        limit: u32,
    },
    /// The dispatch needs more group segment than there is.
    #[error("Group segment of {bytes} B does not fit the {limit} B of {target}")]
    GroupSegment {
        /// Bytes wanted, static and dynamic together.
        bytes: u32,
        /// Bytes a work-group can have.
        limit: u32,
        /// The target's name.
        target: &'static str,
    },
    /// There are more user data words than registers.
    #[error("Dispatch has {count} user data dwords, no more than {limit} fit")]
    UserData {
        /// Words wanted.
        count: usize,
        /// Registers there are.
        limit: usize,
    },
    /// The chip has no waves of this size.
    #[error("Dispatch wants waves of {lanes} lanes, {target} has none")]
    WaveSize {
        /// Lanes wanted.
        lanes: u32,
        /// The target's name.
        target: &'static str,
    },
    /// Scratch cannot be described.
    #[error(
        "Scratch at {base:#x} of {wave_bytes} B for each of {waves} waves does not fit {target}'s registers"
    )]
    Scratch {
        /// GPU address.
        base: u64,
        /// Bytes of one wave.
        wave_bytes: u32,
        /// Waves that have some.
        waves: u32,
        /// The target's name.
        target: &'static str,
    },
    /// The chip's dispatch registers are not in [`super::reg`].
    #[error("Dispatch registers of {target} are not known, submit an AQL packet instead")]
    Target {
        /// The target's name.
        target: &'static str,
    },
}
