// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions: operations between two changes of EXEC, emitted once for all lanes and once for any EXEC.
//!
//! INVARIANT: vector registers hold row pieces only within a region; at its end all of them are in memory.

use std::ops::Range;

use iced_x86::Code;
use softgpu_isa::Op;

use super::asm::Label;
use super::emit::Emitter;
use super::exits::Cold;
use super::flow::{self, Item, Unit, What};
use super::generator::{Access, Accesses, NextAccesses, Wide, next_accesses};
use super::order;
use super::progressions::is_split;
use super::regs::Piece;
use super::transfer::{Transfer, address_dwords};
use super::{lane, lane_scalars, vmem};
use crate::salu::control::DEALLOC_VGPRS;
use crate::step::Step;
use crate::wave::EXEC;

/// A region with fewer operations has only the variant for any EXEC: a second variant is not worth its bytes (AVX-512).
const FEW: usize = 3;
/// Registers that a run whose pieces are side by side leaves for constants and intermediate results.
pub(super) const SPARE: usize = 7;
/// One operation of a region, for one piece.
#[derive(Clone, Copy)]
pub(super) enum Micro {
    Lane(Item, usize),
    /// For all pieces, by the first lane.
    Progression(Item),
    Scalar(Item),
    Transfer(Item, Transfer),
}

impl Emitter<'_> {
    /// A load or store within a region.
    pub(super) fn transfer(&mut self, item: &Item, t: &Transfer, masked: bool) {
        let index = item.index;
        if !masked && !self.is_left_to_handler(index, t) {
            let (mut slow, checks) = (self.slow(index), self.checks);
            slow.dirty = self.g.transfer(&self.program.steps[index], t, &checks, slow.label);
            return self.goes_on(slow);
        }
        self.g.addresses.clear();
        self.g.write_back(true);
        self.call_handler(index);
        let (label, count) = (self.g.asm.label(), self.ordinal(index) - self.ordinal(self.first) + 1);
        self.g.asm.jump(Code::Jne_rel32_64, label);
        self.cold.push(Cold::Flow { label, count, step: index });
        if masked {
            self.g.load_exec_masks();
        }
        self.g.regs.forget_constants();
    }

    pub(super) fn micros(&self, units: &[Unit], masked: bool) -> Vec<Micro> {
        let mut list = Vec::new();
        let mut units = units.iter().peekable();
        while let Some(unit) = units.next() {
            match unit {
                Unit::One(item) => match item.what {
                    What::Transfer(t) => list.push(Micro::Transfer(*item, t)),
                    What::Progression(_) if !masked => list.push(Micro::Progression(*item)),
                    What::Progression(_) => {
                        // Those behind each other are a run, unless one reads in all lanes what another writes lane by lane.
                        let (mut run, mut written) = (vec![*item], item.touch.written_scalars());
                        while let Some(Unit::One(next)) = units.next_if(|unit| {
                            matches!(unit, Unit::One(next) if matches!(next.what, What::Progression(_))
                                && flow::scalar_data(&self.program.steps[next.index]) & written == 0)
                        }) {
                            written |= next.touch.written_scalars();
                            run.push(*next);
                        }
                        list.extend(self.lane_micros(&run, masked));
                    }
                    _ => list.push(Micro::Scalar(*item)),
                },
                Unit::Lanes(items) => list.extend(self.lane_micros(items, masked)),
            }
        }
        list
    }

    fn lane_micros(&self, items: &[Item], masked: bool) -> Vec<Micro> {
        self.lanes(items, masked).into_iter().map(|(item, c)| Micro::Lane(item, c)).collect()
    }

    /// The operations of a run for every piece, in the order of emission.
    pub(super) fn lanes(&self, items: &[Item], masked: bool) -> Vec<(Item, usize)> {
        order::by_pieces(items, self.g.pieces(), self.side_by_side(items, masked))
    }

    /// How many pieces of a run are done side by side.
    fn side_by_side(&self, items: &[Item], masked: bool) -> usize {
        // There is one mask register in AVX2.
        if masked && self.g.wide == Wide::Y {
            return 1;
        }
        let mut rows: Vec<Piece> = Vec::new();
        for item in items {
            let accesses = lane::accesses(&self.g, &self.program.steps[item.index], 0, masked);
            rows.extend(accesses.iter().map(|a| a.piece));
        }
        rows.sort_unstable();
        rows.dedup();
        order::side_by_side(rows.len(), self.g.pieces(), self.g.wide.registers(), SPARE)
    }

    /// Emits a region: its runs of loads and arithmetic, and what is between them.
    pub(super) fn region(&mut self, units: Vec<Unit>) {
        let mut from = 0;
        for run in self.runs(&units) {
            self.emit_region(&units[from..run.start]);
            self.emit_run(&units[run.clone()]);
            from = run.end;
        }
        self.emit_region(&units[from..]);
    }

    /// The runs of a region, of which only a load is the first.
    fn runs(&mut self, units: &[Unit]) -> Vec<Range<usize>> {
        let begins = |unit: &Unit| matches!(unit, Unit::One(item) if item.is_transfer());
        let mut runs: Vec<Range<usize>> = Vec::new();
        if self.is_quick() || self.facts.is_none() || !units.iter().any(begins) {
            return runs;
        }
        let facts = self.facts.clone();
        let mut next = 0;
        for (at, unit) in units.iter().enumerate() {
            if at >= next && begins(unit) {
                let (count, is_worth_it) = self.piecewise_run(&units[at..]);
                next = at + count;
                if is_worth_it {
                    runs.push(at..next);
                }
            }
            self.pass_unit(unit);
        }
        self.facts = facts;
        runs
    }

    pub(super) fn pass_unit(&mut self, unit: &Unit) {
        match unit {
            Unit::One(item) => self.pass(item.index),
            Unit::Lanes(items) => items.iter().for_each(|item| self.pass(item.index)),
        }
    }

    /// Emits what is no run, in two variants where that pays.
    fn emit_region(&mut self, units: &[Unit]) {
        self.emit_variants(units);
        units.iter().for_each(|unit| self.pass_unit(unit));
    }

    fn emit_variants(&mut self, units: &[Unit]) {
        let micros = self.micros(units, false);
        let is_lane = |m: &&Micro| matches!(m, Micro::Lane(..) | Micro::Progression(_));
        let lanes = micros.iter().filter(is_lane).count();
        let transfers = micros.iter().any(|m| matches!(m, Micro::Transfer(..)));
        if lanes == 0 && !transfers {
            for m in &micros {
                if let Micro::Scalar(item) = m {
                    self.scalar_step(item.index);
                }
            }
            return;
        }
        if self.is_quick() {
            // All lanes are active, which was looked at.
            return self.variant(&micros, false);
        }
        if self.g.wide == Wide::Z && !transfers && lanes <= FEW * self.g.pieces() {
            self.variant(&self.micros(units, true), true);
            return;
        }
        let any = self.g.asm.label();
        self.test_all_lanes(any);
        self.variant(&micros, false);
        self.any_lanes(units, any);
    }

    fn emit_run(&mut self, units: &[Unit]) {
        let any = self.g.asm.label();
        self.test_all_lanes(any);
        self.piecewise(units, any);
        self.any_lanes(units, any);
        units.iter().for_each(|unit| self.pass_unit(unit));
    }

    /// The variant for any EXEC, at `any`, behind the one for all lanes.
    fn any_lanes(&mut self, units: &[Unit], any: Label) {
        let over = self.g.asm.label();
        self.g.asm.jump(Code::Jmp_rel32_64, over);
        self.g.asm.place(any);
        self.variant(&self.micros(units, true), true);
        self.g.asm.place(over);
    }

    /// Jumps to `any` unless all lanes are active.
    pub(super) fn test_all_lanes(&mut self, any: Label) {
        let code = if self.g.shape.halves == 2 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
        let exec = self.g.scalar(EXEC as u16);
        self.g.asm.op2(code, exec, -1);
        self.g.asm.jump(Code::Jne_rel32_64, any);
    }

    /// A scalar step between lane-wise operations.
    pub(super) fn scalar_between(&mut self, item: &Item) {
        self.scalar_step(item.index);
        self.g.regs.forget_masks(item.touch.written_scalars(), None);
        self.g.lane_masks.forget(item.touch.written_scalars());
    }

    pub(super) fn accesses(&self, micros: &[Micro], masked: bool) -> Vec<NextAccesses> {
        let list: Vec<Accesses> = micros
            .iter()
            .map(|m| match m {
                Micro::Lane(item, c) => lane::accesses(&self.g, &self.program.steps[item.index], *c, masked),
                Micro::Progression(item) => self.accesses_of_all(&self.program.steps[item.index]),
                Micro::Scalar(item) => lane_scalars::accesses(&self.g, &self.program.steps[item.index]),
                Micro::Transfer(item, t) => {
                    vmem::accesses(&self.g, &self.program.steps[item.index], t, masked)
                }
            })
            .collect();
        next_accesses(&list, self.g.all_pieces(), |_| false)
    }

    /// Those of a step that is done for all pieces at once, by the first lane.
    pub(super) fn accesses_of_all(&self, step: &Step) -> Accesses {
        let of_piece = |c: usize| {
            let mut list = lane::accesses(&self.g, step, c, false);
            if is_split(step) {
                let no_half = self.g.piece(step.src[1].index, 1, c);
                list.retain(|a| a.overwrites || a.piece != no_half);
            }
            list
        };
        (0..self.g.pieces()).flat_map(of_piece).collect()
    }

    pub(super) fn operations(&mut self, micros: &[Micro], masked: bool) {
        let accesses = self.accesses(micros, masked);
        let mut piece = usize::MAX;
        let mut list = micros.iter().zip(&accesses).peekable();
        while let Some((m, accesses)) = list.next() {
            match m {
                Micro::Lane(item, c) => {
                    self.settled_lane(item, *c, &mut piece, accesses);
                    self.forget_addresses(item);
                    if *c + 1 == self.g.pieces() {
                        self.pass_in_variant(item.index);
                    }
                }
                Micro::Progression(item)
                    if let Some((Micro::Progression(high), _)) = list.peek()
                        && self.long_progression([item, high]) =>
                {
                    self.g.end_operation(accesses);
                    if let Some((_, accesses)) = list.next() {
                        self.g.end_operation(accesses);
                    }
                    for item in [item, high] {
                        self.forget_addresses(item);
                        self.pass_in_variant(item.index);
                    }
                }
                Micro::Progression(item) => {
                    if self.progression(item) {
                        self.g.end_operation(accesses);
                    } else {
                        let pieces = self.g.pieces();
                        for c in 0..pieces {
                            let of_piece = accesses.iter().filter(|a| a.0.piece as usize % pieces == c);
                            let of_piece: NextAccesses = of_piece.copied().collect();
                            self.settled_lane(item, c, &mut piece, &of_piece);
                        }
                    }
                    self.forget_addresses(item);
                    self.pass_in_variant(item.index);
                }
                Micro::Scalar(item) => {
                    self.g.settle(accesses, 0..0);
                    self.scalar_between(item);
                    self.g.end_operation(accesses);
                    self.overwritten(accesses, item);
                    self.pass_in_variant(item.index);
                }
                Micro::Transfer(item, t) => {
                    let address = self.kept_address(&self.program.steps[item.index], t);
                    self.g.settle(accesses, address);
                    self.transfer(item, t, masked);
                    self.g.end_operation(accesses);
                    self.overwritten(accesses, item);
                    piece = usize::MAX;
                    self.pass_in_variant(item.index);
                }
            }
        }
    }

    /// A lane-wise operation for piece `c` where rows may be pending.
    fn settled_lane(&mut self, item: &Item, c: usize, piece: &mut usize, accesses: &[(Access, u32, bool)]) {
        self.g.settle(accesses, 0..0);
        self.lane(item, c, piece, accesses);
        self.overwritten(accesses, item);
    }

    /// What a step has written is not what first lanes say.
    fn overwritten(&mut self, accesses: &[(Access, u32, bool)], item: &Item) {
        let (vgprs, halves) = (self.g.shape.vgprs, self.g.shape.halves);
        self.g.overwritten(accesses, || {
            let mut rows = Vec::new();
            item.touch.each_write(|register| {
                let register = if register < 256 { register } else { vgprs + register - 256 };
                // CAST: scalars have numbers above those of VGPRs, and are no rows.
                rows.push((register * halves) as u16);
            });
            rows
        });
    }

    /// The registers of a transfer's address, if their first lanes will do: it is not what is stored, too.
    pub(super) fn kept_address(&self, step: &Step, t: &Transfer) -> Range<u16> {
        // CAST: at most two, and four.
        let (first, dwords, stored) = (step.src[0].index, address_dwords(step, t) as u16, t.dwords as u16);
        let is_stored = |part: usize| {
            let data = step.src[1 + part].index;
            t.store && data < first + dwords && first < data + stored
        };
        let is_first_enough = self.g.first_place(step, t, 0).is_some() && !(0..t.parts).any(is_stored);
        if is_first_enough { first..first + dwords } else { 0..0 }
    }

    /// A lane-wise operation for piece `c`; AVX2 has the mask of one piece, which `piece` says.
    pub(super) fn lane(
        &mut self,
        item: &Item,
        c: usize,
        piece: &mut usize,
        accesses: &[(Access, u32, bool)],
    ) {
        if self.g.masked && *piece != c {
            self.g.load_exec_mask(c);
            *piece = c;
        }
        if let Some(emit) = item.lane() {
            emit(&mut self.g, &self.program.steps[item.index], c);
        }
        self.g.end_operation(accesses);
    }

    /// A register that a lane-wise operation writes is no longer known as an address.
    pub(super) fn forget_addresses(&mut self, item: &Item) {
        let (halves, dst) = (self.g.shape.halves, self.program.steps[item.index].dst as usize);
        self.g.addresses.forget(dst..dst + 2 * halves, halves);
    }

    pub(super) fn variant(&mut self, micros: &[Micro], masked: bool) {
        self.g.addresses.clear();
        self.g.masked = masked;
        if masked {
            self.g.load_exec_masks();
        } else {
            self.g.facts.clone_from(&self.facts);
        }
        self.operations(micros, masked);
        let scalars = |m| if let &Micro::Scalar(item) = m { Some(item) } else { None };
        self.end_variant(micros.iter().rev().map_while(scalars));
        self.g.facts = None;
    }

    /// Behind a variant's operations, of which these are the last ones, in reverse order: what registers have goes to memory, unless
    /// one of them gives it back.
    pub(super) fn end_variant(&mut self, mut last_scalars: impl Iterator<Item = Item>) {
        if last_scalars.any(|item| self.gives_rows_back(&item)) {
            self.g.forget_rows();
        }
        self.g.write_back(true);
        self.g.masked = false;
    }

    /// Whether a wave gives its VGPRs back by this step, and ends by the next one: what they have is of no use any more.
    fn gives_rows_back(&self, item: &Item) -> bool {
        let [step, next] = [item.index, item.index + 1].map(|index| self.program.steps.get(index));
        let op = |step: Option<&Step>| step.and_then(|step| step.op);
        op(next) == Some(Op::S_ENDPGM)
            && op(step) == Some(Op::S_SENDMSG)
            && step.is_some_and(|step| step.imm & 0xFF == DEALLOC_VGPRS)
    }

    /// Step `index` has been emitted for all pieces of the variant.
    fn pass_in_variant(&mut self, index: usize) {
        if let Some(facts) = &mut self.g.facts {
            facts.apply(self.program, index);
        }
    }
}
