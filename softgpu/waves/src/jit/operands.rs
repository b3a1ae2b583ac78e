// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of lane-wise operations in registers, or as memory operands.
//!
//! INVARIANT: a source's register is not written before the operation ends; a value that has to be changed is copied
//! into a temporary first.

use iced_x86::{Code, MemoryOperand, Register};

use super::asm::{Arg, SCALARS, memory};
use super::codes;
use super::generator::{Gen, Wide};
use crate::step::{Kind, Src, mods};

impl Gen {
    /// The memory operand of scalar `index`.
    pub(super) fn scalar(&self, index: u16) -> MemoryOperand {
        memory(SCALARS, 4 * i64::from(index), false)
    }

    /// `value` in all lanes of `register`.
    pub(super) fn broadcast(&mut self, register: Register, from: MemoryOperand) {
        self.op2(codes::BROADCAST, register, from);
    }

    fn zero(&mut self, register: Register) {
        let n = match self.wide {
            Wide::Z => register as u32 - Register::ZMM0 as u32,
            Wide::Y => register as u32 - Register::YMM0 as u32,
        };
        let half = Register::XMM0 + n;
        match self.wide {
            Wide::Z => self.asm.op3(Code::EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32, half, half, half),
            Wide::Y => self.asm.op3(Code::VEX_Vpxor_xmm_xmm_xmmm128, half, half, half),
        }
    }

    /// A constant in all lanes of a temporary.
    pub(super) fn constant(&mut self, value: u32) -> Register {
        let t = self.temporary();
        if value == 0 {
            self.zero(t);
        } else {
            let from = self.asm.constant_once(value);
            self.broadcast(t, from);
        }
        t
    }

    /// A constant in all lanes of a register that is not written.
    fn kept_constant(&mut self, value: u32) -> Register {
        // A loop's registers are the same at its end as at its head.
        if self.resident || value == 0 {
            return self.constant(value);
        }
        let n = match self.regs.find_constant(value) {
            Some(n) => {
                self.regs.pin(n);
                n
            }
            None => {
                let n = self.taken(|regs| regs.take_constant(value));
                let from = self.asm.constant_once(value);
                self.broadcast(self.vector(n), from);
                n
            }
        };
        self.vector(n)
    }

    /// Dword `dword` of a source, in a register.
    pub(super) fn source(&mut self, s: &Src, dword: usize, c: usize) -> Register {
        let plain = match s.kind {
            Kind::Vgpr | Kind::VgprMod => {
                let piece = self.piece(s.index, dword, c);
                self.piece_register(piece)
            }
            Kind::Scalar | Kind::ScalarMod => {
                let t = self.temporary();
                let from = self.scalar(s.index + dword as u16);
                self.broadcast(t, from);
                t
            }
            Kind::ConstSigned if dword == 1 => self.kept_constant(((s.value as i32) >> 31) as u32),
            Kind::ConstHigh => self.kept_constant(if dword == 1 { s.value } else { 0 }),
            _ => self.kept_constant(if dword == 0 { s.value } else { 0 }),
        };
        if !matches!(s.kind, Kind::VgprMod | Kind::ScalarMod) {
            return plain;
        }
        self.modified(plain, s.mods)
    }

    /// Applies the sign modifiers of an f32.
    fn modified(&mut self, from: Register, m: u8) -> Register {
        let t = self.temporary();
        let mut at = from;
        if m & mods::ABS_HI != 0 {
            let k = self.constant_argument(0x7FFF_FFFF);
            let code = self.pick(codes::AND);
            self.asm.op3(code, t, at, k);
            at = t;
        }
        if m & mods::NEG_HI != 0 {
            let k = self.constant_argument(0x8000_0000);
            let code = self.pick(codes::XOR);
            self.asm.op3(code, t, at, k);
        }
        t
    }

    /// A constant as a last operand, in memory: broadcast, or a copy for each lane (AVX2).
    pub(super) fn constant_argument(&mut self, value: u32) -> Arg {
        match self.wide {
            Wide::Z => self.asm.constant(value).into(),
            Wide::Y => self.asm.constant_lanes(value).into(),
        }
    }

    /// A constant for each lane of a register, as a last operand.
    pub(super) fn constants_argument(&mut self, value: impl Fn(usize) -> u32) -> Arg {
        match self.wide {
            Wide::Z => self.asm.constants16(std::array::from_fn(value)).into(),
            Wide::Y => self.asm.constants(std::array::from_fn(value)).into(),
        }
    }

    /// Dword `dword` of a source as a last operand.
    pub(super) fn last(&mut self, s: &Src, dword: usize, c: usize) -> Arg {
        match s.kind {
            Kind::Scalar if dword == 0 && self.wide == Wide::Z => {
                return memory(SCALARS, 4 * i64::from(s.index), true).into();
            }
            Kind::Const | Kind::ConstSigned if dword == 0 && s.value != 0 => {
                return self.constant_argument(s.value);
            }
            Kind::Vgpr if self.has_renamed => {
                // In a long run most values are read a few times, far apart.
                let piece = self.piece(s.index, dword, c);
                if self.regs.find(piece).is_none() {
                    return self.place(piece).into();
                }
            }
            _ => {}
        }
        self.source(s, dword, c).into()
    }
}
