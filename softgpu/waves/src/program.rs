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
//! words it was made from, which is compared once. Generated code is of the program that owns it, or was saved by a process
//! that had a program of the same words.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

#[cfg(target_arch = "x86_64")]
use crate::compilation;
use crate::compiler::Compiler;
use crate::engine::{Engine, FIXED_STEPS, WORTH_TWICE};
#[cfg(target_arch = "x86_64")]
use crate::engine::{WORTH_COMPILING, WORTH_TRYING};
#[cfg(target_arch = "x86_64")]
use crate::facts::Fact;
#[cfg(target_arch = "x86_64")]
use crate::jit::{self, Compiled};
use crate::level::Level;
use crate::predecode::Shape;
use crate::predecoded::Predecoded;
use crate::store::Store;
#[cfg(target_arch = "x86_64")]
use crate::store::{Generated, Key};
use crate::vm::Map;
#[cfg(target_arch = "x86_64")]
use crate::wave::Wave;

/// Predecoded code of one entry, how often it ran, and the code generated from it.
#[derive(Debug)]
pub(crate) struct Program {
    code: Predecoded,
    compiler: Arc<Compiler>,
    /// Instructions executed by waves that this is the main program of.
    executed: AtomicU64,
    /// The cache's epoch in which it was last compared with memory.
    compared_in: AtomicU64,
    /// The generation of the map in which all its code was last found to be executable.
    allowed_in: AtomicU64,
    /// Generated code for any wave.
    #[cfg(target_arch = "x86_64")]
    compiled: Slot,
    /// The same for waves that started with work-items' numbers of the first kind that was met.
    #[cfg(target_arch = "x86_64")]
    compiled_for_items: Slot,
}

/// A place for generated code.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Default)]
struct Slot {
    /// Set once it was made, or was found to be impossible.
    code: OnceLock<Option<Compiled>>,
    /// Whether the thread that gives way is to make it.
    is_tried: AtomicBool,
    /// Whether the other thread is to make it.
    is_asked: AtomicBool,
    /// Whether a thread has begun to make it.
    is_begun: AtomicBool,
    /// Whether an earlier process' code was looked for.
    is_looked_up: AtomicBool,
}

impl Deref for Program {
    type Target = Predecoded;

    #[inline(always)]
    fn deref(&self) -> &Predecoded {
        &self.code
    }
}

impl Program {
    fn new(code: Predecoded, map: &Map, epoch: u64, compiler: Arc<Compiler>) -> Program {
        Program {
            code,
            compiler,
            executed: AtomicU64::new(0),
            compared_in: AtomicU64::new(epoch),
            allowed_in: AtomicU64::new(map.generation),
            #[cfg(target_arch = "x86_64")]
            compiled: Slot::default(),
            #[cfg(target_arch = "x86_64")]
            compiled_for_items: Slot::default(),
        }
    }

    /// Generated code for `w`. `None` if it was made for other waves, cannot be made, or, unless `engine` waits for it, is
    /// being made.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn compiled(self: &Arc<Self>, engine: Engine, level: Level, w: &Wave) -> Option<&Compiled> {
        if w.items.is_some() {
            match self.slot(engine, level, w, w.items) {
                Some(Some(special)) if special.suits(w) => return Some(special),
                // Code for any wave is not worth its time for those that get their own code soon.
                None => return None,
                Some(_) => {}
            }
        }
        self.slot(engine, level, w, None)?.as_ref().filter(|c| c.suits(w))
    }

    /// What a slot holds; `None` while its code is being made.
    #[cfg(target_arch = "x86_64")]
    fn slot(
        self: &Arc<Self>,
        engine: Engine,
        level: Level,
        w: &Wave,
        items: Option<Fact>,
    ) -> Option<&Option<Compiled>> {
        let slot = self.slot_for(items);
        self.look_up(level, w.mode, items);
        if let Some(code) = slot.code.get() {
            return Some(code);
        }
        if engine == Engine::Auto && self.ask(level, w.mode, items) {
            return None;
        }
        self.make(level, w.mode, items);
        slot.code.get()
    }

    /// Whether waves like `w` have generated code already. If not, it is looked for in files, and generated once that seems
    /// worth its time, by other threads.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_code(self: &Arc<Self>, level: Level, w: &Wave) -> bool {
        let (mode, items) = (w.mode, w.items);
        let slot = self.slot_for(items);
        if let Some(code) = slot.code.get() {
            return code.is_some();
        }
        if self.compiler.store.is_some() && !slot.is_looked_up.swap(true, Ordering::Relaxed) {
            let program = Arc::clone(self);
            self.compiler.prompt.ask(move || program.load(level, mode, items));
        }
        let executed = self.executed();
        let enough = if slot.is_begun.load(Ordering::Relaxed) { WORTH_TWICE } else { WORTH_COMPILING };
        if executed >= self.worth(enough) {
            self.ask(level, mode, items);
        } else if executed >= self.worth(WORTH_TRYING) && !slot.is_tried.swap(true, Ordering::Relaxed) {
            let program = Arc::clone(self);
            self.compiler.idle.ask(move || program.make(level, mode, items));
        }
        false
    }

    /// Has the thread of ordinary priority make code, once. `false` if there is no such thread.
    #[cfg(target_arch = "x86_64")]
    fn ask(self: &Arc<Self>, level: Level, mode: u32, items: Option<Fact>) -> bool {
        if self.slot_for(items).is_asked.swap(true, Ordering::Relaxed) {
            return true;
        }
        let program = Arc::clone(self);
        self.compiler.prompt.ask(move || program.make(level, mode, items))
    }

    #[cfg(target_arch = "x86_64")]
    fn slot_for(&self, items: Option<Fact>) -> &Slot {
        if items.is_some() { &self.compiled_for_items } else { &self.compiled }
    }

    /// Looks for an earlier process' code, once.
    #[cfg(target_arch = "x86_64")]
    fn look_up(&self, level: Level, mode: u32, items: Option<Fact>) {
        let slot = self.slot_for(items);
        if self.compiler.store.is_some()
            && !slot.is_looked_up.load(Ordering::Relaxed)
            && !slot.is_looked_up.swap(true, Ordering::Relaxed)
        {
            self.load(level, mode, items);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[cold]
    fn load(&self, level: Level, mode: u32, items: Option<Fact>) {
        let Some(store) = self.compiler.store.as_ref().filter(|_| jit::can_generate(&self.code, level))
        else {
            return;
        };
        let found = store.load(&Key::new(&self.code, level, mode, items));
        if let Some(compiled) = found.and_then(|found| Compiled::new(&self.code, &found, mode, items)) {
            self.slot_for(items).code.get_or_init(|| Some(compiled));
        }
    }

    /// Generates code unless there is some, and saves it once waves can run it.
    #[cfg(target_arch = "x86_64")]
    fn make(&self, level: Level, mode: u32, items: Option<Fact>) {
        let Slot { code, is_begun, .. } = self.slot_for(items);
        if code.get().is_some() {
            return;
        }
        is_begun.store(true, Ordering::Relaxed);
        // Not while the slot is locked: another thread may be faster.
        let (generated, compiled) = self.generate(level, mode, items).unzip();
        if code.set(compiled).is_ok()
            && let (Some(store), Some(generated)) = (&self.compiler.store, generated)
        {
            store.save(&Key::new(&self.code, level, mode, items), &generated);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn generate(&self, level: Level, mode: u32, items: Option<Fact>) -> Option<(Generated, Compiled)> {
        compilation::timed(self.code.steps.len(), || {
            let generated = jit::generate(&self.code, level, mode, items)?;
            let compiled = Compiled::new(&self.code, &generated, mode, items)?;
            Some((generated, compiled))
        })
    }

    /// Instructions that it executes while its steps are executed so often on average.
    fn worth(&self, times: u64) -> u64 {
        (self.code.steps.len() as u64 + FIXED_STEPS) * times
    }

    /// Notes that a wave executed so many instructions, as long as that matters.
    pub(crate) fn count_executed(&self, instructions: u64) {
        if self.executed() < self.worth(WORTH_TWICE) {
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
    compiler: Arc<Compiler>,
}

/// Programs kept before the cache starts over.
const MAX_PROGRAMS: usize = 1024;

impl Cache {
    /// Of programs whose generated code is kept in `store`.
    pub(crate) fn with_store(store: Option<Arc<Store>>) -> Cache {
        let compiler = Compiler::with_store(store);
        if Engine::current() == Engine::Auto {
            compiler.start();
        }
        Cache { compiler: Arc::new(compiler), ..Cache::default() }
    }

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
        let code = Predecoded::build(map, level, shape, entry);
        let program = Arc::new(Program::new(code, map, epoch, Arc::clone(&self.compiler)));
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
