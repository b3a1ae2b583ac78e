// SPDX-License-Identifier: MIT OR Apache-2.0
//! The generated code of one program, and the function that enters it.
//!
//! INVARIANT: code is entered only at the head of a block, with a context that names the wave and the environment that it
//! was entered with, and only while the program whose steps it names is alive.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU8;

use super::context::{Exit, JitContext};
use super::transfer::KNOWN;
use super::{asm, emit, generator, memory};
use crate::env::Env;
use crate::level::Level;
use crate::predecoded::Predecoded;
use crate::step::{Flow, Step};
use crate::wave::{Row, Wave};

/// Most steps of a program that is compiled. Compiling as many takes some tens of milliseconds, during which the
/// program's waves cannot be preempted.
const MAX_STEPS: usize = 1 << 14;

/// Runs a step's handler for generated code.
///
/// # Safety
/// The pointers are those of a wave, an environment and a step that [`Compiled::enter`] was called with.
unsafe extern "sysv64" fn call(w: *mut Wave, env: *mut Env<'_>, s: *const Step) -> u32 {
    // SAFETY: the caller says that the pointers are those of `Compiled::enter`, which holds exclusive borrows of wave and
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
    /// The control asks the wave to stop.
    Interrupted(usize),
    /// The quantum is over.
    Quantum(usize),
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
}

impl Compiled {
    /// Code for `program`, whose steps must not move in memory. `None`, with a line in the log, if this CPU or this
    /// program cannot have code.
    pub(crate) fn new(program: &Predecoded, level: Level, mode: u32) -> Option<Compiled> {
        if program.steps.len() > MAX_STEPS {
            tracing::debug!(
                "{} steps at {:#x} are left to the interpreter",
                program.steps.len(),
                program.entry.0
            );
            return None;
        }
        let wide = match level {
            Level::Avx512 => generator::Wide::Z,
            Level::Avx2 => generator::Wide::Y,
            Level::Baseline => return None,
        };
        let (finished, places) = match emit::Emitter::new(program, wide, mode).emit() {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!("No code for the program at {:#x}: {error}", program.entry.0);
                return None;
            }
        };
        let pages = match memory::Pages::new(&finished.code) {
            Ok(pages) => pages,
            Err(error) => {
                tracing::warn!("No executable memory for {} bytes of code: {error}", finished.code.len());
                return None;
            }
        };
        tracing::debug!(
            "{} steps at {:#x} became {} bytes",
            program.steps.len(),
            program.entry.0,
            finished.code.len()
        );
        if let Some(directory) = std::env::var_os("SOFTGPU_JIT_DUMP") {
            // For objdump -D -b binary -m i386:x86-64 --adjust-vma=ADDRESS.
            let name = format!("{:#x}-at-{:#x}.bin", program.entry.0, pages.at(0).addr());
            if let Err(error) = std::fs::write(std::path::Path::new(&directory).join(&name), &finished.code) {
                tracing::warn!("Cannot write {name}: {error}");
            }
        }
        let mut entries = vec![0; program.steps.len()];
        for (step, offset) in places {
            entries[step] = offset as u32;
        }
        Some(Compiled { pages, pool: finished.pool, entries, mode })
    }

    /// Whether step `index` is the head of a block.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|&offset| offset != 0)
    }

    /// Runs from step `index`, which must be the head of a block, until there is a reason of [`Left`] to return.
    /// `limit` is in executed instructions.
    ///
    /// `flag` is the control's state.
    pub(crate) fn enter(
        &self,
        w: &mut Wave,
        env: &mut Env<'_>,
        index: usize,
        flag: &AtomicU8,
        limit: u64,
    ) -> Left {
        let mut context = JitContext {
            rows: w.v.as_mut_ptr().cast::<u8>().wrapping_offset(asm::ROW_BIAS as isize),
            // The address of the whole wave plus an offset; handlers get the address without it.
            scalars: std::ptr::from_mut(w).cast::<u8>().wrapping_add(std::mem::offset_of!(Wave, s)).cast(),
            env: std::ptr::from_mut(env).cast(),
            pool: self.pool.as_ptr(),
            flag: flag.as_ptr().cast_const(),
            executed: env.executed,
            limit,
            call,
            lds_bytes: w.lds_bytes.into(),
            lds: env.lds.as_mut_ptr().cast(),
            hot: std::ptr::from_mut(env.hot()).cast_const().cast(),
            known: [const { MaybeUninit::uninit() }; KNOWN],
        };
        // SAFETY: the code begins with a function of this type; it was generated for this CPU's level, and the program whose
        // steps it names is alive, since it owns `self`.
        let enter: extern "sysv64" fn(*mut JitContext, *const u8) -> u64 =
            unsafe { std::mem::transmute(self.pages.at(0)) };
        let result = enter(&mut context, self.pages.at(self.entries[index] as usize));
        env.executed = context.executed;
        let step = result as u32 as usize;
        match (result >> 32) as u32 {
            x if x == Exit::Leave as u32 => Left::Interpret(step),
            x if x == Exit::Interrupted as u32 => Left::Interrupted(step),
            x if x == Exit::Quantum as u32 => Left::Quantum(step),
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
