// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exits of generated code: calls of handlers, and the out-of-line code for accesses and branches that leave.
//!
//! INVARIANT: at a call and at every exit, all state is in the wave and the executed instructions are counted.

use iced_x86::{Code, Register};

use super::asm::{Label, context, wave_field};
use super::context::{Exit, JitContext};
use super::emit::Emitter;
use super::first_lanes::ByHandler;
use super::regs::Spill;
use super::steady::Steady;
use super::{flow, scalar};
use crate::step::Step;
use crate::wave::Wave;

/// Out-of-line code of an exit.
pub(super) enum Cold {
    /// Count, then leave with this exit and step.
    Leave { label: Label, count: i32, exit: Exit, step: usize, dirty: Vec<Spill> },
    /// A step that is not done inline after all.
    Slow(Box<Slow>),
    /// A branch to the block at this step.
    Branch { label: Label, count: i32, backward: bool, target: usize, dirty: Vec<Spill> },
    /// Lanes are inactive from here on: the variant for any goes on.
    Other { label: Label, dirty: Vec<Spill>, held: Vec<Spill>, exec: Option<usize>, resume: Label },
    /// A handler returned another flow than `Next` (in EAX).
    Flow { label: Label, count: i32, step: usize },
}

/// A step that its handler does, after which code goes on in line.
pub(super) struct Slow {
    pub label: Label,
    pub resume: Label,
    pub count: i32,
    pub step: usize,
    /// Another one that is done behind it.
    pub then: Option<usize>,
    pub dirty: Vec<Spill>,
    /// Rows that are stored as well, from their first lanes.
    pub pending: Vec<Steady>,
    pub held: Vec<Spill>,
    /// If the result's first lane is kept.
    pub result: Option<ByHandler>,
}

impl Emitter<'_> {
    /// A scalar load; its handler is called where the address range is not a cached one. No row is in a register.
    pub(super) fn scalar_load(&mut self, index: usize) -> bool {
        let step = &self.program.steps[index];
        let Some(dwords) = scalar::loaded_range(&mut self.g.asm, step) else { return false };
        let (slow, checks) = (self.slow(index), self.checks);
        self.g.check_range(false, &checks, slow.label);
        scalar::load_dwords(&mut self.g.asm, step, dwords);
        self.goes_on(slow);
        true
    }

    /// Code out of line that calls the handler of step `index` in the state that registers have now.
    pub(super) fn slow(&mut self, index: usize) -> Slow {
        Slow {
            label: self.g.asm.label(),
            resume: self.g.asm.label(),
            count: self.ordinal(index) - self.ordinal(self.first) + 1,
            step: index,
            then: None,
            dirty: self.g.regs.dirty(),
            pending: self.g.pending(),
            held: Vec::new(),
            result: None,
        }
    }

    /// The place where it goes on in line. What is called there leaves neither constants nor masks in registers.
    pub(super) fn goes_on(&mut self, mut slow: Slow) {
        self.g.regs.forget_constants();
        slow.held = self.g.regs.held();
        self.g.asm.place(slow.resume);
        self.cold.push(Cold::Slow(Box::new(slow)));
    }

    /// Calls a step's handler. All state is in the wave.
    pub(super) fn call(&mut self, first: usize, index: usize) {
        let step = &self.program.steps[index];
        let count = self.ordinal(index) - self.ordinal(first) + 1;
        let label = self.g.asm.label();
        self.call_handler(index);
        self.g.asm.jump(Code::Jne_rel32_64, label);
        self.cold.push(Cold::Flow { label, count, step: index });
        if flow::ends_block(step) {
            // The code that follows was generated for this MODE.
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

    /// Emits a call of the handler of step `index`, and the comparison of its result with `Flow::Next`.
    pub(super) fn call_handler(&mut self, index: usize) {
        self.g.asm.op2(Code::Mov_r64_rm64, Register::RSI, context(std::mem::offset_of!(JitContext, env)));
        self.call_for_step(Register::RDX, index, std::mem::offset_of!(JitContext, call));
        self.g.asm.op2(Code::Test_rm32_r32, Register::EAX, Register::EAX);
    }

    /// Emits a call of the function in a field of the context, with the wave, and with step `index` in `register`.
    pub(super) fn call_for_step(&mut self, register: Register, index: usize, function: usize) {
        // CAST: a program that is compiled has few steps.
        let offset = (index * size_of::<Step>()) as i32;
        let a = &mut self.g.asm;
        a.op0(Code::VEX_Vzeroupper);
        a.op2(Code::Lea_r64_m, Register::RDI, wave_field(0));
        a.op2(Code::Mov_r64_rm64, register, context(std::mem::offset_of!(JitContext, steps)));
        a.op2(Code::Add_rm64_imm32, register, offset);
        a.op1(Code::Call_rm64, context(function));
    }

    /// Leaves for the interpreter at `step`, in line.
    pub(super) fn leave(&mut self, step: usize) {
        let label = self.g.asm.label();
        self.g.asm.jump(Code::Jmp_rel32_64, label);
        self.cold.push(Cold::Leave { label, count: 0, exit: Exit::Leave, step, dirty: Vec::new() });
    }

    pub(super) fn cold_paths(&mut self) {
        for (label, exit) in std::mem::take(&mut self.leaving) {
            self.cold.push(Cold::Leave { label, count: 0, exit, step: 0, dirty: Vec::new() });
        }
        // A branch's code may have exits itself.
        while !self.cold.is_empty() {
            self.cold_path_list();
        }
    }

    fn cold_path_list(&mut self) {
        for cold in std::mem::take(&mut self.cold) {
            match cold {
                Cold::Branch { label, count, backward, target, dirty } => {
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    self.count(count);
                    self.take_branch(backward, target);
                    continue;
                }
                Cold::Leave { label, count, exit, step, dirty } => {
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    self.count(count);
                    let value = (exit as u64) << 32 | step as u64;
                    self.g.asm.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RAX, value));
                }
                Cold::Other { label, dirty, held, exec, resume } => {
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    if let Some(place) = exec {
                        self.g.put_exec(place);
                    }
                    self.g.load_all(&held);
                    // Nothing is known here of what mask registers have.
                    self.g.regs.forget_constants();
                    self.g.load_exec_masks();
                    self.g.asm.jump(Code::Jmp_rel32_64, resume);
                    continue;
                }
                Cold::Slow(slow) => {
                    let Slow { label, resume, count, step, then, dirty, pending, held, result } = *slow;
                    self.g.asm.place(label);
                    self.g.store_all(&dirty);
                    // All that registers hold is loaded again.
                    self.g.store_pending(&pending, [0, 1]);
                    self.call_handler(step);
                    let stopped = self.g.asm.label();
                    self.g.asm.jump(Code::Jne_rel32_64, stopped);
                    if let Some(step) = then {
                        // Arithmetic: its handler returns nothing else.
                        self.call_handler(step);
                    }
                    if let Some(result) = result {
                        self.keep_result(&result);
                    }
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

    /// Counts the instructions, and returns the handler's result in EAX together with the step.
    pub(super) fn flow(&mut self, count: i32, step: usize) {
        // The count must not change what is in EAX.
        self.count(count);
        self.g.asm.op2(Code::Mov_r32_imm32, Register::ECX, step as i32);
        self.g.asm.op2(Code::Shl_rm64_imm8, Register::RAX, 32);
        self.g.asm.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
    }
}
