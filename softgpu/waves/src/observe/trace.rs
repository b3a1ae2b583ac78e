// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions of one wave as lines of text: address, instruction, active lanes, and changed registers.
//!
//! INVARIANT: changes are found by comparing all registers, not from the instruction's def/use sets.

use std::fmt::Write;

use softgpu_isa::{Inst, WaveSize};

use crate::exception::Cause;
use crate::launch::Launch;
use crate::step::Flow;
use crate::wave::{EXEC, M0, Row, TTMP, VCC, Wave};

/// Column that EXEC starts in.
const WIDE: usize = 56;

/// A trace that is being recorded.
#[derive(Debug)]
pub(super) struct Trace {
    left: u64,
    entry: u64,
    text: String,
    before: Before,
}

/// Registers before an instruction.
#[derive(Debug)]
struct Before {
    rows: Vec<Row>,
    scalars: [u32; 128],
    scc: u32,
    mode: u32,
}

fn wave_size(w: &Wave) -> WaveSize {
    if w.halves == 2 { WaveSize::W64 } else { WaveSize::W32 }
}

impl Trace {
    /// A trace of `count` instructions.
    pub(super) fn new(launch: &Launch, count: u64) -> Trace {
        let text = format!(
            "dispatch {} kernel_object {:#x} entry {:#x}\n",
            launch.dispatch_id, launch.kernel_object, launch.entry
        );
        let before = Before { rows: Vec::new(), scalars: [0; 128], scc: 0, mode: 0 };
        Trace { left: count, entry: launch.entry, text, before }
    }

    /// Notes the instruction at `pc` that `w` is about to execute.
    pub(super) fn before(&mut self, w: &Wave, pc: u64, inst: Option<&Inst>) {
        let rows = &w.v[..w.vgprs() * w.halves];
        self.before.rows.clear();
        self.before.rows.extend_from_slice(rows);
        self.before.scalars.copy_from_slice(&w.s[..128]);
        (self.before.scc, self.before.mode) = (w.scc, w.mode);
        // Called functions may have lower addresses than the kernel.
        let offset = pc.wrapping_sub(self.entry).cast_signed();
        let sign = if offset < 0 { '-' } else { '+' };
        let text = inst.map_or_else(
            || "(no instruction)".to_owned(),
            |inst| inst.text_with_halves(wave_size(w)).to_string(),
        );
        let digits = w.halves * 8;
        // Writing to a string cannot fail.
        let _ = write!(
            self.text,
            "{pc:#x} {sign}{:#06x}  {text:WIDE$} exec={:0digits$x}",
            offset.unsigned_abs(),
            w.exec()
        );
    }

    /// Notes what the instruction changed. Returns whether the trace is complete.
    pub(super) fn after(&mut self, w: &Wave, flow: Flow) -> bool {
        let old = &self.before;
        let text = &mut self.text;
        for (index, (new, old)) in w.s[..128].iter().zip(&old.scalars).enumerate() {
            if new != old {
                let _ = write!(text, " {}={new:#x}", scalar_name(index));
            }
        }
        if w.scc != old.scc {
            let _ = write!(text, " scc={}", w.scc);
        }
        if w.mode != old.mode {
            let _ = write!(text, " mode={:#x}", w.mode);
        }
        let active = u64::from(old.scalars[EXEC])
            | if w.halves == 2 { u64::from(old.scalars[EXEC + 1]) << 32 } else { 0 };
        let registers = w.v.chunks_exact(w.halves).zip(old.rows.chunks_exact(w.halves));
        for (index, (new, old)) in registers.enumerate() {
            let lanes = || new.iter().zip(old).flat_map(|(new, old)| new.0.iter().zip(&old.0)).enumerate();
            let mut changed = lanes().filter(|(_, (new, old))| new != old).map(|(lane, _)| lane);
            let Some(first) = changed.next() else { continue };
            let count = changed.count() + 1;
            // v_writelane and similar instructions work without active lanes.
            let lane = if active == 0 { first } else { active.trailing_zeros() as usize };
            let value = new[lane / 32].0[lane % 32];
            let plural = if count == 1 { "" } else { "s" };
            let _ = write!(text, " v{index}[{lane}]={value:#x} ({count} lane{plural})");
        }
        match (flow, &w.cause) {
            (Flow::Jump | Flow::Indirect, _) => text.push_str(" taken"),
            (Flow::Stop, Some(cause)) => describe(text, cause),
            _ => {}
        }
        text.push('\n');
        self.left -= 1;
        self.left == 0 || flow == Flow::Stop || flow == Flow::End
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

fn describe(text: &mut String, cause: &Cause) {
    let _ = match cause {
        Cause::IllegalInstruction { .. } => write!(text, " stopped: illegal instruction"),
        Cause::MemoryViolation { address, access, .. } => {
            write!(text, " stopped: {access:?} of {address:#x} is not allowed")
        }
        Cause::Trap(id) => write!(text, " stopped: trap {id}"),
        Cause::Halted => write!(text, " stopped: halted itself"),
        Cause::ScratchTooSmall { needed, available } => {
            write!(text, " stopped: scratch of {needed} B needed, {available} B there")
        }
    };
}

fn scalar_name(index: usize) -> String {
    match index {
        0..VCC => format!("s{index}"),
        VCC => "vcc_lo".to_owned(),
        107 => "vcc_hi".to_owned(),
        TTMP..=123 => format!("ttmp{}", index - TTMP),
        M0 => "m0".to_owned(),
        EXEC => "exec_lo".to_owned(),
        127 => "exec_hi".to_owned(),
        _ => "null".to_owned(),
    }
}
