// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that generated code exchanges with the Rust code.
//!
//! INVARIANT: generated code addresses the fields by their offsets, so the layout is C's.

use std::mem::MaybeUninit;

use super::steady::FIRSTS;
use super::transfer::{KNOWN, Known};
use crate::env::Env;
use crate::step::Step;
use crate::valu::wmma_float::Slices;
use crate::wave::Wave;

/// Why generated code returned, beside the values of [`Flow`](crate::step::Flow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Exit {
    /// The interpreter continues at the step.
    Leave = 100,
    /// The control asks the wave to stop in front of the step.
    Interrupted = 101,
    /// The quantum is over; the step is next.
    Quantum = 102,
    /// No wave behind the current one can run, and none was released from a barrier.
    Round = 103,
    /// The current wave is ready, and its PC is in place; it has no code to go on at, or the control asks it to stop.
    Switched = 104,
    /// Lanes are inactive: quick code has nothing for them, and the interpreter continues at the step.
    Lanes = 105,
}

/// Most waves of a workgroup that generated code goes round. Those of a workgroup of 1,024 work-items are half as many.
pub(super) const WAVES: usize = 64;

/// What generated code needs of a wave to go on with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Turn {
    /// Its rows, biased.
    pub rows: *mut u8,
    /// The code at its PC; null where there is none.
    pub resume: *const u8,
}

/// A register of AVX2.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct HostLanes([u32; 8]);

/// The state that generated code is entered with.
#[repr(C)]
pub(super) struct JitContext {
    pub rows: *mut u8,
    pub scalars: *mut u32,
    pub env: *mut u8,
    pub pool: *const u32,
    pub flag: *const u8,
    /// Instructions executed.
    pub executed: u64,
    /// The number of executed instructions at which the quantum is over.
    pub limit: u64,
    /// Instructions that a wave runs before the next one does.
    pub quantum: u64,
    /// The number of executed instructions at which the waves are left, whatever barriers they have passed.
    pub end: u64,
    pub call: unsafe extern "sysv64" fn(*mut Wave, *mut Env<'_>, *const Step) -> u32,
    /// Of `valu::wmma_float`.
    pub multiply: unsafe extern "sysv64" fn(*mut Wave, *const Step, *mut MaybeUninit<Slices>, u32),
    /// The program's first step.
    pub steps: *const Step,
    pub lds: *mut u8,
    /// Rows of renamed registers, or factors of matrix operations as floats.
    pub renamed: *mut u8,
    pub lds_bytes: u64,
    pub hot: *const u8,
    /// The scalar file of the first of `turns`. The waves lie in memory one behind the other.
    pub first: *mut u32,
    /// The current wave's, and the end.
    pub turn: *mut Turn,
    pub turns_end: *mut Turn,
    /// Address of the program's first instruction: the one that it was predecoded from.
    pub entry: u64,
    /// Waves of `turns` that wait at a barrier, that wait or have ended, and all.
    pub waiting: u32,
    pub halted: u32,
    pub total: u32,
    /// SCC at the head of a loop of which several turns are begun.
    pub scc: u32,
    /// Two lane masks of a wave32 as lanes of ones and zeros (AVX2); scratch space.
    pub lane_masks: [MaybeUninit<HostLanes>; 8],
    /// Scratch space: places of a piece's lanes, and their values.
    pub lanes: [MaybeUninit<u32>; 16],
    pub values: [MaybeUninit<u32>; 8],
    pub turns: [MaybeUninit<Turn>; WAVES],
    /// First lanes of rows that are not computed yet (`steady.rs`); scratch space as the rest.
    pub firsts: [MaybeUninit<u64>; FIRSTS],
    /// Scratch space: generated code writes it before it reads it.
    pub known: [MaybeUninit<Known>; KNOWN],
}
