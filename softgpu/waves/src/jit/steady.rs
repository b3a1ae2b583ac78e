// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of which only the first lane has been computed; the other lanes are where something needs them.
//!
//! INVARIANT: a row that is pending is in no register, and memory has an older value. There are such rows only within a variant
//! of a region for all lanes, and within a run of several turns; where it ends, or calls a handler, they are stored.

use iced_x86::{Code, MemoryOperand, Register};

use super::asm::context;
use super::codes;
use super::context::JitContext;
use super::generator::{Access, Gen, Wide};
use super::integer::LESS;
use super::progressions::span;
use super::regs::{Piece, Regs, Spill};
use super::scalar::A;
use super::transfer::{Kept, Outlined};
use crate::step::Step;

/// First lanes that are kept at a time; in unit tests so few that small programs run out of them.
pub(super) const FIRSTS: usize = if cfg!(test) { 3 } else { 64 };

/// A row of which the first lane is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    row: u16,
    /// Where the first lane is kept: 64 bits.
    pub slot: usize,
    stride: u32,
    /// Whether it is the high half of what is kept.
    pub is_high: bool,
    /// Whether it is all that is kept: the upper half is zero.
    pub is_word: bool,
    /// The pieces that have not been computed, as bits.
    pending: u8,
    /// Whether some pieces have been overwritten.
    is_over: bool,
}

/// Where a first lane is kept, or its high half.
pub(super) fn slot_place(slot: usize, is_high: bool) -> MemoryOperand {
    context(std::mem::offset_of!(JitContext, firsts) + 8 * slot + if is_high { 4 } else { 0 })
}

impl Gen {
    /// The rows that have pieces to be computed.
    pub(super) fn pending(&self) -> Vec<Steady> {
        self.steady.iter().filter(|s| s.pending != 0).copied().collect()
    }

    /// What is known of a row, if all of its lanes are so.
    pub(super) fn steady_row(&self, row: u16) -> Option<&Steady> {
        self.steady.iter().find(|s| s.row == row && !s.is_over)
    }

    /// What is known of a row's first lane. If its piece is pending, it is nowhere else.
    pub(super) fn first_of_row(&self, row: u16) -> Option<&Steady> {
        self.steady.iter().find(|s| s.row == row && (!s.is_over || s.pending & 1 != 0))
    }

    /// Where the first lane's address of an access is, if it is kept: 64 bits.
    pub(super) fn kept_address(&self, s: &Step, kept: Kept) -> Option<MemoryOperand> {
        let row = s.src[0].index;
        let low = self.steady_row(row).filter(|low| !low.is_high)?;
        match kept {
            Kept::Pair => {
                self.steady_row(row + 1).filter(|high| high.is_high && high.slot == low.slot)?;
            }
            Kept::Lds | Kept::Offset => {
                Some(low).filter(|low| low.is_word)?;
            }
        }
        Some(slot_place(low.slot, false))
    }

    /// Computes piece `c` of a row; `spare` is overwritten.
    fn lanes_of_first(&mut self, row: &Steady, to: Register, spare: Register, c: usize) {
        let (low, high) = (slot_place(row.slot, false), slot_place(row.slot, true));
        let first = (c * self.wide.lanes()) as u32;
        if row.stride == 0 {
            return self.broadcast(to, if row.is_high { high } else { low });
        }
        self.broadcast(to, low);
        let distances = self.constants_argument(|lane| row.stride * (first + lane as u32));
        if !row.is_high {
            return self.op3(codes::ADD, to, to, distances);
        }
        // One more where the low half is beyond its first lane's next multiple of 2 to the power of 32.
        self.op3(codes::ADD, spare, to, distances);
        let minus_one = self.constant_argument(u32::MAX);
        match self.wide {
            Wide::Z => {
                let code = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
                self.asm.op4(code, Register::K5, spare, to, LESS);
                self.broadcast(to, high);
                self.asm.masked(codes::SUB.z, Register::K5, &[to.into(), to.into(), minus_one]);
            }
            Wide::Y => {
                self.op3(codes::MAX_U, to, to, spare);
                self.asm.op3(codes::EQUAL_Y, spare, spare, to);
                self.broadcast(to, high);
                self.op3(codes::SUB, to, to, minus_one);
                self.op3(codes::ADD, to, to, spare);
            }
        }
    }

    /// Stores the pieces of rows that are pending; both registers are overwritten.
    pub(super) fn store_pending(&mut self, rows: &[Steady], [to, spare]: [u8; 2]) {
        for row in rows {
            for c in (0..self.pieces()).filter(|c| row.pending >> c & 1 != 0) {
                let (register, spare) = (self.vector(to), self.vector(spare));
                self.lanes_of_first(row, register, spare, c);
                let piece = self.piece(row.row, 0, c);
                self.store(Spill { register: to, piece });
            }
        }
    }

    /// The same; high halves that are not the same in all lanes out of line.
    fn store_pending_here(&mut self, rows: &[Steady], spare: [u8; 2]) {
        let (high, low): (Vec<Steady>, Vec<Steady>) =
            rows.iter().partition(|row| row.is_high && row.stride != 0);
        self.store_pending(&low, spare);
        for row in high {
            let (label, done) = (self.asm.label(), self.asm.label());
            self.asm.op2(Code::Mov_r32_rm32, A, slot_place(row.slot, false));
            self.asm.op2(Code::Add_rm32_imm32, A, span(row.stride) as i32);
            self.asm.jump(Code::Jb_rel32_64, label);
            self.store_pending(&[Steady { stride: 0, ..row }], spare);
            self.asm.place(done);
            self.outlined.push(Outlined::HighHalves { label, done, row, spare });
        }
    }

    /// Stores all rows that are pending, and forgets all first lanes. Every register may be evicted.
    pub(super) fn end_steady(&mut self) {
        let rows = self.pending();
        self.store_now(&rows);
        self.steady.clear();
    }

    fn store_now(&mut self, rows: &[Steady]) {
        if !rows.is_empty() {
            let spare = [(); 2].map(|()| self.taken(Regs::take_temporary));
            self.store_pending_here(rows, spare);
            self.regs.end_operation();
        }
    }

    /// Computes the pieces that an operation reads, but for those of registers in `except`.
    pub(super) fn settle(&mut self, accesses: &[(Access, u32, bool)], except: std::ops::Range<u16>) {
        if self.steady.is_empty() {
            return;
        }
        for (access, ..) in accesses.iter().filter(|(a, ..)| !a.overwrites) {
            let (row, c) = self.row_of(access.piece);
            if except.contains(&row) {
                continue;
            }
            let Some(at) = self.steady.iter().position(|s| s.row == row && s.pending >> c & 1 != 0) else {
                continue;
            };
            let steady = self.steady[at];
            let n = self.hold(access.piece);
            let (to, spare) = (self.vector(n), self.temporary());
            self.lanes_of_first(&steady, to, spare, c);
            self.regs.set_dirty(n);
            self.regs.end_operation();
            self.regs.set_next(access.piece, 0, false);
            self.steady[at].pending &= !(1 << c);
        }
    }

    /// An operation has written these pieces, and maybe others of these rows.
    pub(super) fn overwritten(&mut self, accesses: &[(Access, u32, bool)], rows: impl FnOnce() -> Vec<u16>) {
        if self.steady.is_empty() {
            return;
        }
        for (access, ..) in accesses.iter().filter(|(a, ..)| a.overwrites) {
            let (row, c) = self.row_of(access.piece);
            for s in self.steady.iter_mut().filter(|s| s.row == row) {
                s.pending &= !(1 << c);
            }
        }
        let rows = rows();
        for s in self.steady.iter_mut().filter(|s| rows.contains(&s.row)) {
            s.is_over = true;
        }
        self.steady.retain(|s| s.pending != 0 || !s.is_over);
    }

    /// Nothing needs a piece any more, not even at the end.
    pub(super) fn forget_piece(&mut self, piece: Piece) {
        self.regs.drop_piece(piece);
        let (row, c) = self.row_of(piece);
        for s in self.steady.iter_mut().filter(|s| s.row == row) {
            (s.pending, s.is_over) = (s.pending & !(1 << c), true);
        }
        self.steady.retain(|s| s.pending != 0 || !s.is_over);
    }

    /// The row and the number of a piece in a wave of 32 lanes.
    fn row_of(&self, piece: Piece) -> (u16, usize) {
        let pieces = self.pieces();
        ((piece as usize / pieces) as u16, piece as usize % pieces)
    }

    /// A place for a first lane that no row needs.
    pub(super) fn free_slot(&mut self) -> usize {
        if let Some(free) = (0..FIRSTS).find(|&k| self.steady.iter().all(|s| s.slot != k)) {
            return free;
        }
        let slot = self.steady.iter().find(|s| s.pending == 0).or(self.steady.first()).map_or(0, |s| s.slot);
        let mut pending = self.pending();
        pending.retain(|s| s.slot == slot);
        self.store_now(&pending);
        self.steady.retain(|s| s.slot != slot);
        slot
    }

    /// A row becomes one of which the first lane is known.
    pub(super) fn becomes_steady(
        &mut self,
        row: u16,
        slot: usize,
        stride: u32,
        is_high: bool,
        is_word: bool,
    ) {
        self.steady.retain(|s| s.row != row);
        for c in 0..self.pieces() {
            let piece = self.piece(row, 0, c);
            self.regs.drop_piece(piece);
        }
        let pending = (1 << self.pieces()) - 1;
        self.steady.push(Steady { row, slot, stride, is_high, is_word, pending, is_over: false });
    }
}
