// SPDX-License-Identifier: MIT OR Apache-2.0
//! One wave's record: all of its registers, and its work-group's LDS if it is the first wave.
//!
//! ```text
//! | VGPRs, register by register | SGPRs 512 B | hardware registers 64 B | TTMPs 64 B | LDS |
//! hardware registers: M0, PC lo hi, EXEC lo hi, STATUS, TRAPSTS, XNACK_MASK, MODE, FLAT_SCRATCH lo hi, 5 unused
//! ```
//!
//! `SCC` is `STATUS[0]`. `VCC` is SGPRs 106 and 107. SGPRs from 108 on exist in the record only.

use super::control_stack::{State, WaveWord};
use super::{SaveAreaError, to_usize, word_at};
use crate::words::{double, words};

pub(super) const SGPRS: usize = 128;
pub(super) const HARDWARE_WORDS: usize = 16;
pub(super) const TTMPS: usize = 16;
const FIXED_WORDS: usize = SGPRS + HARDWARE_WORDS + TTMPS;
pub(super) const LDS_BLOCK_WORDS: usize = 128;

/// Bits of [`WaveRecord::status`] that the layout itself depends on.
pub mod status {
    /// The scalar condition code.
    pub const SCC: u32 = 1;
    /// The wave has scratch memory.
    pub const SCRATCH_EN: u32 = 1 << 29;
}

/// A saved wave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaveRecord {
    /// Lanes, 32 or 64.
    pub lanes: u32,
    /// Vector registers, register by register, `lanes` words each; inactive lanes too. A multiple of 8
    /// registers in a wave of 32, of 4 in a wave of 64, and at most 64 times that.
    pub vgprs: Vec<u32>,
    /// Scalar registers; `VCC` is 106 and 107, and 108 to 127 mean nothing.
    pub sgprs: [u32; 128],
    /// `M0`.
    pub m0: u32,
    /// Program counter, GPU address of the next instruction.
    pub pc: u64,
    /// Active lanes.
    pub exec: u64,
    /// `STATUS`; `SCC` is bit 0.
    pub status: u32,
    /// `TRAPSTS`.
    pub trapsts: u32,
    /// `MODE`.
    pub mode: u32,
    /// `FLAT_SCRATCH`, GPU address of the wave's scratch memory.
    pub flat_scratch: u64,
    /// Trap temporaries.
    pub ttmp: [u32; 16],
    /// The work-group's LDS, a multiple of 128 words and at most 255 times that. Only with `first_in_group`;
    /// `None` for a work-group without LDS.
    pub lds: Option<Vec<u32>>,
    /// Whether the wave is the first of its work-group.
    pub first_in_group: bool,
    /// Whether the wave is the last of its work-group.
    pub last_in_group: bool,
}

/// The lengths of a record's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordShape {
    pub wave32: bool,
    pub vgpr_blocks: u32,
    /// LDS in this very record.
    pub lds_blocks: u32,
    wave: WaveWord,
}

impl RecordShape {
    /// The shape that a state and a wave word describe.
    pub(super) fn new(state: &State, wave: WaveWord) -> Self {
        let lds_blocks = if wave.first { state.lds_blocks } else { 0 };
        Self { wave32: state.wave32, vgpr_blocks: state.vgpr_blocks, lds_blocks, wave }
    }

    const fn lanes(&self) -> u32 {
        if self.wave32 { 32 } else { 64 }
    }

    /// A block is 8 registers of 32 lanes or 4 of 64, which is the same number of words.
    pub(super) const fn vgpr_words(&self) -> usize {
        to_usize(self.vgpr_blocks) * 256
    }

    const fn lds_words(&self) -> usize {
        to_usize(self.lds_blocks) * LDS_BLOCK_WORDS
    }

    /// Bytes of the record.
    pub(super) const fn bytes(&self) -> usize {
        4 * (self.vgpr_words() + FIXED_WORDS + self.lds_words())
    }
}

impl WaveRecord {
    /// A wave of 32 lanes at `pc` that is alone in its work-group, without LDS: its first lane is active, and it has eight vector
    /// registers; all registers are 0.
    #[must_use]
    pub fn alone(pc: u64) -> Self {
        Self {
            lanes: 32,
            vgprs: vec![0; 256],
            sgprs: [0; 128],
            m0: 0,
            pc,
            exec: 1,
            status: 0,
            trapsts: 0,
            mode: 0,
            flat_scratch: 0,
            ttmp: [0; 16],
            lds: None,
            first_in_group: true,
            last_in_group: true,
        }
    }

    /// Words of LDS in the whole blocks that a record needs for a group segment of this many bytes.
    #[must_use]
    pub const fn lds_words_for(group_segment_bytes: u32) -> usize {
        to_usize(group_segment_bytes).div_ceil(4 * LDS_BLOCK_WORDS) * LDS_BLOCK_WORDS
    }

    /// The record's shape, if the layout has one for it.
    pub(super) fn shape(&self, index: usize) -> Result<RecordShape, SaveAreaError> {
        let wave32 = match self.lanes {
            32 => true,
            64 => false,
            lanes => return Err(SaveAreaError::Lanes { wave: index, lanes }),
        };
        let vgpr_blocks = blocks(self.vgprs.len(), 256, State::MAX_VGPR_BLOCKS).ok_or({
            let (lanes, words) = (self.lanes, self.vgprs.len());
            SaveAreaError::Vgprs { wave: index, lanes, words, block: if wave32 { 8 } else { 4 } }
        })?;
        let lds_blocks = match &self.lds {
            None => 0,
            Some(_) if !self.first_in_group => return Err(SaveAreaError::LdsNotFirst { wave: index }),
            Some(lds) => blocks(lds.len(), LDS_BLOCK_WORDS, State::MAX_LDS_BLOCKS)
                .ok_or(SaveAreaError::Lds { wave: index, words: lds.len() })?,
        };
        Ok(RecordShape { wave32, vgpr_blocks, lds_blocks, wave: self.control_word() })
    }

    /// The wave's word of the control stack.
    pub(super) fn control_word(&self) -> WaveWord {
        WaveWord {
            first: self.first_in_group,
            last: self.last_in_group,
            scratch: self.status & status::SCRATCH_EN != 0,
        }
    }

    /// Fills `bytes`, which has exactly the shape's length.
    pub(super) fn write(&self, shape: &RecordShape, bytes: &mut [u8]) {
        debug_assert_eq!(bytes.len(), shape.bytes());
        let ([pc_lo, pc_hi], [exec_lo, exec_hi]) = (words(self.pc), words(self.exec));
        let [scratch_lo, scratch_hi] = words(self.flat_scratch);
        // Word 7 is XNACK_MASK, which a wave that is not replaying has zero.
        let hardware: [u32; HARDWARE_WORDS] = [
            self.m0,
            pc_lo,
            pc_hi,
            exec_lo,
            exec_hi,
            self.status,
            self.trapsts,
            0,
            self.mode,
            scratch_lo,
            scratch_hi,
            0,
            0,
            0,
            0,
            0,
        ];
        let lds = self.lds.as_deref().unwrap_or_default();
        let mut rest = bytes;
        // Part by part, so that each is a plain copy: a large chip saves megabytes.
        for part in [&self.vgprs[..], &self.sgprs, &hardware, &self.ttmp, lds] {
            let (place, behind) = rest.split_at_mut(4 * part.len());
            for (chunk, word) in place.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                *chunk = word.to_le_bytes();
            }
            rest = behind;
        }
    }

    /// Reads a record from `bytes`, which has exactly the shape's length.
    pub(super) fn read(shape: &RecordShape, bytes: &[u8]) -> Self {
        debug_assert_eq!(bytes.len(), shape.bytes());
        let vgpr_words = shape.vgpr_words();
        let word = |index: usize| word_at(bytes, 4 * index);
        let range = |first: usize, count: usize| -> Vec<u32> {
            let part = &bytes[4 * first..4 * (first + count)];
            part.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let hardware = |index: usize| word(vgpr_words + SGPRS + index);
        let sgprs = std::array::from_fn(|index| word(vgpr_words + index));
        let ttmp = std::array::from_fn(|index| word(vgpr_words + SGPRS + HARDWARE_WORDS + index));
        let lds = (shape.lds_blocks != 0).then(|| range(vgpr_words + FIXED_WORDS, shape.lds_words()));
        Self {
            lanes: shape.lanes(),
            vgprs: range(0, vgpr_words),
            sgprs,
            m0: hardware(0),
            pc: double(hardware(1), hardware(2)),
            exec: double(hardware(3), hardware(4)),
            status: hardware(5),
            trapsts: hardware(6),
            mode: hardware(8),
            flat_scratch: double(hardware(9), hardware(10)),
            ttmp,
            lds,
            first_in_group: shape.wave.first,
            last_in_group: shape.wave.last,
        }
    }
}

/// How many blocks `words` is, if it is from 1 to `limit` whole ones.
fn blocks(words: usize, block: usize, limit: usize) -> Option<u32> {
    let blocks = words / block;
    let whole = words.is_multiple_of(block) && (1..=limit).contains(&blocks);
    whole.then(|| u32::try_from(blocks).ok()).flatten()
}
