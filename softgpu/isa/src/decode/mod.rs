// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words to instructions: the format by its leading bits, the operation by its opcode slot, the operands by its row.
//!
//! INVARIANT: no input panics; an unknown opcode, an operand of the wrong kind and a register tuple past the end of its
//! file are `Illegal`. Fields that the ISA document does not assign to an operation (a source field of an operation
//! without that source, a modifier without meaning) are ignored: such a word decodes as the word with zeros there, and
//! a literal or DPP marker in such a field claims no dword. [`decode_strict`] requires these fields to be as LLVM 19
//! requires them.

mod cursor;
mod memory;
mod scalar;
mod source;
mod unassigned;
mod vector;
mod vinterp;
mod vop3;
mod vopd;

use self::cursor::{Cursor, Strictness};
use crate::inst::{DecodeError, Inst, WaveSize};

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
    let mut inst = decode_with(&mut Cursor::new(words, wave, Strictness::Document)?)?;
    unassigned::clear(&mut inst);
    Ok(inst)
}

/// As [`decode_for`], but a word is `Illegal` where LLVM 19's disassembler refuses it, and an instruction keeps the
/// modifiers without meaning that this disassembler prints. For comparing with the disassembler, not for executing.
///
/// # Errors
/// As [`decode`].
pub fn decode_strict(words: &[u32], wave: WaveSize) -> Result<Inst, DecodeError> {
    decode_with(&mut Cursor::new(words, wave, Strictness::Llvm19)?)
}

fn decode_with(cursor: &mut Cursor<'_>) -> Result<Inst, DecodeError> {
    let word = cursor.word();
    match word >> 23 {
        0x17d => scalar::sop1(cursor),
        0x17e => scalar::sopc(cursor),
        0x17f => scalar::sopp(cursor),
        top if top >> 5 == 0b1011 => scalar::sopk(cursor),
        top if top >> 7 == 0b10 => scalar::sop2(cursor),
        top if top >> 2 == 0b011_1111 => vector::vop1(cursor),
        top if top >> 2 == 0b011_1110 => vector::vopc(cursor),
        top if top >> 8 == 0 => vector::vop2(cursor),
        top => match top >> 3 {
            0b110010 => vopd::vopd(cursor),
            0b110011 => match (word >> 24) & 3 {
                0 => vop3::vop3p(cursor),
                1 => vinterp::vinterp(cursor),
                2 => Err(cursor.not_compute("LDSDIR")),
                _ => Err(cursor.illegal()),
            },
            0b110101 => vop3::vop3(cursor),
            0b110110 => memory::ds(cursor),
            0b110111 => memory::flat(cursor),
            0b111000 => memory::mubuf(cursor),
            0b111010 => memory::mtbuf(cursor),
            0b111100 => Err(cursor.not_compute("MIMG")),
            0b111101 => memory::smem(cursor),
            0b111110 => Err(cursor.not_compute("EXP")),
            _ => Err(cursor.illegal()),
        },
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
        let words = [(0xce00_0000, "LDSDIR"), (0xf000_0000, "MIMG"), (0xf800_0000, "EXP")];
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
    fn decode_reads_words_of_todays_compilers() {
        // Unused source fields hold the inline constant 0; unused data and destination fields hold registers.
        for (words, text) in [
            (&[0xd73c_0000, 0x0202_0482][..], "v_lshlrev_b64 v[0:1], 2, v[2:3]"),
            (&[0xd71c_0003, 0x0202_1103], "v_ldexp_f32 v3, v3, v8"),
            (&[0xd580_0000, 0x0202_0480], "v_nop"),
            (&[0xd800_0000, 0x0200_010a], "ds_add_u32 v10, v1"),
            (&[0xd840_0000, 0x0302_010a], "ds_cmpstore_b32 v10, v1, v2"),
            (&[0xd820_0000, 0x0200_010a], "ds_max_u32 v10, v1"),
            (&[0xca20_04ff, 0x0200_0300, 0x64], "v_dual_mov_b32 v2, 0x64 :: v_dual_add_nc_u32 v1, v0, v1"),
            (&[0xbfbd_0007], "s_barrier"),
        ] {
            let inst = decode(words).unwrap_or_else(|error| panic!("{text} {words:08x?}: {error}"));
            assert_eq!((inst.to_string().as_str(), usize::from(inst.size)), (text, words.len() * 4));
            assert!(decode_strict(words, WaveSize::W32).is_err(), "{text} is no news to LLVM 19");
        }
    }

    #[test]
    fn decode_claims_no_dword_for_a_source_that_does_not_exist() {
        // v_lshlrev_b64 and v_nop with a literal and DPP16, DPP8 in the unused source fields.
        let canonical = decode(&[0xd73c_0000, 0x0002_0482]);
        let nop = decode(&[0xd580_0000, 0]);
        for code in [0xff, 0xfa, 0xe9] {
            assert_eq!(decode(&[0xd73c_0000, 0x0002_0482 | code << 18]), canonical);
            assert_eq!(decode(&[0xd580_0000, code | code << 9 | code << 18]), nop);
        }
    }

    #[test]
    fn decode_lets_a_move_negate_a_float_as_the_document_says() {
        // v_mov_b32_e64 v0, -|v1|, which LLVM 19 does not know.
        let words = [0xd581_0100, 0x2000_0101];
        assert_eq!(decode(&words).map(|inst| (inst.neg, inst.abs)), Ok((1, 1)));
        assert!(decode_strict(&words, WaveSize::W32).is_err());
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
