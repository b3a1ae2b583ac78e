// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves sixteen lanes' dwords between memory and registers: adjacent, at a constant distance, or scattered.
//!
//! INVARIANT: the caller has checked that the access is allowed; this module checks only scattered LDS offsets.

use iced_x86::{Code, MemoryOperand, Register};

use super::super::asm::{Arg, Label, context};
use super::super::codes;
use super::super::context::JitContext;
use super::super::generator::Gen;
use super::super::transfer::{Outlined, Transfer, at, low128};
use super::address::TIMES;

/// Predicate of vpcmpud: less or equal.
const LESS_EQUAL: i32 = 2;
/// Mask of lanes in bounds, and of lanes that a gather still has to do.
const K: Register = Register::K5;

impl Gen {
    /// 16 lanes at RAX plus `offset`; not scattered, and allowed.
    pub(super) fn by_stride(
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

    pub(super) fn broadcast_dwords(&mut self, rows: &[Register], from: MemoryOperand) {
        for (d, &row) in rows.iter().enumerate() {
            let place = MemoryOperand { displacement: from.displacement + 4 * d as i64, ..from };
            self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, row, place);
        }
    }

    /// 16 adjacent lanes.
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

    pub(super) fn store_block(
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
                        // Pairs of dwords, taken alternately from both.
                        let index = TIMES.map(|i| 2 * (i >> 2) + (i & 1) + 8 * half + 16 * (i >> 1 & 1));
                        self.permuted(r, index, t, u);
                        self.asm.op2(store, place(i64::from(2 * n + half)), r);
                    }
                }
            }
            _ => {}
        }
    }

    /// Emits the rare patterns out of line.
    pub(in crate::jit) fn emit_outlined(&mut self) {
        for outlined in std::mem::take(&mut self.outlined) {
            let done = match outlined {
                Outlined::Stride { label, done, slow, t, rows, spare, stride, offset } => {
                    self.asm.place(label);
                    self.asm.op2(Code::Mov_r64_rm64, Register::RCX, stride);
                    if t.store {
                        // The handler does overlapping lanes.
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

    /// 16 scattered lanes in LDS.
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
        let limit = context(std::mem::offset_of!(JitContext, lds_bytes));
        self.asm.op2(Code::Mov_r64_rm64, Register::RAX, limit);
        self.asm.op2(Code::Sub_rm64_imm32, Register::RAX, (offset + bytes) as i32);
        self.asm.jump(Code::Jb_rel32_64, slow);
        self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, spare, Register::EAX);
        let compare = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
        self.asm.op4(compare, K, offsets, spare, LESS_EQUAL);
        self.asm.op2(Code::VEX_Kortestw_kr_kr, K, K);
        self.asm.jump(Code::Jae_rel32_64, slow);
        self.asm.op2(Code::Mov_r64_rm64, Register::RSI, context(std::mem::offset_of!(JitContext, lds)));
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
}
