// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a wave stopped, with its state at that instruction.

use queues::save_area::WaveRecord;

/// Kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Load.
    Read,
    /// Store or atomic.
    Write,
    /// Instruction fetch.
    Execute,
}

/// What stopped a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The words at PC are no instruction, or one that the engine does not execute.
    IllegalInstruction {
        /// The words at PC (one to three).
        words: Vec<u32>,
    },
    /// An access outside what the client mapped to this GPU, or against its permission.
    MemoryViolation {
        /// First faulting byte.
        address: u64,
        /// What was attempted.
        access: AccessKind,
        /// Nothing is mapped there; else it is mapped, but not for such an access.
        not_present: bool,
    },
    /// `s_trap` with its id.
    Trap(u8),
    /// The wave halted itself, `s_sethalt`.
    Halted,
    /// The dispatch needs more private memory than the queue's scratch holds.
    ScratchTooSmall {
        /// Bytes one workgroup needs.
        needed: u64,
        /// Bytes given.
        available: u64,
    },
}

/// A wave that stopped, with its whole state.
#[derive(Clone, Debug)]
pub struct WaveException {
    /// What happened.
    pub cause: Cause,
    /// Address of the instruction.
    pub pc: u64,
    /// Workgroup id.
    pub workgroup: [u32; 3],
    /// Index of the wave in its workgroup.
    pub wave_in_group: u32,
    /// Registers of the wave as the save area would hold them.
    pub record: WaveRecord,
}
