// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lane masks: a scalar's bits to and from mask registers (AVX-512) or lanes of ones and zeros (AVX2).
//!
//! INVARIANT: each piece reads and writes its own bits only, so pieces may be emitted one after the other.

use iced_x86::{Code, MemoryOperand, Register};
use softgpu_isa::Op;

use super::asm::{Arg, GATHERED, SCALARS, memory};
use super::codes;
use super::generator::{Gen, MASK, Wide};
use super::regs::Bits;
use crate::step::{Kind, Src, Step};
use crate::wave::EXEC;

/// The mask registers that keep scalars' bits for the two pieces of a wave32 (AVX-512); before them are the EXEC masks.
const KEPT: Register = Register::K3;

/// What [`GATHERED`] has: the bits of a scalar mask for the pieces of a dword in front of the next one. It is good while
/// there was neither a label nor a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    index: u16,
    next: usize,
    interruptions: usize,
}

/// The scalar whose bits a step leaves in EXEC (wave32), if it only leaves lanes out.
pub(super) fn left_in(step: &Step) -> Option<u16> {
    let scalar = |s: &Src| (s.kind == Kind::Scalar).then_some(s.index);
    let is_exec = |s: &Src| scalar(s) == Some(EXEC as u16);
    let [a, b] = [&step.src[0], &step.src[1]];
    match step.op {
        Some(Op::S_AND_SAVEEXEC_B32) => scalar(a),
        Some(Op::S_AND_B32) if step.dst as usize == EXEC && is_exec(a) => scalar(b),
        Some(Op::S_AND_B32) if step.dst as usize == EXEC && is_exec(b) => scalar(a),
        _ => None,
    }
}

impl Gen {
    /// Bits of scalar mask `index` for piece `c`, in a mask register (AVX-512).
    pub(super) fn mask_in(&mut self, to: Register, index: u16, c: usize) {
        if self.regs.has_kept(Bits { index, c }) {
            return self.asm.op2(Code::VEX_Kmovw_kr_km16, to, KEPT + c as u32);
        }
        let place = self.mask_place(index, c);
        self.asm.op2(Code::VEX_Kmovw_kr_km16, to, place);
    }

    /// The mask register with bits of scalar mask `index` for piece `c` (AVX-512), to read only. It is `otherwise` where none is
    /// kept.
    pub(super) fn mask(&mut self, index: u16, c: usize, otherwise: Register) -> Register {
        let bits = Bits { index, c };
        let register = if self.shape.halves == 1 { KEPT + c as u32 } else { otherwise };
        if !self.regs.has_kept(bits) {
            self.mask_in(register, index, c);
            self.keep(bits);
        }
        register
    }

    /// The register of [`KEPT`] for a piece has these bits now.
    fn keep(&mut self, bits: Bits) {
        if self.shape.halves == 1 {
            self.regs.set_kept(bits);
        }
    }

    /// A scalar's bits for a piece change: what has the old ones is not kept.
    fn forget_bits(&mut self, bits: Bits) {
        self.regs.forget_masks(bits.scalars(), Some(bits.c));
    }

    /// Writes bits of scalar mask `index` for piece `c` (AVX-512). The second of two pieces writes the dword of both: a
    /// load after two smaller stores would wait until both have left the store buffer. K7 is overwritten.
    pub(super) fn mask_out(&mut self, index: u16, c: usize, from: Register) {
        let bits = Bits { index, c };
        if c.is_multiple_of(2) {
            let place = self.mask_place(index, c);
            self.asm.op2(Code::VEX_Kmovw_m16_kr, place, from);
        } else {
            let place = self.mask_place(index, c - 1);
            let before = self.mask(index, c - 1, Register::K7);
            self.asm.op3(Code::VEX_Kunpckwd_kr_kr_kr, Register::K7, from, before);
            self.asm.op2(Code::VEX_Kmovd_m32_kr, place, Register::K7);
        }
        self.forget_bits(bits);
        if self.shape.halves == 1 {
            self.asm.op2(Code::VEX_Kmovw_kr_km16, KEPT + c as u32, from);
            self.keep(bits);
        }
    }

    /// The bytes of scalar mask `index` for piece `c`.
    pub(super) fn mask_place(&self, index: u16, c: usize) -> MemoryOperand {
        let bytes = self.wide.lanes() as i64 / 8;
        memory(SCALARS, 4 * i64::from(index) + bytes * c as i64, false)
    }

    /// All ones in lanes whose bit of scalar mask `index` is set (AVX2): a register to read only.
    pub(super) fn lanes_of(&mut self, index: u16, c: usize) -> Register {
        let bits = Bits { index, c };
        if let Some(n) = self.regs.find_mask(bits) {
            self.regs.pin(n);
            return self.vector(n);
        }
        let to = self.temporary();
        self.spread(to, index, c);
        let number = self.number(to);
        self.regs.keep_mask(number, bits);
        to
    }

    /// `to` = all ones in lanes whose bit of scalar mask `index` is set (AVX2).
    pub(super) fn spread(&mut self, to: Register, index: u16, c: usize) {
        let place = self.mask_place(index, c);
        let bits = self.asm.constants(std::array::from_fn(|lane| 1 << lane));
        // The piece's own byte: the store that made it may have been one of a byte.
        self.asm.op2(Code::VEX_Vpbroadcastb_ymm_xmmm8, to, place);
        self.asm.op3(Code::VEX_Vpand_ymm_ymm_ymmm256, to, to, bits);
        self.asm.op3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, to, to, bits);
    }

    /// Writes lane mask `from` (all ones or zeros a lane), or its opposite if `inverted`, as bits under EXEC (AVX2).
    /// EAX, ECX and [`GATHERED`] are overwritten. If `from` is a temporary, it has what was written, and is kept.
    pub(super) fn gather_bits(&mut self, index: u16, c: usize, from: Register, inverted: bool) {
        if self.masked {
            let code = if inverted { codes::AND_NOT_Y } else { codes::AND.y };
            self.asm.op3(code, from, from, MASK);
        } else if inverted {
            let ones = self.constant_argument(u32::MAX);
            self.asm.op3(codes::XOR.y, from, from, ones);
        }
        let (number, bits) = (self.number(from), Bits { index, c });
        self.forget_bits(bits);
        self.regs.keep_mask(number, bits);
        self.note_lanes(index, c, from);
        self.bits_out(index, c, from);
    }

    /// Writes the sign bits of a piece's lanes to scalar mask `index` (AVX2). The last of four pieces writes the dword of all: a load
    /// after four smaller stores would wait until all have left the store buffer.
    fn bits_out(&mut self, index: u16, c: usize, from: Register) {
        let is_gathered = self.is_gathered(index, c);
        let place = self.mask_place(index, c);
        let (to, low_byte) = match is_gathered && c.is_multiple_of(4) {
            true => (GATHERED, Register::R8L),
            false => (Register::EAX, Register::AL),
        };
        self.asm.op2(Code::VEX_Vmovmskps_r32_ymm, to, from);
        if c % 4 != 3 {
            self.asm.op2(Code::Mov_rm8_r8, place, low_byte);
        }
        // CAST: at most 24.
        let shift = 8 * (c % 4) as i32;
        match c % 4 {
            0 => {}
            _ if is_gathered => {
                self.asm.op2(Code::Shl_rm32_imm8, Register::EAX, shift);
                self.asm.op2(Code::Or_r32_rm32, GATHERED, Register::EAX);
            }
            3 => {
                self.asm.op2(Code::Shl_rm32_imm8, Register::EAX, shift);
                for before in 1..=3 {
                    let place = self.mask_place(index, c - before);
                    self.asm.op2(Code::Movzx_r32_rm8, Register::ECX, place);
                    if before != 3 {
                        self.asm.op2(Code::Shl_rm32_imm8, Register::ECX, shift - 8 * before as i32);
                    }
                    self.asm.op2(Code::Or_r32_rm32, Register::EAX, Register::ECX);
                }
            }
            _ => {}
        }
        if c % 4 == 3 {
            let place = self.mask_place(index, c - 3);
            self.asm.op2(Code::Mov_rm32_r32, place, if is_gathered { GATHERED } else { Register::EAX });
        }
    }

    /// Whether [`GATHERED`] has the pieces in front of piece `c` of a dword of scalar mask `index`, and is to have piece `c`, too. A
    /// first piece gets it unless another mask is being gathered.
    fn is_gathered(&mut self, index: u16, c: usize) -> bool {
        let interruptions = self.asm.interruptions();
        let is_good = |g: &Gathered| g.interruptions == interruptions && (g.index != index || g.next == c);
        self.gathered = self.gathered.filter(is_good);
        let is_gathered = match &self.gathered {
            Some(g) => g.index == index,
            None => c.is_multiple_of(4),
        };
        if is_gathered {
            self.gathered = (c % 4 != 3).then_some(Gathered { index, next: c + 1, interruptions });
        }
        is_gathered
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

    /// Changes the EXEC masks, which have EXEC, as `step` changes it, if mask registers have the other source's bits for all pieces
    /// (AVX-512, wave32), or the context has them (AVX2): what comes next need not wait until memory has it. `false`, and nothing is
    /// emitted, if not.
    pub(super) fn change_exec_masks(&mut self, step: &Step) -> bool {
        if self.has_lane_masks() {
            return left_in(step).is_some_and(|mask| self.lane_masks.take_wanted(mask));
        }
        let is_exec = |s: &Src| s.kind == Kind::Scalar && s.index as usize == EXEC;
        let writes_exec = step.dst as usize == EXEC;
        let [a, b] = [&step.src[0], &step.src[1]];
        let (code, mask) = match step.op {
            Some(Op::S_AND_SAVEEXEC_B32) => (Code::VEX_Kandw_kr_kr_kr, a),
            Some(Op::S_AND_B32) if writes_exec && is_exec(a) => (Code::VEX_Kandw_kr_kr_kr, b),
            Some(Op::S_AND_B32) if writes_exec && is_exec(b) => (Code::VEX_Kandw_kr_kr_kr, a),
            Some(Op::S_AND_NOT1_B32) if writes_exec && is_exec(a) => (Code::VEX_Kandnw_kr_kr_kr, b),
            _ => return false,
        };
        let has_mask = |c: usize| self.regs.has_kept(Bits { index: mask.index, c });
        if self.wide != Wide::Z
            || self.shape.halves != 1
            || mask.kind != Kind::Scalar
            || !(0..2).all(has_mask)
        {
            return false;
        }
        for c in 0..2 {
            let exec = self.exec(c);
            self.asm.op3(code, exec, KEPT + c as u32, exec);
        }
        true
    }
}
