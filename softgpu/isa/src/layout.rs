// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the fields of each gfx11 format lie, in bits from the least significant bit of the first dword.
//!
//! INVARIANT: every bit position the decoder uses is named here, and only here.

/// A bit field of the first 64 bits of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    lsb: u8,
    width: u8,
}

/// The first dword.
pub(crate) const fn low(bits: u64) -> u32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl Field {
    /// The field's value in `bits`.
    pub(crate) const fn of(self, bits: u64) -> u32 {
        debug_assert!(self.width <= 32);
        low((bits >> self.lsb) & ((1 << self.width) - 1))
    }

    /// The value of a field of at most eight bits.
    pub(crate) const fn of8(self, bits: u64) -> u8 {
        debug_assert!(self.width <= 8);
        self.of(bits).to_le_bytes()[0]
    }

    /// The value of a field of at most sixteen bits.
    pub(crate) const fn of16(self, bits: u64) -> u16 {
        debug_assert!(self.width <= 16);
        let [a, b, ..] = self.of(bits).to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    /// Whether a one-bit field is set.
    pub(crate) const fn is_set(self, bits: u64) -> bool {
        self.of(bits) != 0
    }

    /// The field's value as a two's complement number.
    pub(crate) const fn signed(self, bits: u64) -> i32 {
        let shift = 32 - self.width as u32;
        ((self.of(bits) << shift) as i32) >> shift
    }
}

macro_rules! layouts {
    ($($(#[$doc:meta])* $format:ident { $($name:ident $lsb:literal $width:literal;)* })*) => {
        $($(#[$doc])* pub(crate) mod $format {
            use super::Field;
            $(pub(crate) const $name: Field = Field { lsb: $lsb, width: $width };)*
        })*
    };
}

layouts! {
    /// Scalar, two sources.
    sop2 { SSRC0 0 8; SSRC1 8 8; SDST 16 7; OP 23 7; }
    /// Scalar, one source.
    sop1 { SSRC0 0 8; OP 8 8; SDST 16 7; }
    /// Scalar compare.
    sopc { SSRC0 0 8; SSRC1 8 8; OP 16 7; }
    /// Scalar with a 16-bit immediate.
    sopk { SIMM16 0 16; SDST 16 7; OP 23 5; }
    /// Program control.
    sopp { SIMM16 0 16; OP 16 7; }
    /// Scalar memory.
    smem { SBASE 0 6; SDATA 6 7; DLC 13 1; GLC 14 1; OP 18 8; OFFSET 32 21; SOFFSET 57 7; }
    /// Vector, one source.
    vop1 { SRC0 0 9; OP 9 8; VDST 17 8; }
    /// Vector, two sources.
    vop2 { SRC0 0 9; VSRC1 9 8; VDST 17 8; OP 25 6; }
    /// Vector compare.
    vopc { SRC0 0 9; VSRC1 9 8; OP 17 8; }
    /// The DPP16 dword that replaces source 0 of a short form (low half: first dword).
    dpp16 { VSRC0 32 8; CTRL 40 9; FI 50 1; BOUND_CTRL 51 1; NEG0 52 1; ABS0 53 1; NEG1 54 1; ABS1 55 1;
        BANK_MASK 56 4; ROW_MASK 60 4; }
    /// The DPP8 dword (register as in DPP16); the selectors are 3 bits each from `SEL` on.
    dpp8 { SEL 40 24; }
    /// Vector, long form.
    vop3 { VDST 0 8; ABS 8 3; SDST 8 7; OP_SEL 11 4; CLAMP 15 1; OP 16 10; SRC0 32 9; SRC1 41 9; SRC2 50 9;
        OMOD 59 2; NEG 61 3; }
    /// Packed.
    vop3p { VDST 0 8; NEG_HI 8 3; OP_SEL 11 3; OP_SEL_HI2 14 1; CLAMP 15 1; OP 16 7; UNUSED 23 1; SRC0 32 9; SRC1 41 9;
        SRC2 50 9; OP_SEL_HI 59 2; NEG 61 3; }
    /// Parameter interpolation.
    vinterp { VDST 0 8; WAIT_EXP 8 3; OP_SEL 11 4; CLAMP 15 1; OP 16 7; SRC0 32 9; SRC1 41 9; SRC2 50 9; NEG 61 3; }
    /// Dual issue.
    vopd { SRCX0 0 9; VSRCX1 9 8; OPY 17 5; OPX 22 4; SRCY0 32 9; VSRCY1 41 8; VDSTY 49 7; VDSTX 56 8; }
    /// LDS.
    ds { OFFSET 0 16; GDS 17 1; OP 18 8; ADDR 32 8; DATA0 40 8; DATA1 48 8; VDST 56 8; }
    /// Flat, global and scratch.
    flat { OFFSET 0 13; DLC 13 1; GLC 14 1; SLC 15 1; SEG 16 2; OP 18 7; ADDR 32 8; DATA 40 8; SADDR 48 7;
        SVE 55 1; VDST 56 8; }
    /// Buffer.
    mubuf { OFFSET 0 12; SLC 12 1; DLC 13 1; GLC 14 1; OP 18 8; VADDR 32 8; VDATA 40 8; SRSRC 48 5; TFE 53 1; OFFEN 54 1;
        IDXEN 55 1; SOFFSET 56 8; }
    /// Typed buffer: the second dword and the low bits of the first are as in `mubuf`.
    mtbuf { OP 15 4; FORMAT 19 7; }
}

/// Source code of a literal.
pub(crate) const LITERAL: u32 = 255;
/// Source code of DPP8.
pub(crate) const DPP8: u32 = 233;
/// Source code of DPP8 with fetch-inactive.
pub(crate) const DPP8_FI: u32 = 234;
/// Source code of DPP16.
pub(crate) const DPP16: u32 = 250;
/// Scalar register code of null, which also means "off" in addresses.
pub(crate) const NULL: u32 = 124;
/// First code of the vector registers in a 9-bit source field.
pub(crate) const VGPR0: u32 = 256;
