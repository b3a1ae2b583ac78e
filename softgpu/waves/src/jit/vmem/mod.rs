// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline global and LDS accesses for the commonest patterns of 16 lanes (AVX-512, all lanes on).
//!
//! INVARIANT: memory is touched only behind a check that the whole access is allowed; every other pattern, and every
//! access that the check does not allow, goes to the handler, which decides anew.

mod address;
mod lanes;

use iced_x86::{Code, MemoryOperand, Register};
use softgpu_isa::Op;

use super::JitContext;
use super::asm::{Label, context, memory};
use super::codes;
use super::generator::{Access, Gen};
use super::regs::Spill;
use crate::mem;
use crate::step::{FLAG_GLC, FLAG_SADDR, FLAG_VADDR, Kind, Step};

pub(super) use address::{Addresses, KNOWN, Known};
pub(super) use lanes::Outlined;

use address::places;

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Global,
    Lds,
}

/// An access that is emitted inline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    space: Space,
    store: bool,
    /// Dwords a lane, of each part.
    dwords: usize,
    /// Byte offsets of the parts: one, or two of a two-address instruction.
    offsets: [i64; 2],
    parts: usize,
}

/// The subroutines that say whether a global range may be read, or written: start in RAX, end in RCX; carry set if not.
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

/// How `step` of a wave of so many halves is done inline, if it is.
pub(super) fn transfer(step: &Step, halves: usize) -> Option<Transfer> {
    let (space, store, dwords, two) = shape(step.op?)?;
    let known = FLAG_GLC | FLAG_SADDR | FLAG_VADDR | if two { mem::FLAG_STRIDE64 } else { 0 };
    if step.flags & !known != 0 || (store && step.src[1].kind != Kind::Vgpr) {
        return None;
    }
    if store && two && (halves > 1 || step.src[2].kind != Kind::Vgpr) {
        // Wave64 stores half after half, each to both addresses.
        return None;
    }
    match space {
        Space::Global if step.flags & (FLAG_SADDR | FLAG_VADDR) == 0 => return None,
        Space::Global if store && step.flags & FLAG_VADDR == 0 => return None,
        Space::Lds if step.src[0].kind != Kind::Vgpr => return None,
        _ => {}
    }
    let offsets = if two {
        let unit = 4 * dwords as i64 * if step.flags & mem::FLAG_STRIDE64 != 0 { 64 } else { 1 };
        let imm = i64::from(step.imm);
        [(imm & 0xFF) * unit, (imm >> 8 & 0xFF) * unit]
    } else if space == Space::Lds {
        [i64::from(step.imm) & 0xFFFF, 0]
    } else {
        [i64::from(step.imm), 0]
    };
    Some(Transfer { space, store, dwords, offsets, parts: if two { 2 } else { 1 } })
}

/// What the access reads and writes among the VGPRs, for all pieces.
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

fn address_dwords(step: &Step, t: &Transfer) -> usize {
    match t.space {
        Space::Lds => 1,
        Space::Global => match step.flags & (FLAG_SADDR | FLAG_VADDR) {
            FLAG_VADDR => 2,
            FLAG_SADDR => 0,
            _ => 1,
        },
    }
}

/// Memory at RSI or RAX-based addresses.
fn at(base: Register, index: Register, scale: u32, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(base, index, scale, displacement, 1, false, Register::None)
}

fn low128(r: Register) -> Register {
    Register::XMM0 + (r as u32 - Register::ZMM0 as u32)
}

impl Gen {
    /// Registers an access may take at once; `None` if that is more than there are.
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

    /// Emits the access; `slow` is where the handler does it. Answers what has to be stored before that is called, or
    /// `None` (and nothing emitted) when there are too few registers.
    ///
    /// Between the first jump to `slow` and the end no register is taken from what it holds: what is to be stored is the
    /// same from everywhere.
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
        // Before anything can be overwritten.
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
        // In a register before the first jump.
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
