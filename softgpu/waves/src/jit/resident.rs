// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops of one block whose rows stay in registers from one turn to the next (AVX-512).
//!
//! INVARIANT: every row piece of the loop has a register of its own from before the first turn until an exit; every
//! exit stores what was written.

use iced_x86::Code;

use super::emit::Emitter;
use super::flow::{Item, Unit, What};
use super::generator::{Access, Wide};
use super::region::Micro;
use super::{lane_scalars, scalar};

/// Registers a loop leaves for intermediate results.
const SPARE: usize = 9;

/// The state of a resident loop.
struct Around {
    first: usize,
    end: usize,
    branch: Item,
}

impl Emitter<'_> {
    /// Emits a block that branches back to itself, does all steps inline and has few rows: the rows stay in registers
    /// from one turn to the next. `false` (and nothing is emitted) if the block is not such a loop.
    pub(super) fn resident_loop(&mut self, first: usize, end: usize, units: &[Unit]) -> bool {
        let Some((Unit::One(last), body)) = units.split_last() else { return false };
        let step = &self.program.steps[last.index];
        let conditional = matches!(last.what, What::Branch) && step.op != Some(softgpu_isa::Op::S_BRANCH);
        if self.g.wide != Wide::Z || !conditional || step.target as usize != first {
            return false;
        }
        let mut micros = Vec::new();
        for unit in body {
            match unit {
                Unit::One(item) if matches!(item.what, What::Scalar) && self.stays_resident(item) => {
                    micros.push(Micro::Scalar(*item));
                }
                Unit::One(_) => return false,
                // Piece by piece within an operation: independent chains side by side.
                Unit::Lanes(items) if items.iter().any(|item| item.alone) => return false,
                Unit::Lanes(items) => {
                    for &item in items {
                        micros.extend((0..self.g.pieces()).map(|c| Micro::Lane(item, c)));
                    }
                }
            }
        }
        let mut pieces: Vec<Access> =
            self.accesses(&micros, false).into_iter().flatten().map(|a| a.0).collect();
        let written: Vec<u16> = pieces.iter().filter(|a| a.overwrites).map(|a| a.piece).collect();
        pieces.sort_unstable_by_key(|a| a.piece);
        pieces.dedup_by_key(|a| a.piece);
        if pieces.is_empty() || pieces.len() + SPARE > self.g.wide.registers() {
            return false;
        }
        let changes_exec = micros.iter().any(|m| match m {
            Micro::Lane(item, _)
            | Micro::Progression(item)
            | Micro::Scalar(item)
            | Micro::Transfer(item, _) => item.touch.writes_exec(),
        });
        let any = self.g.asm.label();
        let around = Around { first, end, branch: *last };
        if !changes_exec {
            self.test_all_lanes(any);
            self.turns(&micros, false, &pieces, &written, &around);
        }
        self.g.asm.place(any);
        self.turns(&micros, true, &pieces, &written, &around);
        // Both variants end with jumps.
        true
    }

    /// Whether a step is scalar, and takes no row out of its registers.
    fn stays_resident(&self, item: &Item) -> bool {
        self.is_inline(item) && !lane_scalars::writes_row(&self.program.steps[item.index])
    }

    fn turns(&mut self, micros: &[Micro], masked: bool, pieces: &[Access], written: &[u16], around: &Around) {
        self.g.masked = masked;
        self.g.resident = true;
        self.g.hold_all(pieces, written);
        if masked {
            self.g.load_exec_masks();
        }
        let head = self.g.asm.label();
        self.g.asm.place(head);
        let before = self.g.regs.clone();
        // Resident pieces have no next access: none is evicted, and none is dead.
        self.resident_operations(micros, masked);
        if !self.g.regs.holds_as(&before) {
            self.g.exhausted = true;
        }
        let dirty = self.g.regs.dirty();
        let step = &self.program.steps[around.branch.index];
        let count = self.ordinal(around.branch.index) - self.ordinal(around.first) + 1;
        let fall = self.g.asm.label();
        let taken = step.op.and_then(|op| scalar::condition(&mut self.g.asm, op, self.g.shape));
        if let Some(taken) = taken {
            self.g.asm.jump(taken.negate_condition_code(), fall);
        }
        self.count(count);
        self.look(around.first, &dirty);
        self.g.asm.jump(Code::Jmp_rel32_64, head);
        self.g.asm.place(fall);
        self.g.write_back(true);
        (self.g.masked, self.g.resident) = (false, false);
        self.fall_through(around.first, around.end);
        if let Some(label) = self.label_of(around.end) {
            self.g.asm.jump(Code::Jmp_rel32_64, label);
        }
    }

    fn resident_operations(&mut self, micros: &[Micro], masked: bool) {
        for m in micros {
            match m {
                Micro::Lane(item, c) => {
                    if let What::Lane(emit) = item.what {
                        emit(&mut self.g, &self.program.steps[item.index], *c);
                    }
                    self.g.end_operation(&[]);
                    if masked && item.touch.writes_exec() && *c + 1 == self.g.pieces() {
                        self.g.load_exec_masks();
                    }
                }
                Micro::Scalar(item) => {
                    self.scalar_between(item);
                    if masked && item.touch.writes_exec() {
                        self.g.load_exec_masks();
                    }
                }
                // Loops with accesses are not kept resident.
                Micro::Transfer(..) | Micro::Progression(_) => self.g.exhausted = true,
            }
        }
    }
}
