// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program as host code: blocks, regions between changes of EXEC, calls of handlers, exits.
//!
//! INVARIANT: at the head of a block, at a call and at every exit, all state is in the wave. Vector registers hold row
//! pieces only within a region, which has one variant for all lanes and one for any EXEC, and within a loop of one
//! block whose rows all fit.

use std::cell::Cell;

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::analysis::{self, Facts};
use super::asm::{AsmError, CONTEXT, FLAG, Finished, HOT, Label, POOL, ROWS, SCALARS, context, memory};
use super::chain::{self, Link};
use super::context::{Exit, JitContext};
use super::exits::Cold;
use super::floats::Floats;
use super::flow::{self, Item, Unit, What};
use super::generator::{Gen, Wide};
use super::lane_scalars;
use super::matrix::Factors;
use super::regs::Spill;
use super::scalar;
use super::transfer::Checks;
use crate::engine::Effort;
use crate::facts::Fact;
use crate::predecoded::Predecoded;
use crate::wave::WaveStatus;

/// Bits of the control's state that ask a wave to stop.
pub(super) const ASKS: i32 = 3;

pub(super) struct Emitter<'a> {
    pub(super) program: &'a Predecoded,
    pub(super) g: Gen,
    pub(super) floats: Floats,
    pub(super) mode: u32,
    pub(super) leaders: Vec<usize>,
    /// Which blocks are emitted with the one in front of them, and have no label.
    pub(super) absorbed: Vec<bool>,
    pub(super) labels: Vec<Label>,
    pub(super) way_out: Label,
    pub(super) checks: Checks,
    pub(super) cold: Vec<Cold>,
    /// Where another wave goes on.
    pub(super) switch: Label,
    /// Exits of the code there.
    pub(super) leaving: Vec<(Label, Exit)>,
    /// First step of the block being emitted.
    pub(super) first: usize,
    pub(super) effort: Effort,
    /// What is known at the head of every block.
    pub(super) heads: Vec<Option<Facts>>,
    /// What is known where code is being emitted, whatever lanes are active.
    pub(super) facts: Option<Facts>,
    /// What earlier matrix operations of the block have converted.
    pub(super) factors: Factors,
    /// Scalar steps of what is being emitted whose SCC nobody reads, in their order.
    unread_scc: Vec<usize>,
    /// Whether steps are emitted inline, where that has been asked.
    inline: Vec<Cell<Option<bool>>>,
}

impl<'a> Emitter<'a> {
    /// For waves that start with work-items' numbers as `items` says; any wave if it says nothing.
    pub(super) fn new(
        program: &'a Predecoded,
        wide: Wide,
        mode: u32,
        items: Option<Fact>,
        effort: Effort,
    ) -> Emitter<'a> {
        let mut g = Gen::new(wide, program.shape);
        let leaders = flow::leaders(program);
        let heads = items.map(|items| analysis::heads(program, &leaders, items)).unwrap_or_default();
        let absorbed = chain::absorbed(program, &leaders);
        let labels = leaders.iter().map(|_| g.asm.label()).collect();
        let way_out = g.asm.label();
        let switch = g.asm.label();
        let checks = Checks { read: g.asm.label(), write: g.asm.label() };
        Emitter {
            program,
            g,
            floats: Floats::of(mode),
            mode,
            leaders,
            absorbed,
            labels,
            way_out,
            checks,
            cold: Vec::new(),
            switch,
            leaving: Vec::new(),
            first: 0,
            effort,
            heads,
            facts: None,
            factors: Factors::default(),
            unread_scc: Vec::new(),
            inline: vec![Cell::new(None); program.steps.len()],
        }
    }

    /// Emits the whole program: the code, and the position of each block's head.
    pub(super) fn emit(mut self) -> Result<(Finished, Vec<(usize, usize)>), AsmError> {
        self.prologue();
        // In other MODEs handlers compute them.
        if self.floats.f32_default {
            self.g.emit_shared(self.program.steps.iter().filter_map(|step| step.op));
        }
        for k in 0..self.leaders.len() {
            self.block(k);
        }
        self.emit_switch();
        self.g.emit_outlined();
        self.cold_paths();
        let checks = self.checks;
        self.g.emit_checks(&checks);
        self.epilogue();
        let heads = self.leaders.into_iter().zip(self.labels).zip(self.absorbed);
        if self.g.exhausted {
            return Err(AsmError::Exhausted);
        }
        let finished = self.g.asm.finish()?;
        let heads = heads.filter(|(_, is_absorbed)| !is_absorbed);
        let entries = heads.map(|((first, label), _)| (first, finished.offset(label))).collect();
        Ok((finished, entries))
    }

    /// `extern "sysv64" fn(context, target) -> u64`.
    fn prologue(&mut self) {
        let a = &mut self.g.asm;
        for r in [ROWS, SCALARS, HOT, CONTEXT, POOL, FLAG] {
            a.op1(Code::Push_r64, r);
        }
        a.op2(Code::Sub_rm64_imm8, Register::RSP, 8);
        a.op2(Code::Mov_r64_rm64, CONTEXT, Register::RDI);
        for (r, offset) in [
            (ROWS, std::mem::offset_of!(JitContext, rows)),
            (SCALARS, std::mem::offset_of!(JitContext, scalars)),
            (HOT, std::mem::offset_of!(JitContext, hot)),
            (POOL, std::mem::offset_of!(JitContext, pool)),
            (FLAG, std::mem::offset_of!(JitContext, flag)),
        ] {
            a.op2(Code::Mov_r64_rm64, r, context(offset));
        }
        a.op1(Code::Jmp_rm64, Register::RSI);
    }

    fn epilogue(&mut self) {
        let way_out = self.way_out;
        let a = &mut self.g.asm;
        a.place(way_out);
        a.op0(Code::VEX_Vzeroupper);
        a.op2(Code::Add_rm64_imm8, Register::RSP, 8);
        for r in [FLAG, POOL, CONTEXT, HOT, SCALARS, ROWS] {
            a.op1(Code::Pop_r64, r);
        }
        a.op0(Code::Retnq);
    }

    pub(super) fn ordinal(&self, step: usize) -> i32 {
        self.program.steps[step].ordinal as i32
    }

    pub(super) fn label_of(&self, step: usize) -> Option<Label> {
        let block = self.leaders.binary_search(&step).ok()?;
        (!self.absorbed[block]).then(|| self.labels[block])
    }

    pub(super) fn count(&mut self, count: i32) {
        if count != 0 {
            let place = context(std::mem::offset_of!(JitContext, executed));
            self.g.asm.op2(Code::Add_rm64_imm32, place, count);
        }
    }

    /// The first step of block `k`, or the end of the program.
    fn head_of(&self, k: usize) -> usize {
        self.leaders.get(k).copied().unwrap_or(self.program.steps.len())
    }

    /// Emits block `k` and those behind it that are emitted with it.
    fn block(&mut self, k: usize) {
        if self.absorbed[k] {
            return;
        }
        let after = k + 1 + self.absorbed[k + 1..].iter().take_while(|absorbed| **absorbed).count();
        let (first, end) = (self.leaders[k], self.head_of(after));
        self.g.asm.place(self.labels[k]);
        self.first = first;
        self.factors.clear();
        self.unread_scc.clear();
        self.enter(k);
        let mut links: Vec<Link> = Vec::new();
        let mut branched = false;
        for n in k..after {
            let (from, to) = (self.head_of(n), self.head_of(n + 1));
            let progressions = self.progressions(n, from, to);
            let units = flow::units(self.program, from, to, self.g.wide, self.floats, &progressions);
            self.find_unread_scc(&units);
            if after == k + 1 && !self.is_quick() {
                if self.resident_loop(first, end, &units) {
                    return;
                }
                self.unrolled_loop(first, end);
            }
            if n > k {
                links.push(Link::Head(n));
            }
            let tests = self.lane_tests(&units);
            for (unit, test) in units.into_iter().zip(tests) {
                links.extend(test.map(Link::Test));
                let item = match &unit {
                    Unit::One(item) => *item,
                    Unit::Lanes(items) => {
                        items.iter().for_each(|item| self.factors.forget(&item.touch));
                        links.push(Link::Unit(unit));
                        continue;
                    }
                };
                if self.is_matrix(&item) {
                    self.links(std::mem::take(&mut links));
                    self.matrix(item.index);
                    self.factors.forget(&item.touch);
                    continue;
                }
                self.factors.forget(&item.touch);
                match item.what {
                    What::Transfer(_) | What::Progression(_) => links.push(Link::Unit(unit)),
                    What::Scalar if self.is_inline(&item) => links.push(Link::Unit(unit)),
                    What::Branch if n + 1 < after => links.push(Link::Exit(item)),
                    What::Branch => {
                        self.links(std::mem::take(&mut links));
                        self.branch(first, end, &item);
                        branched = true;
                    }
                    _ => {
                        self.links(std::mem::take(&mut links));
                        self.scalar_or_call(first, &item);
                    }
                }
            }
        }
        self.links(links);
        if !branched {
            self.fall_through(first, end);
        }
    }

    /// Finds the scalar steps of a block whose SCC another one overwrites, with nothing in between that reads it, or by which the
    /// code may be left.
    fn find_unread_scc(&mut self, units: &[Unit]) {
        let items = units.iter().flat_map(|unit| match unit {
            Unit::One(item) => std::slice::from_ref(item),
            Unit::Lanes(items) => items,
        });
        let mut items: Vec<&Item> = items.collect();
        items.sort_unstable_by_key(|item| item.index);
        let known = self.unread_scc.len();
        let mut is_overwritten = false;
        for item in items.into_iter().rev() {
            let (reads, writes) = (item.touch.reads_scc(), item.touch.writes_scc());
            let is_scalar = matches!(item.what, What::Scalar);
            if writes && is_overwritten && is_scalar {
                self.unread_scc.push(item.index);
            }
            let is_inline = item.lane().is_some() || is_scalar && self.is_inline(item);
            // Behind a change of EXEC quick code may be left.
            let stays = is_inline && !(self.is_quick() && item.touch.writes_exec());
            is_overwritten = stays && !reads && (writes || is_overwritten);
        }
        self.unread_scc[known..].reverse();
    }

    /// Whether a scalar step is emitted inline: tried with code that is thrown away.
    pub(super) fn is_inline(&self, item: &Item) -> bool {
        let known = &self.inline[item.index];
        known.get().unwrap_or_else(|| {
            let step = &self.program.steps[item.index];
            let is_inline = lane_scalars::is_inline(step) || scalar::emit(&mut super::asm::Asm::new(), step);
            known.set(Some(is_inline));
            is_inline
        })
    }

    /// Emits a scalar step; `false`, and nothing, if it is not emitted inline.
    pub(super) fn scalar_step(&mut self, index: usize) -> bool {
        let step = &self.program.steps[index];
        self.g.asm.without_scc = self.unread_scc.binary_search(&index).is_ok();
        let is_inline = lane_scalars::emit(&mut self.g, step) || scalar::emit(&mut self.g.asm, step);
        self.g.asm.without_scc = false;
        is_inline
    }

    pub(super) fn fall_through(&mut self, first: usize, end: usize) {
        if end < self.program.steps.len() {
            self.count(self.ordinal(end) - self.ordinal(first));
        } else {
            // The last step never falls through. If a handler nevertheless does, the interpreter continues.
            self.leave(end.saturating_sub(1));
        }
    }

    /// Step `index` has been emitted.
    pub(super) fn pass(&mut self, index: usize) {
        if let Some(facts) = &mut self.facts {
            facts.apply(self.program, index);
        }
    }

    pub(super) fn scalar_or_call(&mut self, first: usize, item: &Item) {
        self.pass(item.index);
        let step = &self.program.steps[item.index];
        match step.op {
            Some(Op::S_ENDPGM | Op::S_ENDPGM_SAVED) => {
                return self.halt(first, item.index, WaveStatus::Ended);
            }
            Some(Op::S_BARRIER) => return self.halt(first, item.index, WaveStatus::AtBarrier),
            _ => {}
        }
        let inline = matches!(item.what, What::Scalar) && self.scalar_step(item.index);
        if !inline && !self.scalar_load(item.index) {
            self.call(first, item.index);
        }
    }

    fn branch(&mut self, first: usize, end: usize, item: &Item) {
        let step = &self.program.steps[item.index];
        let Some(op) = step.op else { return };
        let target = step.target as usize;
        let count = self.ordinal(item.index) - self.ordinal(first) + 1;
        let fall = scalar::condition(&mut self.g.asm, op, self.g.shape).map(|taken| {
            let label = self.g.asm.label();
            self.g.asm.jump(taken.negate_condition_code(), label);
            label
        });
        self.count(count);
        self.take_branch(target <= item.index, target);
        if let Some(fall) = fall {
            self.g.asm.place(fall);
            self.fall_through(first, end);
        }
    }

    /// Jumps to the block at `target`; a backward jump first checks whether the wave has to stop.
    pub(super) fn take_branch(&mut self, backward: bool, target: usize) {
        if backward {
            self.look(target, &[]);
        }
        match self.label_of(target) {
            Some(label) => self.g.asm.jump(Code::Jmp_rel32_64, label),
            None => self.leave(target),
        }
    }

    /// Leaves for `target` when the control asks or the quantum is over.
    pub(super) fn look(&mut self, target: usize, dirty: &[Spill]) {
        for (exit, code) in [(Exit::Interrupted, Code::Jne_rel32_64), (Exit::Quantum, Code::Jae_rel32_64)] {
            let label = self.g.asm.label();
            match exit {
                Exit::Interrupted => self.g.asm.op2(Code::Test_rm8_imm8, memory(FLAG, 0, false), ASKS),
                _ => {
                    let executed = context(std::mem::offset_of!(JitContext, executed));
                    let limit = context(std::mem::offset_of!(JitContext, limit));
                    self.g.asm.op2(Code::Mov_r64_rm64, Register::RAX, executed);
                    self.g.asm.op2(Code::Cmp_r64_rm64, Register::RAX, limit);
                }
            }
            self.g.asm.jump(code, label);
            self.cold.push(Cold::Leave { label, count: 0, exit, step: target, dirty: dirty.to_vec() });
        }
    }
}
