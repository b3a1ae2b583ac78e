// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop that runs one wave's steps until something stops it.
//!
//! INVARIANT: when `run_waves` returns, `Wave::pc` names the next instruction (or the faulting one) and all state is in
//! the wave; the loop stops between instructions only.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::sync::Arc;

use crate::code::{Code, WaveStop, Waves};
use crate::control::Control;
#[cfg(target_arch = "x86_64")]
use crate::engine::Engine;
use crate::env::Env;
#[cfg(target_arch = "x86_64")]
use crate::program::Program;
use crate::step::{Flow, Step};
use crate::wave::Wave;

/// Executes the steps of one instruction, which are a program's that was predecoded for the level in use.
pub(crate) fn execute(w: &mut Wave, env: &mut Env<'_>, steps: &[Step]) -> Flow {
    for s in steps {
        // SAFETY: programs get their handlers from the tables for a level that this CPU has (`Level::current`).
        let flow = unsafe { (s.run)(w, env, s) };
        if flow != Flow::Next {
            return flow;
        }
    }
    Flow::Next
}

/// Runs the current one of `waves` for about `budget` steps; generated code may go on with others of the workgroup, of which
/// the last one is the current one then.
pub(crate) fn run_waves(
    waves: &mut Waves<'_>,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    if control.interrupts() {
        return WaveStop::Interrupted;
    }
    if control.is_counting() {
        return run_counting(waves.wave(), env, code, control, budget);
    }
    let before = env.executed;
    let stop = run_with_engine(waves, env, code, control, budget);
    if let Some(program) = code.programs.first() {
        program.count_executed(env.executed - before);
    }
    stop
}

fn run_with_engine(
    waves: &mut Waves<'_>,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    #[cfg(target_arch = "x86_64")]
    if code.programs.first().is_some_and(|p| runs_generated(p, code, waves))
        && let Some(stop) = crate::run_compiled::run(waves, env, code, control, budget)
    {
        return stop;
    }
    interpret_wave(waves.wave(), env, code, control, budget)
}

/// Whether the current wave is to run `p` as generated code.
#[cfg(target_arch = "x86_64")]
fn runs_generated(p: &Arc<Program>, code: &Code<'_>, waves: &Waves<'_>) -> bool {
    match code.engine {
        Engine::Interp => false,
        Engine::Jit | Engine::Quick => true,
        Engine::Auto => p.has_code(code.level, &waves.all[waves.current]),
    }
}

/// Runs `w` for about `budget` steps in the interpreter.
pub(crate) fn interpret_wave(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    if control.is_uninterruptible() {
        return run_checking::<false>(w, env, code, control, budget);
    }
    run_checking::<true>(w, env, code, control, budget)
}

/// Runs `w`; checks the control after every instruction.
fn run_counting(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    let mut left = budget;
    loop {
        let (program, mut ip) = code.locate(env, w.pc, w.hint);
        let steps = &code.programs[program].steps[..];
        loop {
            let s = &steps[ip];
            // SAFETY: programs get their handlers from the tables for a level that this CPU has (`Level::current`).
            let flow = unsafe { (s.run)(w, env, s) };
            if flow == Flow::Next && steps[ip + 1].pc == s.pc {
                // The other half of one instruction.
                ip += 1;
                continue;
            }
            env.executed += 1;
            let over = control.count();
            let next = match flow {
                Flow::Next => ip + 1,
                Flow::Jump => s.target as usize,
                Flow::Indirect if over => return WaveStop::Interrupted,
                Flow::Indirect => break,
                Flow::Stop => {
                    w.pc = s.pc;
                    return WaveStop::Exception;
                }
                Flow::Barrier | Flow::Yield | Flow::End => ip + 1,
            };
            w.pc = if next == ip + 1 { s.next_pc() } else { steps[next].pc };
            w.hint = next;
            match flow {
                Flow::Barrier => return WaveStop::Barrier,
                Flow::End => return WaveStop::Ended,
                _ if over => return WaveStop::Interrupted,
                Flow::Yield => return WaveStop::Quantum,
                _ => {}
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return WaveStop::Quantum;
            }
            ip = next;
        }
    }
}

/// Runs `w`; checks the control on backward branches if `CHECK`, otherwise never.
fn run_checking<const CHECK: bool>(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    let mut left = i64::from(budget);
    loop {
        let (program, start) = code.locate(env, w.pc, w.hint);
        let steps = &code.programs[program].steps[..];
        let mut ip = start;
        let mut from = start;
        // The inner loop ends with an indirect jump; the outer one then finds the program at the wave's new address.
        loop {
            let s = &steps[ip];
            // SAFETY: handlers come from the tables for `code.level`, which is at most what this CPU was found to have.
            let flow = unsafe { (s.run)(w, env, s) };
            if flow == Flow::Next {
                ip += 1;
                continue;
            }
            env.executed += u64::from(s.ordinal - steps[from].ordinal) + 1;
            left -= (ip - from) as i64 + 1;
            match flow {
                Flow::Jump => {
                    let target = s.target as usize;
                    if target <= ip && (left < 0 || CHECK && control.interrupts()) {
                        w.pc = steps[target].pc;
                        w.hint = target;
                        return if left < 0 { WaveStop::Quantum } else { WaveStop::Interrupted };
                    }
                    ip = target;
                    from = target;
                    continue;
                }
                Flow::Indirect if left < 0 => return WaveStop::Quantum,
                Flow::Indirect if control.interrupts() => return WaveStop::Interrupted,
                Flow::Indirect => break,
                Flow::Stop => {
                    w.pc = s.pc;
                    return WaveStop::Exception;
                }
                _ => {
                    w.pc = s.next_pc();
                    w.hint = ip + 1;
                    return match flow {
                        Flow::Barrier => WaveStop::Barrier,
                        Flow::End => WaveStop::Ended,
                        _ => WaveStop::Quantum,
                    };
                }
            }
        }
    }
}
