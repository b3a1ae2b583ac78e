// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions as text, in the syntax of LLVM 19's assembler.
//!
//! Invariant: `llvm-mc-19 --disassemble` prints the same characters for every word the decoder accepts (the oracle
//! tests hold this).

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
}

impl Inst {
    /// The instruction's text in a wave of `wave` lanes; `Display` is the wave32 text.
    pub fn text(&self, wave: WaveSize) -> Text<'_> {
        Text { inst: self, wave }
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(WaveSize::W32).fmt(f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text { inst, wave } = *self;
        match inst.enc {
            Enc::Sop1 | Enc::Sop2 | Enc::Sopc => control::salu(f, inst),
            Enc::Sopk => control::sopk(f, inst),
            Enc::Sopp => control::sopp(f, inst),
            Enc::Smem => memory::smem(f, inst),
            Enc::Ds => memory::ds(f, inst),
            Enc::Flat | Enc::Global | Enc::Scratch => memory::flat(f, inst),
            Enc::Mubuf | Enc::Mtbuf => memory::buffer(f, inst),
            Enc::Vopd => vector::dual(f, inst),
            _ => vector::vector(f, inst, wave),
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
