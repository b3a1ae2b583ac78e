// SPDX-License-Identifier: MIT OR Apache-2.0
//! A decoded instruction.
//!
//! INVARIANT: an [`Inst`] made by [`decode`](crate::decode) holds only operands its row in the table allows; register
//! tuples are named by their first register.

pub use crate::info::WaveSize;
use crate::table::Op;

/// How an instruction is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Enc {
    Sop1,
    Sop2,
    Sopk,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vop3,
    Vop3sd,
    Vop3p,
    Vinterp,
    Vopc,
    Vopd,
    Ds,
    Flat,
    Global,
    Scratch,
    Mubuf,
    Mtbuf,
}

/// A register, a constant or a special value. An operand of several registers is named by its first register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Operand {
    /// Nothing here.
    #[default]
    None,
    /// Vector register v0..v255.
    Vgpr(u8),
    /// Scalar register s0..s105.
    Sgpr(u8),
    /// VCC: its low half, or the pair, by the slot's width.
    Vcc,
    /// VCC's high half.
    VccHi,
    /// Trap-temporary register 0..=15.
    Ttmp(u8),
    /// Reads zero, discards writes.
    Null,
    /// M0.
    M0,
    /// EXEC: its low half, or the pair, by the slot's width.
    ExecLo,
    /// EXEC's high half.
    ExecHi,
    /// Inline integer -16..=64.
    Int(i32),
    /// Inline float by its encoding: 240..=248 = 0.5, -0.5, 1, -1, 2, -2, 4, -4, 1/(2 pi).
    Float(u8),
    /// The dword after the instruction.
    Literal(u32),
    /// LDS aperture base (high dword).
    SharedBase,
    /// LDS aperture limit.
    SharedLimit,
    /// Scratch aperture base.
    PrivateBase,
    /// Scratch aperture limit.
    PrivateLimit,
    /// 1 if VCC is zero.
    Vccz,
    /// 1 if EXEC is zero.
    Execz,
    /// SCC.
    Scc,
    /// LDS direct read.
    LdsDirect,
}

/// Lane selection of source 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dpp {
    /// One 9-bit pattern for the whole row of 16 lanes.
    Dpp16 {
        /// Pattern: quad_perm 0..=0xff, row_shl 0x101.., row_shr 0x111.., row_ror 0x121.., mirrors, share, xmask.
        ctrl: u16,
        /// Rows (of 16 lanes) that are written.
        row_mask: u8,
        /// Banks (of 4 lanes in each row) that are written.
        bank_mask: u8,
        /// Out-of-range source lanes read 0 instead of disabling the write.
        bound_ctrl: bool,
        /// Inactive source lanes are read.
        fi: bool,
    },
    /// A source lane for each of 8 lanes.
    Dpp8 {
        /// Source lane (0..=7) in the group, for each lane.
        sel: [u8; 8],
        /// Inactive source lanes are read.
        fi: bool,
    },
}

/// The Y half of a dual-issue instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Second {
    /// Operation.
    pub op: Op,
    /// Destination.
    pub dst: Operand,
    /// Sources as in [`Inst::src`].
    pub src: [Operand; 3],
}

/// A decoded instruction.
///
/// Source order is the assembler's: VOP2 carry-in and select mask are `src[2]`. Memory: `src[0]` address, `src[1]`
/// data, `src[2]` scalar address (DS: second data; MUBUF and MTBUF: resource, then `src[3]` scalar offset); SMEM:
/// `src[0]` base, `src[1]` offset register. Absent operands are `None`; FLAT-like addresses that are "off" are `None`
/// too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Inst {
    /// Operation.
    pub op: Op,
    /// Encoding.
    pub enc: Enc,
    /// Bytes, with literal or DPP dword: 4, 8 or 12.
    pub size: u8,
    /// Destination (of compares: the lane mask).
    pub dst: Operand,
    /// Carry-out lane mask.
    pub sdst: Operand,
    /// Sources.
    pub src: [Operand; 4],
    /// Negated sources, bit i = source i (VOP3P: low half).
    pub neg: u8,
    /// Sources whose sign is cleared (v_fma_mix: the bits also stand in `neg_hi`, their place in the encoding).
    pub abs: u8,
    /// VOP3P: sources whose high half is negated.
    pub neg_hi: u8,
    /// Half selection, bit i = source i (VOP3P: for the low result), bit 3 = destination.
    pub op_sel: u8,
    /// VOP3P: half selection for the high result.
    pub op_sel_hi: u8,
    /// Result is clamped (integers: saturated).
    pub clamp: bool,
    /// Output multiplier: 0 none, 1 *2, 2 *4, 3 /2.
    pub omod: u8,
    /// 16-bit immediate sign-extended, or memory offset in bytes (DS: offset0 | offset1 << 8; message number for
    /// s_sendmsg_rtn; VINTERP: the count of exports to wait for).
    pub imm: i32,
    /// Globally coherent (atomics: return the old value).
    pub glc: bool,
    /// System coherent.
    pub slc: bool,
    /// Device coherent.
    pub dlc: bool,
    /// DS: the operation is on the global data share. Compute kernels do not use it, but the encoding exists.
    pub gds: bool,
    /// MUBUF: the vector address holds an offset.
    pub offen: bool,
    /// MUBUF: the vector address holds an index.
    pub idxen: bool,
    /// MUBUF: a status dword follows the data.
    pub tfe: bool,
    /// MTBUF: the data format's number.
    pub format: u8,
    /// Lane selection of source 0.
    pub dpp: Option<Dpp>,
    /// The Y half of VOPD.
    pub second: Option<Second>,
}

impl Inst {
    /// An instruction of `op` without operands or modifiers.
    pub(crate) fn new(op: Op, enc: Enc, size: u8) -> Self {
        Self {
            op,
            enc,
            size,
            dst: Operand::None,
            sdst: Operand::None,
            src: [Operand::None; 4],
            neg: 0,
            abs: 0,
            neg_hi: 0,
            op_sel: 0,
            op_sel_hi: 0,
            clamp: false,
            omod: 0,
            imm: 0,
            glc: false,
            slc: false,
            dlc: false,
            gds: false,
            offen: false,
            idxen: false,
            tfe: false,
            format: 0,
            dpp: None,
            second: None,
        }
    }
}

/// Why words are not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The words end inside the instruction.
    #[error("Instruction needs {needed} dwords and only {available} are available")]
    Truncated {
        /// Dwords the instruction takes.
        needed: usize,
        /// Dwords given.
        available: usize,
    },
    /// No operation has this opcode, or an operand field holds what the operation does not allow.
    #[error("Illegal gfx11 instruction word {word:#010x}")]
    Illegal {
        /// First word.
        word: u32,
    },
    /// A graphics format; compute waves cannot execute it.
    #[error(
        "Instruction word {word:#010x} is of the graphics format {format}, which a compute wave cannot execute"
    )]
    NotCompute {
        /// First word.
        word: u32,
        /// Format's name.
        format: &'static str,
    },
}
