// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lane masks: a scalar's bits to and from mask registers (AVX-512) or lanes of ones and zeros (AVX2).
//!
//! INVARIANT: each piece reads and writes its own bits only, so pieces may be emitted one after the other.

use iced_x86::{Code, MemoryOperand, Register};

use super::asm::{Arg, SCALARS, memory};
use super::codes;
use super::generator::{Gen, MASK, Wide};
use crate::wave::EXEC;

impl Gen {
    /// Bits of scalar mask `index` for piece `c`, in a mask register (AVX-512).
    pub(super) fn mask_in(&mut self, to: Register, index: u16, c: usize) {
        let place = self.mask_place(index, c);
        self.asm.op2(Code::VEX_Kmovw_kr_km16, to, place);
    }

    /// Writes bits of scalar mask `index` for piece `c` (AVX-512). The second of two pieces writes the dword of both: a
    /// load after two smaller stores would wait until both have left the store buffer. K7 is overwritten.
    pub(super) fn mask_out(&mut self, index: u16, c: usize, from: Register) {
        if c.is_multiple_of(2) {
            let place = self.mask_place(index, c);
            return self.asm.op2(Code::VEX_Kmovw_m16_kr, place, from);
        }
        let place = self.mask_place(index, c - 1);
        self.asm.op2(Code::VEX_Kmovw_kr_km16, Register::K7, place);
        self.asm.op3(Code::VEX_Kunpckwd_kr_kr_kr, Register::K7, from, Register::K7);
        self.asm.op2(Code::VEX_Kmovd_m32_kr, place, Register::K7);
    }

    /// The bytes of scalar mask `index` for piece `c`.
    pub(super) fn mask_place(&self, index: u16, c: usize) -> MemoryOperand {
        let bytes = self.wide.lanes() as i64 / 8;
        memory(SCALARS, 4 * i64::from(index) + bytes * c as i64, false)
    }

    /// All ones in lanes whose bit of scalar mask `index` is set (AVX2).
    pub(super) fn spread(&mut self, to: Register, index: u16, c: usize) {
        let place = self.mask_place(index, c);
        let bits = self.asm.constants(std::array::from_fn(|lane| 1 << lane));
        // The piece's own byte: the store that made it may have been one of a byte.
        self.asm.op2(Code::VEX_Vpbroadcastb_ymm_xmmm8, to, place);
        self.asm.op3(Code::VEX_Vpand_ymm_ymm_ymmm256, to, to, bits);
        self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, to, to, bits);
    }

    /// Writes lane mask `from` (all ones or zeros a lane), or its opposite if `inverted`, as bits under EXEC (AVX2).
    /// EAX, ECX and `from` are overwritten.
    pub(super) fn gather_bits(&mut self, index: u16, c: usize, from: Register, inverted: bool) {
        if self.masked {
            let code = if inverted { codes::AND_NOT_Y } else { codes::AND.y };
            self.asm.op3(code, from, from, MASK);
        }
        self.asm.op2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX, from);
        if inverted && !self.masked {
            self.asm.op2(Code::Xor_rm32_imm32, Register::EAX, 0xFF);
        }
        if c % 4 != 3 {
            let place = self.mask_place(index, c);
            return self.asm.op2(Code::Mov_rm8_r8, place, Register::AL);
        }
        // The last of four pieces writes the dword of all: a load after four smaller stores would wait until all have
        // left the store buffer.
        self.asm.op2(Code::Shl_rm32_imm8, Register::EAX, 8);
        for before in 1..=3 {
            let place = self.mask_place(index, c - before);
            self.asm.op2(Code::Movzx_r32_rm8, Register::ECX, place);
            self.asm.op2(Code::Or_r32_rm32, Register::EAX, Register::ECX);
            if before != 3 {
                self.asm.op2(Code::Shl_rm32_imm8, Register::EAX, 8);
            }
        }
        let place = self.mask_place(index, c - 3);
        self.asm.op2(Code::Mov_rm32_r32, place, Register::EAX);
    }

    /// `to = mask ? b : a` in each lane (AVX2).
    pub(super) fn pick_lanes(&mut self, to: Register, a: Register, b: impl Into<Arg>, mask: Register) {
        self.asm.op4(codes::BLEND_Y, to, a, b, mask);
    }

    /// Loads the EXEC masks for a masked region (AVX-512: those of all pieces).
    pub(super) fn load_exec_masks(&mut self) {
        if self.wide == Wide::Z {
            for c in 0..self.pieces() {
                let k = self.exec(c);
                self.mask_in(k, EXEC as u16, c);
            }
        }
    }

    /// Loads the EXEC mask for piece `c` (AVX2).
    pub(super) fn load_exec_mask(&mut self, c: usize) {
        if self.wide == Wide::Y {
            self.spread(MASK, EXEC as u16, c);
        }
    }
}
