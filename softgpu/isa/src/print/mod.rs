// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions as text, in the syntax of LLVM 19's assembler.
//!
//! INVARIANT: `llvm-mc-19 --disassemble` prints the same characters for every word that the strict decoder accepts (the
//! oracle tests hold this).

mod control;
mod memory;
mod operand;
mod vector;

use std::fmt;

use crate::inst::{Enc, Inst, WaveSize};

/// An instruction to be printed for a wave size, which decides how lane masks are named.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    inst: &'a Inst,
    wave: WaveSize,
    halves: Halves,
}

/// Whether 16-bit registers say which half they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Halves {
    /// Only where the word names a high half in a short form: LLVM 19's default.
    Implied,
    /// Always, as `+real-true16`, the default of today's LLVM.
    Named,
}

impl Inst {
    /// The instruction's text in a wave of `wave` lanes; `Display` is the wave32 text.
    pub fn text(&self, wave: WaveSize) -> Text<'_> {
        Text { inst: self, wave, halves: Halves::Implied }
    }

    /// As [`Inst::text`], with the half of each 16-bit register (`v33.h`), as LLVM prints with `+real-true16`. Only
    /// this text says for every instruction which half its long form selects.
    pub fn text_with_halves(&self, wave: WaveSize) -> Text<'_> {
        Text { inst: self, wave, halves: Halves::Named }
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(WaveSize::W32).fmt(f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text { inst, wave, halves } = *self;
        match inst.enc {
            Enc::Sop1 | Enc::Sop2 | Enc::Sopc => control::salu(f, inst),
            Enc::Sopk => control::sopk(f, inst),
            Enc::Sopp => control::sopp(f, inst),
            Enc::Smem => memory::smem(f, inst),
            Enc::Ds => memory::ds(f, inst),
            Enc::Flat | Enc::Global | Enc::Scratch => memory::flat(f, inst),
            Enc::Mubuf | Enc::Mtbuf => memory::buffer(f, inst),
            Enc::Vopd => vector::dual(f, inst),
            _ => vector::vector(f, inst, wave, halves),
        }
    }
}

/// Writes ` ` before the first operand and `, ` before the others.
struct List {
    first: bool,
}

impl List {
    fn new() -> Self {
        Self { first: true }
    }

    fn next(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.first { " " } else { ", " };
        self.first = false;
        f.write_str(separator)
    }
}
