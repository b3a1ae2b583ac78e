// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs: predecoded code with what was learnt and generated while it ran.
//!
//! INVARIANT: a program is used only while memory still holds the words it was made from, which is compared at every
//! dispatch. Generated code names the steps of its own program, which owns both.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::engine::WORTH_COMPILING;
#[cfg(target_arch = "x86_64")]
use crate::jit::Compiled;
use crate::level::Level;
use crate::predecode::Shape;
use crate::predecoded::Predecoded;
use crate::vm::Map;

/// Predecoded code of one entry, how often it ran, and the code generated from it.
#[derive(Debug)]
pub(crate) struct Program {
    code: Predecoded,
    /// Instructions executed by waves that this is the main program of.
    executed: AtomicU64,
    /// Generated code, made when it is first wanted; none where there cannot be any.
    #[cfg(target_arch = "x86_64")]
    compiled: OnceLock<Option<Compiled>>,
}

impl Deref for Program {
    type Target = Predecoded;

    #[inline(always)]
    fn deref(&self) -> &Predecoded {
        &self.code
    }
}

impl Program {
    fn build(map: &Map, level: Level, shape: Shape, entry: u64) -> Program {
        Program {
            code: Predecoded::build(map, level, shape, entry),
            executed: AtomicU64::new(0),
            #[cfg(target_arch = "x86_64")]
            compiled: OnceLock::new(),
        }
    }

    /// Generated code for `mode`: made now if none was made before, `None` if it was made for another MODE or cannot be.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn compiled(&self, level: Level, mode: u32) -> Option<&Compiled> {
        self.compiled
            .get_or_init(|| Compiled::new(&self.code, level, mode))
            .as_ref()
            .filter(|c| c.mode == mode)
    }

    /// Notes that a wave executed so many instructions, as long as that matters.
    pub(crate) fn count_executed(&self, instructions: u64) {
        if self.executed() < WORTH_COMPILING {
            self.executed.fetch_add(instructions, Ordering::Relaxed);
        }
    }

    /// Instructions executed so far.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }
}

/// Programs by entry address and register shape.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    programs: Mutex<HashMap<(u64, Shape), Arc<Program>>>,
}

/// Programs kept before the cache starts over.
const MAX_PROGRAMS: usize = 1024;

impl Cache {
    /// The program for `entry`, predecoded now if it is new or its code changed.
    pub(crate) fn get(&self, map: &Map, level: Level, shape: Shape, entry: u64) -> Arc<Program> {
        let key = (entry, shape);
        let known = self.programs.lock().get(&key).cloned();
        if let Some(program) = known.filter(|p| p.is_current(map)) {
            return program;
        }
        let program = Arc::new(Program::build(map, level, shape, entry));
        let mut programs = self.programs.lock();
        if programs.len() >= MAX_PROGRAMS {
            programs.clear();
        }
        programs.insert(key, program.clone());
        program
    }
}
