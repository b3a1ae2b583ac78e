// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix operations: calls of `valu::wmma_float`, with factors that are converted once for several operations of a block.
//!
//! INVARIANT: a place holds what its registers held when they were converted, and they have not been written since, within a block, in
//! the order of emission. The places are in the memory of renamed registers: no loop that has those calls anything.

use iced_x86::{Code, Register};

use super::asm::context;
use super::context::JitContext;
use super::emit::Emitter;
use super::flow::{Item, What};
use super::generator::Wide;
use super::touch::Touch;
use crate::valu::wmma_float::{self, Slices, how};
use crate::wave::RenamedRows;
use softgpu_isa::Op;

const PLACES: usize = 16;
const _: () = assert!(PLACES * size_of::<Slices>() <= size_of::<RenamedRows>());

/// Registers of a factor.
const REGISTERS: usize = 8;

/// Registers that are kept as floats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Factor {
    pub first: usize,
    /// The operation, which says what the registers hold.
    pub op: Option<Op>,
}

/// The places, and when each was last used.
#[derive(Default)]
pub(super) struct Factors {
    places: [Option<Factor>; PLACES],
    used: [usize; PLACES],
    uses: usize,
}

impl Factors {
    pub(super) fn clear(&mut self) {
        self.places = [None; PLACES];
    }

    /// Forgets what depends on registers that may change.
    pub(super) fn forget(&mut self, touch: &Touch) {
        for place in &mut self.places {
            let changes = |f: &mut Factor| (f.first..f.first + REGISTERS).any(|r| touch.writes_register(r));
            place.take_if(changes);
        }
    }

    /// A place for `factor`, and whether it is new there. The place of the use before stays what it is.
    pub(super) fn place(&mut self, factor: Factor) -> (usize, bool) {
        self.uses += 1;
        let found = self.places.iter().position(|place| *place == Some(factor));
        let oldest = || (0..PLACES).min_by_key(|&k| self.used[k]).unwrap_or_default();
        let place = found.unwrap_or_else(oldest);
        self.places[place] = Some(factor);
        self.used[place] = self.uses;
        (place, found.is_none())
    }
}

impl Emitter<'_> {
    /// Whether [`Emitter::matrix`] emits this step.
    pub(super) fn is_matrix(&self, item: &Item) -> bool {
        matches!(item.what, What::Call) && wmma_float::is_plain(&self.program.steps[item.index])
    }

    /// Emits a matrix operation. All state is in the wave.
    pub(super) fn matrix(&mut self, index: usize) {
        self.pass(index);
        let step = &self.program.steps[index];
        let [(a, is_new_a), (b, is_new_b)] = [0, 1].map(|k| {
            let first = step.src[k].index as usize / self.g.shape.halves;
            self.factors.place(Factor { first, op: step.op })
        });
        // CAST: there are few places.
        let mut how = (a | b << 8) as u32;
        let bits = [(how::NEW_A, is_new_a), (how::NEW_B, is_new_b), (how::WIDE, self.g.wide == Wide::Z)];
        for (bit, _) in bits.into_iter().filter(|(_, is_set)| *is_set) {
            how |= bit;
        }
        let asm = &mut self.g.asm;
        asm.op2(Code::Mov_r64_rm64, Register::RDX, context(std::mem::offset_of!(JitContext, renamed)));
        asm.op2(Code::Mov_r32_imm32, Register::ECX, how as i32);
        self.call_for_step(Register::RSI, index, std::mem::offset_of!(JitContext, multiply));
    }
}
