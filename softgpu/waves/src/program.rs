// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs: predecoded code with what was learnt and generated while it ran.
//!
//! They stand for what a GPU has in its instruction caches. Stores to memory do not reach those (LLVM's
//! `AMDGPUAsmPrinter::doFinalization` pads code against stale prefetched lines), a flush of the TLB names page table entries
//! only (`gfxhub_v3_0.c:gfxhub_v3_0_get_invalidate_req`), and AMD's runtime invalidates them by a packet for every code
//! object that it loads (`amd_gpu_agent.cpp:InvalidateCodeCaches`). So a program is kept although memory changes, and runs
//! as it was, until [`Cache::invalidate`].
//!
//! INVARIANT: a program runs only while all its code may be executed; after an invalidation only if memory still holds the
//! words it was made from, which is compared once. Generated code names the steps of its own program, which owns both.

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
    /// The cache's epoch in which it was last compared with memory.
    compared_in: AtomicU64,
    /// The generation of the map in which all its code was last found to be executable.
    allowed_in: AtomicU64,
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
    fn build(map: &Map, epoch: u64, level: Level, shape: Shape, entry: u64) -> Program {
        Program {
            code: Predecoded::build(map, level, shape, entry),
            executed: AtomicU64::new(0),
            compared_in: AtomicU64::new(epoch),
            allowed_in: AtomicU64::new(map.generation),
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

    /// Whether it may run under `map` in the cache's `epoch`.
    fn is_valid(&self, map: &Map, epoch: u64) -> bool {
        let is_compared = self.compared_in.load(Ordering::Relaxed) >= epoch;
        if is_compared && self.allowed_in.load(Ordering::Relaxed) == map.generation {
            return true;
        }
        let valid = if is_compared { self.code.is_allowed(map) } else { self.code.is_current(map) };
        if valid {
            self.allowed_in.store(map.generation, Ordering::Relaxed);
            self.compared_in.fetch_max(epoch, Ordering::Relaxed);
        }
        valid
    }

    /// Instructions executed so far.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }
}

/// Programs by entry address and register shape, of one address space on one GPU.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    programs: Mutex<HashMap<(u64, Shape), Arc<Program>>>,
    /// Invalidations so far.
    epoch: AtomicU64,
}

/// Programs kept before the cache starts over.
const MAX_PROGRAMS: usize = 1024;

impl Cache {
    /// The program for `entry`: the one that is kept, or, if there is none that may run, what memory holds now.
    pub(crate) fn get(&self, map: &Map, level: Level, shape: Shape, entry: u64) -> Arc<Program> {
        let key = (entry, shape);
        // ORDERING: Acquire pairs with the invalidation, before which the code was written. Read before the words are: what
        // is written and invalidated meanwhile is compared the next time.
        let epoch = self.epoch.load(Ordering::Acquire);
        let known = self.programs.lock().get(&key).cloned();
        if let Some(program) = known.filter(|p| p.is_valid(map, epoch)) {
            return program;
        }
        let program = Arc::new(Program::build(map, epoch, level, shape, entry));
        let mut programs = self.programs.lock();
        if programs.len() >= MAX_PROGRAMS {
            programs.clear();
        }
        programs.insert(key, program.clone());
        program
    }

    /// Has every program compared with memory before it is used the next time.
    pub(crate) fn invalidate(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }
}
