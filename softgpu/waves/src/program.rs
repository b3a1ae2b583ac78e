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
#[cfg(target_arch = "x86_64")]
use crate::engine::{Effort, MANY_LEFT, WORTH_COMPILING, WORTH_IMPROVING, WORTH_TRYING, WORTH_TWICE};
use crate::engine::{Engine, FIXED_STEPS, WORTH_INSISTING};
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
    /// How often quick code was left because lanes were inactive.
    #[cfg(target_arch = "x86_64")]
    left: AtomicU64,
    /// Generated code for any wave.
    #[cfg(target_arch = "x86_64")]
    compiled: Slots,
    /// The same for waves that started with work-items' numbers of the first kind that was met.
    #[cfg(target_arch = "x86_64")]
    compiled_for_items: Slots,
}

/// What code is generated for, and how.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Wanted {
    level: Level,
    mode: u32,
    /// Of the work-items' numbers, if it is only for waves with those.
    items: Option<Fact>,
    effort: Effort,
}

#[cfg(target_arch = "x86_64")]
impl Wanted {
    /// For waves with the work-items' numbers that `w` started with.
    fn by(level: Level, w: &Wave, effort: Effort) -> Wanted {
        Wanted { level, mode: w.mode, items: w.items, effort }
    }

    fn key(&self, code: &Predecoded) -> Key {
        Key::new(code, self.level, self.mode, self.items, self.effort)
    }
}

/// Places for generated code, by the effort for it.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Default)]
struct Slots {
    quick: Slot,
    full: Slot,
    /// Whether an earlier process' code was looked for.
    is_looked_up: AtomicBool,
}

#[cfg(target_arch = "x86_64")]
impl Slots {
    /// The best code that there is.
    fn best(&self) -> Option<&Compiled> {
        [&self.full, &self.quick].into_iter().find_map(|slot| slot.code.get()?.as_ref())
    }

    /// How code is to be made where there is none; `None` if there can be none.
    fn next(&self) -> Option<Effort> {
        let is_in_vain = |slot: &Slot| matches!(slot.code.get(), Some(None));
        match is_in_vain(&self.quick) {
            false => Some(Effort::Quick),
            true => (!is_in_vain(&self.full)).then_some(Effort::Full),
        }
    }
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
    /// Held by a worker that makes it, for which the others wait.
    making: Mutex<()>,
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
            left: AtomicU64::new(0),
            #[cfg(target_arch = "x86_64")]
            compiled: Slots::default(),
            #[cfg(target_arch = "x86_64")]
            compiled_for_items: Slots::default(),
        }
    }

    /// Generated code for `w`. `None` if it was made for other waves, cannot be made, or, unless `engine` waits for it, is
    /// being made.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn compiled(self: &Arc<Self>, engine: Engine, level: Level, w: &Wave) -> Option<&Compiled> {
        if w.items.is_some() {
            // Code for any wave is not worth its time for those that get their own code soon.
            let special = self.made(engine, Wanted::by(level, w, Effort::Full))?;
            if special.suits(w) {
                return Some(special);
            }
        }
        let wanted = Wanted { items: None, ..Wanted::by(level, w, Effort::Full) };
        self.made(engine, wanted).filter(|code| code.suits(w))
    }

    /// The best code that there is, be it for other waves than is wanted. If there is none, it is made as `engine` makes it.
    #[cfg(target_arch = "x86_64")]
    fn made(self: &Arc<Self>, engine: Engine, wanted: Wanted) -> Option<&Compiled> {
        let slots = self.slots(wanted.items);
        if engine == Engine::Auto {
            if let Some(code) = slots.best() {
                self.improve(wanted);
                return Some(code);
            }
            self.look_up(Wanted { effort: Effort::Quick, ..wanted });
            if let (None, Some(effort)) = (slots.best(), slots.next()) {
                let wanted = Wanted { effort, ..wanted };
                if !self.ask(wanted) {
                    self.make_alone(wanted);
                }
            }
            return slots.best();
        }
        let effort = if engine == Engine::Quick { Effort::Quick } else { Effort::Full };
        let slot = self.slot(Wanted { effort, ..wanted });
        if slot.code.get().is_none() {
            self.look_up(Wanted { effort, ..wanted });
            self.make_alone(Wanted { effort, ..wanted });
        }
        slot.code.get()?.as_ref()
    }

    /// Whether waves like `w` have generated code already. If not, it is looked for in files, and generated once that seems
    /// worth its time, by other threads.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_code(self: &Arc<Self>, level: Level, w: &Wave) -> bool {
        let slots = self.slots(w.items);
        if slots.best().is_some() {
            return true;
        }
        let Some(effort) = slots.next() else { return false };
        let wanted = Wanted::by(level, w, effort);
        if self.compiler.store.is_some() && !slots.is_looked_up.swap(true, Ordering::Relaxed) {
            let program = Arc::clone(self);
            self.compiler.prompt.ask(move || program.load(wanted));
        }
        let is_begun = slots.quick.is_begun.load(Ordering::Relaxed);
        let enough = if is_begun { WORTH_TWICE } else { WORTH_COMPILING };
        let executed = self.executed();
        self.have_made(wanted, executed >= self.worth(WORTH_TRYING), executed >= self.worth(enough));
        false
    }

    /// Has full code made where quick code runs, once that seems worth its time.
    #[cfg(target_arch = "x86_64")]
    fn improve(self: &Arc<Self>, wanted: Wanted) {
        let full = Wanted { effort: Effort::Full, ..wanted };
        if self.slot(full).is_asked.load(Ordering::Relaxed) || self.slot(full).code.get().is_some() {
            return;
        }
        let (executed, left) = (self.executed(), self.left.load(Ordering::Relaxed));
        let is_worth = |times: u64, many: u64| executed >= self.worth(times) || left >= many;
        let [some, many] = MANY_LEFT;
        self.have_made(full, is_worth(WORTH_IMPROVING, some), is_worth(WORTH_INSISTING, many));
    }

    /// Has the thread that gives way make code, once, or that of ordinary priority.
    #[cfg(target_arch = "x86_64")]
    fn have_made(self: &Arc<Self>, wanted: Wanted, by_idle: bool, by_prompt: bool) {
        if by_prompt {
            self.ask(wanted);
        } else if by_idle && !self.slot(wanted).is_tried.swap(true, Ordering::Relaxed) {
            let program = Arc::clone(self);
            self.compiler.idle.ask(move || program.make(wanted));
        }
    }

    /// Has the thread of ordinary priority make code, once. `false` if there is no such thread.
    #[cfg(target_arch = "x86_64")]
    fn ask(self: &Arc<Self>, wanted: Wanted) -> bool {
        if self.slot(wanted).is_asked.swap(true, Ordering::Relaxed) {
            return true;
        }
        let program = Arc::clone(self);
        self.compiler.prompt.ask(move || program.make(wanted))
    }

    #[cfg(target_arch = "x86_64")]
    fn slots(&self, items: Option<Fact>) -> &Slots {
        if items.is_some() { &self.compiled_for_items } else { &self.compiled }
    }

    #[cfg(target_arch = "x86_64")]
    fn slot(&self, wanted: Wanted) -> &Slot {
        let slots = self.slots(wanted.items);
        if wanted.effort == Effort::Quick { &slots.quick } else { &slots.full }
    }

    /// Looks for an earlier process' code, once.
    #[cfg(target_arch = "x86_64")]
    fn look_up(&self, wanted: Wanted) {
        let slots = self.slots(wanted.items);
        if self.compiler.store.is_some()
            && !slots.is_looked_up.load(Ordering::Relaxed)
            && !slots.is_looked_up.swap(true, Ordering::Relaxed)
        {
            self.load(wanted);
        }
    }

    /// Loads full code if there is some, else quick code, if that will do.
    #[cfg(target_arch = "x86_64")]
    #[cold]
    fn load(&self, wanted: Wanted) {
        let Some(store) =
            self.compiler.store.as_ref().filter(|_| jit::can_generate(&self.code, wanted.level))
        else {
            return;
        };
        let will_do = |effort: &Effort| *effort == Effort::Full || wanted.effort == Effort::Quick;
        for effort in [Effort::Full, Effort::Quick].into_iter().filter(will_do) {
            let wanted = Wanted { effort, ..wanted };
            let found = store.load(&wanted.key(&self.code));
            let made = found.and_then(|found| Compiled::new(&self.code, &found, wanted.mode, wanted.items));
            if let Some(compiled) = made {
                self.slot(wanted).code.get_or_init(|| Some(compiled));
                return;
            }
        }
    }

    /// Generates code that this worker, and every other one that wants it, waits for.
    #[cfg(target_arch = "x86_64")]
    fn make_alone(&self, wanted: Wanted) {
        let _making = self.slot(wanted).making.lock();
        self.make(wanted);
    }

    /// Generates code unless there is some, and saves it once waves can run it.
    #[cfg(target_arch = "x86_64")]
    fn make(&self, wanted: Wanted) {
        let Slot { code, is_begun, .. } = self.slot(wanted);
        if code.get().is_some() {
            return;
        }
        is_begun.store(true, Ordering::Relaxed);
        // Not while the slot is locked: another thread may be faster.
        let (generated, compiled) = self.generate(wanted).unzip();
        if code.set(compiled).is_ok()
            && let (Some(store), Some(generated)) = (&self.compiler.store, generated)
        {
            store.save(&wanted.key(&self.code), &generated);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn generate(&self, wanted: Wanted) -> Option<(Generated, Compiled)> {
        let Wanted { level, mode, items, effort } = wanted;
        compilation::timed(self.code.steps.len(), || {
            let generated = jit::generate(&self.code, level, mode, items, effort)?;
            let compiled = Compiled::new(&self.code, &generated, mode, items)?;
            Some((generated, compiled))
        })
    }

    /// Notes that quick code was left because lanes were inactive.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn count_left(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Instructions that it executes while its steps are executed so often on average.
    fn worth(&self, times: u64) -> u64 {
        (self.code.steps.len() as u64 + FIXED_STEPS) * times
    }

    /// Notes that a wave executed so many instructions, as long as that matters.
    pub(crate) fn count_executed(&self, instructions: u64) {
        if self.executed() < self.worth(WORTH_INSISTING) {
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
