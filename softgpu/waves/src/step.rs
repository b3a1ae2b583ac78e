// SPDX-License-Identifier: MIT OR Apache-2.0
//! One predecoded instruction (or half of one): a handler and its resolved operands.
//!
//! INVARIANT: every row, scalar and target index in a `Step` was checked against the wave's shape by predecode.

use softgpu_isa::Op;

use crate::env::Env;
use crate::exception::Cause;
use crate::wave::Wave;

/// Executes one step. Calling one needs the CPU features of the level it was compiled for.
pub(crate) type Handler = unsafe fn(&mut Wave, &mut Env<'_>, &Step) -> Flow;

/// What the wave does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Flow {
    /// Continue with the next step.
    Next,
    /// Continue at `Step::target`.
    Jump,
    /// Continue at `Wave::pc`, which the handler set.
    Indirect,
    /// Wait for the workgroup.
    Barrier,
    /// Let the other waves of the workgroup run.
    Yield,
    /// The wave has ended.
    End,
    /// The wave stops; `Wave::cause` says why.
    Stop,
}

/// How a source is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Row `index`, unmodified.
    Vgpr,
    /// Row `index`, with modifiers.
    VgprMod,
    /// Scalar `index`, broadcast.
    Scalar,
    /// Scalar `index`, with modifiers.
    ScalarMod,
    /// `value` (modifiers already applied); 64-bit operands extend with zeros.
    #[default]
    Const,
    /// `value`; 64-bit operands extend with the sign.
    ConstSigned,
    /// 64-bit operand with `value` in its high dword.
    ConstHigh,
    /// f64 1/(2*pi).
    ConstInvTwoPi,
    /// SCC, VCCZ or EXECZ by `index` (see `SPECIAL_*`).
    Special,
}

pub(crate) const SPECIAL_VCCZ: u16 = 0;
pub(crate) const SPECIAL_EXECZ: u16 = 1;
pub(crate) const SPECIAL_SCC: u16 = 2;

/// Source modifier bits: what happens to a dword between register and operation.
pub(crate) mod mods {
    /// Negate bit 31.
    pub const NEG_HI: u8 = 1;
    /// Clear bit 31.
    pub const ABS_HI: u8 = 2;
    /// Negate bit 15.
    pub const NEG_LO: u8 = 4;
    /// Clear bit 15.
    pub const ABS_LO: u8 = 8;
    /// The low half is taken from the high half.
    pub const LO_FROM_HI: u8 = 16;
    /// The high half is taken from the low half.
    pub const HI_FROM_LO: u8 = 32;

    /// Applies modifiers to one dword.
    #[inline(always)]
    pub fn apply(m: u8, x: u32) -> u32 {
        let lo = if m & LO_FROM_HI != 0 { x >> 16 } else { x & 0xFFFF };
        let hi = if m & HI_FROM_LO != 0 { x << 16 } else { x & 0xFFFF_0000 };
        let mut clear = 0u32;
        let mut flip = 0u32;
        if m & ABS_HI != 0 {
            clear |= 1 << 31;
        }
        if m & ABS_LO != 0 {
            clear |= 1 << 15;
        }
        if m & NEG_HI != 0 {
            flip |= 1 << 31;
        }
        if m & NEG_LO != 0 {
            flip |= 1 << 15;
        }
        ((lo | hi) & !clear) ^ flip
    }
}

/// A resolved source operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct Src {
    pub kind: Kind,
    pub mods: u8,
    pub index: u16,
    pub value: u32,
}

impl Src {
    pub(crate) fn vgpr(row: usize) -> Src {
        Src { kind: Kind::Vgpr, mods: 0, index: row as u16, value: 0 }
    }
    pub(crate) fn constant(value: u32) -> Src {
        Src { kind: Kind::Const, mods: 0, index: 0, value }
    }
    pub(crate) fn is_vgpr(&self) -> bool {
        matches!(self.kind, Kind::Vgpr | Kind::VgprMod)
    }
}

/// Output modifier bits in `Step::out`.
pub(crate) const OUT_CLAMP: u8 = 1;
/// OMOD field position in `Step::out` (two bits: x2, x4, /2).
pub(crate) const OUT_OMOD_SHIFT: u8 = 1;
/// The 16-bit result goes to the high half.
pub(crate) const OUT_HIGH: u8 = 8;

/// One predecoded instruction.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Step {
    pub run: Handler,
    /// Address of the instruction.
    pub pc: u64,
    pub src: [Src; 3],
    /// Destination row (VALU, loads) or scalar index (SALU).
    pub dst: u16,
    /// Scalar index of a mask destination or mask source.
    pub sdst: u16,
    /// Immediate: simm16, memory offset or operation-specific constant.
    pub imm: i32,
    /// Step index of a direct branch.
    pub target: u32,
    /// Encoded instructions before this one in the program, for counting.
    pub ordinal: u32,
    /// Output modifiers.
    pub out: u8,
    /// Bytes of the instruction.
    pub size: u8,
    /// Operation-specific: GLC for memory, DPP masks and so on.
    pub flags: u16,
    /// The operation, where the step is all of it: an engine that knows it need not call `run`.
    pub op: Option<Op>,
}

const _: () = assert!(size_of::<Step>() == 64);

/// Memory step returns the old value (GLC on an atomic).
pub(crate) const FLAG_GLC: u16 = 1;
/// The address comes from a scalar pair in `src[2]`.
pub(crate) const FLAG_SADDR: u16 = 2;
/// There is a VGPR address.
pub(crate) const FLAG_VADDR: u16 = 4;
/// A move that copies inactive lanes as well.
pub(crate) const FLAG_ALL_LANES: u16 = 8;
/// The operation of a DPP instruction that may leave lanes alone: `imm` has the pattern below the flags of the step that
/// prepares it.
pub(crate) const FLAG_DPP_MASK: u16 = 1 << 15;

impl Step {
    pub(crate) fn next_pc(&self) -> u64 {
        self.pc.wrapping_add(u64::from(self.size))
    }
}

/// Stops the wave with `cause`.
#[cold]
pub(crate) fn stop(w: &mut Wave, cause: impl Into<Cause>) -> Flow {
    w.cause = Some(cause.into());
    Flow::Stop
}
