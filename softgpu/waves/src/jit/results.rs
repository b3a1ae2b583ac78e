// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of lane-wise operations: the last instruction of each, under EXEC.
//!
//! INVARIANT: lanes that are inactive in EXEC keep their old value, either by a mask register (AVX-512) or by a blend
//! (AVX2).

use iced_x86::{Code, Register};

use super::asm::Arg;
use super::codes::{self, Codes};
use super::generator::{Gen, MASK, Wide};
use crate::step::{Kind, Step};

/// The first of the EXEC masks, AVX-512: piece `n` of a row has K1 + n.
const EXEC_MASKS: Register = Register::K1;

impl Gen {
    /// The register that becomes dword `dword` of row `row`, with the old value if `old`, or if lanes may be inactive.
    pub(super) fn destination(&mut self, row: u16, dword: usize, c: usize, old: bool) -> Register {
        let piece = self.piece(row, dword, c);
        let n = match self.regs.find(piece) {
            Some(n) => {
                self.regs.pin(n);
                n
            }
            None => {
                let n = self.hold(piece);
                if old || self.masked {
                    self.load(n, piece);
                }
                n
            }
        };
        self.regs.set_dirty(n);
        self.vector(n)
    }

    /// The EXEC mask register of piece `c`, AVX-512.
    pub(super) fn exec(&self, c: usize) -> Register {
        EXEC_MASKS + c as u32
    }

    /// The last instruction of an operation: `codes destination, operands...`, under EXEC.
    pub(super) fn finish(&mut self, codes: Codes, row: u16, dword: usize, c: usize, operands: &[Arg]) {
        let mut all = [Arg::I(0); 4];
        all[1..=operands.len()].copy_from_slice(operands);
        let all = &mut all[..=operands.len()];
        match (self.wide, self.masked) {
            (_, false) => {
                let d = self.destination(row, dword, c, false);
                all[0] = d.into();
                let code = self.pick(codes);
                self.put(code, all);
            }
            (Wide::Z, true) => {
                let d = self.destination(row, dword, c, true);
                all[0] = d.into();
                let mask = self.exec(c);
                self.asm.masked(codes.z, mask, all);
            }
            (Wide::Y, true) => {
                let t = self.temporary();
                all[0] = t.into();
                self.put(codes.y, all);
                self.blend(row, dword, c, t);
            }
        }
    }

    /// An instruction of two to four operands.
    pub(super) fn put(&mut self, code: Code, all: &[Arg]) {
        match *all {
            [a, b] => self.asm.op2(code, a, b),
            [a, b, x] => self.asm.op3(code, a, b, x),
            [a, b, x, y] => self.asm.op4(code, a, b, x, y),
            _ => {}
        }
    }

    fn blend(&mut self, row: u16, dword: usize, c: usize, from: Register) {
        let d = self.destination(row, dword, c, true);
        self.asm.op4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, d, d, from, MASK);
    }

    pub(super) fn number(&self, register: Register) -> u8 {
        (register as u32 - self.vector(0) as u32) as u8
    }

    /// Makes `from` the destination, under EXEC. A temporary may become the destination's register: it must not be
    /// used for anything else afterwards.
    pub(super) fn result(&mut self, row: u16, dword: usize, c: usize, from: Register) {
        let piece = self.piece(row, dword, c);
        let number = self.number(from);
        if !self.masked && !self.resident && self.regs.rename(number, piece) {
            return;
        }
        self.finish(codes::MOVE, row, dword, c, &[from.into()]);
    }

    /// `destination = a * b + addend`, the NaN of the first source that is one: forms of the instruction that keep that
    /// order are 231 with the addend and 132 with the first factor in the destination.
    pub(super) fn multiply_add(&mut self, s: &Step, c: usize) {
        let is_destination = |k: usize| s.src[k].kind == Kind::Vgpr && s.src[k].index == s.dst;
        let direct = self.wide == Wide::Z || !self.masked;
        if direct && is_destination(2) {
            let a = self.source(&s.src[0], 0, c);
            let b = self.last(&s.src[1], 0, c);
            let d = self.destination(s.dst, 0, c, true);
            return self.under_exec(codes::FMA231, c, &[d.into(), a.into(), b]);
        }
        if direct && is_destination(0) {
            let addend = self.source(&s.src[2], 0, c);
            let b = self.last(&s.src[1], 0, c);
            let d = self.destination(s.dst, 0, c, true);
            return self.under_exec(codes::FMA132, c, &[d.into(), addend.into(), b]);
        }
        let a = self.source(&s.src[0], 0, c);
        let b = self.last(&s.src[1], 0, c);
        let addend = self.source(&s.src[2], 0, c);
        let code = self.pick(codes::FMA231);
        // A scalar is in a temporary already.
        let t = if !matches!(s.src[2].kind, Kind::Scalar | Kind::ScalarMod | Kind::VgprMod) {
            let t = self.temporary();
            let mov = self.pick(codes::MOVE);
            self.asm.op2(mov, t, addend);
            t
        } else {
            addend
        };
        self.asm.op3(code, t, a, b);
        self.result(s.dst, 0, c, t);
    }

    /// An instruction on a destination that has its old value.
    fn under_exec(&mut self, codes: Codes, c: usize, all: &[Arg]) {
        match self.masked {
            true => {
                let mask = self.exec(c);
                self.asm.masked(codes.z, mask, all);
            }
            false => {
                let code = self.pick(codes);
                self.put(code, all);
            }
        }
    }
}
