// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first dword of an SDMA packet: which operation it is.
//!
//! INVARIANT: bits 16 to 31 belong to the operation and are zero in what [`header`] makes.

/// Operations, bits 0 to 7 of a header.
pub(super) mod op {
    pub const NOP: u8 = 0;
    pub const COPY: u8 = 1;
    pub const WRITE: u8 = 2;
    pub const FENCE: u8 = 5;
    pub const TRAP: u8 = 6;
    pub const POLL_REGMEM: u8 = 8;
    pub const ATOMIC: u8 = 10;
    pub const CONST_FILL: u8 = 11;
    pub const TIMESTAMP: u8 = 13;
    pub const GCR: u8 = 17;
}

/// Sub-operations other than 0, bits 8 to 15 of a header.
pub(super) mod sub_op {
    pub const COPY_LINEAR: u8 = 0;
    pub const COPY_RECT: u8 = 4;
    pub const TIMESTAMP_GET_GLOBAL: u8 = 2;
    pub const GCR_USER: u8 = 1;
}

/// The most dwords that one NOP can skip: 14 bits.
pub const MAX_NOP_SKIP: u32 = 0x3fff;

/// A first dword with nothing but the operation.
pub(super) const fn header(op: u8, sub_op: u8) -> u32 {
    u32::from_le_bytes([op, sub_op, 0, 0])
}
