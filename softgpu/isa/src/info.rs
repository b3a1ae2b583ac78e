// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one table row says: operand slots, flags and the opcode columns of each family.
//!
//! INVARIANT: a row is constant data. It holds every fact about its operation that the decoder, the printer or an
//! engine's def/use analysis needs; code holds none.

use std::ops::BitOr;

/// Lanes of a wave; decides how wide a lane mask is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WaveSize {
    /// 32 lanes: a mask is one scalar register.
    #[default]
    W32,
    /// 64 lanes: a mask is a pair.
    W64,
}

/// A family of instruction encodings; each has its own opcode column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EncodingFamily {
    /// gfx900..gfx90c.
    Gfx9,
    /// gfx90a, gfx94x.
    Gfx90a,
    /// gfx10.3.
    Gfx103,
    /// gfx1100..gfx1103.
    Gfx11,
    /// gfx12.
    Gfx12,
}

/// An opcode space: a format, or one half of the dual-issue format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Fmt {
    Sop1,
    Sop2,
    Sopk,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vop3,
    /// VOP3 with a scalar destination in place of abs and op_sel; shares VOP3's opcode space.
    Vop3sd,
    Vop3p,
    Vinterp,
    Vopc,
    /// The X half of VOPD.
    DualX,
    /// The Y half of VOPD.
    DualY,
    Ds,
    Flat,
    Global,
    Scratch,
    Mubuf,
    Mtbuf,
}

/// One opcode number in one opcode space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The opcode space.
    pub fmt: Fmt,
    /// The number in it.
    pub opcode: u16,
}

/// The encodings of an operation in one family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// The family.
    pub family: EncodingFamily,
    /// Its encodings, the short form first.
    pub codes: &'static [Code],
}

/// What may stand in an operand position (legend: the head of `table/mod.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Nothing: the position is kept so that the others keep their index.
    NONE,
    /// Vector register.
    V,
    /// Vector register, or LDS direct.
    VL,
    /// Vector source: vector or scalar register, inline constant or literal (VSRC1 of a short form: vector only).
    X,
    /// As `X`, with neg and abs in the long form.
    XM,
    /// As `X`, with neg only in the long form.
    XN,
    /// Scalar destination.
    D,
    /// Scalar source: register, inline constant or literal.
    S,
    /// As `S`, or LDS direct.
    SL,
    /// Scalar register only.
    R,
    /// Lane mask: one scalar register in wave32, a pair in wave64.
    M,
    /// 16-bit immediate.
    K,
    /// Branch distance in dwords, relative to the next instruction.
    REL,
    /// Hardware register selector (id, offset, size).
    HWREG,
    /// Message number.
    MSG,
    /// The literal that always follows.
    LIT,
    /// Scalar memory offset: a register or null, added to the immediate.
    OFF,
}

/// Width and meaning of the bits of an operand; in memory operations, of the bits in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Ty {
    B8,
    U8,
    I8,
    B16,
    U16,
    I16,
    F16,
    BF16,
    /// Two packed 16-bit values (f16 or bf16 where the row says `PACKED_F16` or `PACKED_BF16`).
    P16,
    /// f32, or an f16 half, as op_sel_hi says (v_fma_mix).
    MIX,
    B32,
    U32,
    I32,
    F32,
    B64,
    U64,
    I64,
    F64,
    B96,
    B128,
    B256,
    B512,
    /// Accumulator matrix: 16x16 elements over the lanes of the wave, 8 registers in wave32 and 4 in wave64.
    ACC,
    /// One bit per lane.
    MASK,
}

impl Ty {
    /// Registers the value takes in a wave of `wave` lanes, in dwords.
    pub const fn dwords_in(self, wave: WaveSize) -> u8 {
        match (self, wave) {
            (Ty::MASK, WaveSize::W64) => 2,
            (Ty::ACC, WaveSize::W64) => 4,
            _ => self.dwords(),
        }
    }

    /// Registers the value takes in wave32, in dwords.
    pub const fn dwords(self) -> u8 {
        match self {
            Ty::B64 | Ty::U64 | Ty::I64 | Ty::F64 => 2,
            Ty::B96 => 3,
            Ty::B128 => 4,
            Ty::B256 | Ty::ACC => 8,
            Ty::B512 => 16,
            _ => 1,
        }
    }

    /// Whether the value is one half of a vector register: short forms then have seven bits for the register number and
    /// one for the half, long forms an op_sel bit.
    pub const fn is_half(self) -> bool {
        matches!(self, Ty::B16 | Ty::U16 | Ty::I16 | Ty::F16 | Ty::BF16)
    }

    /// Bytes the value takes in memory.
    pub const fn bytes(self) -> u32 {
        match self {
            Ty::B8 | Ty::U8 | Ty::I8 => 1,
            Ty::B16 | Ty::U16 | Ty::I16 | Ty::F16 | Ty::BF16 => 2,
            _ => self.dwords() as u32 * 4,
        }
    }
}

/// One operand position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// What may stand here.
    pub class: Class,
    /// Its width and meaning.
    pub ty: Ty,
}

/// A set of facts about an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u64);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*
        }
    };
}

flags! {
    /// Reads SCC.
    READS_SCC = 0;
    /// Writes SCC.
    WRITES_SCC = 1;
    /// Reads VCC besides any operand that names it.
    READS_VCC = 2;
    /// Reads EXEC as data (every vector operation also is masked by it, unless `IGNORES_EXEC`).
    READS_EXEC = 3;
    /// Writes EXEC.
    WRITES_EXEC = 4;
    /// Reads M0 besides any operand that names it.
    READS_M0 = 5;
    /// Its result depends on MODE (rounding, denormals, clamp rules).
    READS_MODE = 6;
    /// May write MODE.
    WRITES_MODE = 7;
    /// May change PC.
    BRANCH = 8;
    /// Ends the wave.
    END = 9;
    /// Waits for the workgroup.
    BARRIER = 10;
    /// Enters the trap handler.
    TRAP = 11;
    /// Sends a message.
    MESSAGE = 12;
    /// No architectural effect in an in-order device: waits, delays, prefetch, priorities, counters.
    HINT = 13;
    /// Invalidates a cache.
    CACHE = 14;
    /// Reads memory.
    LOAD = 15;
    /// Writes memory.
    STORE = 16;
    /// Reads and writes memory as one atomic operation.
    ATOMIC = 17;
    /// The memory is LDS.
    LDS = 18;
    /// Converts through the resource's data format.
    FORMAT = 19;
    /// Only meaningful with GDS.
    GDS_ONLY = 20;
    /// LDS operation with two 8-bit offsets.
    TWO_OFFSETS = 21;
    /// The old value of the destination is an input.
    READS_DST = 22;
    /// Long form has clamp.
    CLAMP = 23;
    /// Long form has an output multiplier.
    OMOD = 24;
    /// Long form selects halves with op_sel.
    OP_SEL = 25;
    /// Short form may carry DPP.
    DPP = 26;
    /// Long form may carry DPP.
    DPP64 = 27;
    /// Works in all lanes, or in one, independently of EXEC.
    IGNORES_EXEC = 28;
    /// Has no GDS form.
    NO_GDS = 29;
    /// Neg and abs bits that the long form does not have are ignored instead of having to be zero.
    LOOSE = 30;
    /// Packed sources are f16.
    PACKED_F16 = 31;
    /// Packed sources are bf16.
    PACKED_BF16 = 32;
}

impl Flags {
    /// The empty set.
    pub const NONE: Flags = Flags(0);

    /// The union.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether every fact in `other` holds.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any fact in `other` holds.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        self.with(other)
    }
}
