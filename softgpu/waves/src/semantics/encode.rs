// SPDX-License-Identifier: MIT OR Apache-2.0
//! The encodings of gfx11, written independently of the decoder.

use softgpu_isa::{EncodingFamily, Fmt, OpInfo};

/// Source code of a literal.
pub(crate) const LITERAL: u32 = 255;
/// Source code of VGPR 0.
pub(crate) const VGPR0: u32 = 256;
/// Scalar code of NULL.
pub(crate) const NULL: u32 = 124;

pub(crate) fn opcode(row: &OpInfo, fmt: Fmt) -> Option<u32> {
    row.opcode(EncodingFamily::Gfx11, fmt).map(u32::from)
}

/// Fields of a vector ALU instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vector {
    pub dst: u32,
    pub sdst: u32,
    pub src: [u32; 3],
    pub neg: u32,
    pub abs: u32,
    pub neg_hi: u32,
    pub op_sel: u32,
    pub op_sel_hi: u32,
    pub clamp: bool,
    pub omod: u32,
    pub literal: Option<u32>,
}

impl Vector {
    fn long(&self, first: u32, second: u32) -> Vec<u32> {
        let sources = self.src[0] | self.src[1] << 9 | self.src[2] << 18;
        self.closed(vec![first | u32::from(self.clamp) << 15 | self.dst, sources | second | self.neg << 29])
    }

    fn closed(&self, mut words: Vec<u32>) -> Vec<u32> {
        words.extend(self.literal);
        words
    }

    /// The instruction in `fmt`.
    pub(crate) fn encode(&self, row: &OpInfo, fmt: Fmt) -> Vec<u32> {
        let op = opcode(row, fmt).expect("the row has this format");
        // With a literal as the second source, the field holds the third source.
        let second = if self.src[1] == LITERAL { self.src[2] } else { self.src[1] };
        let vsrc1 = (second & 0xFF) << 9;
        match fmt {
            Fmt::Vop1 => self.closed(vec![0x7E00_0000 | self.dst << 17 | op << 9 | self.src[0]]),
            Fmt::Vop2 => self.closed(vec![op << 25 | self.dst << 17 | vsrc1 | self.src[0]]),
            Fmt::Vopc => self.closed(vec![0x7C00_0000 | op << 17 | vsrc1 | self.src[0]]),
            Fmt::Vop3 => {
                self.long(0xD400_0000 | op << 16 | self.op_sel << 11 | self.abs << 8, self.omod << 27)
            }
            Fmt::Vop3sd => self.long(0xD400_0000 | op << 16 | self.sdst << 8, self.omod << 27),
            Fmt::Vop3p => {
                let high = (self.op_sel_hi >> 2 & 1) << 14 | self.op_sel << 11 | self.neg_hi << 8;
                self.long(0xCC00_0000 | op << 16 | high, (self.op_sel_hi & 3) << 27)
            }
            Fmt::Vinterp => self.long(0xCD00_0000 | op << 16 | self.op_sel << 11, 0),
            _ => unreachable!("not a vector format"),
        }
    }
}

/// A scalar instruction in its only format: destination, sources, immediate.
pub(crate) fn scalar(row: &OpInfo, dst: u32, src: [u32; 2], imm: u32) -> Vec<u32> {
    let fmt = row.columns[0].codes[0].fmt;
    let op = opcode(row, fmt).expect("a scalar row");
    vec![match fmt {
        Fmt::Sop2 => 0x8000_0000 | op << 23 | dst << 16 | src[1] << 8 | src[0],
        Fmt::Sop1 => 0xBE80_0000 | dst << 16 | op << 8 | src[0],
        Fmt::Sopc => 0xBF00_0000 | op << 16 | src[1] << 8 | src[0],
        Fmt::Sopk => 0xB000_0000 | op << 23 | dst << 16 | imm & 0xFFFF,
        Fmt::Sopp => 0xBF80_0000 | op << 16 | imm & 0xFFFF,
        _ => unreachable!("not a scalar format"),
    }]
}

/// Scalar memory: base and data by their register codes.
pub(crate) fn smem(row: &OpInfo, data: u32, base: u32, soffset: u32, offset: i32) -> Vec<u32> {
    let op = opcode(row, Fmt::Smem).expect("a scalar memory row");
    vec![0xF400_0000 | op << 18 | data << 6 | base >> 1, offset as u32 & 0x1F_FFFF | soffset << 25]
}

/// LDS: address, two data and destination registers.
pub(crate) fn ds(row: &OpInfo, registers: [u32; 4], offset: u32) -> Vec<u32> {
    let op = opcode(row, Fmt::Ds).expect("an LDS row");
    let [address, data0, data1, dst] = registers;
    vec![0xD800_0000 | op << 18 | offset, address | data0 << 8 | data1 << 16 | dst << 24]
}

/// GLOBAL, FLAT or SCRATCH.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flat {
    pub address: u32,
    pub data: u32,
    pub dst: u32,
    pub saddr: u32,
    pub offset: i32,
    pub glc: bool,
    /// SCRATCH: there is a vector address.
    pub sve: bool,
}

impl Flat {
    pub(crate) fn encode(&self, row: &OpInfo) -> Vec<u32> {
        let fmt = row.columns[0].codes[0].fmt;
        let op = opcode(row, fmt).expect("a flat row");
        let segment = match fmt {
            Fmt::Flat => 0,
            Fmt::Scratch => 1,
            _ => 2,
        };
        let first =
            0xDC00_0000 | op << 18 | segment << 16 | u32::from(self.glc) << 14 | self.offset as u32 & 0x1FFF;
        let second =
            self.address | self.data << 8 | self.saddr << 16 | u32::from(self.sve) << 23 | self.dst << 24;
        vec![first, second]
    }
}

/// A buffer access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub address: u32,
    pub data: u32,
    /// First register of the resource.
    pub resource: u32,
    pub soffset: u32,
    pub offset: u32,
    pub glc: bool,
    pub offen: bool,
    pub idxen: bool,
    pub tfe: bool,
    /// MTBUF: the format.
    pub format: u32,
}

impl Buffer {
    pub(crate) fn encode(&self, row: &OpInfo) -> Vec<u32> {
        let first = u32::from(self.glc) << 14 | self.offset;
        let second = self.address
            | self.data << 8
            | self.resource >> 2 << 16
            | u32::from(self.tfe) << 21
            | u32::from(self.offen) << 22
            | u32::from(self.idxen) << 23
            | self.soffset << 24;
        let first = match opcode(row, Fmt::Mubuf) {
            Some(op) => 0xE000_0000 | op << 18 | first,
            None => mtbuf(row) | self.format << 19 | first,
        };
        vec![first, second]
    }
}

fn mtbuf(row: &OpInfo) -> u32 {
    0xE800_0000 | u32::from(row.columns[0].codes[0].opcode) << 15
}
