// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to memory that are emitted inline, and what is known of their addresses.
//!
//! INVARIANT: this module emits no code. [`super::vmem`] does, for the steps that [`transfer`] accepts.

use iced_x86::{MemoryOperand, Register};
use softgpu_isa::Op;

use super::asm::Label;
use super::steady::Steady;
use crate::mem::flags::FLAG_STRIDE64;
use crate::step::{FLAG_GLC, FLAG_SADDR, FLAG_VADDR, Kind, Step};

/// The memory that an access is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Lds,
}

/// An access that is emitted inline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub space: Space,
    pub store: bool,
    /// Dwords per lane in each part.
    pub dwords: usize,
    /// Byte offsets of the parts: one, or two of a two-address instruction.
    pub offsets: [i64; 2],
    pub parts: usize,
}

impl Transfer {
    /// Bytes from a lane's address to the end of its furthest part.
    pub(super) fn reach(&self) -> i64 {
        4 * self.dwords as i64 + self.offsets[..self.parts].iter().max().copied().unwrap_or_default()
    }
}

/// The subroutines that say whether a global range may be read, or written: start in RAX, end in RCX; carry set if not. RSI and
/// RDI become the start and the end of what may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checks {
    pub read: Label,
    pub write: Label,
}

fn shape(op: Op) -> Option<(Space, bool, usize, bool)> {
    use Space::{Global, Lds};
    Some(match op {
        Op::GLOBAL_LOAD_B32 => (Global, false, 1, false),
        Op::GLOBAL_LOAD_B64 => (Global, false, 2, false),
        Op::GLOBAL_LOAD_B128 => (Global, false, 4, false),
        Op::GLOBAL_STORE_B32 => (Global, true, 1, false),
        Op::GLOBAL_STORE_B64 => (Global, true, 2, false),
        Op::GLOBAL_STORE_B128 => (Global, true, 4, false),
        Op::DS_LOAD_B32 => (Lds, false, 1, false),
        Op::DS_LOAD_B64 => (Lds, false, 2, false),
        Op::DS_LOAD_B128 => (Lds, false, 4, false),
        Op::DS_STORE_B32 => (Lds, true, 1, false),
        Op::DS_STORE_B64 => (Lds, true, 2, false),
        Op::DS_STORE_B128 => (Lds, true, 4, false),
        Op::DS_LOAD_2ADDR_B32 | Op::DS_LOAD_2ADDR_STRIDE64_B32 => (Lds, false, 1, true),
        Op::DS_LOAD_2ADDR_B64 | Op::DS_LOAD_2ADDR_STRIDE64_B64 => (Lds, false, 2, true),
        Op::DS_STORE_2ADDR_B32 | Op::DS_STORE_2ADDR_STRIDE64_B32 => (Lds, true, 1, true),
        Op::DS_STORE_2ADDR_B64 | Op::DS_STORE_2ADDR_STRIDE64_B64 => (Lds, true, 2, true),
        _ => return None,
    })
}

/// How `step` is done inline in a wave of so many halves, if it is.
pub(super) fn transfer(step: &Step, halves: usize) -> Option<Transfer> {
    let (space, store, dwords, two) = shape(step.op?)?;
    let known = FLAG_GLC | FLAG_SADDR | FLAG_VADDR | if two { FLAG_STRIDE64 } else { 0 };
    if step.flags & !known != 0 || (store && step.src[1].kind != Kind::Vgpr) {
        return None;
    }
    if store && two && (halves > 1 || step.src[2].kind != Kind::Vgpr) {
        // In wave64 the store does one half after the other, each to both addresses.
        return None;
    }
    match space {
        Space::Global if step.flags & (FLAG_SADDR | FLAG_VADDR) == 0 => return None,
        Space::Global if store && step.flags & FLAG_VADDR == 0 => return None,
        Space::Lds if step.src[0].kind != Kind::Vgpr => return None,
        _ => {}
    }
    let offsets = if two {
        let unit = 4 * dwords as i64 * if step.flags & FLAG_STRIDE64 != 0 { 64 } else { 1 };
        let imm = i64::from(step.imm);
        [(imm & 0xFF) * unit, (imm >> 8 & 0xFF) * unit]
    } else if space == Space::Lds {
        [i64::from(step.imm) & 0xFFFF, 0]
    } else {
        [i64::from(step.imm), 0]
    };
    Some(Transfer { space, store, dwords, offsets, parts: if two { 2 } else { 1 } })
}

pub(super) fn address_dwords(step: &Step, t: &Transfer) -> usize {
    match t.space {
        Space::Lds => 1,
        Space::Global => match step.flags & (FLAG_SADDR | FLAG_VADDR) {
            FLAG_VADDR => 2,
            FLAG_SADDR => 0,
            _ => 1,
        },
    }
}

/// Memory at a sum of registers.
pub(super) fn at(base: Register, index: Register, scale: u32, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(base, index, scale, displacement, 1, false, Register::None)
}

/// The lowest 128 bits of a vector register.
pub(super) fn low128(r: Register) -> Register {
    let first = if r as u32 >= Register::ZMM0 as u32 { Register::ZMM0 } else { Register::YMM0 };
    Register::XMM0 + (r as u32 - first as u32)
}

/// What is known of the addresses in a piece of a register: computed once for all accesses through the register.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Known {
    /// Of the first lane: within the address space, or the low dword (of an offset to a scalar base).
    pub first: u64,
    /// Bytes from the first lane to the last. Where lanes have no common distance, more than any range has.
    pub span: u64,
    /// Bytes from lane to lane; the same as `span` for scattered lanes.
    pub stride: u64,
}

/// Pieces of address registers that can be known at a time; in unit tests so few that small programs run out of them.
pub(super) const KNOWN: usize = if cfg!(test) { 8 } else { 128 };

/// The kind of values in an address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kept {
    /// Offsets into LDS.
    Lds,
    /// Offsets to a scalar base.
    Offset,
    /// Together with the next register, addresses.
    Pair,
}

impl Kept {
    /// The kind of values in the address register of an access that has one.
    pub(super) fn of(step: &Step, t: &Transfer) -> Kept {
        match (t.space, address_dwords(step, t)) {
            (Space::Lds, _) => Kept::Lds,
            (Space::Global, 2) => Kept::Pair,
            (Space::Global, _) => Kept::Offset,
        }
    }
}

/// An address register that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    /// Its first row.
    pub row: u16,
    pub kept: Kept,
    /// Whether only first lanes were computed, for accesses whose pattern is known before.
    pub only_first: bool,
    /// Where that is kept.
    pub index: usize,
}

/// The address registers that are known at a place in a region.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    pub rows: Vec<Address>,
    pub next: usize,
}

impl Addresses {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.next = 0;
    }

    /// Forgets what is known of registers in `rows`.
    pub(super) fn forget(&mut self, rows: std::ops::Range<usize>, halves: usize) {
        self.rows.retain(|known| {
            let row = known.row as usize;
            let end = row + halves * if known.kept == Kept::Pair { 2 } else { 1 };
            end <= rows.start || rows.end <= row
        });
    }
}

/// Where a piece of an address register is while code out of line runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offsets {
    Register(Register),
    Memory(MemoryOperand),
}

/// Lanes that have no common distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scattered {
    /// The address register's piece.
    pub offsets: Offsets,
    /// What has to be subtracted from it; nothing in LDS.
    pub least: Option<MemoryOperand>,
}

/// Code for rare patterns, emitted out of line; its registers were reserved at the jump to it.
#[derive(Debug)]
pub(super) enum Outlined {
    /// A range, from RAX to RCX, that is not where the last one of this access was: `slow` unless it is allowed. `place` is where
    /// that is kept, behind RDX.
    Elsewhere { label: Label, done: Label, slow: Label, check: Label, place: MemoryOperand },
    /// Lanes without a common distance: `slow` unless each of them, plus `bytes`, lies in LDS.
    Check { label: Label, done: Label, slow: Label, bytes: i64, offsets: Offsets, spare: [Register; 2] },
    /// High halves that are not the same in all lanes: `spare` are overwritten.
    HighHalves { label: Label, done: Label, row: Steady, spare: [u8; 2] },
    /// Lanes at a distance that is neither zero nor their size, from RAX plus `offset` on; or anywhere in LDS.
    Apart {
        label: Label,
        done: Label,
        t: Transfer,
        rows: Vec<Register>,
        spare: [Register; 4],
        stride: MemoryOperand,
        offset: i64,
        /// If the lanes may be anywhere.
        offsets: Option<Scattered>,
    },
}
