// SPDX-License-Identifier: MIT OR Apache-2.0
//! From one wave of a workgroup to the next, without leaving generated code.
//!
//! INVARIANT: a wave that is left has all its state in memory, its PC included, and a wave is entered only at the code that
//! its turn names. Each time the control is looked at first.

use iced_x86::{Code, Register};

use super::asm::{CONTEXT, FLAG, Label, ROWS, SCALARS, context, memory, wave_field};
use super::context::{Exit, JitContext, Turn};
use super::emit::{ASKS, Emitter};
use crate::wave::{Wave, WaveStatus};

const TURN: Register = Register::RAX;

macro_rules! field {
    ($name:ident) => {
        context(std::mem::offset_of!(JitContext, $name))
    };
}

/// The current wave's status.
fn status() -> iced_x86::MemoryOperand {
    wave_field(std::mem::offset_of!(Wave, state))
}

impl Emitter<'_> {
    /// The end of a wave, or a barrier, at step `index`: its state is written, and another wave goes on.
    pub(super) fn halt(&mut self, first: usize, index: usize, as_what: WaveStatus) {
        let step = &self.program.steps[index];
        self.count(self.ordinal(index) - self.ordinal(first) + 1);
        let a = &mut self.g.asm;
        a.op2(Code::Mov_rm8_imm8, status(), as_what as i32);
        // From the entry, so that the code does not depend on where the program is in memory.
        let distance = step.next_pc().wrapping_sub(self.program.base());
        a.put(iced_x86::Instruction::with2(Code::Mov_r64_imm64, Register::RCX, distance));
        a.op2(Code::Add_r64_rm64, Register::RCX, field!(entry));
        a.op2(Code::Mov_rm64_r64, wave_field(std::mem::offset_of!(Wave, pc)), Register::RCX);
        a.op2(Code::Mov_rm64_imm32, wave_field(std::mem::offset_of!(Wave, hint)), index as i32 + 1);
        a.op1(Code::Inc_rm32, field!(halted));
        if as_what == WaveStatus::AtBarrier {
            a.op1(Code::Inc_rm32, field!(waiting));
            let resume = memory(TURN, std::mem::offset_of!(Turn, resume) as i64, false);
            a.op2(Code::Mov_r64_rm64, TURN, field!(turn));
            match self.label_of(index + 1) {
                Some(label) => {
                    self.g.asm.address_of(Register::RCX, label);
                    self.g.asm.op2(Code::Mov_rm64_r64, resume, Register::RCX);
                }
                None => self.g.asm.op2(Code::Mov_rm64_imm32, resume, 0),
            }
        }
        let switch = self.switch;
        self.g.asm.jump(Code::Jmp_rel32_64, switch);
    }

    /// The code that goes on with another wave.
    pub(super) fn emit_switch(&mut self) {
        let [next, look, go, round, release, kept] = std::array::from_fn(|_| self.g.asm.label());
        let switch = self.switch;
        let a = &mut self.g.asm;
        a.place(switch);
        a.op2(Code::Mov_r64_rm64, TURN, field!(turn));
        a.place(next);
        a.op2(Code::Add_rm64_imm32, SCALARS, size_of::<Wave>() as i32);
        a.op2(Code::Add_rm64_imm32, TURN, size_of::<Turn>() as i32);
        a.place(look);
        a.op2(Code::Cmp_r64_rm64, TURN, field!(turns_end));
        a.jump(Code::Jae_rel32_64, round);
        a.op2(Code::Cmp_rm8_imm8, status(), WaveStatus::Ready as i32);
        a.jump(Code::Jne_rel32_64, next);
        a.place(go);
        a.op2(Code::Mov_rm64_r64, field!(turn), TURN);
        a.op2(Code::Test_rm8_imm8, memory(FLAG, 0, false), ASKS);
        self.leave_switch(Code::Jne_rel32_64, Exit::Switched);
        let a = &mut self.g.asm;
        a.op2(Code::Mov_r64_rm64, ROWS, memory(TURN, std::mem::offset_of!(Turn, rows) as i64, false));
        a.op2(
            Code::Mov_r64_rm64,
            Register::RCX,
            memory(TURN, std::mem::offset_of!(Turn, resume) as i64, false),
        );
        a.op2(Code::Test_rm64_r64, Register::RCX, Register::RCX);
        self.leave_switch(Code::Je_rel32_64, Exit::Switched);
        let a = &mut self.g.asm;
        a.op2(Code::Mov_r64_rm64, Register::RDX, field!(executed));
        a.op2(Code::Add_r64_rm64, Register::RDX, field!(quantum));
        a.op2(Code::Mov_rm64_r64, field!(limit), Register::RDX);
        a.op1(Code::Jmp_rm64, Register::RCX);
        a.place(round);
        // All that have not ended wait at the barrier, or some are left to others.
        a.op2(Code::Mov_r32_rm32, Register::ECX, field!(waiting));
        a.op2(Code::Test_rm32_r32, Register::ECX, Register::ECX);
        self.leave_switch(Code::Je_rel32_64, Exit::Round);
        let a = &mut self.g.asm;
        a.op2(Code::Mov_r32_rm32, Register::EDX, field!(halted));
        a.op2(Code::Cmp_r32_rm32, Register::EDX, field!(total));
        self.leave_switch(Code::Jne_rel32_64, Exit::Round);
        let a = &mut self.g.asm;
        a.op2(Code::Mov_r64_rm64, Register::RSI, field!(executed));
        a.op2(Code::Cmp_r64_rm64, Register::RSI, field!(end));
        self.leave_switch(Code::Jae_rel32_64, Exit::Round);
        let a = &mut self.g.asm;
        a.op2(Code::Sub_r32_rm32, Register::EDX, Register::ECX);
        a.op2(Code::Mov_rm32_r32, field!(halted), Register::EDX);
        a.op2(Code::Mov_rm32_imm32, field!(waiting), 0);
        // From the last wave to the first.
        let turns = std::mem::offset_of!(JitContext, turns) as i64;
        a.op2(Code::Lea_r64_m, Register::RDX, memory(CONTEXT, turns, false));
        a.place(release);
        a.op2(Code::Sub_rm64_imm32, SCALARS, size_of::<Wave>() as i32);
        a.op2(Code::Sub_rm64_imm32, TURN, size_of::<Turn>() as i32);
        a.op2(Code::Cmp_rm8_imm8, status(), WaveStatus::AtBarrier as i32);
        a.jump(Code::Jne_rel32_64, kept);
        a.op2(Code::Mov_rm8_imm8, status(), WaveStatus::Ready as i32);
        a.place(kept);
        a.op2(Code::Cmp_r64_rm64, TURN, Register::RDX);
        a.jump(Code::Jne_rel32_64, release);
        a.jump(Code::Jmp_rel32_64, look);
    }

    /// Leaves by `exit` on a condition.
    fn leave_switch(&mut self, condition: Code, exit: Exit) {
        let label: Label = self.g.asm.label();
        self.g.asm.jump(condition, label);
        self.leaving.push((label, exit));
    }
}
