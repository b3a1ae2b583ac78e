// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eight lanes between memory and registers (AVX2).

use iced_x86::{Code, MemoryOperand, Register};

use super::super::asm::{Arg, Label, context};
use super::super::codes;
use super::super::context::JitContext;
use super::super::generator::Gen;
use super::super::transfer::{at, low128};
use super::lanes::lane_of_four;

const UNPACK_LOW: Code = Code::VEX_Vunpcklps_ymm_ymm_ymmm256;
const UNPACK_HIGH: Code = Code::VEX_Vunpckhps_ymm_ymm_ymmm256;
const UNPACK_LOW_PAIRS: Code = Code::VEX_Vunpcklpd_ymm_ymm_ymmm256;
const UNPACK_HIGH_PAIRS: Code = Code::VEX_Vunpckhpd_ymm_ymm_ymmm256;

fn further(from: MemoryOperand, bytes: i64) -> MemoryOperand {
    MemoryOperand { displacement: from.displacement + bytes, ..from }
}

impl Gen {
    /// 8 adjacent lanes.
    pub(super) fn load_narrow_block(
        &mut self,
        rows: &[Register],
        spare: &[Register; 4],
        from: MemoryOperand,
    ) {
        let load = Code::VEX_Vmovdqu_ymm_ymmm256;
        match *rows {
            [a] => self.asm.op2(load, a, from),
            [a, b] => {
                let [t, u, ..] = *spare;
                self.asm.op2(load, t, from);
                self.asm.op2(load, u, further(from, 32));
                // The first dwords of lanes 0, 1, 4, 5 and 2, 3, 6, 7, then the second ones.
                self.asm.op4(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, a, t, u, 0x88);
                self.asm.op4(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, b, t, u, 0xDD);
                for row in [a, b] {
                    self.asm.op3(Code::VEX_Vpermq_ymm_ymmm256_imm8, row, row, 0xD8);
                }
            }
            _ => self.load_lanes(rows, spare, |_, lane| further(from, 16 * lane)),
        }
    }

    /// Four dwords of 8 lanes that are RCX bytes apart, from RAX on.
    pub(super) fn strided_narrow(&mut self, rows: &[Register], spare: &[Register; 4]) {
        let (base, by) = (Register::RAX, Register::RCX);
        // Three times the distance, and the fifth lane's address.
        self.asm.op2(Code::Lea_r64_m, Register::RDX, at(by, by, 2, 0));
        self.asm.op2(Code::Lea_r64_m, Register::RSI, at(base, by, 4, 0));
        self.load_lanes(rows, spare, |_, lane| {
            let from = if lane < 4 { base } else { Register::RSI };
            lane_of_four(from, by, lane)
        });
    }

    /// Four dwords of 8 lanes.
    pub(super) fn load_lanes(
        &mut self,
        rows: &[Register],
        t: &[Register; 4],
        mut place: impl FnMut(&mut Gen, i64) -> MemoryOperand,
    ) {
        let [x, y, z, w] = *rows else { return };
        for (lane, &t) in (0..).zip(t) {
            let from = place(self, lane);
            self.asm.op2(Code::VEX_Vmovdqu_xmm_xmmm128, low128(t), from);
            let from = place(self, lane + 4);
            self.asm.op4(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, t, t, Arg::M(from), 1);
        }
        let [a, b, c, d] = *t;
        self.asm.op3(UNPACK_LOW, z, a, b);
        self.asm.op3(UNPACK_HIGH, w, a, b);
        self.asm.op3(UNPACK_LOW, a, c, d);
        self.asm.op3(UNPACK_HIGH, b, c, d);
        self.asm.op3(UNPACK_LOW_PAIRS, x, z, a);
        self.asm.op3(UNPACK_HIGH_PAIRS, y, z, a);
        self.asm.op3(UNPACK_LOW_PAIRS, z, w, b);
        self.asm.op3(UNPACK_HIGH_PAIRS, w, w, b);
    }

    /// 8 adjacent lanes.
    pub(super) fn store_narrow_block(&mut self, rows: &[Register], spare: &[Register; 4], to: MemoryOperand) {
        let store = codes::STORE.y;
        let [t, u, v, _] = *spare;
        match *rows {
            [a] => self.asm.op2(store, to, a),
            [a, b] => {
                self.asm.op3(UNPACK_LOW, t, a, b);
                self.asm.op3(UNPACK_HIGH, u, a, b);
                for (half, which) in [(0, 0x20), (1, 0x31)] {
                    self.asm.op4(Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, v, t, u, which);
                    self.asm.op2(store, further(to, 32 * half), v);
                }
            }
            [a, b, x, y] => {
                // Lanes 0, 1, 4, 5, then the others.
                for (unpack, lane) in [(UNPACK_LOW, 0), (UNPACK_HIGH, 2)] {
                    self.asm.op3(unpack, t, a, b);
                    self.asm.op3(unpack, u, x, y);
                    for (pairs, lane) in [(UNPACK_LOW_PAIRS, lane), (UNPACK_HIGH_PAIRS, lane + 1)] {
                        self.asm.op3(pairs, v, t, u);
                        self.asm.op2(Code::VEX_Vmovdqu_xmmm128_xmm, further(to, 16 * lane), low128(v));
                        let code = Code::VEX_Vextracti128_xmmm128_ymm_imm8;
                        self.asm.op3(code, Arg::M(further(to, 16 * (lane + 4))), v, 1);
                    }
                }
            }
            _ => {}
        }
    }

    /// Stores one dword of eight lanes, in their order. RCX and RDX are overwritten.
    pub(super) fn scatter_narrow(&mut self, row: Register, place: MemoryOperand) {
        let lanes = std::mem::offset_of!(JitContext, lanes);
        let values = std::mem::offset_of!(JitContext, values);
        self.asm.op2(codes::STORE.y, context(lanes), place.index);
        self.asm.op2(codes::STORE.y, context(values), row);
        for lane in 0..8 {
            self.asm.op2(Code::Mov_r32_rm32, Register::ECX, context(lanes + 4 * lane));
            self.asm.op2(Code::Mov_r32_rm32, Register::EDX, context(values + 4 * lane));
            self.asm.op2(Code::Mov_rm32_r32, MemoryOperand { index: Register::RCX, ..place }, Register::EDX);
        }
    }

    /// One dword of eight lanes; the mask is overwritten.
    pub(super) fn gather_narrow(&mut self, row: Register, mask: Register, place: MemoryOperand) {
        self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, mask, mask, mask);
        self.asm.op3(Code::VEX_Vpgatherdd_ymm_vm32y_ymm, row, place, mask);
    }

    /// To `label` if a lane of `index` is above EAX, which becomes `limit`.
    pub(super) fn jump_if_any_narrow_above(&mut self, index: Register, limit: Register, label: Label) {
        self.asm.op2(Code::VEX_Vmovd_xmm_rm32, low128(limit), Register::EAX);
        self.asm.op2(Code::VEX_Vpbroadcastd_ymm_xmmm32, limit, low128(limit));
        self.asm.op3(Code::VEX_Vpminud_ymm_ymm_ymmm256, limit, limit, index);
        self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, limit, limit, index);
        self.asm.op2(Code::VEX_Vmovmskps_r32_ymm, Register::EDX, limit);
        self.asm.op2(Code::Cmp_rm32_imm32, Register::EDX, 0xFF);
        self.asm.jump(Code::Jne_rel32_64, label);
    }
}
