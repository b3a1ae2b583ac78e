// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops of one block with loads, several turns at a time: accumulators are loaded and stored once for all of them.
//!
//! INVARIANT: the code before the last check changes nothing of the wave's own registers. If a turn is the loop's last, or an
//! access is not what was expected, the loop goes on one turn at a time, as without this code.

use iced_x86::{Code, Register};
use smallvec::smallvec;
use softgpu_isa::Op;

use super::analysis::Facts;
use super::asm::{Label, RENAMED, context, wave_field};
use super::codes;
use super::context::JitContext;
use super::copies::{self, Body, Copies, How, Renamed};
use super::emit::Emitter;
use super::generator::{Access, Accesses, next_accesses};
use super::order;
use super::progressions::{Progression, as_one_sum, is_split};
use super::tiles;
use super::transfer::address_dwords;
use super::{lane, scalar, vmem};
use crate::step::Step;
use crate::wave::Wave;

/// A piece of work on the registers of the run.
enum Work<'a> {
    Early(&'a Renamed, usize),
    /// By the first lane; maybe together with the high half of a sum.
    First(&'a Renamed, Option<&'a Renamed>),
    Load(&'a Renamed),
    Late(&'a Renamed, usize),
    /// For all pieces.
    Tiles(Vec<&'a Renamed>),
    Move(u16, u16, usize),
}

impl Emitter<'_> {
    /// Emits several turns of the loop that the block `first..end` is, if it is one; the block's own code follows. Nothing is
    /// emitted for other blocks.
    pub(super) fn unrolled_loop(&mut self, first: usize, end: usize) {
        let Some(copies) = self.copies(first, end) else { return };
        let plain = self.g.asm.label();
        let rollback = self.g.asm.label();
        self.test_all_lanes(plain);
        self.scalars_in_advance(end - 1, &copies, rollback);
        self.g.facts = self.facts.as_ref().map(Facts::assuming);
        self.g.addresses.clear();
        self.g.has_renamed = true;
        let rows = context(std::mem::offset_of!(JitContext, renamed));
        self.g.asm.op2(Code::Mov_r64_rm64, RENAMED, rows);
        self.work(&copies, rollback);
        self.g.write_back(true);
        self.g.has_renamed = false;
        self.g.facts = None;
        for &(to, from) in &copies.scalar_results {
            let (to, from) = (self.g.scalar(to), self.g.scalar(from));
            self.g.asm.op2(Code::Mov_r32_rm32, Register::EAX, from);
            self.g.asm.op2(Code::Mov_rm32_r32, to, Register::EAX);
        }
        self.next_turns(first, end, copies.scalars.len() as i32);
        self.g.asm.place(rollback);
        let saved = context(std::mem::offset_of!(JitContext, scc));
        self.g.asm.op2(Code::Mov_r32_rm32, Register::EAX, saved);
        self.g.asm.op2(Code::Mov_rm32_r32, scc(), Register::EAX);
        self.g.asm.place(plain);
    }

    /// The turns of the loop that a block is, if it is one that can be unrolled.
    pub(super) fn copies(&mut self, first: usize, end: usize) -> Option<Copies> {
        let facts = self.facts.clone()?;
        let branch = &self.program.steps[end - 1];
        let is_loop = matches!(branch.op, Some(Op::S_CBRANCH_SCC0 | Op::S_CBRANCH_SCC1))
            && branch.target as usize == first
            && end < self.program.steps.len();
        if !is_loop {
            return None;
        }
        let body = Body::of(self.program, first, end - 1, self.g.wide, self.floats)?;
        let copies = body.copies()?;
        // What is not known of an address before is not found out here.
        self.g.facts = Some(facts.assuming());
        let mut all_known = true;
        for (k, renamed) in copies.early.iter().enumerate() {
            let step = &renamed.step;
            all_known &= match renamed.how {
                How::Load(t) => address_dwords(step, &t) == 0 || self.g.pattern(step, &t).is_some(),
                How::Lane(_) if step.op == Some(Op::V_ADD_CO_U32) => self.sum_at(&copies, k).is_some(),
                How::Lane(_) if step.op == Some(Op::V_ADD_CO_CI_U32) => k > 0 && is_low(&copies.early[k - 1]),
                How::Lane(_) if is_split(step) => {
                    self.g.facts.as_ref().is_some_and(|facts| Progression::of(facts, step).is_some())
                }
                How::Lane(_) => true,
            };
            self.pass_renamed(renamed);
        }
        self.g.facts = None;
        all_known.then_some(copies)
    }

    /// The high half of the sum whose low half is the early step at `k`, if both are done by the first lane.
    fn sum_at<'a>(&self, copies: &'a Copies, k: usize) -> Option<&'a Renamed> {
        let (low, high) = (&copies.early[k], copies.early.get(k + 1)?);
        let facts = self.g.facts.as_ref()?;
        let is_first = Progression::of(facts, &low.step).is_some();
        let is_sum = is_low(low) && high.step.op == Some(Op::V_ADD_CO_CI_U32);
        (is_first && is_sum && as_one_sum(facts, &low.step, &high.step).is_some()).then_some(high)
    }

    fn pass_renamed(&mut self, renamed: &Renamed) {
        let halves = self.g.shape.halves;
        let dwords = match renamed.how {
            How::Load(t) => t.dwords * t.parts,
            How::Lane(_) => 2,
        };
        let rows: Vec<u16> = (0..dwords).map(|d| renamed.step.dst + (d * halves) as u16).collect();
        let rows = if matches!(renamed.how, How::Lane(_)) && !writes_two(&renamed.step) {
            &rows[..1]
        } else {
            &rows[..]
        };
        if let Some(facts) = &mut self.g.facts {
            facts.apply_renamed(&renamed.step, rows);
        }
    }

    /// The scalar steps of all turns; to `rollback` unless all but the last one are followed by another.
    fn scalars_in_advance(&mut self, branch: usize, copies: &Copies, rollback: Label) {
        let saved = context(std::mem::offset_of!(JitContext, scc));
        self.g.asm.op2(Code::Mov_r32_rm32, Register::EAX, scc());
        self.g.asm.op2(Code::Mov_rm32_r32, saved, Register::EAX);
        let op = self.program.steps[branch].op;
        for (turn, steps) in copies.scalars.iter().enumerate() {
            let is_last_turn = turn + 1 == copies.scalars.len();
            let last = steps.iter().rposition(copies::writes_scc);
            for (k, step) in steps.iter().enumerate() {
                // What is written again is not stored; nor what the flags have where the branch looks.
                let is_read = last == Some(k) && (is_last_turn || k + 1 != steps.len());
                self.g.asm.without_scc = !is_read;
                scalar::emit(&mut self.g.asm, step);
            }
            self.g.asm.without_scc = false;
            if is_last_turn {
                continue;
            }
            let taken = op.and_then(|op| scalar::condition(&mut self.g.asm, op, self.g.shape));
            if let Some(taken) = taken {
                self.g.asm.jump(taken.negate_condition_code(), rollback);
            }
        }
    }

    fn work(&mut self, copies: &Copies, rollback: Label) {
        let mut list = Vec::new();
        for (k, renamed) in copies.early.iter().enumerate() {
            let is_first = self.g.facts.as_ref().is_some_and(|f| Progression::of(f, &renamed.step).is_some());
            match renamed.how {
                How::Load(_) => list.push(Work::Load(renamed)),
                // Done together with the low half.
                How::Lane(_) if renamed.step.op == Some(Op::V_ADD_CO_CI_U32) => {}
                How::Lane(_) if is_first => list.push(Work::First(renamed, self.sum_at(copies, k))),
                How::Lane(_) => list.extend((0..self.g.pieces()).map(|c| Work::Early(renamed, c))),
            }
            self.pass_renamed(renamed);
        }
        self.g.facts = self.facts.as_ref().map(Facts::assuming);
        if let Some(tiles) = self.by_tiles(&copies.late) {
            list.push(Work::Tiles(tiles.iter().map(|&k| &copies.late[k]).collect()));
        } else {
            let late = self.by_chains(&copies.late);
            let late: Vec<&Renamed> = late.iter().map(|&k| &copies.late[k]).collect();
            let late = order::by_pieces(&late, self.g.pieces(), self.late_side_by_side(&late));
            list.extend(late.into_iter().map(|(renamed, c)| Work::Late(renamed, c)));
        }
        for &(to, from) in &copies.rows {
            list.extend((0..self.g.pieces()).map(|c| Work::Move(to, from, c)));
        }
        let accesses: Vec<Accesses> = list.iter().map(|work| self.accesses_of(work)).collect();
        let accesses = next_accesses(&accesses, self.g.all_pieces(), |_| false);
        for (work, accesses) in list.iter().zip(&accesses) {
            match work {
                Work::Early(renamed, c) | Work::Late(renamed, c) => {
                    self.g.settle(accesses, 0..0);
                    if let How::Lane(emit) = renamed.how {
                        emit(&mut self.g, &renamed.step, *c);
                    }
                }
                Work::First(renamed, high) => {
                    self.first_in_run(&renamed.step, high.map(|high| &high.step), rollback);
                }
                Work::Load(renamed) => {
                    if let How::Load(t) = renamed.how {
                        let checks = self.checks;
                        let address = self.kept_address(&renamed.step, &t);
                        self.g.settle(accesses, address);
                        self.g.transfer(&renamed.step, &t, &checks, rollback);
                    }
                }
                Work::Tiles(operations) => {
                    let lanes = operations.iter().filter_map(|renamed| match renamed.how {
                        How::Lane(emit) => Some((&renamed.step, emit)),
                        How::Load(_) => None,
                    });
                    self.g.for_all_pieces(&lanes.collect::<Vec<_>>());
                }
                Work::Move(to, from, c) => {
                    self.g.settle(accesses, 0..0);
                    let from = self.g.piece(*from, 0, *c);
                    let from = self.g.piece_register(from);
                    self.g.finish(codes::MOVE, *to, 0, *c, &[from.into()]);
                }
            }
            self.g.end_operation(accesses);
            match work {
                Work::Load(renamed) => self.pass_renamed(renamed),
                Work::Early(renamed, c) if *c + 1 == self.g.pieces() => self.pass_renamed(renamed),
                Work::First(renamed, high) => {
                    self.pass_renamed(renamed);
                    high.iter().for_each(|high| self.pass_renamed(high));
                }
                _ => {}
            }
        }
    }

    /// How many pieces have registers for the rows that are written: sources may stay in memory.
    fn late_side_by_side(&self, late: &[&Renamed]) -> usize {
        let mut rows: Vec<u16> = late.iter().map(|renamed| renamed.step.dst).collect();
        rows.sort_unstable();
        rows.dedup();
        order::side_by_side(2 * rows.len(), self.g.pieces(), self.g.wide.registers(), 0)
    }

    fn accesses_of(&self, work: &Work<'_>) -> Accesses {
        match work {
            Work::Early(renamed, c) | Work::Late(renamed, c) => {
                lane::accesses(&self.g, &renamed.step, *c, false)
            }
            Work::First(renamed, high) => {
                let steps = [Some(*renamed), *high].into_iter().flatten();
                steps.flat_map(|renamed| self.accesses_of_all(&renamed.step)).collect()
            }
            Work::Tiles(operations) => {
                let mut accesses: Accesses =
                    operations.iter().flat_map(|renamed| self.accesses_of_all(&renamed.step)).collect();
                accesses.iter_mut().for_each(|access| access.overwrites = false);
                accesses
            }
            Work::Load(renamed) => match renamed.how {
                How::Load(t) => vmem::accesses(&self.g, &renamed.step, &t, false),
                How::Lane(_) => Accesses::new(),
            },
            Work::Move(to, from, c) => smallvec![
                Access { piece: self.g.piece(*from, 0, *c), overwrites: false },
                Access { piece: self.g.piece(*to, 0, *c), overwrites: true },
            ],
        }
    }

    /// The order of operations in tiles, if they are an outer product.
    pub(super) fn by_tiles(&self, late: &[Renamed]) -> Option<Vec<usize>> {
        let list: Option<Vec<_>> = late.iter().map(|renamed| self.g.accumulation(&renamed.step)).collect();
        tiles::order(&list?, self.g.wide.registers())
    }

    /// The order of operations in which chains stay together.
    fn by_chains(&self, late: &[Renamed]) -> Vec<usize> {
        let touched = |k: usize, writes: bool, resources: &mut Vec<usize>| {
            let accesses = lane::accesses(&self.g, &late[k].step, 0, false);
            resources.extend(accesses.iter().filter(|a| a.overwrites == writes).map(|a| a.piece as usize));
        };
        order::order(late.len(), self.g.all_pieces(), touched)
    }

    /// The end of several turns: to the loop's head, or on.
    fn next_turns(&mut self, first: usize, end: usize, turns: i32) {
        let branch = end - 1;
        let turn = self.ordinal(branch) - self.ordinal(first) + 1;
        let fall = self.g.asm.label();
        let op = self.program.steps[branch].op;
        if let Some(taken) = op.and_then(|op| scalar::condition(&mut self.g.asm, op, self.g.shape)) {
            self.g.asm.jump(taken.negate_condition_code(), fall);
        }
        self.count(turns * turn);
        self.look(first, &[]);
        if let Some(head) = self.label_of(first) {
            self.g.asm.jump(Code::Jmp_rel32_64, head);
        }
        self.g.asm.place(fall);
        self.count((turns - 1) * turn);
        self.fall_through(first, end);
        match self.label_of(end) {
            Some(label) => self.g.asm.jump(Code::Jmp_rel32_64, label),
            None => self.leave(end),
        }
    }
}

/// Whether it is the low half of a sum of 64 bits.
fn is_low(renamed: &Renamed) -> bool {
    renamed.step.op == Some(Op::V_ADD_CO_U32)
}

fn writes_two(step: &Step) -> bool {
    step.op.is_some_and(|op| softgpu_isa::info(op).dst.first().is_some_and(|slot| slot.ty.dwords() == 2))
}

/// SCC in memory.
fn scc() -> iced_x86::MemoryOperand {
    wave_field(std::mem::offset_of!(Wave, scc))
}
