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
use crate::engine::Engine;
use crate::engine::WORTH_COMPILING;
#[cfg(target_arch = "x86_64")]
use crate::facts::Fact;
#[cfg(target_arch = "x86_64")]
use crate::jit::{self, Compiled};
use crate::level::Level;
use crate::predecode::Shape;
use crate::predecoded::Predecoded;
#[cfg(target_arch = "x86_64")]
use crate::store::Key;
use crate::store::Store;
use crate::vm::Map;
#[cfg(target_arch = "x86_64")]
use crate::wave::Wave;

/// Predecoded code of one entry, how often it ran, and the code generated from it.
#[derive(Debug)]
pub(crate) struct Program {
    code: Predecoded,
    /// Where generated code is kept from process to process.
    store: Option<Arc<Store>>,
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
    /// Whether a thread is making it.
    is_asked: AtomicBool,
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
    fn new(code: Predecoded, map: &Map, epoch: u64, store: Option<Arc<Store>>) -> Program {
        Program {
            code,
            store,
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
        let mode = w.mode;
        if engine == Engine::Auto {
            if slot.is_asked.swap(true, Ordering::Relaxed) {
                return None;
            }
            let program = Arc::clone(self);
            let make = move || program.make(level, mode, items);
            let started = std::thread::Builder::new().name("compiler".to_owned()).spawn(make);
            if started.is_ok() {
                return None;
            }
        }
        self.make(level, mode, items);
        slot.code.get()
    }

    /// Whether waves like `w` have generated code already, if only since an earlier process made it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_code(&self, level: Level, w: &Wave) -> bool {
        if self.store.is_none() {
            return false;
        }
        self.look_up(level, w.mode, w.items);
        self.slot_for(w.items).code.get().is_some_and(|code| code.as_ref().is_some_and(|c| c.suits(w)))
    }

    #[cfg(target_arch = "x86_64")]
    fn slot_for(&self, items: Option<Fact>) -> &Slot {
        if items.is_some() { &self.compiled_for_items } else { &self.compiled }
    }

    /// Looks for an earlier process' code, once.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn look_up(&self, level: Level, mode: u32, items: Option<Fact>) {
        let slot = self.slot_for(items);
        if let Some(store) = &self.store
            && !slot.is_looked_up.load(Ordering::Relaxed)
        {
            self.load(store, slot, level, mode, items);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[cold]
    fn load(&self, store: &Store, slot: &Slot, level: Level, mode: u32, items: Option<Fact>) {
        if slot.is_looked_up.swap(true, Ordering::Relaxed) || !jit::can_generate(&self.code, level) {
            return;
        }
        let found = store.load(&Key::new(&self.code, level, mode, items));
        if let Some(compiled) = found.and_then(|found| Compiled::new(&self.code, &found, mode, items)) {
            slot.code.get_or_init(|| Some(compiled));
        }
    }

    /// Generates code, and saves it once waves can run it.
    #[cfg(target_arch = "x86_64")]
    fn make(&self, level: Level, mode: u32, items: Option<Fact>) {
        let mut made = None;
        self.slot_for(items).code.get_or_init(|| {
            let generated = jit::generate(&self.code, level, mode, items)?;
            let compiled = Compiled::new(&self.code, &generated, mode, items);
            made = Some(generated);
            compiled
        });
        if let (Some(store), Some(generated)) = (&self.store, made) {
            store.save(&Key::new(&self.code, level, mode, items), &generated);
        }
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
    store: Option<Arc<Store>>,
}

/// Programs kept before the cache starts over.
const MAX_PROGRAMS: usize = 1024;

impl Cache {
    /// Of programs whose generated code is kept in `store`.
    pub(crate) fn with_store(store: Option<Arc<Store>>) -> Cache {
        Cache { store, ..Cache::default() }
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
        let program = Arc::new(Program::new(code, map, epoch, self.store.clone()));
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
