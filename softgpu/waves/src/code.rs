// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that a worker has at hand while it runs waves, and why such a run ends.
//!
//! INVARIANT: the first program is the kernel's; others are added when a wave jumps to an entry that none of them has.

use std::sync::Arc;

use crate::engine::Engine;
use crate::env::Env;
#[cfg(target_arch = "x86_64")]
use crate::jit::Memory;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::{Cache, Program};
use crate::wave::Wave;

/// Why `run_wave` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaveStop {
    Ended,
    Barrier,
    /// No wave of the workgroup behind it can run; only of generated code.
    Round,
    /// It has not run yet: another one of its workgroup waits or has ended.
    Switched,
    /// Its quantum of steps is used up, or it executed a yield.
    Quantum,
    /// The control's command is not to run.
    Interrupted,
    /// `Wave::cause` is set.
    Exception,
}

/// Waves that an engine runs: a whole workgroup's, or one alone.
#[derive(Debug)]
pub(crate) struct Waves<'a> {
    pub all: &'a mut [Wave],
    /// The one that runs.
    pub current: usize,
    /// Whether they are all of a workgroup: then generated code goes on with the next one where one waits or has ended.
    pub is_group: bool,
}

impl<'a> Waves<'a> {
    /// One wave, which is left where it waits or ends.
    pub(crate) fn alone(w: &'a mut Wave) -> Waves<'a> {
        Waves { all: std::slice::from_mut(w), current: 0, is_group: false }
    }

    /// The one that runs.
    pub(crate) fn wave(&mut self) -> &mut Wave {
        &mut self.all[self.current]
    }
}

/// The programs of a worker: the kernel's program and those of other entries it jumped to.
pub(crate) struct Code<'a> {
    pub cache: &'a Cache,
    pub level: Level,
    pub shape: Shape,
    pub programs: Vec<Arc<Program>>,
    /// For generated code.
    #[cfg(target_arch = "x86_64")]
    pub memory: Memory,
    pub engine: Engine,
}

impl<'a> Code<'a> {
    /// With the kernel's program.
    pub(crate) fn new(
        cache: &'a Cache,
        level: Level,
        main: Arc<Program>,
        shape: Shape,
        engine: Engine,
    ) -> Code<'a> {
        Code {
            cache,
            level,
            shape,
            programs: vec![main],
            #[cfg(target_arch = "x86_64")]
            memory: Memory::new(),
            engine,
        }
    }

    /// The program that has `pc`, and the index of its step there. A program is predecoded if none has it.
    pub(crate) fn locate(&mut self, env: &Env<'_>, pc: u64, hint: usize) -> (usize, usize) {
        if let Some(main) = self.programs.first() {
            if main.starts_at(hint, pc) {
                return (0, hint);
            }
            if main.entry.0 == pc {
                return (0, main.entry.1);
            }
        }
        let known = self.programs.iter().enumerate().find_map(|(k, p)| Some((k, p.index_of(pc)?)));
        known.unwrap_or_else(|| {
            let program = self.cache.get(env.map, self.level, self.shape, pc);
            let index = program.index_of(pc & !3).unwrap_or(program.steps.len() - 1);
            self.programs.push(program);
            (self.programs.len() - 1, index)
        })
    }
}
