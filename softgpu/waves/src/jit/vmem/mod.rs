// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline global and LDS accesses for the commonest patterns of 16 lanes (AVX-512, all lanes active).
//!
//! INVARIANT: generated code accesses memory only after a check that the whole access is allowed. The handler does
//! every other pattern and every access that the check refuses; it checks again.

mod address;
mod lanes;

use iced_x86::{Code, Register};

use super::asm::{Label, context, memory};
use super::codes;
use super::context::JitContext;
use super::generator::{Access, Gen};
use super::regs::Spill;
use super::transfer::{Checks, Outlined, Space, Transfer, address_dwords, at};
use crate::step::Step;

use address::places;

/// The VGPR pieces that the access reads and writes.
pub(super) fn accesses(g: &Gen, step: &Step, t: &Transfer, masked: bool) -> Vec<Access> {
    let mut list = Vec::new();
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

impl Gen {
    /// The registers that an access needs at once; `None` if there are not so many.
    fn room(&self, s: &Step, t: &Transfer) -> Option<usize> {
        let results = t.dwords * t.parts * self.pieces();
        let addresses = address_dwords(s, t) * self.pieces();
        let room = addresses + results * if self.overlaps(s, t) { 2 } else { 1 } + 10;
        (room <= self.wide.registers()).then_some(room)
    }

    /// Whether a load overwrites its own address.
    fn overlaps(&self, s: &Step, t: &Transfer) -> bool {
        let halves = self.shape.halves;
        let rows = |first: u16, n: usize| first as usize..first as usize + n * halves;
        let (a, d) = (rows(s.src[0].index, address_dwords(s, t)), rows(s.dst, t.dwords * t.parts));
        !t.store && a.start < d.end && d.start < a.end
    }

    /// Emits the access; `slow` is the place where the handler is called. Returns what has to be stored before that
    /// call, or `None` (and nothing is emitted) if there are too few registers.
    ///
    /// Between the first jump to `slow` and the end no register changes its piece, so all jumps need the same stores.
    pub(super) fn transfer(
        &mut self,
        s: &Step,
        t: &Transfer,
        checks: &Checks,
        slow: Label,
    ) -> Option<Vec<Spill>> {
        let room = self.room(s, t)?;
        self.make_room(room);
        let dirty = self.regs.dirty();
        // Stored before anything can be overwritten.
        let addresses = address_dwords(s, t);
        if addresses > 0 {
            self.known(s, t, 0);
        }
        let aside = self.overlaps(s, t);
        let mut moves = Vec::new();
        for part in 0..t.parts {
            for c in 0..self.pieces() {
                let rows = match (t.store, aside) {
                    (true, _) => (0..t.dwords).map(|d| self.source(&s.src[1 + part], d, c)).collect(),
                    (false, true) => (0..t.dwords).map(|_| self.aside()).collect(),
                    (false, false) => self.results(s, t, part, c),
                };
                match t.space {
                    Space::Global => self.global(s, t, c, &rows, checks, slow),
                    Space::Lds => self.lds(s, t, part, c, &rows, slow),
                }
                if aside {
                    moves.extend(rows.into_iter().enumerate().map(|(d, r)| (part * t.dwords + d, c, r)));
                }
                self.regs.end_operation();
            }
        }
        for &(d, c, from) in &moves {
            let to = self.destination(s.dst, d, c, false);
            self.asm.op2(codes::MOVE.z, to, from);
            self.regs.end_operation();
        }
        for (_, _, from) in moves {
            self.regs.release(from as u8 - Register::ZMM0 as u8);
        }
        if !t.store {
            let (row, halves) = (s.dst as usize, self.shape.halves);
            self.addresses.forget(row..row + t.dwords * t.parts * halves, halves);
        }
        Some(dirty)
    }

    fn global(&mut self, s: &Step, t: &Transfer, c: usize, rows: &[Register], checks: &Checks, slow: Label) {
        let bytes = 4 * t.dwords as i64;
        let offset = t.offsets[0];
        let check = if t.store { checks.write } else { checks.read };
        let addresses = address_dwords(s, t);
        if addresses == 0 {
            // One address for all lanes.
            let base = self.scalar(s.src[2].index);
            self.asm.op2(Code::Mov_r64_rm64, Register::RAX, base);
            self.check(offset, bytes, check, slow);
            return self.broadcast_dwords(rows, at(Register::RAX, Register::None, 1, 0));
        }
        let (first, span, stride) = places(self.known(s, t, c));
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, first);
        if addresses == 1 {
            let base = self.scalar(s.src[2].index);
            self.asm.op2(Code::Add_r64_rm64, Register::RAX, base);
        }
        if offset != 0 {
            self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
        }
        self.asm.op2(Code::Mov_r64_rm64, Register::RCX, span);
        self.asm.op2(Code::Lea_r64_m, Register::RCX, at(Register::RCX, Register::RAX, 1, bytes));
        self.asm.jump(Code::Call_rel32_64, check);
        self.asm.jump(Code::Jb_rel32_64, slow);
        self.by_stride(t, rows, stride, 0, slow);
    }

    /// RAX += offset; to `slow` unless `bytes` there are allowed.
    fn check(&mut self, offset: i64, bytes: i64, check: Label, slow: Label) {
        if offset != 0 {
            self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
        }
        self.asm.op2(Code::Lea_r64_m, Register::RCX, at(Register::RAX, Register::None, 1, bytes));
        self.asm.jump(Code::Call_rel32_64, check);
        self.asm.jump(Code::Jb_rel32_64, slow);
    }

    /// Registers that become the result of a load.
    fn results(&mut self, s: &Step, t: &Transfer, part: usize, c: usize) -> Vec<Register> {
        (0..t.dwords).map(|d| self.destination(s.dst, part * t.dwords + d, c, false)).collect()
    }

    fn lds(&mut self, s: &Step, t: &Transfer, part: usize, c: usize, rows: &[Register], slow: Label) {
        let bytes = 4 * t.dwords as i64;
        let offset = t.offsets[part];
        let (first, span, stride) = places(self.known(s, t, c));
        let (scattered, done) = (self.asm.label(), self.asm.label());
        // Loaded before the first jump.
        let offsets = self.source(&s.src[0], 0, c);
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, first);
        self.asm.op2(Code::Mov_r64_rm64, Register::RDX, span);
        self.asm.op2(Code::Lea_r64_m, Register::RDX, at(Register::RDX, Register::RAX, 1, offset + bytes));
        self.asm.op2(Code::Cmp_r64_rm64, Register::RDX, context(std::mem::offset_of!(JitContext, lds_bytes)));
        self.asm.jump(Code::Ja_rel32_64, scattered);
        self.asm.op2(Code::Add_r64_rm64, Register::RAX, context(std::mem::offset_of!(JitContext, lds)));
        self.by_stride(t, rows, stride, offset, slow);
        let spare = self.temporary();
        let rows = rows.to_vec();
        self.outlined.push(Outlined::Scattered {
            label: scattered,
            done,
            slow,
            t: *t,
            part,
            rows,
            offsets,
            spare,
        });
        self.asm.place(done);
    }

    /// The two subroutines of [`Checks`].
    pub(super) fn emit_checks(&mut self, checks: &Checks) {
        for (label, ranges) in [(checks.read, crate::env::Hot::READ), (checks.write, crate::env::Hot::WRITE)]
        {
            self.asm.place(label);
            self.asm.op2(Code::Mov_r64_rm64, Register::RDX, context(std::mem::offset_of!(JitContext, hot)));
            for k in 0..4 {
                let next = self.asm.label();
                let bound = |n: i64| memory(Register::RDX, ranges as i64 + 16 * k + 8 * n, false);
                self.asm.op2(Code::Cmp_r64_rm64, Register::RAX, bound(0));
                self.asm.jump(Code::Jb_rel32_64, next);
                self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, bound(1));
                self.asm.jump(Code::Ja_rel32_64, next);
                self.asm.op2(Code::Cmp_r64_rm64, Register::RCX, Register::RAX);
                self.asm.op0(Code::Retnq);
                self.asm.place(next);
            }
            self.asm.op0(Code::Stc);
            self.asm.op0(Code::Retnq);
        }
    }
}
