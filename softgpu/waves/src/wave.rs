// SPDX-License-Identifier: MIT OR Apache-2.0
//! The architectural state of one wave, held in one plain struct.
//!
//! INVARIANT: between two instructions every architectural bit is in this struct; nothing lives in host registers,
//! so a wave can be paused, saved, moved to another thread and resumed at any instruction boundary.

use std::mem::MaybeUninit;

use crate::exception::Cause;
use crate::facts::Fact;

/// Lanes of one register half: 32 lanes of 32 bits.
pub type Lanes = [u32; 32];

/// One VGPR of 32 lanes (a wave64 register is two consecutive rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Row(pub Lanes);

/// Room for [`RENAMED_VGPRS`] registers of a wave64. Generated code writes them before it reads them.
pub(crate) type RenamedRows = MaybeUninit<[Row; 2 * RENAMED_VGPRS]>;

impl Row {
    pub(crate) const ZERO: Row = Row([0; 32]);
}

/// Index of VCC_LO in the scalar file; numbers are the operand encodings of gfx11.
pub(crate) const VCC: usize = 106;
/// Index of TTMP0.
pub(crate) const TTMP: usize = 108;
/// Index of M0.
pub(crate) const M0: usize = 125;
/// Index of EXEC_LO.
pub(crate) const EXEC: usize = 126;
/// The target of writes to NULL; never read.
pub(crate) const SINK: usize = 128;
/// Entries of the scalar file that a program can name: 128 operand encodings and a sink wide enough for a 512-bit scalar
/// load.
pub(crate) const NAMED_SCALARS: usize = 128 + 16;
/// Entries behind them, in which generated code keeps the scalars of several turns of a loop.
pub(crate) const RENAMED_SCALARS: usize = 48;
/// Entries of the scalar file.
pub(crate) const SCALARS: usize = NAMED_SCALARS + RENAMED_SCALARS;
/// Scratch VGPRs that predecode uses behind the allocated ones (VOPD cross reads, DPP).
pub(crate) const PREDECODE_VGPRS: usize = 2;
/// VGPRs with numbers behind those, in which generated code keeps the registers of several turns of a loop. They are the
/// worker's, not the wave's: they hold nothing from one run of turns to the next.
pub(crate) const RENAMED_VGPRS: usize = 72;
/// All numbers behind a wave's own.
pub(crate) const SPARE_VGPRS: usize = PREDECODE_VGPRS + RENAMED_VGPRS;

/// Whether the scheduler of the workgroup can run a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WaveStatus {
    /// Can run.
    Ready,
    /// Executed `s_barrier` (PC is already behind it) and waits for the rest of the workgroup.
    AtBarrier,
    /// Executed `s_endpgm`.
    Ended,
}

/// MODE bits as numbered by gfx11.
pub(crate) mod mode {
    /// Denormals kept everywhere, round to nearest even.
    pub const FP_DEFAULT: u32 = 0xF0;
    /// f32 part of the default: round 1:0, denorm 5:4.
    pub const F32_MASK: u32 = 0x33;
    /// f32 fields of the default mode.
    pub const F32_DEFAULT: u32 = 0x30;
    /// f16/f64 part: round 3:2, denorm 7:6.
    pub const F16_64_MASK: u32 = 0xCC;
    /// f16/f64 fields of the default mode.
    pub const F16_64_DEFAULT: u32 = 0xC0;
    /// Clamp turns NaN into 0.
    pub const DX10_CLAMP: u32 = 1 << 8;
    /// IEEE: signalling NaNs are quieted, output modifiers off.
    pub const IEEE: u32 = 1 << 9;
}

/// STATUS bits as numbered by gfx11.
pub(crate) mod status {
    /// Instructions of a trap handler may be executed.
    pub const PRIV: u32 = 1 << 5;
    /// The wave executes nothing, but in a trap handler.
    pub const HALT: u32 = 1 << 13;
    /// The wave gave its VGPRs back and only ends.
    pub const NO_VGPRS: u32 = 1 << 24;
}

/// All architectural state of a wave of 32 or 64 lanes.
#[derive(Clone, Debug)]
pub struct Wave {
    /// VGPR rows, register-major: register `r`, half `h` is row `r * halves + h`.
    pub(crate) v: Box<[Row]>,
    /// Scalar file by operand encoding: SGPRs 0..=105, VCC 106, TTMPs 108, NULL 124 (always 0), M0 125, EXEC 126, sink 128.
    pub(crate) s: [u32; SCALARS],
    /// Halves of 32 lanes: 1 or 2.
    pub(crate) halves: usize,
    /// SCC, 0 or 1.
    pub(crate) scc: u32,
    pub(crate) mode: u32,
    pub(crate) status: u32,
    pub(crate) trapsts: u32,
    pub(crate) pc: u64,
    pub(crate) flat_scratch: u64,
    /// Bytes of LDS that the workgroup was given.
    pub(crate) lds_bytes: u32,
    pub(crate) wave_in_group: u32,
    pub(crate) group: [u32; 3],
    pub(crate) state: WaveStatus,
    /// EXEC while a DPP instruction runs with some lanes masked off.
    pub(crate) dpp_exec: [u32; 2],
    /// Set by the handler that returns `Flow::Stop`, unless the wave halts itself or leaves a trap handler.
    pub(crate) cause: Option<Cause>,
    /// Where the wave goes on that halts itself or leaves a trap handler.
    pub(crate) leave: Option<u64>,
    /// Whether it executes a trap handler.
    pub(crate) in_handler: bool,
    /// How it started: what its work-items' numbers were like, with all lanes active. Nothing once its registers may have been
    /// changed by something else than its program.
    pub(crate) items: Option<Fact>,
    /// Step index that `pc` had in the program it last ran in; only a hint.
    pub(crate) hint: usize,
}

impl Wave {
    /// Zeroed state of a wave with `vgprs` registers of `lanes` (32 or 64) lanes.
    pub fn new(lanes: usize, vgprs: usize) -> Wave {
        let halves = if lanes > 32 { 2 } else { 1 };
        Wave {
            v: vec![Row::ZERO; (vgprs + PREDECODE_VGPRS) * halves].into_boxed_slice(),
            s: [0; SCALARS],
            halves,
            scc: 0,
            mode: mode::FP_DEFAULT | mode::IEEE | mode::DX10_CLAMP,
            status: 0,
            trapsts: 0,
            pc: 0,
            flat_scratch: 0,
            lds_bytes: 0,
            wave_in_group: 0,
            group: [0; 3],
            state: WaveStatus::Ready,
            dpp_exec: [0; 2],
            cause: None,
            leave: None,
            in_handler: false,
            items: None,
            hint: 0,
        }
    }

    /// Lanes of this wave: 32 or 64.
    pub fn lanes(&self) -> usize {
        self.halves * 32
    }

    /// VGPRs allocated.
    pub fn vgprs(&self) -> usize {
        self.v.len() / self.halves - PREDECODE_VGPRS
    }

    /// Program counter: the address of the next instruction.
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// EXEC; the upper half is zero for wave32.
    pub fn exec(&self) -> u64 {
        let lo = u64::from(self.s[EXEC]);
        if self.halves == 2 { lo | u64::from(self.s[EXEC + 1]) << 32 } else { lo }
    }

    /// Sets EXEC.
    pub fn set_exec(&mut self, exec: u64) {
        self.s[EXEC] = exec as u32;
        self.s[EXEC + 1] = if self.halves == 2 { (exec >> 32) as u32 } else { 0 };
    }

    /// Scalar register by operand encoding (0..=127), as the instruction encoding numbers it.
    pub fn sgpr(&self, index: usize) -> u32 {
        self.s.get(index).copied().unwrap_or(0)
    }

    /// Writes the scalar register with operand encoding `index` (NULL and unknown ones are dropped).
    pub fn set_sgpr(&mut self, index: usize, value: u32) {
        if index < SINK && index != 124 {
            self.s[index] = value;
        }
    }

    /// One lane of a VGPR; 0 when either does not exist.
    pub fn vgpr(&self, register: usize, lane: usize) -> u32 {
        if register >= self.vgprs() || lane >= self.lanes() {
            return 0;
        }
        self.v[register * self.halves + lane / 32].0[lane % 32]
    }

    /// Writes one lane of a VGPR; dropped when either does not exist.
    pub fn set_vgpr(&mut self, register: usize, lane: usize, value: u32) {
        if register < self.vgprs() && lane < self.lanes() {
            self.v[register * self.halves + lane / 32].0[lane % 32] = value;
        }
    }

    /// SCC.
    pub fn scc(&self) -> bool {
        self.scc != 0
    }

    #[inline(always)]
    pub(crate) fn set_scc(&mut self, on: bool) {
        self.scc = u32::from(on);
    }

    #[inline(always)]
    pub(crate) fn exec_half(&self, half: usize) -> u32 {
        self.s[EXEC + half]
    }

    #[inline(always)]
    pub(crate) fn s64(&self, index: usize) -> u64 {
        u64::from(self.s[index]) | u64::from(self.s[index + 1]) << 32
    }

    #[inline(always)]
    pub(crate) fn set_s64(&mut self, index: usize, value: u64) {
        self.s[index] = value as u32;
        self.s[index + 1] = (value >> 32) as u32;
    }

    /// VCC is zero over the lanes this wave has.
    pub(crate) fn vccz(&self) -> bool {
        self.s[VCC] == 0 && (self.halves == 1 || self.s[VCC + 1] == 0)
    }

    pub(crate) fn execz(&self) -> bool {
        self.exec() == 0
    }

    /// f32 arithmetic rounds to nearest even and keeps denormals.
    #[inline(always)]
    pub(crate) fn f32_default(&self) -> bool {
        self.mode & mode::F32_MASK == mode::F32_DEFAULT
    }

    /// f16 and f64 arithmetic rounds to nearest even and keeps denormals.
    #[inline(always)]
    pub(crate) fn f16_64_default(&self) -> bool {
        self.mode & mode::F16_64_MASK == mode::F16_64_DEFAULT
    }

    #[inline(always)]
    pub(crate) fn ieee(&self) -> bool {
        self.mode & mode::IEEE != 0
    }

    /// STATUS as a register read sees it, with the derived bits in place.
    pub(crate) fn status_word(&self) -> u32 {
        let derived = self.scc | u32::from(self.execz()) << 9 | u32::from(self.vccz()) << 10;
        (self.status & !(1 | 1 << 9 | 1 << 10)) | derived
    }
}
