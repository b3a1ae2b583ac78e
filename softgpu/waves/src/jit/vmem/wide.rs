// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sixteen lanes between memory and registers (AVX-512).

use iced_x86::{Code, MemoryOperand, Register};

use super::super::asm::{Arg, Label};
use super::super::codes;
use super::super::generator::Gen;
use super::super::transfer::{at, low128};
use super::address::TIMES;
use super::lanes::lane_of_four;

/// Predicate of vpcmpud: less or equal.
const LESS_EQUAL: i32 = 2;
/// Mask of lanes in bounds, and of lanes that a gather still has to do.
const K: Register = Register::K5;

impl Gen {
    /// 16 adjacent lanes.
    pub(super) fn load_block(
        &mut self,
        rows: &[Register],
        spare: &[Register; 4],
        place: impl Fn(i64) -> MemoryOperand,
    ) {
        for (n, &row) in rows.iter().enumerate() {
            self.asm.op2(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, row, place(n as i64));
        }
        self.by_dword(rows, spare);
    }

    /// Registers with whole lanes, four dwords of lanes 0..4 in the first, become one register a dword.
    fn by_dword(&mut self, rows: &[Register], spare: &[Register; 4]) {
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
        let store = codes::STORE.z;
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

    /// Loads of four dwords, RCX bytes apart from RAX on.
    pub(super) fn strided(&mut self, rows: &[Register], spare: &[Register; 4]) {
        let (base, by) = (Register::RAX, Register::RCX);
        // Three times the distance.
        self.asm.op2(Code::Lea_r64_m, Register::RDX, at(by, by, 2, 0));
        self.load_wide_lanes(rows, spare, |g, lane| {
            if lane > 0 && lane % 4 == 0 {
                g.asm.op2(Code::Lea_r64_m, base, at(base, by, 4, 0));
            }
            lane_of_four(base, by, lane)
        });
    }

    /// Four dwords of 16 lanes.
    pub(super) fn load_wide_lanes(
        &mut self,
        rows: &[Register],
        spare: &[Register; 4],
        mut place: impl FnMut(&mut Gen, i64) -> MemoryOperand,
    ) {
        for (first, &row) in (0..).step_by(4).zip(rows) {
            let from = place(self, first);
            self.asm.op2(Code::EVEX_Vmovdqu32_xmm_k1z_xmmm128, low128(row), from);
            for n in 1..4 {
                let from = place(self, first + n);
                let code = Code::EVEX_Vinserti32x4_zmm_k1z_zmm_xmmm128_imm8;
                self.asm.op4(code, row, row, Arg::M(from), n as i32);
            }
        }
        self.by_dword(rows, spare);
    }

    /// One dword of sixteen lanes.
    pub(super) fn move_wide_lanes(&mut self, store: bool, row: Register, place: MemoryOperand) {
        self.asm.op3(Code::VEX_Kxnorw_kr_kr_kr, K, K, K);
        if store {
            self.asm.masked(Code::EVEX_Vpscatterdd_vm32z_k1_zmm, K, &[place.into(), row.into()]);
        } else {
            self.asm.masked(Code::EVEX_Vpgatherdd_zmm_k1_vm32z, K, &[row.into(), place.into()]);
        }
    }

    /// To `label` if a lane of `index` is above EAX, which becomes `limit`.
    pub(super) fn jump_if_any_above(&mut self, index: Register, limit: Register, label: Label) {
        self.asm.op2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, limit, Register::EAX);
        let compare = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
        self.asm.op4(compare, K, index, limit, LESS_EQUAL);
        self.asm.op2(Code::VEX_Kortestw_kr_kr, K, K);
        self.asm.jump(Code::Jae_rel32_64, label);
    }
}
