// SPDX-License-Identifier: MIT OR Apache-2.0
//! EXEC as lanes of ones and zeros in the context (AVX2, wave32), in a chain under EXEC: where a comparison becomes EXEC, the
//! operations on a piece need not wait for the comparisons of the other pieces, which are in the same dword of the scalar file.
//!
//! INVARIANT: while `exec` says that a place has EXEC, that is so for all pieces wherever the code is entered; memory has it as well.

use iced_x86::{Code, Register};

use super::asm::context;
use super::context::JitContext;
use super::generator::{Gen, MASK, Wide};
use crate::wave::EXEC;

/// Pieces of a wave32 (AVX2).
const PIECES: usize = 4;

/// What the context has of lane masks at this point of the code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneMasks {
    /// The scalar whose bits become EXEC next, by a step that leaves lanes out.
    pub wanted: Option<u16>,
    /// The place that has EXEC.
    exec: Option<usize>,
    /// For how many pieces, from the first on, the other place has the wanted bits.
    made: usize,
}

impl LaneMasks {
    fn other(&self) -> usize {
        self.exec.map_or(0, |exec| 1 - exec)
    }

    /// These scalars change by something else than a comparison.
    pub(super) fn forget(&mut self, scalars: u128) {
        let is_wanted = |index: u16| 1u128.checked_shl(index.into()).is_some_and(|bit| bit & scalars != 0);
        if self.wanted.is_some_and(is_wanted) {
            self.made = 0;
        }
    }

    /// The wanted bits become EXEC, if the other place has them for all pieces.
    pub(super) fn take_wanted(&mut self, index: u16) -> bool {
        if self.wanted != Some(index) || self.made != PIECES {
            return false;
        }
        (self.exec, self.made) = (Some(self.other()), 0);
        true
    }

    /// EXEC changes otherwise.
    pub(super) fn forget_exec(&mut self) {
        (self.exec, self.made) = (None, 0);
    }

    /// The place that has EXEC.
    pub(super) fn exec(&self) -> Option<usize> {
        self.exec
    }
}

/// Where the context has piece `c` of a place.
fn lanes(place: usize, c: usize) -> iced_x86::MemoryOperand {
    context(std::mem::offset_of!(JitContext, lane_masks) + (place * PIECES + c) * 32)
}

impl Gen {
    /// Whether lane masks can be in the context here.
    pub(super) fn has_lane_masks(&self) -> bool {
        self.wide == Wide::Y && self.shape.halves == 1 && self.masked
    }

    /// A comparison under EXEC has given piece `c` of scalar `index` these lanes.
    pub(super) fn note_lanes(&mut self, index: u16, c: usize, from: Register) {
        if !self.has_lane_masks() || self.lane_masks.wanted != Some(index) {
            return;
        }
        if c != 0 && self.lane_masks.made != c {
            self.lane_masks.made = 0;
            return;
        }
        self.lane_masks.made = c + 1;
        self.asm.op2(Code::VEX_Vmovdqa_ymmm256_ymm, lanes(self.lane_masks.other(), c), from);
    }

    /// Loads the EXEC mask for piece `c` (AVX2).
    pub(super) fn load_exec_mask(&mut self, c: usize) {
        match self.lane_masks.exec() {
            _ if self.wide != Wide::Y => {}
            Some(place) => self.asm.op2(Code::VEX_Vmovdqa_ymm_ymmm256, MASK, lanes(place, c)),
            None => self.spread(MASK, EXEC as u16, c),
        }
    }

    /// Puts EXEC into a place of the context, for code that finds it there.
    pub(super) fn put_exec(&mut self, place: usize) {
        for c in 0..PIECES {
            self.spread(MASK, EXEC as u16, c);
            self.asm.op2(Code::VEX_Vmovdqa_ymmm256_ymm, lanes(place, c), MASK);
        }
    }
}
