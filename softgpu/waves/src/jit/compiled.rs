// SPDX-License-Identifier: MIT OR Apache-2.0
//! The generated code of one program, and the function that enters it.
//!
//! INVARIANT: code is entered only at the head of a block, with a context that names the wave and the environment that it
//! was entered with, and the steps that it was generated for. It has no address in itself, so that another process may run it.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU8;

use super::context::{Exit, JitContext, Turn, WAVES};
use super::{asm, emit, generator, memory};
use crate::code::Waves;
use crate::engine::Effort;
use crate::env::Env;
use crate::facts::Fact;
use crate::level::Level;
use crate::predecoded::Predecoded;
use crate::step::{Flow, Step};
use crate::store::Generated;
use crate::valu::wmma_float;
use crate::wave::{RenamedRows, Row, Wave, WaveStatus};

/// Writes fields of a context, without reading any.
macro_rules! write_fields {
    ($context:ident, $($field:ident: $value:expr,)*) => {
        $(std::ptr::addr_of_mut!((*$context).$field).write($value);)*
    };
}

/// What a worker has for generated code.
pub(crate) struct Memory {
    context: Box<MaybeUninit<JitContext>>,
    renamed: Box<RenamedRows>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory { context: Box::new_uninit(), renamed: Box::new_uninit() }
    }
}

/// Most steps of a program that is compiled. Compiling as many takes some tens of milliseconds, during which the
/// program's waves cannot be preempted.
const MAX_STEPS: usize = 1 << 14;

/// Runs a step's handler for generated code.
///
/// # Safety
/// The pointers are those of a wave, an environment and a step that [`Activation::enter`] was called with.
unsafe extern "sysv64" fn call(w: *mut Wave, env: *mut Env<'_>, s: *const Step) -> u32 {
    // SAFETY: the caller says that the pointers are those of `Activation::enter`, which holds exclusive borrows of wave and
    // environment while generated code runs; that code touches neither while the handler runs. The step's handler is one
    // for this CPU's level, since it comes from the tables for the level in use.
    unsafe {
        let s = &*s;
        (s.run)(&mut *w, &mut *env, s) as u32
    }
}

/// Why a run of generated code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The step at this index returned this.
    Flow(Flow, usize),
    /// The interpreter continues at this step.
    Interpret(usize),
    /// The same, since lanes are inactive.
    Lanes(usize),
    /// The control asks the wave to stop.
    Interrupted(usize),
    /// The quantum is over.
    Quantum(usize),
    /// No wave of the workgroup can go on here.
    Round,
    /// The current wave is another one, which has not begun.
    Switched,
}

/// The code of one program for one MODE.
#[derive(Debug)]
pub(crate) struct Compiled {
    pages: memory::Pages,
    pool: Vec<u32>,
    /// Offset of each step's code, for heads of blocks; 0 elsewhere.
    entries: Vec<u32>,
    /// The MODE that the code was generated for.
    pub mode: u32,
    /// What the work-items' numbers have to be like in a wave that runs it, if that matters.
    pub items: Option<Fact>,
}

/// Code for `program`, only for waves that started with work-items' numbers as `items` says, if it says something. `None`,
/// with a line in the log, if this CPU or this program cannot have code.
pub(crate) fn generate(
    program: &Predecoded,
    level: Level,
    mode: u32,
    items: Option<Fact>,
    effort: Effort,
) -> Option<Generated> {
    if !can_generate(program, level) {
        tracing::debug!(
            "{} steps at {:#x} are left to the interpreter",
            program.steps.len(),
            program.entry.0
        );
        return None;
    }
    let wide = if level == Level::Avx512 { generator::Wide::Z } else { generator::Wide::Y };
    let (finished, places) = match emit::Emitter::new(program, wide, mode, items, effort).emit() {
        Ok(done) => done,
        Err(error) => {
            tracing::warn!("No code for the program at {:#x}: {error}", program.entry.0);
            return None;
        }
    };
    tracing::debug!(
        "{} steps at {:#x} became {} bytes of {effort:?} code",
        program.steps.len(),
        program.entry.0,
        finished.code.len()
    );
    // CAST: there are few steps, and jumps reach all of the code.
    let heads = places.into_iter().map(|(step, offset)| (step as u32, offset as u32)).collect();
    Some(Generated { code: finished.code, pool: finished.pool, heads, steps: program.steps.len() as u32 })
}

/// Whether there can be code for `program`.
pub(crate) fn can_generate(program: &Predecoded, level: Level) -> bool {
    level > Level::Baseline && program.steps.len() <= MAX_STEPS
}

impl Compiled {
    /// Makes code executable that was generated for `program`, whether now or by an earlier process, with these properties.
    /// `None`, with a line in the log, if it cannot be.
    pub(crate) fn new(
        program: &Predecoded,
        generated: &Generated,
        mode: u32,
        items: Option<Fact>,
    ) -> Option<Compiled> {
        if generated.steps as usize != program.steps.len() {
            tracing::debug!("Code for {} steps is not that of {}", generated.steps, program.steps.len());
            return None;
        }
        let pages = match memory::Pages::new(&generated.code) {
            Ok(pages) => pages,
            Err(error) => {
                tracing::warn!("No executable memory for {} bytes of code: {error}", generated.code.len());
                return None;
            }
        };
        if let Some(directory) = std::env::var_os("SOFTGPU_JIT_DUMP") {
            // For objdump -D -b binary -m i386:x86-64 --adjust-vma=ADDRESS.
            let name = format!("{:#x}-at-{:#x}.bin", program.entry.0, pages.at(0).addr());
            if let Err(error) = std::fs::write(std::path::Path::new(&directory).join(&name), &generated.code)
            {
                tracing::warn!("Cannot write {name}: {error}");
            }
        }
        let mut entries = vec![0; program.steps.len()];
        for &(step, offset) in &generated.heads {
            *entries.get_mut(step as usize)? = offset;
        }
        Some(Compiled { pages, pool: generated.pool.clone(), entries, mode, items })
    }

    /// Whether step `index` is the head of a block.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|&offset| offset != 0)
    }

    /// Whether `w` may run it.
    pub(crate) fn suits(&self, w: &Wave) -> bool {
        w.mode == self.mode && (self.items.is_none() || w.items == self.items)
    }

    /// The code of step `index`, if it is the head of a block.
    fn head(&self, index: usize) -> *const u8 {
        match self.entries.get(index) {
            Some(&offset) if offset != 0 => self.pages.at(offset as usize),
            _ => std::ptr::null(),
        }
    }

    /// The code at the wave's PC, if it is the head of a block of `program`; `entry` is that of the program's entry.
    fn resume(&self, program: &Predecoded, entry: *const u8, w: &Wave) -> *const u8 {
        match w.state {
            WaveStatus::Ready if !self.suits(w) => std::ptr::null(),
            WaveStatus::Ready if w.pc == program.entry.0 => entry,
            WaveStatus::Ready if program.starts_at(w.hint, w.pc) => self.head(w.hint),
            _ => std::ptr::null(),
        }
    }

    /// Prepares runs of this code, which is `program`'s, for `waves`. Each wave runs `quantum` instructions before the next
    /// one does; `flag` is the control's state.
    pub(crate) fn begin<'w>(
        &'w self,
        program: &'w Predecoded,
        waves: &'w mut Waves<'_>,
        env: &Env<'_>,
        flag: &'w AtomicU8,
        quantum: u32,
        memory: &'w mut Memory,
    ) -> Activation<'w> {
        let is_group = waves.is_group && waves.all.len() <= WAVES;
        let offset = if is_group { 0 } else { waves.current };
        let count = if is_group { waves.all.len() } else { 1 };
        let quantum = u64::from(quantum);
        let lds_bytes = waves.all[waves.current].lds_bytes.into();
        let all = &mut waves.all[offset..offset + count];
        let first = all.as_mut_ptr();
        let context = &mut *memory.context;
        // SAFETY: the fields of a context, which only this function has. What was there before is not read, and needs no drop; the
        // arrays that are left out may hold anything.
        unsafe {
            let context = context.as_mut_ptr();
            write_fields!(context,
                rows: std::ptr::null_mut(),
                scalars: std::ptr::null_mut(),
                env: std::ptr::null_mut(),
                pool: self.pool.as_ptr(),
                flag: flag.as_ptr().cast_const(),
                executed: 0,
                limit: env.executed + quantum,
                quantum: quantum,
                end: env.executed + quantum * count as u64,
                call: call,
                multiply: wmma_float::run,
                steps: program.steps.as_ptr(),
                lds: std::ptr::null_mut(),
                renamed: memory.renamed.as_mut_ptr().cast(),
                lds_bytes: lds_bytes,
                hot: std::ptr::null(),
                first: scalars_of(first),
                turn: std::ptr::null_mut(),
                turns_end: std::ptr::null_mut(),
                entry: program.base(),
                waiting: 0,
                halted: 0,
                // The barrier of a wave alone is its workgroup's.
                total: if is_group { count as u32 } else { u32::MAX },
                scc: 0,
            );
        }
        // SAFETY: all fields were written, but for those whose type says that they may hold anything.
        let context = unsafe { context.assume_init_mut() };
        let entry = self.head(program.entry.1);
        for (turn, w) in context.turns.iter_mut().zip(all) {
            let resume = self.resume(program, entry, w);
            context.waiting += u32::from(w.state == WaveStatus::AtBarrier);
            context.halted += u32::from(w.state != WaveStatus::Ready);
            let rows = w.v.as_mut_ptr().cast::<u8>().wrapping_offset(asm::ROW_BIAS as isize);
            turn.write(Turn { rows, resume });
        }
        Activation { compiled: self, first, offset, count, current: &mut waves.current, context }
    }
}

/// The scalar file of a wave, as a pointer with which all of the waves behind it may be accessed.
fn scalars_of(w: *mut Wave) -> *mut u32 {
    w.cast::<u8>().wrapping_add(std::mem::offset_of!(Wave, s)).cast()
}

/// Code that is entered, left, and entered again for the same waves.
pub(crate) struct Activation<'w> {
    compiled: &'w Compiled,
    /// Of the waves with turns.
    first: *mut Wave,
    /// The first one's place among all waves.
    offset: usize,
    count: usize,
    current: &'w mut usize,
    context: &'w mut JitContext,
}

impl Activation<'_> {
    /// The wave that runs.
    pub(crate) fn wave(&mut self) -> &mut Wave {
        // SAFETY: `first` points to `count` waves, which are borrowed as long as this lives, and `current` is one of them.
        unsafe { &mut *self.first.add(*self.current - self.offset) }
    }

    /// Whether it goes on with other waves of the workgroup.
    pub(crate) fn is_group(&self) -> bool {
        self.context.total != u32::MAX
    }

    /// Whether the current wave's quantum is over.
    pub(crate) fn is_over(&self, env: &Env<'_>) -> bool {
        env.executed >= self.context.limit
    }

    /// Runs from step `index`, which must be the head of a block, until there is a reason of [`Left`] to return. The
    /// current wave may be another one then.
    pub(crate) fn enter(&mut self, env: &mut Env<'_>, index: usize) -> Left {
        let turn = *self.current - self.offset;
        let turns = self.context.turns.as_mut_ptr().cast::<Turn>();
        let scalars = scalars_of(self.first.wrapping_add(turn));
        let rows = self.wave().v.as_mut_ptr().cast::<u8>().wrapping_offset(asm::ROW_BIAS as isize);
        let context = &mut *self.context;
        context.rows = rows;
        context.scalars = scalars;
        context.env = std::ptr::from_mut(env).cast();
        context.lds = env.lds.as_mut_ptr().cast();
        context.hot = std::ptr::from_mut(env.hot()).cast_const().cast();
        context.executed = env.executed;
        context.turn = turns.wrapping_add(turn);
        context.turns_end = turns.wrapping_add(self.count);
        // SAFETY: the code begins with a function of this type; it was generated for this CPU's level, by this version of the
        // generator, and for the steps in the context, which are borrowed as long as this lives.
        let enter: extern "sysv64" fn(*mut JitContext, *const u8) -> u64 =
            unsafe { std::mem::transmute(self.compiled.pages.at(0)) };
        let result = enter(context, self.compiled.pages.at(self.compiled.entries[index] as usize));
        env.executed = context.executed;
        let turn = context.turn.addr().wrapping_sub(turns.addr()) / size_of::<Turn>();
        *self.current = self.offset + turn.min(self.count - 1);
        let step = result as u32 as usize;
        match (result >> 32) as u32 {
            x if x == Exit::Leave as u32 => Left::Interpret(step),
            x if x == Exit::Lanes as u32 => Left::Lanes(step),
            x if x == Exit::Interrupted as u32 => Left::Interrupted(step),
            x if x == Exit::Quantum as u32 => Left::Quantum(step),
            x if x == Exit::Round as u32 => Left::Round,
            x if x == Exit::Switched as u32 => Left::Switched,
            x if x == Flow::Jump as u32 => Left::Flow(Flow::Jump, step),
            x if x == Flow::Indirect as u32 => Left::Flow(Flow::Indirect, step),
            x if x == Flow::Barrier as u32 => Left::Flow(Flow::Barrier, step),
            x if x == Flow::Yield as u32 => Left::Flow(Flow::Yield, step),
            x if x == Flow::End as u32 => Left::Flow(Flow::End, step),
            _ => Left::Flow(Flow::Stop, step),
        }
    }
}

const _: () = assert!(size_of::<Row>() == 128);
