// SPDX-License-Identifier: MIT OR Apache-2.0
//! What generated code knows of the addresses in a register.
//!
//! INVARIANT: the facts are computed at one place of a region and are true until the register is written. They are in
//! the context, because handlers that are called in between do not preserve registers.

use iced_x86::{Code, MemoryOperand, Register};

use super::super::asm::{Label, context};
use super::super::codes::{self, Codes};
use super::super::context::JitContext;
use super::super::generator::{Gen, Wide};
use super::super::integer::EQUAL;
use super::super::transfer::{Address, KNOWN, Kept, Known, Space, Transfer, address_dwords, low128};
use crate::step::Step;

/// Mask of the lanes that follow the pattern, AVX-512.
const ALL: Register = Register::K6;
/// Numbers of the lanes of a piece.
pub(in crate::jit) const TIMES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The distance from which on lanes count as scattered, a power of two.
const LIMIT: i32 = 1 << 26;
/// The span that stands for lanes without a common distance: no range has that many bytes.
const TOO_FAR: u64 = 1 << TOO_FAR_BIT;
/// The bit that only that span has.
pub(super) const TOO_FAR_BIT: i32 = 62;

/// Offsets in the context of the parts of a [`Known`]: first, span, stride.
pub(super) fn places(index: usize) -> (MemoryOperand, MemoryOperand, MemoryOperand) {
    let base = std::mem::offset_of!(JitContext, known) + index * size_of::<Known>();
    (
        context(base + std::mem::offset_of!(Known, first)),
        context(base + std::mem::offset_of!(Known, span)),
        context(base + std::mem::offset_of!(Known, stride)),
    )
}

/// How the lanes of an access are apart, known before the program runs.
#[derive(Clone, Copy, Debug)]
pub(in crate::jit) struct Pattern {
    /// Bytes from lane to lane.
    pub stride: i64,
    /// Whether all 32 lanes of a row are so, not just those of a piece.
    pub whole_row: bool,
}

impl Pattern {
    /// The distance from the first to the last of so many lanes.
    pub(super) fn span(self, lanes: usize) -> i64 {
        self.stride * (lanes as i64 - 1)
    }
}

/// The distance from which on a pattern is not made use of: displacements have 32 bits.
const FAR: u32 = 1 << 20;

/// Quadwords of 256 bits, and dwords of 128, in another order.
const SHUFFLE_QUADS: Codes =
    Codes { z: Code::EVEX_Vpermq_zmm_k1z_zmmm512b64_imm8, y: Code::VEX_Vpermq_ymm_ymmm256_imm8 };
const SHUFFLE_DWORDS: Codes =
    Codes { z: Code::EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8, y: Code::VEX_Vpshufd_ymm_ymmm256_imm8 };

impl Gen {
    /// How the lanes of the access are apart, if that is known, and can be made use of.
    pub(in crate::jit) fn pattern(&self, s: &Step, t: &Transfer) -> Option<Pattern> {
        let facts = self.facts.as_ref()?;
        let (row, bytes) = (s.src[0].index, 4 * t.dwords as u32);
        let (stride, width) = match (t.space, address_dwords(s, t)) {
            (_, 0) => return None,
            (Space::Global, 2) => {
                let pair = facts.pair(row)?;
                (pair.stride, pair.width)
            }
            (space, _) => {
                let fact = facts.of(row);
                // Offsets to a scalar base do not begin again at zero; those in LDS that do are beyond its end.
                (space == Space::Lds || fact.stays_in_range()).then_some((fact.stride, fact.width))?
            }
        };
        let is_possible = match (t.store, self.wide) {
            (false, _) => true,
            (true, Wide::Z) => stride >= bytes,
            (true, Wide::Y) => stride == bytes,
        };
        // CAST: lanes of a piece, and of a group.
        let fits = 1 << width >= self.wide.lanes();
        let pattern = Pattern { stride: stride.into(), whole_row: width == 5 };
        (is_possible && fits && stride < FAR).then_some(pattern)
    }

    /// Where the first address of an access is that `first_lanes` has computed, if its pattern is known for whole rows.
    pub(in crate::jit) fn first_place(&self, s: &Step, t: &Transfer, c: usize) -> Option<MemoryOperand> {
        let pattern = self.pattern(s, t)?;
        (c == 0 && pattern.whole_row).then(|| self.kept_address(s, Kept::of(s, t)))?
    }

    /// The index of the facts about piece `c` of the address register; code that computes them is emitted if they are
    /// not known yet.
    pub(super) fn known(&mut self, s: &Step, t: &Transfer, c: usize) -> usize {
        let row = s.src[0].index;
        let kept = Kept::of(s, t);
        let pattern = self.pattern(s, t);
        let only_first = pattern.is_some();
        let is_known = |k: &&Address| (k.row, k.kept, k.only_first) == (row, kept, only_first);
        if let Some(known) = self.addresses.rows.iter().find(is_known) {
            return known.index + c;
        }
        if self.addresses.next + self.pieces() > KNOWN {
            self.addresses.clear();
        }
        let first = self.addresses.next;
        self.addresses.next += self.pieces();
        for c in 0..self.pieces() {
            match pattern {
                Some(pattern) if pattern.whole_row && c % self.per_row() != 0 => {}
                Some(_) => self.find_first(s, kept, c, first + c),
                None => self.find_out(s, kept, c, first + c),
            }
            self.regs.end_operation();
        }
        self.addresses.rows.push(Address { row, kept, only_first, index: first });
        first + c
    }

    /// Only the first lane.
    fn find_first(&mut self, s: &Step, kept: Kept, c: usize, index: usize) {
        let (first, ..) = places(index);
        let low = self.source(&s.src[0], 0, c);
        self.lane(Register::EAX, low, 0);
        if kept == Kept::Pair {
            let high = self.source(&s.src[0], 1, c);
            self.add_high(Register::RAX, high);
        }
        self.asm.op2(Code::Mov_rm64_r64, first, Register::RAX);
    }

    fn find_out(&mut self, s: &Step, kept: Kept, c: usize, index: usize) {
        let (first, span, stride) = places(index);
        let low = self.source(&s.src[0], 0, c);
        let high = (kept == Kept::Pair).then(|| self.source(&s.src[0], 1, c));
        let (t, u) = (self.temporary(), self.temporary());
        let (scattered, done) = (self.asm.label(), self.asm.label());
        self.lane(Register::EAX, low, 0);
        self.lane(Register::ECX, low, 1);
        self.asm.op2(Code::Sub_r32_rm32, Register::ECX, Register::EAX);
        self.in_all_lanes(u, low);
        self.multiples(t);
        self.add(t, u);
        self.jump_unless_equal(low, high, [t, u], scattered);
        // Lanes that run downward, or beyond 32 bits, count as scattered; so do those that are so far apart that a gather
        // would take the distance of the last one for a negative number.
        self.asm.op2(Code::Test_rm32_imm32, Register::ECX, !(LIMIT - 1));
        self.asm.jump(Code::Jne_rel32_64, scattered);
        self.asm.op2(Code::Mov_rm64_r64, stride, Register::RCX);
        let last = self.wide.lanes() as i32 - 1;
        self.asm.op3(Code::Imul_r64_rm64_imm8, Register::RDX, Register::RCX, last);
        self.asm.op2(Code::Mov_rm64_r64, span, Register::RDX);
        self.asm.op2(Code::Add_r64_rm64, Register::RDX, Register::RAX);
        self.asm.op2(Code::Shr_rm64_imm8, Register::RDX, 32);
        self.asm.jump(Code::Jne_rel32_64, scattered);
        if let Some(high) = high {
            self.add_high(Register::RAX, high);
        }
        self.asm.op2(Code::Mov_rm64_r64, first, Register::RAX);
        self.asm.jump(Code::Jmp_rel32_64, done);
        self.asm.place(scattered);
        self.asm.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RSI, TOO_FAR));
        self.asm.op2(Code::Mov_rm64_r64, stride, Register::RSI);
        if kept == Kept::Lds {
            // They are offsets to its start.
            self.asm.op2(Code::Mov_rm64_imm32, first, 0);
        } else {
            self.find_least(low, high, [t, u], index, done);
            // The address of any lane serves: none is so near to the end of a range.
            self.asm.op2(Code::Mov_rm64_r64, first, Register::RAX);
        }
        self.asm.op2(Code::Mov_rm64_r64, span, Register::RSI);
        self.asm.place(done);
    }

    /// Of lanes without a common distance: the least address, and how far the others are from it. To `done`, unless they are
    /// too far apart for a gather.
    fn find_least(
        &mut self,
        low: Register,
        high: Option<Register>,
        [t, u]: [Register; 2],
        index: usize,
        done: Label,
    ) {
        let (first, span, _) = places(index);
        let far = self.asm.label();
        if let Some(high) = high {
            self.in_all_lanes(u, high);
            self.jump_unless_equal(high, None, [u, t], far);
        }
        self.reduce(codes::MIN_U, low, [t, u]);
        self.lane(Register::EDX, t, 0);
        self.reduce(codes::MAX_U, low, [t, u]);
        self.lane(Register::ECX, t, 0);
        self.asm.op2(Code::Sub_r32_rm32, Register::ECX, Register::EDX);
        self.asm.jump(Code::Js_rel32_64, far);
        self.asm.op2(Code::Mov_rm64_r64, span, Register::RCX);
        if let Some(high) = high {
            self.add_high(Register::RDX, high);
        }
        self.asm.op2(Code::Mov_rm64_r64, first, Register::RDX);
        self.asm.jump(Code::Jmp_rel32_64, done);
        self.asm.place(far);
    }

    /// All lanes of `t` = the least, or greatest, of `from`, as `codes` says; `u` is overwritten.
    fn reduce(&mut self, codes: Codes, from: Register, [t, u]: [Register; 2]) {
        match self.wide {
            Wide::Z => {
                self.asm.op4(Code::EVEX_Vshufi64x2_zmm_k1z_zmm_zmmm512b64_imm8, u, from, from, 0x4E);
                self.asm.op3(codes.z, t, from, u);
            }
            Wide::Y => self.asm.op2(codes::MOVE.y, t, from),
        }
        // Halves of 256 bits change places, then halves of those.
        for (shuffle, order) in [(SHUFFLE_QUADS, 0x4E), (SHUFFLE_DWORDS, 0x4E), (SHUFFLE_DWORDS, 0xB1)] {
            self.op3(shuffle, u, t, order);
            self.op3(codes, t, t, u);
        }
    }

    /// Lane 0 of `high` becomes the high dword of `address`, which has none yet. RCX is overwritten.
    fn add_high(&mut self, address: Register, high: Register) {
        self.lane(Register::ECX, high, 0);
        self.asm.op2(Code::Shl_rm64_imm8, Register::RCX, 32);
        self.asm.op2(Code::Or_r64_rm64, address, Register::RCX);
    }

    /// `to` = lane 0 or 1 of `from`.
    pub(in crate::jit) fn lane(&mut self, to: Register, from: Register, lane: i32) {
        let (first, other) = match self.wide {
            Wide::Z => (Code::EVEX_Vmovd_rm32_xmm, Code::EVEX_Vpextrd_rm32_xmm_imm8),
            Wide::Y => (Code::VEX_Vmovd_rm32_xmm, Code::VEX_Vpextrd_rm32_xmm_imm8),
        };
        match lane {
            0 => self.asm.op2(first, to, low128(from)),
            _ => self.asm.op3(other, to, low128(from), lane),
        }
    }

    /// `to` = the first lane of `from` in all lanes.
    fn in_all_lanes(&mut self, to: Register, from: Register) {
        self.op2(codes::BROADCAST, to, low128(from));
    }

    /// `to` += `by`.
    pub(super) fn add(&mut self, to: Register, by: Register) {
        let code = self.pick(codes::ADD);
        self.asm.op3(code, to, to, by);
    }

    /// To `label` unless all lanes of `low` equal those of the first temporary, and all of `high` its first one. Both
    /// temporaries are overwritten.
    fn jump_unless_equal(
        &mut self,
        low: Register,
        high: Option<Register>,
        [t, u]: [Register; 2],
        label: Label,
    ) {
        match self.wide {
            Wide::Z => {
                self.asm.op4(Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, ALL, low, t, EQUAL);
                if let Some(high) = high {
                    self.in_all_lanes(u, high);
                    let code = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
                    self.asm.masked(code, ALL, &[ALL.into(), high.into(), u.into(), EQUAL.into()]);
                }
                self.asm.op2(Code::VEX_Kortestw_kr_kr, ALL, ALL);
                self.asm.jump(Code::Jae_rel32_64, label);
            }
            Wide::Y => {
                self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, t, low, t);
                if let Some(high) = high {
                    self.in_all_lanes(u, high);
                    self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, u, high, u);
                    self.asm.op3(Code::VEX_Vpand_ymm_ymm_ymmm256, t, t, u);
                }
                self.asm.op2(Code::VEX_Vmovmskps_r32_ymm, Register::EDX, t);
                self.asm.op2(Code::Cmp_rm32_imm32, Register::EDX, 0xFF);
                self.asm.jump(Code::Jne_rel32_64, label);
            }
        }
    }

    /// `to` = ECX times the lane's number.
    pub(super) fn multiples(&mut self, to: Register) {
        match self.wide {
            Wide::Z => {
                self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, to, Register::ECX);
                let times = self.asm.constants16(TIMES);
                self.asm.op3(Code::EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, to, to, times);
            }
            Wide::Y => {
                self.asm.op2(Code::VEX_Vmovd_xmm_rm32, low128(to), Register::ECX);
                self.in_all_lanes(to, to);
                let times = self.asm.constants(std::array::from_fn(|n| TIMES[n]));
                self.asm.op3(Code::VEX_Vpmulld_ymm_ymm_ymmm256, to, to, times);
            }
        }
    }
}
