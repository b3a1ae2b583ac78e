// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one wave in generated code, and step by step where there is none.
//!
//! INVARIANT: when `run` returns, `Wave::pc` names the next instruction, or the faulting one.
#![allow(unsafe_code)]

use crate::code::{Code, WaveStop};
use crate::control::Control;
use crate::env::Env;
use crate::jit::{Compiled, Left};
use crate::program::Program;
use crate::step::Flow;
use crate::wave::Wave;

/// Puts `w` in front of step `index`.
fn place(w: &mut Wave, program: &Program, index: usize) {
    w.pc = program.steps[index].pc;
    w.hint = index;
}

/// Applies a step's flow to the wave. `None`: the wave continues at the step whose index is in `ip`.
fn follow(w: &mut Wave, program: &Program, flow: Flow, index: usize, ip: &mut usize) -> Option<WaveStop> {
    let step = &program.steps[index];
    match flow {
        Flow::Next => *ip = index + 1,
        Flow::Jump => *ip = step.target as usize,
        Flow::Indirect => {}
        Flow::Stop => {
            w.pc = step.pc;
            return Some(WaveStop::Exception);
        }
        Flow::Barrier | Flow::Yield | Flow::End => {
            w.pc = step.next_pc();
            w.hint = index + 1;
            return Some(match flow {
                Flow::Barrier => WaveStop::Barrier,
                Flow::End => WaveStop::Ended,
                _ => WaveStop::Quantum,
            });
        }
    }
    None
}

/// Interprets from `ip` on until the head of a block that has generated code, or until the wave stops. Returns the flow
/// and the index of the last step.
fn interpret(
    w: &mut Wave,
    env: &mut Env<'_>,
    program: &Program,
    compiled: &Compiled,
    mut ip: usize,
) -> (Flow, usize) {
    let from = program.steps[ip].ordinal;
    loop {
        let s = &program.steps[ip];
        // SAFETY: handlers come from the tables for the level in use, which is at most what this CPU was found to have.
        let flow = unsafe { (s.run)(w, env, s) };
        let at_head = flow == Flow::Next && compiled.has(ip + 1) && w.mode == compiled.mode;
        if flow != Flow::Next || at_head {
            let end = match flow {
                Flow::Next => program.steps[ip + 1].ordinal,
                _ => s.ordinal + 1,
            };
            env.executed += u64::from(end.saturating_sub(from));
            return (flow, ip);
        }
        ip += 1;
    }
}

/// Runs `w` for about `budget` instructions. `None` when the program it is in has no generated code.
pub(crate) fn run(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> Option<WaveStop> {
    let limit = env.executed + u64::from(budget);
    loop {
        let (program, mut ip) = code.locate(env, w.pc, w.hint);
        let program = &code.programs[program];
        let compiled = program.compiled(code.level, w.mode)?;
        loop {
            if env.executed >= limit || control.interrupts() {
                place(w, program, ip);
                let over = env.executed >= limit && !control.interrupts();
                return Some(if over { WaveStop::Quantum } else { WaveStop::Interrupted });
            }
            let (flow, index) = if compiled.has(ip) && w.mode == compiled.mode {
                match compiled.enter(w, env, ip, control.flag(), limit) {
                    Left::Flow(flow, index) => (flow, index),
                    Left::Interpret(index) => {
                        ip = index;
                        let done = interpret(w, env, program, compiled, ip);
                        (done.0, done.1)
                    }
                    Left::Interrupted(index) => {
                        place(w, program, index);
                        return Some(WaveStop::Interrupted);
                    }
                    Left::Quantum(index) => {
                        place(w, program, index);
                        return Some(WaveStop::Quantum);
                    }
                }
            } else {
                interpret(w, env, program, compiled, ip)
            };
            if let Some(stop) = follow(w, program, flow, index, &mut ip) {
                return Some(stop);
            }
            if flow == Flow::Indirect {
                break;
            }
        }
    }
}
