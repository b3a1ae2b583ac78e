// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline global and LDS accesses for the commonest patterns of 16 lanes (AVX-512, all lanes on).
//!
//! INVARIANT: memory is touched only behind a check that the whole access is allowed; every other pattern, and every
//! access that the check does not allow, goes to the handler, which decides anew.

use iced_x86::{Code, MemoryOperand, Register};
use softgpu_isa::Op;

use super::Context;
use super::asm::{Arg, CONTEXT, Label, memory};
use super::r#gen::{Access, Gen, codes};
use super::integer::EQUAL;
use super::regs::Spill;
use crate::mem;
use crate::step::{FLAG_GLC, FLAG_SADDR, FLAG_VADDR, Kind, Step};

/// Predicate of vpcmpud: less or equal.
const LESS_EQUAL: i32 = 2;
const K: Register = Register::K5;
const ALL: Register = Register::K6;

/// What is known of the addresses in a piece of a register: made once, for all accesses through it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Known {
    /// Of the first lane: within the address space, or the low dword (of an offset to a scalar base).
    first: u64,
    /// Bytes from the first lane to the last, or [`TOO_FAR`].
    span: u64,
    /// Bytes from lane to lane; of no meaning when scattered.
    stride: u64,
}

/// The span of lanes without a common distance: no range has that many bytes.
const TOO_FAR: u64 = 1 << 62;
/// Pieces of address registers that can be known at a time.
pub(super) const KNOWN: usize = 64;

/// What an address register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Offsets into LDS.
    Lds,
    /// Offsets to a scalar base.
    Offset,
    /// With the next one, addresses.
    Pair,
}

/// The address registers that are known at a place in a region: first row, what it holds, and where that is kept.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    rows: Vec<(u16, Kept, usize)>,
    next: usize,
}

/// A rare pattern, emitted out of line; its registers were set aside where it is jumped from.
#[derive(Debug)]
pub(super) enum Outlined {
    /// Lanes some distance apart from RAX plus `offset` on, not side by side.
    Stride {
        label: Label,
        done: Label,
        slow: Label,
        t: Transfer,
        rows: Vec<Register>,
        spare: [Register; 4],
        stride: MemoryOperand,
        offset: i64,
    },
    /// Lanes anywhere in LDS, or outside: the offsets are in the register.
    Scattered {
        label: Label,
        done: Label,
        slow: Label,
        t: Transfer,
        part: usize,
        rows: Vec<Register>,
        offsets: Register,
        spare: Register,
    },
}

impl Addresses {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.next = 0;
    }

    /// Forgets what is known of registers in `rows`.
    pub(super) fn forget(&mut self, rows: std::ops::Range<usize>, halves: usize) {
        self.rows.retain(|&(row, kept, _)| {
            let row = row as usize;
            let end = row + halves * if kept == Kept::Pair { 2 } else { 1 };
            end <= rows.start || rows.end <= row
        });
    }
}

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
        _ => return None,
    })
}

/// How `step` is done inline, if it is.
pub(super) fn transfer(step: &Step) -> Option<Transfer> {
    let (space, store, dwords, two) = shape(step.op?)?;
    let known = FLAG_GLC | FLAG_SADDR | FLAG_VADDR | if two { mem::FLAG_STRIDE64 } else { 0 };
    if step.flags & !known != 0 || (store && step.src[1].kind != Kind::Vgpr) {
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
        for d in 0..t.dwords * t.parts {
            let row = if t.store { step.src[1].index } else { step.dst };
            list.push(Access { piece: g.piece(row, d, c), overwrites: !t.store && !masked });
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

const TIMES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn context(offset: usize) -> MemoryOperand {
    memory(CONTEXT, offset as i64, false)
}

/// Memory at RSI or RAX-based addresses.
fn at(base: Register, index: Register, scale: u32, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(base, index, scale, displacement, 1, false, Register::None)
}

fn low128(r: Register) -> Register {
    Register::XMM0 + (r as u32 - Register::ZMM0 as u32)
}

/// Where in the context the parts of a [`Known`] are: first, span, stride.
fn places(index: usize) -> (MemoryOperand, MemoryOperand, MemoryOperand) {
    let base = std::mem::offset_of!(Context, known) + index * size_of::<Known>();
    (
        context(base + std::mem::offset_of!(Known, first)),
        context(base + std::mem::offset_of!(Known, span)),
        context(base + std::mem::offset_of!(Known, stride)),
    )
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
                    (true, _) => (0..t.dwords).map(|d| self.source(&s.src[1], d, c)).collect(),
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

    /// Index of what is known of piece `c` of the address register: found out now if it is not known yet.
    fn known(&mut self, s: &Step, t: &Transfer, c: usize) -> usize {
        let row = s.src[0].index;
        let kept = match (t.space, address_dwords(s, t)) {
            (Space::Lds, _) => Kept::Lds,
            (Space::Global, 2) => Kept::Pair,
            (Space::Global, _) => Kept::Offset,
        };
        if let Some(&(_, _, first)) = self.addresses.rows.iter().find(|k| (k.0, k.1) == (row, kept)) {
            return first + c;
        }
        if self.addresses.next + self.pieces() > KNOWN {
            self.addresses.clear();
        }
        let first = self.addresses.next;
        self.addresses.next += self.pieces();
        for c in 0..self.pieces() {
            self.find_out(s, kept, c, first + c);
        }
        self.addresses.rows.push((row, kept, first));
        first + c
    }

    fn find_out(&mut self, s: &Step, kept: Kept, c: usize, index: usize) {
        let (first, span, stride) = places(index);
        let low = self.source(&s.src[0], 0, c);
        let high = (kept == Kept::Pair).then(|| self.source(&s.src[0], 1, c));
        let (t, u) = (self.temporary(), self.temporary());
        let (scattered, done) = (self.asm.label(), self.asm.label());
        self.asm.op2(Code::EVEX_Vmovd_rm32_xmm, Register::EAX, low128(low));
        self.asm.op3(Code::EVEX_Vpextrd_rm32_xmm_imm8, Register::ECX, low128(low), 1);
        self.asm.op2(Code::Sub_r32_rm32, Register::ECX, Register::EAX);
        self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, u, low128(low));
        self.multiples(t);
        self.asm.op3(codes::ADD.z, t, t, u);
        self.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, ALL, low, t, EQUAL);
        if let Some(high) = high {
            self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, u, low128(high));
            let code = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
            self.asm.masked(code, ALL, &[ALL.into(), high.into(), u.into(), EQUAL.into()]);
        }
        self.asm.op2(Code::VEX_Kortestw_kr_kr, ALL, ALL);
        self.asm.jump(Code::Jae_rel32_64, scattered);
        // Lanes that run downward, or beyond 32 bits, count as scattered.
        self.asm.op2(Code::Test_rm32_r32, Register::ECX, Register::ECX);
        self.asm.jump(Code::Js_rel32_64, scattered);
        self.asm.op2(Code::Mov_rm64_r64, stride, Register::RCX);
        self.asm.op3(Code::Imul_r64_rm64_imm8, Register::RDX, Register::RCX, 15);
        self.asm.op2(Code::Mov_rm64_r64, span, Register::RDX);
        self.asm.op2(Code::Add_r64_rm64, Register::RDX, Register::RAX);
        self.asm.op2(Code::Shr_rm64_imm8, Register::RDX, 32);
        self.asm.jump(Code::Jne_rel32_64, scattered);
        if let Some(high) = high {
            self.asm.op2(Code::EVEX_Vmovd_rm32_xmm, Register::ECX, low128(high));
            self.asm.op2(Code::Shl_rm64_imm8, Register::RCX, 32);
            self.asm.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
        }
        self.asm.op2(Code::Mov_rm64_r64, first, Register::RAX);
        self.asm.jump(Code::Jmp_rel32_64, done);
        self.asm.place(scattered);
        // Any address will do: none is near enough to the end of a range.
        self.asm.op2(Code::Mov_rm64_r64, first, Register::RAX);
        self.asm.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RAX, TOO_FAR));
        self.asm.op2(Code::Mov_rm64_r64, span, Register::RAX);
        self.asm.place(done);
        self.regs.release_temporaries();
    }

    /// `to` = ECX times the lane's number.
    fn multiples(&mut self, to: Register) {
        self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, to, Register::ECX);
        let times = self.asm.constants16(TIMES);
        self.asm.op3(Code::EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, to, to, times);
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

    /// 16 lanes at RAX plus `offset`; not scattered, and allowed.
    fn by_stride(
        &mut self,
        t: &Transfer,
        rows: &[Register],
        stride: MemoryOperand,
        offset: i64,
        slow: Label,
    ) {
        let bytes = 4 * t.dwords as i32;
        let (block, rare, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        let spare: [Register; 4] = std::array::from_fn(|_| self.temporary());
        let place = |n: i64| at(Register::RAX, Register::None, 1, offset + 64 * n);
        if t.store {
            self.asm.op2(Code::Cmp_rm64_imm8, stride, bytes);
            self.asm.jump(Code::Jne_rel32_64, rare);
            self.store_block(rows, &spare, place);
        } else {
            self.asm.op2(Code::Cmp_rm64_imm8, stride, 0);
            self.asm.jump(Code::Jne_rel32_64, block);
            self.broadcast_dwords(rows, place(0));
            self.asm.jump(Code::Jmp_rel32_64, done);
            self.asm.place(block);
            self.asm.op2(Code::Cmp_rm64_imm8, stride, bytes);
            self.asm.jump(Code::Jne_rel32_64, rare);
            self.load_block(rows, &spare, place);
        }
        self.asm.place(done);
        let rows = rows.to_vec();
        self.outlined.push(Outlined::Stride { label: rare, done, slow, t: *t, rows, spare, stride, offset });
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

    fn broadcast_dwords(&mut self, rows: &[Register], from: MemoryOperand) {
        for (d, &row) in rows.iter().enumerate() {
            let place = MemoryOperand { displacement: from.displacement + 4 * d as i64, ..from };
            self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, row, place);
        }
    }

    /// 16 lanes next to each other.
    fn load_block(&mut self, rows: &[Register], spare: &[Register; 4], place: impl Fn(i64) -> MemoryOperand) {
        for (n, &row) in rows.iter().enumerate() {
            self.asm.op2(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, row, place(n as i64));
        }
        self.apart(rows, spare);
    }

    /// Registers with whole lanes, four dwords of lanes 0..4 in the first, become one register a dword.
    fn apart(&mut self, rows: &[Register], spare: &[Register; 4]) {
        match *rows {
            [a, b] => {
                let [t, u, ..] = *spare;
                let (even, odd) = (TIMES.map(|n| 2 * n), TIMES.map(|n| 2 * n + 1));
                self.permuted(t, odd, a, b);
                self.permuted(u, even, a, b);
                self.asm.op2(codes::MOVE.z, a, u);
                self.asm.op2(codes::MOVE.z, b, t);
            }
            [a, b, x, y] => {
                let pairs = |k: u32| TIMES.map(|n| 4 * (n & 7) + (n >> 3) + k);
                let t = spare;
                self.permuted(t[0], pairs(0), a, b);
                self.permuted(t[1], pairs(2), a, b);
                self.permuted(t[2], pairs(0), x, y);
                self.permuted(t[3], pairs(2), x, y);
                for (row, from, half) in [(a, 0, 0x44), (b, 0, 0xEE), (x, 1, 0x44), (y, 1, 0xEE)] {
                    let code = Code::EVEX_Vshufi64x2_zmm_k1z_zmm_zmmm512b64_imm8;
                    self.asm.op4(code, row, t[from], t[from + 2], half);
                }
            }
            _ => {}
        }
    }

    /// `to` = dwords `index` of the 32 in `a` and `b`.
    fn permuted(&mut self, to: Register, index: [u32; 16], a: Register, b: Register) {
        let place = self.asm.constants16(index);
        // The pool is not aligned.
        self.asm.op2(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, to, place);
        self.asm.op3(Code::EVEX_Vpermi2d_zmm_k1z_zmm_zmmm512b32, to, a, b);
    }

    fn store_block(
        &mut self,
        rows: &[Register],
        spare: &[Register; 4],
        place: impl Fn(i64) -> MemoryOperand,
    ) {
        let store = Code::EVEX_Vmovdqu32_zmmm512_k1z_zmm;
        match *rows {
            [a] => self.asm.op2(store, place(0), a),
            [a, b] => {
                for n in 0..2 {
                    let t = spare[0];
                    self.permuted(t, TIMES.map(|i| (i >> 1) + 8 * n + 16 * (i & 1)), a, b);
                    self.asm.op2(store, place(i64::from(n)), t);
                }
            }
            [a, b, x, y] => {
                for n in 0..2 {
                    let [t, u, r, _] = *spare;
                    let lanes = TIMES.map(|i| (i >> 1) + 8 * n + 16 * (i & 1));
                    self.permuted(t, lanes, a, b);
                    self.permuted(u, lanes, x, y);
                    for half in 0..2 {
                        // Pairs of dwords by turns from both.
                        let index = TIMES.map(|i| 2 * (i >> 2) + (i & 1) + 8 * half + 16 * (i >> 1 & 1));
                        self.permuted(r, index, t, u);
                        self.asm.op2(store, place(i64::from(2 * n + half)), r);
                    }
                }
            }
            _ => {}
        }
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
        self.asm.op2(Code::Cmp_r64_rm64, Register::RDX, context(std::mem::offset_of!(Context, lds_bytes)));
        self.asm.jump(Code::Ja_rel32_64, scattered);
        self.asm.op2(Code::Add_r64_rm64, Register::RAX, context(std::mem::offset_of!(Context, lds)));
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

    /// Emits what was put off.
    pub(super) fn emit_outlined(&mut self) {
        for outlined in std::mem::take(&mut self.outlined) {
            let done = match outlined {
                Outlined::Stride { label, done, slow, t, rows, spare, stride, offset } => {
                    self.asm.place(label);
                    self.asm.op2(Code::Mov_r64_rm64, Register::RCX, stride);
                    if t.store {
                        // Lanes over one another are the handler's.
                        self.asm.op2(Code::Cmp_rm64_imm8, Register::RCX, 4 * t.dwords as i32);
                        self.asm.jump(Code::Jb_rel32_64, slow);
                    }
                    if offset != 0 {
                        self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
                    }
                    if !t.store && t.dwords == 4 {
                        self.strided(&rows, &spare);
                    } else {
                        let index = spare[0];
                        self.multiples(index);
                        self.lane_by_lane(&t, &rows, |d| at(Register::RAX, index, 1, 4 * d));
                    }
                    done
                }
                Outlined::Scattered { label, done, slow, t, part, rows, offsets, spare } => {
                    self.asm.place(label);
                    self.scattered(&t, t.offsets[part], &rows, offsets, spare, slow);
                    done
                }
            };
            self.asm.jump(Code::Jmp_rel32_64, done);
        }
    }

    /// Gathers or scatters, one dword of all lanes after the other.
    fn lane_by_lane(&mut self, t: &Transfer, rows: &[Register], place: impl Fn(i64) -> MemoryOperand) {
        for (d, &row) in rows.iter().enumerate() {
            let place = place(d as i64);
            self.asm.op3(Code::VEX_Kxnorw_kr_kr_kr, K, K, K);
            if t.store {
                self.asm.masked(Code::EVEX_Vpscatterdd_vm32z_k1_zmm, K, &[place.into(), row.into()]);
            } else {
                self.asm.masked(Code::EVEX_Vpgatherdd_zmm_k1_vm32z, K, &[row.into(), place.into()]);
            }
        }
    }

    /// 16 lanes anywhere in LDS.
    fn scattered(
        &mut self,
        t: &Transfer,
        offset: i64,
        rows: &[Register],
        offsets: Register,
        spare: Register,
        slow: Label,
    ) {
        let bytes = 4 * t.dwords as i64;
        if t.store && t.dwords > 1 {
            return self.asm.jump(Code::Jmp_rel32_64, slow);
        }
        let limit = context(std::mem::offset_of!(Context, lds_bytes));
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, limit);
        self.asm.op2(Code::Sub_rm64_imm32, Register::RAX, (offset + bytes) as i32);
        self.asm.jump(Code::Jb_rel32_64, slow);
        self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, spare, Register::EAX);
        let compare = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
        self.asm.op4(compare, K, offsets, spare, LESS_EQUAL);
        self.asm.op2(Code::VEX_Kortestw_kr_kr, K, K);
        self.asm.jump(Code::Jae_rel32_64, slow);
        self.asm.op2(Code::Mov_r64_rm64, Register::RSI, context(std::mem::offset_of!(Context, lds)));
        self.lane_by_lane(t, rows, |d| at(Register::RSI, offsets, 1, offset + 4 * d));
    }

    /// Loads of four dwords, RCX bytes apart from RAX on.
    fn strided(&mut self, rows: &[Register], spare: &[Register; 4]) {
        self.asm.op2(Code::Lea_r64_m, Register::RDX, at(Register::RCX, Register::RCX, 2, 0));
        for &row in rows {
            let base = Register::RAX;
            let places = [
                at(base, Register::None, 1, 0),
                at(base, Register::RCX, 1, 0),
                at(base, Register::RCX, 2, 0),
                at(base, Register::RDX, 1, 0),
            ];
            self.asm.op2(Code::EVEX_Vmovdqu32_xmm_k1z_xmmm128, low128(row), places[0]);
            for (n, place) in places.into_iter().enumerate().skip(1) {
                let code = Code::EVEX_Vinserti32x4_zmm_k1z_zmm_xmmm128_imm8;
                self.asm.op4(code, row, row, Arg::M(place), n as i32);
            }
            self.asm.op2(Code::Lea_r64_m, base, at(base, Register::RCX, 4, 0));
        }
        self.apart(rows, spare);
    }

    /// The two subroutines of [`Checks`].
    pub(super) fn emit_checks(&mut self, checks: &Checks) {
        for (label, ranges) in [(checks.read, crate::env::Hot::READ), (checks.write, crate::env::Hot::WRITE)]
        {
            self.asm.place(label);
            self.asm.op2(Code::Mov_r64_rm64, Register::RDX, context(std::mem::offset_of!(Context, hot)));
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
