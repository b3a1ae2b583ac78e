// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers, and the fields that packets share.
//!
//! INVARIANT: a reader names every bit it understands and refuses the others, a writer refuses values that
//! its field cannot hold. Together they make decoding and encoding inverse to each other.

use std::fmt;

use super::Pm4Error;

/// The type 2 packet: one dword that does nothing.
pub const FILLER: u32 = 0x8000_0000;
/// A `NOP` that is nothing but its header (gfx9 and later): the largest count means no body.
pub const NOP_SINGLE: u32 = 0xFFFF_1000;
/// The most dwords that a header's 14-bit count can announce behind it.
pub const MAX_BODY: usize = 0x4000;
/// Bit 1 of a header: the packet is for the compute pipeline.
pub(super) const SHADER_TYPE: u32 = 1 << 1;

/// Bits `low..low + width` of a word.
pub(super) const fn bits(word: u32, low: u32, width: u32) -> u32 {
    (word >> low) & (u32::MAX >> (32 - width))
}

/// A field of at most eight bits.
pub(super) const fn bits8(word: u32, low: u32, width: u32) -> u8 {
    debug_assert!(width <= 8);
    bits(word, low, width).to_le_bytes()[0]
}

/// A field of at most sixteen bits.
pub(super) const fn bits16(word: u32, low: u32, width: u32) -> u16 {
    debug_assert!(width <= 16);
    let [first, second, ..] = bits(word, low, width).to_le_bytes();
    u16::from_le_bytes([first, second])
}

/// Whether a bit is set.
pub(super) const fn bit(word: u32, bit: u32) -> bool {
    word >> bit & 1 != 0
}

/// A `bool` at a bit.
pub(super) const fn at(value: bool, bit: u32) -> u32 {
    // CAST: a bool, widened.
    (value as u32) << bit
}

/// Refuses bits outside `known`.
pub(super) const fn reserved(packet: &'static str, dword: u8, word: u32, known: u32) -> Result<(), Pm4Error> {
    match word & !known {
        0 => Ok(()),
        bits => Err(Pm4Error::Reserved { packet, dword, bits }),
    }
}

/// Refuses addresses that are not multiples of `align` bytes.
pub(super) const fn aligned(packet: &'static str, address: u64, align: u64) -> Result<u64, Pm4Error> {
    if !address.is_multiple_of(align) {
        return Err(Pm4Error::Misaligned { packet, address, align });
    }
    Ok(address)
}

/// Refuses values above `limit`.
pub(super) const fn at_most(
    packet: &'static str,
    field: &'static str,
    value: u32,
    limit: u32,
) -> Result<u32, Pm4Error> {
    if value > limit {
        // CAST: widened.
        return Err(Pm4Error::Range { packet, field, value: value as u64, limit: limit as u64 });
    }
    Ok(value)
}

/// A register number of 18 bits, as `WAIT_REG_MEM`, `COPY_DATA` and `WRITE_DATA` carry it.
pub(super) const fn register(packet: &'static str, register: u32) -> Result<u32, Pm4Error> {
    at_most(packet, "register", register, (1 << 18) - 1)
}

/// A body of known length.
pub(super) fn fixed<'a, const N: usize>(
    packet: &'static str,
    body: &'a [u32],
    wanted: &'static str,
) -> Result<&'a [u32; N], Pm4Error> {
    body.try_into().map_err(|_| Pm4Error::Length { packet, body: body.len(), wanted })
}

/// An enumeration of a field's values, with the bits and the text of each.
macro_rules! field_enum {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $bits:literal $text:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The field's value.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self {
                    $(Self::$variant => $bits,)*
                }
            }

            pub(super) const fn read(
                packet: &'static str,
                field: &'static str,
                value: u32,
            ) -> Result<Self, $crate::pm4::Pm4Error> {
                match value {
                    $($bits => Ok(Self::$variant),)*
                    _ => Err($crate::pm4::Pm4Error::Value { packet, field, value }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }
    };
}
pub(super) use field_enum;

field_enum! {
    /// What the L2 cache does with the lines that a packet touches (2 bits; the last two from gfx10 on).
    CachePolicy {
        /// Keeps them as any others.
        Lru = 0 "lru",
        /// Expects them not to be used again.
        Stream = 1 "stream",
        /// Does not allocate lines for them.
        NoAllocate = 2 "noa",
        /// Lets them pass.
        Bypass = 3 "bypass",
    }
}

impl CachePolicy {
    /// As a suffix; nothing for the usual policy.
    pub(super) fn fmt_suffix(self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self == Self::Lru { Ok(()) } else { write!(f, " {name}={self}") }
    }
}

field_enum! {
    /// How a value is compared with a reference, both unsigned.
    Compare {
        /// Always true.
        Always = 0 "always",
        /// Less.
        Less = 1 "<",
        /// Less or equal.
        LessEqual = 2 "<=",
        /// Equal.
        Equal = 3 "==",
        /// Not equal.
        NotEqual = 4 "!=",
        /// Greater or equal.
        GreaterEqual = 5 ">=",
        /// Greater.
        Greater = 6 ">",
    }
}

impl Compare {
    /// Whether the comparison is true.
    ///
    /// ```
    /// use queues::pm4::Compare;
    /// assert!(Compare::GreaterEqual.holds(3, 3) && !Compare::Greater.holds(3, 3));
    /// ```
    #[must_use]
    pub const fn holds(self, value: u32, reference: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Less => value < reference,
            Self::LessEqual => value <= reference,
            Self::Equal => value == reference,
            Self::NotEqual => value != reference,
            Self::GreaterEqual => value >= reference,
            Self::Greater => value > reference,
        }
    }
}

/// Dwords of the packet that a header starts, itself included.
///
/// Only the type and the count are read, so that a dump can step over unknown packets.
///
/// # Errors
/// [`Pm4Error::Kind`] for anything but type 3 packets and the two fillers of one dword.
pub const fn packet_dwords(header: u32) -> Result<usize, Pm4Error> {
    if header == FILLER || header & !SHADER_TYPE == NOP_SINGLE {
        return Ok(1);
    }
    match bits8(header, 30, 2) {
        3 => Ok(bits(header, 16, 14) as usize + 2),
        kind => Err(Pm4Error::Kind { kind, header }),
    }
}
