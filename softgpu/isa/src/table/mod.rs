// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table: every operation, once, and what is generated from it.
//!
//! A row reads `NAME [destinations] [sources] {flags} Family {format opcode, ...};` with operand slots written as
//! [`Class`](crate::Class) and [`Ty`](crate::Ty). Rows live in one file per format; each file's macro passes its rows
//! on to the next, and `define_ops` makes the [`Op`] enum, [`rows`] and the opcode maps from the whole list.
//!
//! | class | what may stand in the position |
//! |---|---|
//! | `V`, `VL` | a vector register; `VL`: or LDS direct |
//! | `X`, `XN`, `XM` | a vector source (register, inline constant, literal); `XN`: with neg, `XM`: with neg and abs in the long form |
//! | `D` | a scalar destination |
//! | `S`, `SL` | a scalar source (register, inline constant, literal); `SL`: or LDS direct |
//! | `R`, `M` | a scalar register; a mask of lanes (one in wave32, a pair in wave64) |
//! | `K`, `LIT`, `REL`, `OFF` | a 16-bit immediate; the literal that always follows; a branch distance; a scalar memory offset |
//! | `HWREG`, `MSG` | a selector of a hardware register; a number of a message |
//! | `NONE` | nothing: the position is kept so that the others keep their index |
//!
//! INVARIANT: an opcode slot of a family names at most one operation (checked when the crate is compiled).

use crate::info::{Class, Code, Column, EncodingFamily, Flags, Fmt, Slot, Ty};

mod ds;
mod flat;
mod global;
mod mtbuf;
mod mubuf;
mod scratch;
mod smem;
mod sop;
mod vinterp;
mod vop1;
mod vop2;
mod vop3;
mod vop3p;
mod vopc_float;
mod vopc_int;

use ds::ds_rows;
use flat::flat_rows;
use global::global_rows;
use mtbuf::mtbuf_rows;
use mubuf::mubuf_rows;
use scratch::scratch_rows;
use smem::smem_rows;
use sop::sop_rows;
use vinterp::vinterp_rows;
use vop1::vop1_rows;
use vop2::vop2_rows;
use vop3::vop3_rows;
use vop3p::vop3p_rows;
use vopc_float::vopc_float_rows;
use vopc_int::vopc_int_rows;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// The operation.
    pub op: Op,
    /// Base mnemonic, lower case, without suffix.
    pub name: &'static str,
    /// Destinations: the value, then the lane mask of a carry-out.
    pub dst: &'static [Slot],
    /// Sources, indexed as `Inst::src`.
    pub src: &'static [Slot],
    /// Facts.
    pub flags: Flags,
    /// Opcodes per family.
    pub columns: &'static [Column],
}

impl OpInfo {
    /// Whether the operation has any of `flags`.
    pub const fn any(&self, flags: Flags) -> bool {
        self.flags.intersects(flags)
    }

    /// The operation's opcode in `fmt` of `family`.
    pub fn opcode(&self, family: EncodingFamily, fmt: Fmt) -> Option<u16> {
        let column = self.columns.iter().find(|column| column.family == family)?;
        column.codes.iter().find(|code| code.fmt == fmt).map(|code| code.opcode)
    }

    /// Whether `family` encodes the operation in `fmt`.
    pub fn has(&self, family: EncodingFamily, fmt: Fmt) -> bool {
        self.opcode(family, fmt).is_some()
    }
}

macro_rules! define_ops {
    (; $($op:ident [$($dc:ident $dt:ident),*] [$($sc:ident $st:ident),*] {$($flag:ident)*}
        $($family:ident {$($fmt:ident $code:literal),*})+;)*) => {
        /// An operation, by its base mnemonic: what it computes, whatever format encodes it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(non_camel_case_types, missing_docs)]
        #[repr(u16)]
        pub enum Op { $($op),* }

        const ROWS: [OpInfo; [$(Op::$op),*].len()] = [$(OpInfo {
            op: Op::$op,
            name: {
                const UPPER: &str = stringify!($op);
                const LOWER: [u8; UPPER.len()] = lower(UPPER);
                match std::str::from_utf8(&LOWER) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier is UTF-8"),
                }
            },
            dst: &[$(Slot { class: Class::$dc, ty: Ty::$dt }),*],
            src: &[$(Slot { class: Class::$sc, ty: Ty::$st }),*],
            flags: Flags::NONE$(.with(Flags::$flag))*,
            columns: &[$(Column {
                family: EncodingFamily::$family,
                codes: &[$(Code { fmt: Fmt::$fmt, opcode: $code }),*],
            }),+],
        }),*];
    };
}

sop_rows! {
    smem_rows vop1_rows vop2_rows vopc_float_rows vopc_int_rows vop3_rows vop3p_rows vinterp_rows
    ds_rows flat_rows global_rows scratch_rows mubuf_rows mtbuf_rows define_ops ;
}

const fn lower<const N: usize>(upper: &str) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = upper.as_bytes()[i].to_ascii_lowercase();
        i += 1;
    }
    out
}

static TABLE: [OpInfo; ROWS.len()] = ROWS;

/// Every row, in table order.
pub fn rows() -> &'static [OpInfo] {
    &TABLE
}

/// The row of `op`.
pub fn info(op: Op) -> &'static OpInfo {
    &TABLE[op as usize]
}

const fn opcode_map<const N: usize>(family: EncodingFamily, fmt: Fmt) -> [Option<Op>; N] {
    let mut map = [None; N];
    let mut row = 0;
    while row < ROWS.len() {
        let mut column = 0;
        while column < ROWS[row].columns.len() {
            let Column { family: of, codes } = ROWS[row].columns[column];
            column += 1;
            let mut i = 0;
            while i < codes.len() && of as u8 == family as u8 {
                let Code { fmt: at, opcode } = codes[i];
                if at as u8 == fmt as u8 {
                    assert!(map[opcode as usize].is_none(), "two operations in one opcode slot");
                    map[opcode as usize] = Some(ROWS[row].op);
                }
                i += 1;
            }
        }
        row += 1;
    }
    map
}

macro_rules! opcode_maps {
    ($family:ident: $($name:ident $fmt:ident $size:literal;)*) => {
        $(static $name: [Option<Op>; $size] = opcode_map(EncodingFamily::$family, Fmt::$fmt);)*

        /// The gfx11 operation in slot `opcode` of `fmt`.
        pub(crate) fn lookup(fmt: Fmt, opcode: u32) -> Option<Op> {
            let map: &[Option<Op>] = match fmt { $(Fmt::$fmt => &$name,)* };
            map.get(opcode as usize).copied().flatten()
        }
    };
}

opcode_maps! {
    Gfx11:
    SOP1 Sop1 256;
    SOP2 Sop2 128;
    SOPK Sopk 32;
    SOPC Sopc 128;
    SOPP Sopp 128;
    SMEM Smem 256;
    VOP1 Vop1 256;
    VOP2 Vop2 64;
    VOPC Vopc 256;
    VOP3 Vop3 1024;
    VOP3SD Vop3sd 1024;
    VOP3P Vop3p 128;
    VINTERP Vinterp 128;
    DUAL_X DualX 16;
    DUAL_Y DualY 32;
    DS Ds 256;
    FLAT Flat 128;
    GLOBAL Global 128;
    SCRATCH Scratch 128;
    MUBUF Mubuf 256;
    MTBUF Mtbuf 16;
}
