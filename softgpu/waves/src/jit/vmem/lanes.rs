// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves a piece's dwords between memory and registers: adjacent lanes, lanes at a constant distance, or scattered ones.
//!
//! INVARIANT: every access was checked before; this module checks only what is scattered in LDS, in code that such a check
//! jumps to.

use iced_x86::{Code, MemoryOperand, Register};

use super::super::asm::{Label, context};
use super::super::codes;
use super::super::context::JitContext;
use super::super::generator::{Gen, Wide};
use super::super::transfer::{Offsets, Outlined, Scattered, Transfer, at};
use super::address::{Pattern, TOO_FAR_BIT};

/// Every fourth lane is at `base`, the others `by` bytes apart behind it. RDX is three times `by`.
pub(super) fn lane_of_four(base: Register, by: Register, lane: i64) -> MemoryOperand {
    match lane % 4 {
        0 => at(base, Register::None, 1, 0),
        1 => at(base, by, 1, 0),
        2 => at(base, by, 2, 0),
        _ => at(base, Register::RDX, 1, 0),
    }
}

impl Gen {
    /// The lanes from RAX plus `offset` on, at the distance in `stride`; anywhere in LDS, if there are `offsets`.
    pub(super) fn by_stride(
        &mut self,
        t: &Transfer,
        rows: &[Register],
        stride: MemoryOperand,
        offset: i64,
        offsets: Option<Scattered>,
    ) {
        let bytes = 4 * t.dwords as i32;
        let (block, rare, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        let spare: [Register; 4] = std::array::from_fn(|_| self.temporary());
        let size = 4 * self.wide.lanes() as i64;
        let place = |n: i64| at(Register::RAX, Register::None, 1, offset + size * n);
        // Other stores do not get here.
        let only_block = t.store && self.wide == Wide::Y && offsets.is_none();
        if !t.store {
            self.asm.op2(Code::Cmp_rm64_imm8, stride, 0);
            self.asm.jump(Code::Jne_rel32_64, block);
            self.broadcast_dwords(rows, place(0));
            self.asm.jump(Code::Jmp_rel32_64, done);
            self.asm.place(block);
        }
        if !only_block {
            self.asm.op2(Code::Cmp_rm64_imm8, stride, bytes);
            self.asm.jump(Code::Jne_rel32_64, rare);
        }
        self.block(t, rows, &spare, place);
        self.asm.place(done);
        if !only_block {
            let rows = rows.to_vec();
            self.outlined.push(Outlined::Apart {
                label: rare,
                done,
                t: *t,
                rows,
                spare,
                stride,
                offset,
                offsets,
            });
        }
    }

    /// The lanes from RAX plus `offset` on, in a pattern that is known.
    pub(super) fn by_pattern(&mut self, t: &Transfer, rows: &[Register], pattern: Pattern, offset: i64) {
        let size = 4 * self.wide.lanes() as i64;
        let place = |n: i64| at(Register::RAX, Register::None, 1, offset + size * n);
        if pattern.stride == 0 {
            return self.broadcast_dwords(rows, place(0));
        }
        let spare: [Register; 4] = std::array::from_fn(|_| self.temporary());
        if pattern.stride == 4 * t.dwords as i64 {
            return self.block(t, rows, &spare, place);
        }
        self.asm.op2(Code::Mov_r32_imm32, Register::ECX, pattern.stride as i32);
        if offset != 0 {
            self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
        }
        self.apart(t, rows, &spare);
    }

    /// Adjacent lanes.
    fn block(
        &mut self,
        t: &Transfer,
        rows: &[Register],
        spare: &[Register; 4],
        place: impl Fn(i64) -> MemoryOperand,
    ) {
        match (self.wide, t.store) {
            (Wide::Z, true) => self.store_block(rows, spare, place),
            (Wide::Z, false) => self.load_block(rows, spare, place),
            (Wide::Y, true) => self.store_narrow_block(rows, spare, place(0)),
            (Wide::Y, false) => self.load_narrow_block(rows, spare, place(0)),
        }
    }

    /// Lanes from RAX on, RCX bytes apart.
    fn apart(&mut self, t: &Transfer, rows: &[Register], spare: &[Register; 4]) {
        match self.wide {
            _ if t.store || t.dwords < 4 => {
                let [index, mask, ..] = *spare;
                self.multiples(index);
                self.lane_by_lane(t, rows, mask, |d| at(Register::RAX, index, 1, 4 * d));
            }
            Wide::Z => self.strided(rows, spare),
            Wide::Y => self.strided_narrow(rows, spare),
        }
    }

    pub(super) fn broadcast_dwords(&mut self, rows: &[Register], from: MemoryOperand) {
        for (d, &row) in rows.iter().enumerate() {
            let place = MemoryOperand { displacement: from.displacement + 4 * d as i64, ..from };
            self.broadcast(row, place);
        }
    }

    /// Emits the rare patterns out of line.
    pub(in crate::jit) fn emit_outlined(&mut self) {
        for outlined in std::mem::take(&mut self.outlined) {
            let done = match outlined {
                Outlined::Elsewhere { label, done, slow, check, place } => {
                    self.asm.place(label);
                    self.asm.jump(Code::Call_rel32_64, check);
                    self.asm.jump(Code::Jb_rel32_64, slow);
                    self.asm.op2(Code::Mov_rm64_r64, place, Register::RSI);
                    let end = MemoryOperand { displacement: place.displacement + 8, ..place };
                    self.asm.op2(Code::Mov_rm64_r64, end, Register::RDI);
                    done
                }
                Outlined::Check { label, done, slow, bytes, offsets, spare } => {
                    self.asm.place(label);
                    self.check_scattered(bytes, offsets, spare, slow);
                    done
                }
                Outlined::HighHalves { label, done, row, spare } => {
                    self.asm.place(label);
                    self.store_pending(&[row], spare);
                    done
                }
                Outlined::Apart { label, done, t, rows, spare, stride, offset, offsets } => {
                    self.asm.place(label);
                    self.asm.op2(Code::Mov_r64_rm64, Register::RCX, stride);
                    if let Some(offsets) = offsets {
                        self.scattered(&t, &rows, spare, offset, offsets, done);
                    }
                    if offset != 0 {
                        self.asm.op2(Code::Add_rm64_imm32, Register::RAX, offset as i32);
                    }
                    self.apart(&t, &rows, &spare);
                    done
                }
            };
            self.asm.jump(Code::Jmp_rel32_64, done);
        }
    }

    /// Moves scattered lanes and jumps to `done`; goes on where lanes are at the distance in RCX.
    fn scattered(
        &mut self,
        t: &Transfer,
        rows: &[Register],
        spare: [Register; 4],
        offset: i64,
        Scattered { offsets, least }: Scattered,
        done: Label,
    ) {
        let [index, mask, ..] = spare;
        let strided = self.asm.label();
        self.asm.op2(Code::Bt_rm64_imm8, Register::RCX, TOO_FAR_BIT);
        self.asm.jump(Code::Jae_rel32_64, strided);
        // A row may be the offsets' own register.
        self.fetch(index, offsets);
        if let Some(least) = least {
            self.subtract(index, least, mask);
        }
        if t.dwords == 4 {
            self.scattered_lanes(rows, &spare, index, offset);
        } else {
            self.lane_by_lane(t, rows, mask, |d| at(Register::RAX, index, 1, offset + 4 * d));
        }
        self.asm.jump(Code::Jmp_rel32_64, done);
        self.asm.place(strided);
    }

    /// `index` -= the dword at `least`, in all lanes; `t` is overwritten.
    fn subtract(&mut self, index: Register, least: MemoryOperand, t: Register) {
        match self.wide {
            Wide::Z => {
                let least = MemoryOperand { is_broadcast: true, ..least };
                self.asm.op3(codes::SUB.z, index, index, least);
            }
            Wide::Y => {
                self.asm.op2(Code::VEX_Vpbroadcastd_ymm_xmmm32, t, least);
                self.asm.op3(codes::SUB.y, index, index, t);
            }
        }
    }

    /// Loads four dwords of each lane, at RAX plus `index` plus `offset`. RCX is overwritten.
    fn scattered_lanes(&mut self, rows: &[Register], spare: &[Register; 4], index: Register, offset: i64) {
        let lanes = std::mem::offset_of!(JitContext, lanes);
        self.op2(codes::STORE, context(lanes), index);
        let place = |g: &mut Gen, lane: i64| {
            g.asm.op2(Code::Mov_r32_rm32, Register::ECX, context(lanes + 4 * lane as usize));
            at(Register::RAX, Register::RCX, 1, offset)
        };
        match self.wide {
            Wide::Z => self.load_wide_lanes(rows, spare, place),
            Wide::Y => self.load_lanes(rows, spare, place),
        }
    }

    fn fetch(&mut self, to: Register, offsets: Offsets) {
        let code = self.pick(codes::MOVE);
        match offsets {
            Offsets::Register(from) => self.asm.op2(code, to, from),
            Offsets::Memory(from) => self.asm.op2(code, to, from),
        }
    }

    /// To `slow` unless every lane's `bytes` lie in LDS.
    fn check_scattered(&mut self, bytes: i64, offsets: Offsets, [limit, index]: [Register; 2], slow: Label) {
        let lds_bytes = context(std::mem::offset_of!(JitContext, lds_bytes));
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, lds_bytes);
        self.asm.op2(Code::Sub_rm64_imm32, Register::RAX, bytes as i32);
        self.asm.jump(Code::Jb_rel32_64, slow);
        self.fetch(index, offsets);
        match self.wide {
            Wide::Z => self.jump_if_any_above(index, limit, slow),
            Wide::Y => self.jump_if_any_narrow_above(index, limit, slow),
        }
    }

    /// Gathers or scatters, one dword of all lanes after the other.
    fn lane_by_lane(
        &mut self,
        t: &Transfer,
        rows: &[Register],
        mask: Register,
        place: impl Fn(i64) -> MemoryOperand,
    ) {
        for (d, &row) in rows.iter().enumerate() {
            let place = place(d as i64);
            match self.wide {
                Wide::Z => self.move_wide_lanes(t.store, row, place),
                Wide::Y if t.store => self.scatter_narrow(row, place),
                Wide::Y => self.gather_narrow(row, mask, place),
            }
        }
    }
}
