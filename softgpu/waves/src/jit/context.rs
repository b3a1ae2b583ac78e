// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that generated code exchanges with the Rust code.
//!
//! INVARIANT: generated code addresses the fields by their offsets, so the layout is C's.

use std::mem::MaybeUninit;

use super::transfer::{KNOWN, Known};
use crate::env::Env;
use crate::step::Step;
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
}

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
    pub call: unsafe extern "sysv64" fn(*mut Wave, *mut Env<'_>, *const Step) -> u32,
    pub lds: *mut u8,
    pub lds_bytes: u64,
    pub hot: *const u8,
    /// Scratch space: generated code writes it before it reads it.
    pub known: [MaybeUninit<Known>; KNOWN],
}
