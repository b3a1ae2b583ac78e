// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes waves of gfx1100 machine code: an interpreter, a code generator, and the scheduling of workgroups and grids.
//!
//! INVARIANT: exact at every instruction. All architectural state of a wave is in one struct between instructions, so a
//! grid can be paused anywhere, moved as plain data, and resumed with the same results; no input (code, packet,
//! descriptor, memory) makes it panic.
//!
//! ```text
//! run(Launch) ── Workers ── Grid ── Group (LDS) ── Wave ── steps of a Program ── handlers (valu, salu, mem)
//!                                                            └─ Vm: permission intervals, GPU VA == host VA
//! ```
#![deny(missing_docs)]
#![deny(unsafe_code)]
// Code is generated for x86-64 only, and what only that needs is not used elsewhere.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
// Registers are 32-bit patterns read as signed, unsigned or float by turns: casts are the subject matter here.
#![allow(clippy::needless_range_loop)]

mod code;
mod compilation;
mod compiler;
mod control;
mod engine;
mod env;
mod exception;
mod facts;
mod grid;
mod group;
mod interp;
#[cfg(target_arch = "x86_64")]
mod jit;
mod launch;
mod level;
mod mem;
mod observe;
mod outcome;
mod predecode;
mod predecoded;
mod priority;
mod program;
mod residency;
#[cfg(target_arch = "x86_64")]
mod run_compiled;
mod salu;
#[cfg(test)]
mod semantics;
mod step;
mod store;
mod trap;
mod valu;
mod vm;
mod wave;
mod workers;

pub use compilation::Compilation;
pub use control::{Command, Control};
pub use engine::Engine;
pub use exception::{AccessKind, Cause, WaveException};
pub use grid::{Ended, Notify, Running, run, run_counted};
pub use launch::{Launch, Scratch};
pub use level::Level;
pub use observe::Observe;
pub use outcome::{GridState, Outcome};
pub use store::Store;
#[doc(hidden)]
pub use store::parse_sealed;
pub use trap::{Messages, TrapHandler};
pub use vm::{Access, FirstTouch, MemoryFault, Overlap, Vm};
pub use wave::{Lanes, Row, Wave, WaveStatus};
pub use workers::{Counts, Workers};
