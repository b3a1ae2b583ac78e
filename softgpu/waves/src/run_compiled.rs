// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one wave in generated code, and step by step where there is none.
//!
//! INVARIANT: when `run` returns, `Wave::pc` names the next instruction, or the faulting one.
#![allow(unsafe_code)]

use crate::code::{Code, WaveStop, Waves};
use crate::control::Control;
use crate::env::Env;
use crate::jit::{Activation, Compiled, Left};
use crate::program::Program;
use crate::step::Flow;
use crate::wave::{Wave, WaveStatus};

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
        let at_head = flow == Flow::Next && compiled.has(ip + 1) && compiled.suits(w);
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

/// Runs the current wave for about `budget` instructions, and, if the waves are a workgroup's, others when it waits or has
/// ended; the current wave is then the one that was stopped. `None` when the program it is in has no generated code.
pub(crate) fn run(
    waves: &mut Waves<'_>,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> Option<WaveStop> {
    loop {
        let w = &waves.all[waves.current];
        let (program, ip) = code.locate(env, w.pc, w.hint);
        let program = &code.programs[program];
        let compiled = program.compiled(code.engine, code.level, w)?;
        let mut active = compiled.begin(program, waves, env, control.flag(), budget, &mut code.memory);
        if let Some(stop) = run_program(&mut active, env, program, compiled, control, ip) {
            return Some(stop);
        }
        // Functions are called and return often, and preparing a whole workgroup takes its time.
        waves.is_group = false;
    }
}

/// Runs until the wave stops, or leaves the program (`None`).
fn run_program(
    active: &mut Activation<'_>,
    env: &mut Env<'_>,
    program: &Program,
    compiled: &Compiled,
    control: &Control,
    mut ip: usize,
) -> Option<WaveStop> {
    loop {
        if active.is_over(env) || control.interrupts() {
            place(active.wave(), program, ip);
            let over = !control.interrupts();
            return Some(if over { WaveStop::Quantum } else { WaveStop::Interrupted });
        }
        let (flow, index) = if compiled.has(ip) && compiled.suits(active.wave()) {
            match active.enter(env, ip) {
                Left::Flow(flow, index) => (flow, index),
                Left::Interpret(index) => interpret(active.wave(), env, program, compiled, index),
                Left::Lanes(index) => {
                    program.count_left();
                    interpret(active.wave(), env, program, compiled, index)
                }
                Left::Interrupted(index) => {
                    place(active.wave(), program, index);
                    return Some(WaveStop::Interrupted);
                }
                Left::Quantum(index) => {
                    place(active.wave(), program, index);
                    return Some(WaveStop::Quantum);
                }
                Left::Round if active.is_group() => return Some(WaveStop::Round),
                Left::Round => {
                    let has_ended = active.wave().state == WaveStatus::Ended;
                    return Some(if has_ended { WaveStop::Ended } else { WaveStop::Barrier });
                }
                Left::Switched if control.interrupts() => return Some(WaveStop::Interrupted),
                Left::Switched => return Some(WaveStop::Switched),
            }
        } else {
            interpret(active.wave(), env, program, compiled, ip)
        };
        if let Some(stop) = follow(active.wave(), program, flow, index, &mut ip) {
            return Some(stop);
        }
        if flow == Flow::Indirect {
            return None;
        }
    }
}
