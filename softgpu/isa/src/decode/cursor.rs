// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words that are decoded, and how many of them the instruction has claimed.
//!
//! INVARIANT: the decoder reads a word only after it has claimed the word; claiming a word past the end is an error.

use crate::info::Fmt;
use crate::inst::{DecodeError, Inst, WaveSize};
use crate::layout::low;
use crate::table::{self, Op};

/// How the decoder treats the fields that the ISA document does not assign to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strictness {
    /// As the ISA document: the fields are ignored.
    Document,
    /// As LLVM 19's disassembler: most of the fields must be zero.
    Llvm19,
}

/// The words that are decoded, and how many of them the instruction has claimed.
pub(super) struct Cursor<'a> {
    words: &'a [u32],
    /// First two dwords (the second is 0 while unclaimed).
    bits: u64,
    /// Dwords claimed.
    claimed: usize,
    literal: Option<u32>,
    pub(super) wave: WaveSize,
    pub(super) strictness: Strictness,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(words: &'a [u32], wave: WaveSize, strictness: Strictness) -> Result<Self, DecodeError> {
        match words.first() {
            Some(&word) => {
                Ok(Self { words, bits: u64::from(word), claimed: 1, literal: None, wave, strictness })
            }
            None => Err(DecodeError::Truncated { needed: 1, available: 0 }),
        }
    }

    /// The first word.
    pub(super) fn word(&self) -> u32 {
        low(self.bits)
    }

    /// The claimed words' first 64 bits.
    pub(super) fn bits(&self) -> u64 {
        self.bits
    }

    /// Claims the next dword.
    pub(super) fn claim(&mut self) -> Result<u32, DecodeError> {
        let available = self.words.len();
        let needed = self.claimed + 1;
        let &word = self.words.get(self.claimed).ok_or(DecodeError::Truncated { needed, available })?;
        if self.claimed == 1 {
            self.bits |= u64::from(word) << 32;
        }
        self.claimed = needed;
        Ok(word)
    }

    /// The instruction's literal, claimed on first use.
    pub(super) fn literal(&mut self) -> Result<u32, DecodeError> {
        match self.literal {
            Some(literal) => Ok(literal),
            None => {
                let literal = self.claim()?;
                self.literal = Some(literal);
                Ok(literal)
            }
        }
    }

    /// Sets the size, which is final only when all operands are read.
    pub(super) fn finish(&self, mut inst: Inst) -> Inst {
        // At most 3 dwords are claimed.
        inst.size = u8::try_from(self.claimed * 4).unwrap_or(u8::MAX);
        inst
    }

    pub(super) fn illegal(&self) -> DecodeError {
        DecodeError::Illegal { word: self.word() }
    }

    pub(super) fn not_compute(&self, format: &'static str) -> DecodeError {
        DecodeError::NotCompute { word: self.word(), format }
    }

    pub(super) fn op(&self, fmt: Fmt, opcode: u32) -> Result<Op, DecodeError> {
        let op = table::lookup(fmt, opcode).ok_or_else(|| self.illegal())?;
        // LLVM 19 does not know this operation yet.
        self.require_unassigned(op != Op::V_SWAP_B16)?;
        Ok(op)
    }

    /// `Illegal` unless `condition`.
    pub(super) fn require(&self, condition: bool) -> Result<(), DecodeError> {
        if condition { Ok(()) } else { Err(self.illegal()) }
    }

    /// `Illegal`, unless `condition` holds or its fields are unassigned and so ignored.
    pub(super) fn require_unassigned(&self, condition: bool) -> Result<(), DecodeError> {
        self.require(condition || self.strictness == Strictness::Document)
    }
}
