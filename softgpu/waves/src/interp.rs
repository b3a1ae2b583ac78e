// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop that runs one wave's steps until something stops it.
//!
//! INVARIANT: when `run_wave` returns, `Wave::pc` names the next instruction (or the faulting one) and all state is in
//! the wave; a wave is only left between instructions.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::env::Env;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::{Cache, Program};
use crate::step::Flow;
use crate::wave::Wave;

const RUN: u8 = 0;
const PAUSE: u8 = 1;
const ABORT: u8 = 2;

/// What another thread wants of a running grid; waves look at it on every backward branch.
#[derive(Clone, Debug, Default)]
pub struct Control {
    state: Arc<AtomicU8>,
}

/// State of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Go on.
    Run,
    /// Stop at the next instruction boundary and keep the state.
    Pause,
    /// Stop and drop everything.
    Abort,
}

impl Control {
    /// A control that says run.
    pub fn new() -> Control {
        Control::default()
    }

    /// Sets the command.
    pub fn set(&self, command: Command) {
        let value = match command {
            Command::Run => RUN,
            Command::Pause => PAUSE,
            Command::Abort => ABORT,
        };
        self.state.store(value, Ordering::Release);
    }

    /// Asks for a pause.
    pub fn pause(&self) {
        self.set(Command::Pause);
    }

    /// Asks for an abort.
    pub fn abort(&self) {
        self.set(Command::Abort);
    }

    /// The command in force.
    pub fn command(&self) -> Command {
        match self.state.load(Ordering::Acquire) {
            RUN => Command::Run,
            PAUSE => Command::Pause,
            _ => Command::Abort,
        }
    }

    #[inline(always)]
    fn interrupts(&self) -> bool {
        // ORDERING: only a hint; whoever acts on it reads `command` with acquire.
        self.state.load(Ordering::Relaxed) != RUN
    }
}

/// Why `run_wave` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaveStop {
    Ended,
    Barrier,
    /// Its share of steps is used up, or it gave way.
    Quantum,
    /// The control says something else than run.
    Interrupted,
    /// `Wave::cause` is set.
    Exception,
}

/// Code a worker has at hand: the kernel's program and those of other entries it jumped to.
pub(crate) struct Code<'a> {
    pub cache: &'a Cache,
    pub level: Level,
    pub shape: Shape,
    pub programs: Vec<Arc<Program>>,
    pub hot: crate::env::Hot,
}

impl Code<'_> {
    /// The program holding `pc`, predecoded if no program at hand has it.
    fn locate(&mut self, env: &Env<'_>, pc: u64, hint: usize) -> (Arc<Program>, usize) {
        if let Some(program) = self.programs.first().filter(|p| p.starts_at(hint, pc)) {
            return (program.clone(), hint);
        }
        if let Some(program) = self.programs.first().filter(|p| p.entry.0 == pc) {
            return (program.clone(), program.entry.1);
        }
        for program in &self.programs {
            if let Some(index) = program.index_of(pc) {
                return (program.clone(), index);
            }
        }
        let program = self.cache.get(env.map, self.level, self.shape, pc);
        let index = program.index_of(pc & !3).unwrap_or(program.steps.len() - 1);
        self.programs.push(program.clone());
        (program, index)
    }
}

/// Runs `w` for about `budget` steps.
pub(crate) fn run_wave(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    let mut left = i64::from(budget);
    loop {
        let (program, start) = code.locate(env, w.pc, w.hint);
        let steps = &program.steps[..];
        let mut ip = start;
        let mut from = start;
        let stop = loop {
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
                    if target <= ip && (left < 0 || control.interrupts()) {
                        w.pc = steps[target].pc;
                        w.hint = target;
                        break if left < 0 { WaveStop::Quantum } else { WaveStop::Interrupted };
                    }
                    ip = target;
                    from = target;
                    continue;
                }
                Flow::Indirect if left >= 0 && !control.interrupts() => break WaveStop::Ended,
                Flow::Indirect => break if left < 0 { WaveStop::Quantum } else { WaveStop::Interrupted },
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
        };
        // `Ended` out of the inner loop means an indirect jump: find its program and go on.
        if stop != WaveStop::Ended {
            return stop;
        }
    }
}
