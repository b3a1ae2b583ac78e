// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline global and LDS accesses for the commonest patterns of lanes (all lanes active).
//!
//! INVARIANT: generated code accesses memory only after a check that the whole access is allowed. The handler does
//! every other pattern and every access that the check refuses; it checks again. All checks of an access come before the
//! first lane is moved, so that the handler finds what it would have found without them.

mod address;
mod lanes;
mod narrow;
mod wide;

use iced_x86::{Code, MemoryOperand, Register};

use super::asm::{HOT, Label, Sum, context, memory};
use super::codes;
use super::context::JitContext;
use super::generator::{Access, Accesses, Gen, Wide};
use super::regs::Spill;
use super::transfer::{Checks, Offsets, Outlined, Scattered, Space, Transfer, address_dwords, at};
use crate::env::Hot;
use crate::step::Step;

use address::{Pattern, TOO_FAR_BIT, places};

/// The VGPR pieces that the access reads and writes.
pub(super) fn accesses(g: &Gen, step: &Step, t: &Transfer, masked: bool) -> Accesses {
    let mut list = Accesses::new();
    for c in 0..g.pieces() {
        for d in 0..address_dwords(step, t) {
            list.push(Access { piece: g.piece(step.src[0].index, d, c), overwrites: false });
        }
        for part in 0..t.parts {
            for d in 0..t.dwords {
                let (row, d) = match t.store {
                    true => (step.src[1 + part].index, d),
                    false => (step.dst, part * t.dwords + d),
                };
                list.push(Access { piece: g.piece(row, d, c), overwrites: !t.store && !masked });
            }
        }
    }
    list
}

/// The pieces that a load writes for piece `c`.
pub(super) fn loaded(g: &Gen, step: &Step, t: &Transfer, c: usize) -> Accesses {
    let dwords = 0..t.parts * t.dwords;
    dwords.map(|d| Access { piece: g.piece(step.dst, d, c), overwrites: true }).collect()
}

/// Whether the lanes of an access may be anywhere; the handler does what may not.
fn may_scatter(g: &Gen, s: &Step, t: &Transfer) -> bool {
    match (t.space, t.store) {
        // Whole lanes of several dwords are written in their order.
        (Space::Lds, true) => t.dwords == 1,
        // The first part would overwrite the second one's offsets.
        (Space::Lds, false) => t.parts == 1 || !overlaps(g, s, t),
        (Space::Global, store) => !store,
    }
}

/// Whether a load overwrites its own address.
fn overlaps(g: &Gen, s: &Step, t: &Transfer) -> bool {
    let halves = g.shape.halves;
    let rows = |first: u16, n: usize| first as usize..first as usize + n * halves;
    let (a, d) = (rows(s.src[0].index, address_dwords(s, t)), rows(s.dst, t.dwords * t.parts));
    !t.store && a.start < d.end && d.start < a.end
}

impl Gen {
    /// Emits the access; `slow` is the place where the handler is called. Returns what has to be stored before that
    /// call.
    pub(super) fn transfer(&mut self, s: &Step, t: &Transfer, checks: &Checks, slow: Label) -> Vec<Spill> {
        let pattern = self.pattern(s, t);
        let dirty = self.check(s, t, checks, slow);
        let pieces = self.different_pieces(s, t);
        for part in 0..t.parts {
            for c in 0..pieces {
                self.move_piece(s, t, pattern, part, c);
                self.regs.end_operation();
            }
        }
        for c in pieces..self.pieces() {
            for d in 0..t.parts * t.dwords {
                let from = self.piece_register(self.piece(s.dst, d, c - pieces));
                self.finish(codes::MOVE, s.dst, d, c, &[from.into()]);
                self.regs.end_operation();
            }
        }
        if !t.store {
            let (row, halves) = (s.dst as usize, self.shape.halves);
            self.addresses.forget(row..row + t.dwords * t.parts * halves, halves);
        }
        dirty
    }

    /// From which piece on an access gives lanes what it gave the first half (wave32): they have the same addresses in LDS.
    pub(super) fn different_pieces(&self, s: &Step, t: &Transfer) -> usize {
        let is_load = self.shape.halves == 1 && !t.store && t.space == Space::Lds;
        let facts = self.facts.as_ref().filter(|_| is_load);
        let repeats = facts.is_some_and(|facts| facts.of(s.src[0].index).repeats);
        if repeats { self.pieces() / 2 } else { self.pieces() }
    }

    /// Loads piece `c`, which has been checked, and of whose address is known what was then.
    pub(super) fn load_piece(&mut self, s: &Step, t: &Transfer, c: usize) {
        let pattern = self.pattern(s, t);
        for part in 0..t.parts {
            self.move_piece(s, t, pattern, part, c);
            self.regs.end_operation();
        }
    }

    /// Checks the access; to `slow` if it is not allowed. Returns what has to be stored before the handler is called there.
    pub(super) fn check(&mut self, s: &Step, t: &Transfer, checks: &Checks, slow: Label) -> Vec<Spill> {
        let pattern = self.pattern(s, t);
        if address_dwords(s, t) > 0 && self.first_place(s, t, 0).is_none() {
            self.known(s, t, 0);
        }
        // No register changes its piece between the jumps to `slow`, so all of them need the same stores.
        let spare = [self.temporary(), self.temporary()];
        let dirty = self.regs.dirty();
        for c in 0..self.pieces() {
            let is_done = c % self.per_row() != 0 && pattern.is_some_and(|p| p.whole_row);
            match t.space {
                _ if is_done => {}
                Space::Global => self.check_global(s, t, c, pattern, checks, slow),
                Space::Lds => self.check_lds(s, t, c, pattern, spare, slow),
            }
        }
        self.regs.end_operation();
        dirty
    }

    fn move_piece(&mut self, s: &Step, t: &Transfer, pattern: Option<Pattern>, part: usize, c: usize) {
        let is_scattered = pattern.is_none() && address_dwords(s, t) > 0 && may_scatter(self, s, t);
        let offsets = is_scattered.then(|| {
            let least = (t.space == Space::Global).then(|| places(self.known(s, t, c)).0);
            Scattered { offsets: self.offsets(s, c), least }
        });
        let rows: Vec<Register> = match t.store {
            true => (0..t.dwords).map(|d| self.source(&s.src[1 + part], d, c)).collect(),
            false => (0..t.dwords).map(|d| self.destination(s.dst, part * t.dwords + d, c, false)).collect(),
        };
        let offset = t.offsets[part];
        match (address_dwords(s, t), pattern) {
            (0, _) => {
                self.start(s, t, c);
                self.broadcast_dwords(&rows, at(Register::RAX, Register::None, 1, offset));
            }
            (_, Some(pattern)) => {
                let within = if pattern.whole_row { c % self.per_row() } else { 0 };
                self.start(s, t, c - within);
                let further = pattern.stride * (within * self.wide.lanes()) as i64;
                self.by_pattern(t, &rows, pattern, offset + further);
            }
            (_, None) => {
                self.start(s, t, c);
                let (_, _, stride) = places(self.known(s, t, c));
                self.by_stride(t, &rows, stride, offset, offsets);
            }
        }
    }

    /// RAX = the address of the first lane of piece `c`, without the access's offset.
    fn start(&mut self, s: &Step, t: &Transfer, c: usize) {
        let addresses = address_dwords(s, t);
        let from = match addresses {
            // One address for all lanes.
            0 => self.scalar(s.src[2].index),
            _ => self.first_place(s, t, c).unwrap_or_else(|| places(self.known(s, t, c)).0),
        };
        let plus = match t.space {
            Space::Lds => Some(context(std::mem::offset_of!(JitContext, lds))),
            Space::Global if addresses == 1 => Some(self.scalar(s.src[2].index)),
            Space::Global => None,
        };
        let place = |m: MemoryOperand| (m.base, m.displacement);
        let (base, displacement) = place(from);
        let sum = Sum { base, displacement, plus: plus.map(place) };
        if self.asm.has_address(sum) {
            return;
        }
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, from);
        if let Some(plus) = plus {
            self.asm.op2(Code::Add_r64_rm64, Register::RAX, plus);
        }
        self.asm.set_address(sum);
    }

    /// The lanes that are checked together.
    fn checked_lanes(&self, pattern: Pattern) -> usize {
        if pattern.whole_row { 32 } else { self.wide.lanes() }
    }

    /// To `slow` unless the lanes of piece `c` may be accessed.
    fn check_global(
        &mut self,
        s: &Step,
        t: &Transfer,
        c: usize,
        pattern: Option<Pattern>,
        checks: &Checks,
        slow: Label,
    ) {
        let addresses = address_dwords(s, t);
        if addresses == 0 && c > 0 {
            return;
        }
        let (bytes, offset) = (4 * t.dwords as i64, t.offsets[0]);
        self.start(s, t, c);
        if offset != 0 {
            self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
        }
        match pattern {
            _ if addresses == 0 => {
                self.asm.op2(Code::Lea_r64_m, Register::RCX, at(Register::RAX, Register::None, 1, bytes));
            }
            Some(pattern) => {
                let end = pattern.span(self.checked_lanes(pattern)) + bytes;
                self.asm.op2(Code::Lea_r64_m, Register::RCX, at(Register::RAX, Register::None, 1, end));
            }
            None => {
                let (_, span, stride) = places(self.known(s, t, c));
                self.asm.op2(Code::Mov_r64_rm64, Register::RCX, span);
                self.asm.op2(Code::Lea_r64_m, Register::RCX, at(Register::RCX, Register::RAX, 1, bytes));
                self.check_stride(t, stride, slow);
            }
        }
        self.check_range(t.store, checks, slow);
    }

    /// To `slow` unless the range from RAX to RCX may be accessed. RSI and RDI are overwritten.
    pub(super) fn check_range(&mut self, store: bool, checks: &Checks, slow: Label) {
        let (first, check) = match store {
            false => (Hot::READ_BEFORE, checks.read),
            true => (Hot::WRITE_BEFORE, checks.write),
        };
        // CAST: the places are few.
        let at = first as i64 + 16 * (self.checked % Hot::PLACES) as i64;
        self.checked += 1;
        let (label, done) = (self.asm.label(), self.asm.label());
        let bound = |n: i64| memory(HOT, at + 8 * n, false);
        self.asm.op2(Code::Cmp_r64_rm64, Register::RAX, bound(0));
        self.asm.jump(Code::Jb_rel32_64, label);
        self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, bound(1));
        self.asm.jump(Code::Ja_rel32_64, label);
        self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, Register::RAX);
        self.asm.jump(Code::Jb_rel32_64, slow);
        self.asm.place_with_address(done);
        self.outlined.push(Outlined::Elsewhere { label, done, slow, check, place: bound(0) });
    }

    /// A store to `slow` unless its lanes are at a distance that [`Gen::by_stride`] does.
    fn check_stride(&mut self, t: &Transfer, stride: MemoryOperand, slow: Label) {
        if t.store {
            self.asm.op2(Code::Cmp_rm64_imm8, stride, 4 * t.dwords as i32);
            let refused = if self.wide == Wide::Z { Code::Jb_rel32_64 } else { Code::Jne_rel32_64 };
            self.asm.jump(refused, slow);
            if self.wide == Wide::Z && t.space == Space::Global {
                self.asm.op2(Code::Bt_rm64_imm8, stride, TOO_FAR_BIT);
                self.asm.jump(Code::Jb_rel32_64, slow);
            }
        }
    }

    fn check_lds(
        &mut self,
        s: &Step,
        t: &Transfer,
        c: usize,
        pattern: Option<Pattern>,
        spare: [Register; 2],
        slow: Label,
    ) {
        let bytes = t.reach();
        let limit = context(std::mem::offset_of!(JitContext, lds_bytes));
        if let Some(pattern) = pattern {
            let first = self.first_place(s, t, c).unwrap_or_else(|| places(self.known(s, t, c)).0);
            self.asm.op2(Code::Mov_r64_rm64, Register::RAX, first);
            let end = pattern.span(self.checked_lanes(pattern)) + bytes;
            self.asm.op2(Code::Add_rm64_imm32, Register::RAX, end as i32);
            self.asm.op2(Code::Cmp_r64_rm64, Register::RAX, limit);
            return self.asm.jump(Code::Ja_rel32_64, slow);
        }
        let (first, span, stride) = places(self.known(s, t, c));
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, first);
        self.asm.op2(Code::Mov_r64_rm64, Register::RDX, span);
        self.asm.op2(Code::Lea_r64_m, Register::RDX, at(Register::RDX, Register::RAX, 1, bytes));
        self.asm.op2(Code::Cmp_r64_rm64, Register::RDX, limit);
        if may_scatter(self, s, t) {
            let (label, done) = (self.asm.label(), self.asm.label());
            let offsets = self.offsets(s, c);
            self.asm.jump(Code::Ja_rel32_64, label);
            self.outlined.push(Outlined::Check { label, done, slow, bytes, offsets, spare });
            if self.wide == Wide::Z {
                self.check_stride(t, stride, slow);
            }
            self.asm.place(done);
        } else {
            self.asm.jump(Code::Ja_rel32_64, slow);
            self.check_stride(t, stride, slow);
        }
    }

    /// Where piece `c` of the address register is at this point of the code.
    fn offsets(&mut self, s: &Step, c: usize) -> Offsets {
        let piece = self.piece(s.src[0].index, 0, c);
        match self.regs.find(piece) {
            Some(n) => {
                self.regs.pin(n);
                Offsets::Register(self.vector(n))
            }
            None => Offsets::Memory(self.place(piece)),
        }
    }

    /// The two subroutines of [`Checks`].
    pub(super) fn emit_checks(&mut self, checks: &Checks) {
        for (label, ranges) in [(checks.read, Hot::READ), (checks.write, Hot::WRITE)] {
            self.asm.place(label);
            for k in 0..4 {
                let next = self.asm.label();
                let bound = |n: i64| memory(HOT, ranges as i64 + 16 * k + 8 * n, false);
                self.asm.op2(Code::Cmp_r64_rm64, Register::RAX, bound(0));
                self.asm.jump(Code::Jb_rel32_64, next);
                self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, bound(1));
                self.asm.jump(Code::Ja_rel32_64, next);
                self.asm.op2(Code::Mov_r64_rm64, Register::RSI, bound(0));
                self.asm.op2(Code::Mov_r64_rm64, Register::RDI, bound(1));
                self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, Register::RAX);
                self.asm.op0(Code::Retnq);
                self.asm.place(next);
            }
            self.asm.op0(Code::Stc);
            self.asm.op0(Code::Retnq);
        }
    }
}
