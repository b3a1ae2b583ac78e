// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the chips lay out saved waves: what a diagnosis needs of each, which is less than all registers.
//!
//! ```text
//! gfx9    | VGPRs | accumulation VGPRs | SGPRs | hardware 64 B | TTMPs 64 B | LDS | 64 B unused |
//! gfx10+  | VGPRs | shared VGPRs |  SGPRs 512 B | hardware 64 B | TTMPs 64 B | LDS |
//!
//! gfx9     state: 0-5 vgprs | 6-8 sgprs | 9-17 LDS (gfx90a on: 9-16)          wave: 16 last | 17 first
//! gfx10+   state: 0-5 vgprs | 6-9 sgprs | 10-17 LDS | 24 w32 | 26-29 shared   wave: 12 first | 29 last
//!          and a second state word
//!
//! hardware registers, word:  1, 2 PC    6 TRAPSTS; gfx12: EXCP_FLAG_PRIV
//! ```
//!
//! Sources: ROCdbgapi `architecture.cpp` (`compute_relaunch_*`, `register_address`, `control_stack_iterate`,
//! `signaled_exceptions`); `cwsr_trap_handler_gfx9.asm`, `_gfx10.asm`, `_gfx12.asm`.

use super::control_stack::{State, WaveWord};
use super::record::{HARDWARE_WORDS, LDS_BLOCK_WORDS, RecordShape, SGPRS, TTMPS};
use super::{SaveAreaError, to_usize};

/// The layout of a chip's saved waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// gfx900 and gfx906.
    Gfx9,
    /// gfx908: as many accumulation registers as others, saved behind them.
    Gfx908,
    /// gfx90a and gfx942: one register file, whose count includes the accumulation registers.
    Gfx90a,
    /// gfx950: as gfx90a, but in which unit the state word counts LDS is in none of the sources.
    Gfx950,
    /// gfx10 and gfx11: waves of 32 or 64.
    Gfx10,
    /// gfx12: as gfx10, with exceptions in `EXCP_FLAG_PRIV`.
    Gfx12,
}

/// Where a record has what is looked at, in words from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Bytes of the record.
    pub bytes: usize,
    /// The first hardware register; the trap temporaries are [`HARDWARE_WORDS`] behind it.
    pub hardware: usize,
}

/// Words that gfx9 leaves unused at a record's end: SPI counts trap temporaries among the SGPRs, the handler saves them
/// elsewhere.
const GFX9_UNUSED_WORDS: usize = TTMPS;
const GFX9_FIRST: u32 = 1 << 17;

impl Layout {
    /// Words that a state has in the control stack.
    pub(super) const fn state_words(self) -> usize {
        match self {
            Self::Gfx9 | Self::Gfx908 | Self::Gfx90a | Self::Gfx950 => 1,
            Self::Gfx10 | Self::Gfx12 => 2,
        }
    }

    /// The record that a wave word describes, after the state word at `offset` of the stack.
    pub(super) fn places(self, state: u32, offset: usize, wave: u32) -> Result<Places, SaveAreaError> {
        // Registers of 64 lanes that a step of the state's field means.
        let block = match self {
            Self::Gfx10 | Self::Gfx12 => {
                let shape = RecordShape::new(&State::decode(state, offset)?, WaveWord::decode(wave));
                return Ok(Places { bytes: shape.bytes(), hardware: shape.vgpr_words() + SGPRS });
            }
            Self::Gfx9 => 4,
            Self::Gfx908 | Self::Gfx90a | Self::Gfx950 => 8,
        };
        let vector = (to_usize(state & 0x3f) + 1) * block * 64;
        let sgprs = (to_usize(state >> 6 & 7) + 1) * 16 - TTMPS;
        let lds_blocks = match self {
            Self::Gfx90a => state >> 9 & 0xff,
            _ => state >> 9 & 0x1ff,
        };
        if self == Self::Gfx950 && lds_blocks != 0 {
            return Err(SaveAreaError::LdsUnit { offset, blocks: lds_blocks });
        }
        let lds = if wave & GFX9_FIRST != 0 { to_usize(lds_blocks) * LDS_BLOCK_WORDS } else { 0 };
        let hardware = vector + sgprs;
        Ok(Places { bytes: 4 * (hardware + HARDWARE_WORDS + TTMPS + lds + GFX9_UNUSED_WORDS), hardware })
    }

    /// The exceptions, in word 6 of the hardware registers, that the hardware raises by itself: a memory violation of an
    /// aperture, one that the page tables refused (`XNACK_ERROR`), an illegal instruction.
    pub(super) const fn fault_bits(self) -> u32 {
        match self {
            Self::Gfx12 => 1 << 4 | 1 << 12 | 1 << 6,
            _ => 1 << 8 | 1 << 28 | 1 << 11,
        }
    }

    /// The work-group's place in the grid, from the trap temporaries that SPI fills.
    pub(super) const fn workgroup(self, ttmp: &[u32; TTMPS]) -> [u32; 3] {
        const YZ_VALID: u32 = 1 << 30;
        match self {
            Self::Gfx12 if ttmp[8] & YZ_VALID == 0 => [ttmp[9], 0, 0],
            Self::Gfx12 => [ttmp[9], ttmp[7] & 0xffff, ttmp[7] >> 16],
            _ => [ttmp[8], ttmp[9], ttmp[10]],
        }
    }
}
