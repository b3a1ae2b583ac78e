// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of the control stack; their fields as on gfx10 and later (others: [`super::layout`]).
//!
//! ```text
//!           31 30 29 28 26 25  24  17    12   11   10  9     6 5     0
//! state 0    1  0 |shared |  w32 |  LDS  17:10      |  sgprs |  vgprs |   then one word that is kept zero
//! wave       0  0 last    | se id 26:24 |  first|scratch|   scoreboard 9:0 |
//! event      -  1 ...
//! ```

use super::{Layout, PM4_HEADER_BYTES, SaveAreaError, word_at};

const STATE: u32 = 1 << 31;
pub(super) const EVENT: u32 = 1 << 30;

const STATE_WAVE32: u32 = 1 << 24;
/// gfx10 and gfx11 save 128 SGPR slots whatever the kernel uses: (7 + 1) * 16.
const STATE_SGPRS: u32 = 7 << 6;
const STATE_LDS_SHIFT: u32 = 10;
const STATE_SHARED_SHIFT: u32 = 26;

const WAVE_SCRATCH: u32 = 1 << 11;
const WAVE_FIRST: u32 = 1 << 12;
const WAVE_LAST: u32 = 1 << 29;

/// What the waves that follow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Blocks of 8 (waves of 32) or 4 (waves of 64) registers, 1 to 64.
    pub vgpr_blocks: u32,
    /// LDS of the work-group, blocks of 128 words.
    pub lds_blocks: u32,
    /// Whether waves have 32 lanes.
    pub wave32: bool,
    /// Registers shared by the halves of a wave of 64, blocks of 8.
    pub shared_vgpr_blocks: u32,
}

impl State {
    pub(super) const MAX_VGPR_BLOCKS: usize = 64;
    pub(super) const MAX_LDS_BLOCKS: usize = 255;

    pub(super) fn encode(self) -> [u32; 2] {
        let wave32 = if self.wave32 { STATE_WAVE32 } else { 0 };
        let state0 = STATE
            | (self.vgpr_blocks - 1) & 0x3f
            | STATE_SGPRS
            | (self.lds_blocks & 0xff) << STATE_LDS_SHIFT
            | wave32
            | (self.shared_vgpr_blocks & 0xf) << STATE_SHARED_SHIFT;
        [state0, 0]
    }

    /// `offset` is the word's in the stack.
    pub(super) fn decode(state0: u32, offset: usize) -> Result<Self, SaveAreaError> {
        let shared_vgpr_blocks = state0 >> STATE_SHARED_SHIFT & 0xf;
        if shared_vgpr_blocks != 0 {
            return Err(SaveAreaError::SharedVgprs { offset, blocks: shared_vgpr_blocks });
        }
        Ok(Self {
            vgpr_blocks: (state0 & 0x3f) + 1,
            lds_blocks: state0 >> STATE_LDS_SHIFT & 0xff,
            wave32: state0 & STATE_WAVE32 != 0,
            shared_vgpr_blocks,
        })
    }
}

/// What one wave has to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaveWord {
    pub first: bool,
    pub last: bool,
    pub scratch: bool,
}

impl WaveWord {
    pub(super) fn encode(self) -> u32 {
        [(self.scratch, WAVE_SCRATCH), (self.first, WAVE_FIRST), (self.last, WAVE_LAST)]
            .into_iter()
            .filter_map(|(set, bit)| set.then_some(bit))
            .sum()
    }

    pub(super) fn decode(word: u32) -> Self {
        Self { first: word & WAVE_FIRST != 0, last: word & WAVE_LAST != 0, scratch: word & WAVE_SCRATCH != 0 }
    }
}

/// An entry of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing that concerns waves.
    Event,
    /// The first word of a state.
    State(u32),
    Wave(u32),
}

/// Walks the entries upwards.
pub(super) struct Words<'a> {
    stack: &'a [u8],
    offset: usize,
    state_words: usize,
}

impl<'a> Words<'a> {
    /// Starts behind the PM4 header of a stack's used part.
    pub(super) fn new(stack: &'a [u8], layout: Layout) -> Result<Self, SaveAreaError> {
        if stack.len() < PM4_HEADER_BYTES {
            return Err(SaveAreaError::StackTruncated { offset: 0, size: stack.len() });
        }
        Ok(Self { stack, offset: PM4_HEADER_BYTES, state_words: layout.state_words() })
    }

    /// The next entry and where it begins, or `None` at the stack's end.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Word)>, SaveAreaError> {
        let offset = self.offset;
        if offset == self.stack.len() {
            return Ok(None);
        }
        let word = self.take(offset)?;
        let entry = if word & EVENT != 0 {
            Word::Event
        } else if word & STATE != 0 {
            for _ in 1..self.state_words {
                self.take(offset)?;
            }
            Word::State(word)
        } else {
            Word::Wave(word)
        };
        Ok(Some((offset, entry)))
    }

    fn take(&mut self, entry: usize) -> Result<u32, SaveAreaError> {
        if self.stack.len() - self.offset < 4 {
            return Err(SaveAreaError::StackTruncated { offset: entry, size: self.stack.len() });
        }
        let word = word_at(self.stack, self.offset);
        self.offset += 4;
        Ok(word)
    }
}
