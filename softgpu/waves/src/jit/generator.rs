// SPDX-License-Identifier: MIT OR Apache-2.0
//! Emits lane-wise operations piece by piece: operands into registers, results under EXEC.
//!
//! INVARIANT: between two regions all registers of the wave are in memory; within a region, a row piece is in memory or
//! in a register that the register file tracks. An operation reads all its sources before its last instruction writes
//! its destination.

use iced_x86::{Code, MemoryOperand, Register};
use smallvec::SmallVec;

use super::analysis::Facts;
use super::asm::{Arg, Asm, RENAMED, ROW_BIAS, ROWS, memory};
use super::codes::Codes;
use super::lane_masks::LaneMasks;
use super::masks::Gathered;
use super::regs::{NEVER, Piece, Regs, Spill};
use super::steady::Steady;
use super::transcend::Shared;
use super::transfer::{Addresses, Outlined};
use crate::predecode::Shape;
use crate::step::Step;
use crate::wave::PREDECODE_VGPRS;

/// Host vectors: 16 lanes in AVX-512, 8 in AVX2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    Z,
    Y,
}

impl Wide {
    /// Lanes of a register.
    pub(super) fn lanes(self) -> usize {
        match self {
            Wide::Z => 16,
            Wide::Y => 8,
        }
    }

    /// Registers for values. AVX2 keeps the last one for the mask.
    pub(super) fn registers(self) -> usize {
        match self {
            Wide::Z => 32,
            Wide::Y => 15,
        }
    }
}

/// Mask of the piece being emitted, AVX2.
pub(super) const MASK: Register = Register::YMM15;
/// One access of an operation to a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub piece: Piece,
    /// Whether the access needs no old value.
    pub overwrites: bool,
}

/// Those of one operation; most have few.
pub(super) type Accesses = SmallVec<[Access; 6]>;

/// The same, each with the position of the next access to its piece, and whether that overwrites it.
pub(super) type NextAccesses = SmallVec<[(Access, u32, bool); 6]>;

/// Emits a step for one piece.
pub(super) type Emit = fn(&mut Gen, &Step, usize);

/// The emitter of one program.
pub(super) struct Gen {
    pub asm: Asm,
    pub regs: Regs,
    pub wide: Wide,
    pub shape: Shape,
    /// Whether results are masked by EXEC.
    pub masked: bool,
    /// Whether pieces stay in their registers.
    pub resident: bool,
    /// Whether registers are renamed: what is not read again of those is not kept. Sources may stay in memory.
    pub has_renamed: bool,
    /// What is known before the program runs, at this point of the code; only where all lanes are active.
    pub facts: Option<Facts>,
    /// The address registers about which something is known at this point of the code.
    pub addresses: Addresses,
    /// The rows of which the first lane is known.
    pub steady: Vec<Steady>,
    /// What [`GATHERED`](super::asm::GATHERED) has (AVX2).
    pub gathered: Option<Gathered>,
    /// What the context has of lane masks (AVX2).
    pub lane_masks: LaneMasks,
    /// Functions that are called.
    pub shared: Vec<Shared>,
    /// Accesses whose ranges are checked.
    pub checked: usize,
    /// Rare patterns that are emitted out of line.
    pub outlined: Vec<Outlined>,
    /// No register was free for an operation: the code must not be used.
    pub exhausted: bool,
}

impl Gen {
    pub(super) fn new(wide: Wide, shape: Shape) -> Gen {
        let regs = Regs::new(wide.registers());
        Gen {
            asm: Asm::new(),
            regs,
            wide,
            shape,
            masked: false,
            resident: false,
            has_renamed: false,
            facts: None,
            addresses: Addresses::default(),
            steady: Vec::new(),
            gathered: None,
            lane_masks: LaneMasks::default(),
            shared: Vec::new(),
            checked: 0,
            outlined: Vec::new(),
            exhausted: false,
        }
    }

    /// Pieces of one row of 32 lanes.
    pub(super) fn per_row(&self) -> usize {
        32 / self.wide.lanes()
    }

    /// Pieces of one VGPR.
    pub(super) fn pieces(&self) -> usize {
        self.per_row() * self.shape.halves
    }

    /// Piece `c` of the VGPR whose first row is `row`, `dword` registers further.
    pub(super) fn piece(&self, row: u16, dword: usize, c: usize) -> Piece {
        let row = row as usize + dword * self.shape.halves + c / self.per_row();
        (row * self.per_row() + c % self.per_row()) as Piece
    }

    pub(super) fn place(&self, piece: Piece) -> MemoryOperand {
        let bytes = self.wide.lanes() as i64 * 4;
        match (piece as usize).checked_sub(self.first_renamed()) {
            Some(n) => memory(RENAMED, n as i64 * bytes, false),
            None => memory(ROWS, i64::from(piece) * bytes - ROW_BIAS, false),
        }
    }

    /// The first piece that is not the wave's own.
    pub(super) fn first_renamed(&self) -> usize {
        (self.shape.vgprs + PREDECODE_VGPRS) * self.pieces()
    }

    pub(super) fn vector(&self, n: u8) -> Register {
        match self.wide {
            Wide::Z => Register::ZMM0 + u32::from(n),
            Wide::Y => Register::YMM0 + u32::from(n),
        }
    }

    pub(super) fn pick(&self, codes: Codes) -> Code {
        match self.wide {
            Wide::Z => codes.z,
            Wide::Y => codes.y,
        }
    }

    /// An instruction of two operands, of either width.
    pub(super) fn op2(&mut self, codes: Codes, a: impl Into<Arg>, b: impl Into<Arg>) {
        let code = self.pick(codes);
        self.asm.op2(code, a, b);
    }

    /// An instruction of three operands, of either width.
    pub(super) fn op3(&mut self, codes: Codes, a: impl Into<Arg>, b: impl Into<Arg>, c: impl Into<Arg>) {
        let code = self.pick(codes);
        self.asm.op3(code, a, b, c);
    }

    pub(super) fn store(&mut self, spill: Spill) {
        let (place, register) = (self.place(spill.piece), self.vector(spill.register));
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vmovdqa32_zmmm512_k1z_zmm,
            Wide::Y => Code::VEX_Vmovdqa_ymmm256_ymm,
        };
        self.asm.op2(code, place, register);
    }

    pub(super) fn load(&mut self, n: u8, piece: Piece) {
        let (place, register) = (self.place(piece), self.vector(n));
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vmovdqa32_zmm_k1z_zmmm512,
            Wide::Y => Code::VEX_Vmovdqa_ymm_ymmm256,
        };
        self.asm.op2(code, register, place);
    }

    /// A register for an intermediate result.
    pub(super) fn temporary(&mut self) -> Register {
        let n = self.taken(Regs::take_temporary);
        self.vector(n)
    }

    pub(super) fn hold(&mut self, piece: Piece) -> u8 {
        self.taken(|regs| regs.take_piece(piece))
    }

    /// The register that `take` takes; what was in it is stored if need be.
    pub(super) fn taken(&mut self, take: impl FnOnce(&mut Regs) -> Option<(u8, Option<Spill>)>) -> u8 {
        match take(&mut self.regs) {
            Some((n, spill)) => {
                if let Some(spill) = spill {
                    self.store(spill);
                }
                n
            }
            None => {
                self.exhausted = true;
                0
            }
        }
    }

    /// The register with `piece`, loaded if need be.
    pub(super) fn piece_register(&mut self, piece: Piece) -> Register {
        if let Some(n) = self.regs.find(piece) {
            self.regs.pin(n);
            return self.vector(n);
        }
        let n = self.hold(piece);
        self.load(n, piece);
        self.vector(n)
    }

    /// Ends one operation at its position: notes when its pieces are needed next.
    pub(super) fn end_operation(&mut self, accesses: &[(Access, u32, bool)]) {
        self.regs.end_operation();
        for &(access, next, overwrites) in accesses {
            self.regs.set_next(access.piece, next, overwrites);
            if next == NEVER && access.piece as usize >= self.first_renamed() {
                self.forget_piece(access.piece);
            }
        }
    }

    /// The number of row pieces of the whole wave.
    pub(super) fn all_pieces(&self) -> usize {
        (self.shape.vgprs + crate::wave::SPARE_VGPRS) * self.pieces()
    }

    /// Loads pieces that stay in registers; those in `written` count as newer than memory.
    pub(super) fn hold_all(&mut self, pieces: &[Access], written: &[Piece]) {
        for access in pieces {
            let n = self.hold(access.piece);
            self.load(n, access.piece);
            if written.contains(&access.piece) {
                self.regs.set_dirty(n);
            }
            self.regs.end_operation();
            self.regs.set_next(access.piece, 0, false);
        }
    }

    /// Loads registers from memory.
    pub(super) fn load_all(&mut self, held: &[Spill]) {
        for &spill in held {
            self.load(spill.register, spill.piece);
        }
    }

    /// Stores registers without forgetting anything.
    pub(super) fn store_all(&mut self, spills: &[Spill]) {
        for &spill in spills {
            self.store(spill);
        }
    }

    /// Nothing reads what rows have, wherever that is.
    pub(super) fn forget_rows(&mut self) {
        self.steady.clear();
        self.regs.clear();
    }

    /// Stores every register that is newer than memory, and forgets the pieces if `forget`; then rows of which only the first
    /// lane is known, too.
    pub(super) fn write_back(&mut self, forget: bool) {
        for spill in self.regs.write_back() {
            self.store(spill);
        }
        if forget {
            self.end_steady();
            self.regs.clear();
        }
    }
}

/// For every access of a list of operations: when its piece is accessed next, and whether that overwrites it before an
/// operation at which the run may be left.
pub(super) fn next_accesses(
    list: &[Accesses],
    pieces: usize,
    leaves: impl Fn(usize) -> bool,
) -> Vec<NextAccesses> {
    let mut seen = vec![(NEVER, false); pieces];
    let mut result: Vec<NextAccesses> = Vec::with_capacity(list.len());
    for (position, accesses) in list.iter().enumerate().rev() {
        result.push(
            accesses
                .iter()
                .map(|&a| {
                    let (next, overwrites) = seen[a.piece as usize];
                    (a, next, overwrites)
                })
                .collect(),
        );
        if leaves(position) {
            seen.iter_mut().for_each(|(_, overwrites)| *overwrites = false);
        }
        // An operation that reads and writes the same piece needs the old value.
        for a in accesses.iter().filter(|a| a.overwrites).chain(accesses.iter().filter(|a| !a.overwrites)) {
            seen[a.piece as usize] = (position as u32, a.overwrites);
        }
    }
    result.reverse();
    result
}
