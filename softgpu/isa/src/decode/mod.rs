// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words to instructions: the format by its leading bits, the operation by its opcode slot, the operands by its row.
//!
//! Invariant: no input panics; a field that must be zero, an operand of the wrong kind and a register tuple past the
//! end of its file are `Illegal`, as in LLVM's gfx1100 decoder.

mod memory;
mod scalar;
mod source;
mod vector;
mod vop3;
mod vopd;

use crate::info::Fmt;
use crate::inst::{DecodeError, Inst, WaveSize};
use crate::table::{self, Op};

/// Decodes the wave32 instruction at the start of `words`, of which it takes `Inst::size / 4` (one to three).
///
/// # Errors
/// [`DecodeError::Truncated`] if the instruction is longer than `words`, [`DecodeError::Illegal`] if it is not in the
/// gfx11 table or an operand is not allowed, [`DecodeError::NotCompute`] for the graphics formats.
pub fn decode(words: &[u32]) -> Result<Inst, DecodeError> {
    decode_for(words, WaveSize::W32)
}

/// As [`decode`], in a wave of `wave` lanes: wave64 has register pairs as lane masks and no dual issue.
///
/// # Errors
/// As [`decode`].
pub fn decode_for(words: &[u32], wave: WaveSize) -> Result<Inst, DecodeError> {
    let mut cursor = Cursor::new(words, wave)?;
    let word = cursor.word();
    match word >> 23 {
        0x17d => scalar::sop1(&mut cursor),
        0x17e => scalar::sopc(&mut cursor),
        0x17f => scalar::sopp(&mut cursor),
        top if top >> 5 == 0b1011 => scalar::sopk(&mut cursor),
        top if top >> 7 == 0b10 => scalar::sop2(&mut cursor),
        top if top >> 2 == 0b011_1111 => vector::vop1(&mut cursor),
        top if top >> 2 == 0b011_1110 => vector::vopc(&mut cursor),
        top if top >> 8 == 0 => vector::vop2(&mut cursor),
        top => match top >> 3 {
            0b110010 => vopd::vopd(&mut cursor),
            0b110011 => match (word >> 24) & 3 {
                0 => vop3::vop3p(&mut cursor),
                1 => Err(cursor.not_compute("VINTERP")),
                2 => Err(cursor.not_compute("LDSDIR")),
                _ => Err(cursor.illegal()),
            },
            0b110101 => vop3::vop3(&mut cursor),
            0b110110 => memory::ds(&mut cursor),
            0b110111 => memory::flat(&mut cursor),
            0b111000 => memory::mubuf(&mut cursor),
            0b111010 => memory::mtbuf(&mut cursor),
            0b111100 => Err(cursor.not_compute("MIMG")),
            0b111101 => memory::smem(&mut cursor),
            0b111110 => Err(cursor.not_compute("EXP")),
            _ => Err(cursor.illegal()),
        },
    }
}

/// The words under decode and how many of them the instruction has claimed.
pub(crate) struct Cursor<'a> {
    words: &'a [u32],
    /// First two dwords (the second is 0 while unclaimed).
    bits: u64,
    /// Dwords claimed.
    claimed: usize,
    literal: Option<u32>,
    wave: WaveSize,
}

impl<'a> Cursor<'a> {
    fn new(words: &'a [u32], wave: WaveSize) -> Result<Self, DecodeError> {
        match words.first() {
            Some(&word) => Ok(Self { words, bits: u64::from(word), claimed: 1, literal: None, wave }),
            None => Err(DecodeError::Truncated { needed: 1, available: 0 }),
        }
    }

    /// The first word.
    fn word(&self) -> u32 {
        (self.bits & u64::from(u32::MAX)) as u32
    }

    /// The claimed words' first 64 bits.
    fn bits(&self) -> u64 {
        self.bits
    }

    /// Claims the next dword.
    fn claim(&mut self) -> Result<u32, DecodeError> {
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
    fn literal(&mut self) -> Result<u32, DecodeError> {
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
    fn finish(&self, mut inst: Inst) -> Inst {
        // CAST: at most 3 dwords are claimed.
        inst.size = (self.claimed * 4) as u8;
        inst
    }

    fn illegal(&self) -> DecodeError {
        DecodeError::Illegal { word: self.word() }
    }

    fn not_compute(&self, format: &'static str) -> DecodeError {
        DecodeError::NotCompute { word: self.word(), format }
    }

    fn op(&self, fmt: Fmt, opcode: u32) -> Result<Op, DecodeError> {
        table::lookup(fmt, opcode).ok_or_else(|| self.illegal())
    }

    /// `Illegal` unless `condition`.
    fn require(&self, condition: bool) -> Result<(), DecodeError> {
        if condition { Ok(()) } else { Err(self.illegal()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_without_words_is_truncated() {
        assert_eq!(decode(&[]), Err(DecodeError::Truncated { needed: 1, available: 0 }));
    }

    #[test]
    fn decode_without_its_literal_is_truncated() {
        // s_mov_b32 s0, literal
        assert_eq!(decode(&[0xbe80_00ff]), Err(DecodeError::Truncated { needed: 2, available: 1 }));
    }

    #[test]
    fn decode_zero_word_is_illegal() {
        assert_eq!(decode(&[0, 0, 0]), Err(DecodeError::Illegal { word: 0 }));
    }

    #[test]
    fn decode_graphics_formats_are_not_compute() {
        let words =
            [(0xcd00_0000, "VINTERP"), (0xce00_0000, "LDSDIR"), (0xf000_0000, "MIMG"), (0xf800_0000, "EXP")];
        for (word, format) in words {
            assert_eq!(decode(&[word, 0]), Err(DecodeError::NotCompute { word, format }));
        }
    }

    #[test]
    fn decode_dual_issue_is_illegal_in_wave64() {
        // v_dual_mul_f32 v10, v1, v4 :: v_dual_mul_f32 v17, v2, v7
        let words = [0xc8c6_0901, 0x0a10_0f02];
        assert_eq!(decode(&words).map(|inst| inst.size), Ok(8));
        assert!(decode_for(&words, WaveSize::W64).is_err());
    }

    #[test]
    fn decode_high_half_sets_op_sel() {
        // v_add_f16_e32 v1.l, v2.h, v3.l
        let inst = decode(&[0x6402_0782]).expect("a valid instruction");
        assert_eq!((inst.src[0], inst.op_sel), (crate::Operand::Vgpr(2), 1));
        assert_eq!(inst.to_string(), "v_add_f16_e32 v1.l, v2.h, v3.l");
    }

    #[test]
    fn decode_odd_register_pair_is_aligned_down() {
        // s_mov_b64 s[4:5], s17
        let inst = decode(&[0xbe84_0111]).expect("a valid instruction");
        assert_eq!(inst.src[0], crate::Operand::Sgpr(16));
    }
}
