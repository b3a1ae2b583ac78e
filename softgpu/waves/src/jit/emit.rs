// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program as host code: blocks, regions between changes of EXEC, calls of handlers, ways out.
//!
//! INVARIANT: at the head of a block, at a call and at every way out, all state is in the wave. Vector registers hold
//! row pieces only within a region, which has one variant for all lanes and one for any EXEC, and within a loop of one
//! block whose rows all fit.

use iced_x86::{Code, Register};

use super::asm::{
    AsmError, CONTEXT, ENV, FLAG, Finished, Label, POOL, ROWS, SCALARS, context, memory, wave_field,
};
use super::flow::{self, Item, Unit, What};
use super::generator::{Access, Gen, Wide, next_accesses};
use super::lane::{self, Floats};
use super::regs::Spill;
use super::vmem::{self, Checks, Transfer};
use super::{Exit, JitContext, scalar};
use crate::program::Program;
use crate::wave::{EXEC, Wave};

/// Operations of a region below which only the variant for any EXEC is worth its bytes (AVX-512).
const FEW: usize = 3;
/// Bits of the control's state that ask a wave to stop.
const ASKS: i32 = 3;

/// One operation of a region, for one piece.
#[derive(Clone, Copy)]
pub(super) enum Micro {
    Lane(Item, usize),
    Scalar(Item),
    Transfer(Item, Transfer),
}

/// A way out of line.
enum Cold {
    /// Count, then leave with this exit and step.
    Leave { label: Label, count: i32, exit: Exit, step: usize, dirty: Vec<Spill> },
    /// An access that is not done inline: the handler does it.
    Slow { label: Label, resume: Label, count: i32, step: usize, dirty: Vec<Spill>, held: Vec<Spill> },
    /// A handler returned something else than "go on" (in EAX).
    Flow { label: Label, count: i32, step: usize },
}

pub(super) struct Emitter<'a> {
    pub(super) program: &'a Program,
    pub(super) g: Gen,
    floats: Floats,
    mode: u32,
    leaders: Vec<usize>,
    labels: Vec<Label>,
    way_out: Label,
    checks: Checks,
    cold: Vec<Cold>,
    /// First step of the block being emitted.
    first: usize,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(program: &'a Program, wide: Wide, mode: u32) -> Emitter<'a> {
        let mut g = Gen::new(wide, program.shape);
        let leaders = flow::leaders(program);
        let labels = leaders.iter().map(|_| g.asm.label()).collect();
        let way_out = g.asm.label();
        let checks = Checks { read: g.asm.label(), write: g.asm.label() };
        Emitter {
            program,
            g,
            floats: Floats::of(mode),
            mode,
            leaders,
            labels,
            way_out,
            checks,
            cold: Vec::new(),
            first: 0,
        }
    }

    /// Everything: code, and for every leader where it is.
    pub(super) fn emit(mut self) -> Result<(Finished, Vec<(usize, usize)>), AsmError> {
        self.prologue();
        for k in 0..self.leaders.len() {
            self.block(k);
        }
        self.g.emit_outlined();
        self.cold_paths();
        let checks = self.checks;
        self.g.emit_checks(&checks);
        self.epilogue();
        let (leaders, labels) = (self.leaders, self.labels);
        if self.g.exhausted {
            return Err(AsmError::Exhausted);
        }
        let finished = self.g.asm.finish()?;
        let entries = leaders.iter().zip(labels).map(|(&k, l)| (k, finished.offset(l))).collect();
        Ok((finished, entries))
    }

    /// `extern "sysv64" fn(context, target) -> u64`.
    fn prologue(&mut self) {
        let a = &mut self.g.asm;
        for r in [ROWS, SCALARS, ENV, CONTEXT, POOL, FLAG] {
            a.op1(Code::Push_r64, r);
        }
        a.op2(Code::Sub_rm64_imm8, Register::RSP, 8);
        a.op2(Code::Mov_r64_rm64, CONTEXT, Register::RDI);
        for (r, offset) in [
            (ROWS, std::mem::offset_of!(JitContext, rows)),
            (SCALARS, std::mem::offset_of!(JitContext, scalars)),
            (ENV, std::mem::offset_of!(JitContext, env)),
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
        for r in [FLAG, POOL, CONTEXT, ENV, SCALARS, ROWS] {
            a.op1(Code::Pop_r64, r);
        }
        a.op0(Code::Retnq);
    }

    pub(super) fn ordinal(&self, step: usize) -> i32 {
        self.program.steps[step].ordinal as i32
    }

    pub(super) fn label_of(&self, step: usize) -> Option<Label> {
        self.leaders.binary_search(&step).ok().map(|k| self.labels[k])
    }

    pub(super) fn count(&mut self, count: i32) {
        if count != 0 {
            let place = context(std::mem::offset_of!(JitContext, executed));
            self.g.asm.op2(Code::Add_rm64_imm32, place, count);
        }
    }

    fn block(&mut self, k: usize) {
        let first = self.leaders[k];
        let end = self.leaders.get(k + 1).copied().unwrap_or(self.program.steps.len());
        let units = flow::units(self.program, first, end, self.g.wide, self.floats);
        self.g.asm.place(self.labels[k]);
        self.first = first;
        if self.resident_loop(first, end, &units) {
            return;
        }
        let mut region: Vec<Unit> = Vec::new();
        let mut branched = false;
        for unit in units {
            match &unit {
                Unit::Lanes(items) => {
                    let ends = items.last().is_some_and(|i| i.touch.writes_exec());
                    region.push(unit);
                    if ends {
                        self.region(std::mem::take(&mut region));
                    }
                }
                Unit::One(item) => {
                    let item = *item;
                    match item.what {
                        What::Scalar if !item.touch.writes_exec() && self.is_inline(&item) => {
                            region.push(unit)
                        }
                        What::Transfer(_) => region.push(unit),
                        What::Branch => {
                            self.region(std::mem::take(&mut region));
                            self.branch(first, end, &item);
                            branched = true;
                        }
                        _ => {
                            self.region(std::mem::take(&mut region));
                            self.scalar_or_call(first, &item);
                        }
                    }
                }
            }
        }
        self.region(region);
        if !branched {
            self.fall_through(first, end);
        }
    }

    /// Whether `scalar::emit` does this step: tried on a scrap of code.
    pub(super) fn is_inline(&self, item: &Item) -> bool {
        scalar::emit(&mut super::asm::Asm::new(), &self.program.steps[item.index])
    }

    pub(super) fn fall_through(&mut self, first: usize, end: usize) {
        if end < self.program.steps.len() {
            self.count(self.ordinal(end) - self.ordinal(first));
        } else {
            // The last step never falls through; should a handler say otherwise, the interpreter takes over.
            self.leave(end.saturating_sub(1));
        }
    }

    fn scalar_or_call(&mut self, first: usize, item: &Item) {
        let step = &self.program.steps[item.index];
        let inline = matches!(item.what, What::Scalar) && scalar::emit(&mut self.g.asm, step);
        if !inline && !self.scalar_load(first, item.index) {
            self.call(first, item.index);
        }
    }

    /// A scalar load, its handler being called where the range is not one of those at hand. No row is in a register.
    fn scalar_load(&mut self, first: usize, index: usize) -> bool {
        let count = self.ordinal(index) - self.ordinal(first) + 1;
        let (slow, resume) = (self.g.asm.label(), self.g.asm.label());
        let check = self.checks.read;
        let is_inline = scalar::load_memory(&mut self.g.asm, &self.program.steps[index], check, slow);
        if is_inline {
            let (dirty, held) = (Vec::new(), Vec::new());
            self.cold.push(Cold::Slow { label: slow, resume, count, step: index, dirty, held });
            self.g.asm.place(resume);
        }
        is_inline
    }

    /// Calls a step's handler. All state is in the wave.
    fn call(&mut self, first: usize, index: usize) {
        let step = &self.program.steps[index];
        let count = self.ordinal(index) - self.ordinal(first) + 1;
        let label = self.g.asm.label();
        self.call_handler(index);
        self.g.asm.jump(Code::Jne_rel32_64, label);
        self.cold.push(Cold::Flow { label, count, step: index });
        if flow::ends_block(step) {
            // What follows was made for this MODE.
            let mode = wave_field(std::mem::offset_of!(Wave, mode));
            self.g.asm.op2(Code::Cmp_rm32_imm32, mode, self.mode as i32);
            let label = self.g.asm.label();
            self.g.asm.jump(Code::Jne_rel32_64, label);
            self.cold.push(Cold::Leave {
                label,
                count,
                exit: Exit::Leave,
                step: index + 1,
                dirty: Vec::new(),
            });
        }
    }

    /// Has the handler of step `index` run; compares what it returned with "go on".
    fn call_handler(&mut self, index: usize) {
        let address = std::ptr::from_ref(&self.program.steps[index]).addr() as u64;
        let a = &mut self.g.asm;
        a.op0(Code::VEX_Vzeroupper);
        a.op2(Code::Lea_r64_m, Register::RDI, wave_field(0));
        a.op2(Code::Mov_r64_rm64, Register::RSI, ENV);
        a.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RDX, address));
        a.op1(Code::Call_rm64, context(std::mem::offset_of!(JitContext, call)));
        a.op2(Code::Test_rm32_r32, Register::EAX, Register::EAX);
    }

    /// A load or store within a region.
    fn transfer(&mut self, item: &Item, t: &Transfer, masked: bool) {
        let (index, count) = (item.index, self.ordinal(item.index) - self.ordinal(self.first) + 1);
        let step = &self.program.steps[index];
        let (label, resume) = (self.g.asm.label(), self.g.asm.label());
        let checks = self.checks;
        let done = if masked { None } else { self.g.transfer(step, t, &checks, label) };
        match done {
            Some(dirty) => {
                let held = self.g.regs.held();
                self.cold.push(Cold::Slow { label, resume, count, step: index, dirty, held });
            }
            None => {
                self.g.addresses.clear();
                self.g.write_back(true);
                self.call_handler(index);
                self.g.asm.jump(Code::Jne_rel32_64, label);
                self.cold.push(Cold::Flow { label, count, step: index });
                if masked {
                    self.g.load_exec_masks();
                }
            }
        }
        self.g.asm.place(resume);
    }

    /// Leaves for the interpreter at `step`, in line.
    fn leave(&mut self, step: usize) {
        let label = self.g.asm.label();
        self.g.asm.jump(Code::Jmp_rel32_64, label);
        self.cold.push(Cold::Leave { label, count: 0, exit: Exit::Leave, step, dirty: Vec::new() });
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

    /// Jumps to the block at `target`; backward only if nobody wants the wave to stop.
    fn take_branch(&mut self, backward: bool, target: usize) {
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

    fn micros(&self, units: &[Unit]) -> Vec<Micro> {
        let mut list = Vec::new();
        for unit in units {
            match unit {
                Unit::One(item) => list.push(match item.what {
                    What::Transfer(t) => Micro::Transfer(*item, t),
                    _ => Micro::Scalar(*item),
                }),
                Unit::Lanes(items) => {
                    for c in 0..self.g.pieces() {
                        list.extend(items.iter().map(|&item| Micro::Lane(item, c)));
                    }
                }
            }
        }
        list
    }

    /// A region: two variants where that pays.
    fn region(&mut self, units: Vec<Unit>) {
        let micros = self.micros(&units);
        let lanes = micros.iter().filter(|m| matches!(m, Micro::Lane(..))).count();
        let transfers = micros.iter().any(|m| matches!(m, Micro::Transfer(..)));
        if lanes == 0 && !transfers {
            for m in &micros {
                self.scalar(m);
            }
            return;
        }
        if self.g.wide == Wide::Z && !transfers && lanes <= FEW * self.g.pieces() {
            self.variant(&micros, true);
            return;
        }
        let any = self.g.asm.label();
        self.test_all_lanes(any);
        self.variant(&micros, false);
        let over = self.g.asm.label();
        self.g.asm.jump(Code::Jmp_rel32_64, over);
        self.g.asm.place(any);
        self.variant(&micros, true);
        self.g.asm.place(over);
    }

    /// Jumps to `any` unless all lanes are on.
    pub(super) fn test_all_lanes(&mut self, any: Label) {
        let code = if self.g.shape.halves == 2 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
        let exec = self.g.scalar(EXEC as u16);
        self.g.asm.op2(code, exec, -1);
        self.g.asm.jump(Code::Jne_rel32_64, any);
    }

    fn scalar(&mut self, m: &Micro) {
        if let Micro::Scalar(item) = m {
            scalar::emit(&mut self.g.asm, &self.program.steps[item.index]);
        }
    }

    pub(super) fn accesses(&self, micros: &[Micro], masked: bool) -> Vec<Vec<(Access, u32, bool)>> {
        let list: Vec<Vec<Access>> = micros
            .iter()
            .map(|m| match m {
                Micro::Lane(item, c) => lane::accesses(&self.g, &self.program.steps[item.index], *c, masked),
                Micro::Scalar(_) => Vec::new(),
                Micro::Transfer(item, t) => {
                    vmem::accesses(&self.g, &self.program.steps[item.index], t, masked)
                }
            })
            .collect();
        next_accesses(&list, self.g.all_pieces())
    }

    fn operations(&mut self, micros: &[Micro], masked: bool) {
        let accesses = self.accesses(micros, masked);
        let mut piece = usize::MAX;
        for (m, accesses) in micros.iter().zip(&accesses) {
            match m {
                Micro::Lane(item, c) => {
                    if masked && piece != *c {
                        self.g.load_exec_mask(*c);
                        piece = *c;
                    }
                    if let What::Lane(emit) = item.what {
                        emit(&mut self.g, &self.program.steps[item.index], *c);
                    }
                    self.g.end_operation(accesses);
                    self.forget_addresses(item);
                }
                Micro::Scalar(item) => {
                    scalar::emit(&mut self.g.asm, &self.program.steps[item.index]);
                }
                Micro::Transfer(item, t) => {
                    self.transfer(item, t, masked);
                    self.g.end_operation(accesses);
                    piece = usize::MAX;
                }
            }
        }
    }

    /// What a lane-wise operation writes is no longer known as an address.
    fn forget_addresses(&mut self, item: &Item) {
        let (halves, dst) = (self.g.shape.halves, self.program.steps[item.index].dst as usize);
        self.g.addresses.forget(dst..dst + 2 * halves, halves);
    }

    fn variant(&mut self, micros: &[Micro], masked: bool) {
        self.g.addresses.clear();
        self.g.masked = masked;
        if masked {
            self.g.load_exec_masks();
        }
        self.operations(micros, masked);
        self.g.write_back(true);
        self.g.masked = false;
    }

    fn cold_paths(&mut self) {
        for cold in std::mem::take(&mut self.cold) {
            match cold {
                Cold::Leave { label, count, exit, step, dirty } => {
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    self.count(count);
                    let value = (exit as u64) << 32 | step as u64;
                    self.g.asm.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RAX, value));
                }
                Cold::Slow { label, resume, count, step, dirty, held } => {
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    self.call_handler(step);
                    let stopped = self.g.asm.label();
                    self.g.asm.jump(Code::Jne_rel32_64, stopped);
                    self.g.load_all(&held);
                    self.g.asm.jump(Code::Jmp_rel32_64, resume);
                    self.g.asm.place(stopped);
                    self.flow(count, step);
                }
                Cold::Flow { label, count, step } => {
                    self.g.asm.place(label);
                    self.flow(count, step);
                }
            }
            let way_out = self.way_out;
            self.g.asm.jump(Code::Jmp_rel32_64, way_out);
        }
    }
}

impl Emitter<'_> {
    /// Counts, and makes what a handler returned in EAX and the step the result.
    fn flow(&mut self, count: i32, step: usize) {
        // The count must not change what is in EAX.
        self.count(count);
        self.g.asm.op2(Code::Mov_r32_imm32, Register::ECX, step as i32);
        self.g.asm.op2(Code::Shl_rm64_imm8, Register::RAX, 32);
        self.g.asm.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
    }
}
