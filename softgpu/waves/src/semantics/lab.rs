// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs single instructions: a random wave, memory and LDS, and the comparison of all state afterwards.
#![allow(unsafe_code)]

use std::sync::Arc;

use softgpu_isa::{Flags, OpInfo, WaveSize, decode_for};

use super::random::Random;
use crate::env::{Env, Hot, Identity, LDS_DWORDS, Lds};
use crate::exception::Cause;
use crate::level::Level;
use crate::mem::raw;
use crate::predecode::{Lowered, Shape, lower};
use crate::step::Flow;
use crate::vm::{Access, Vm};
use crate::wave::{EXEC, M0, SINK, VCC, Wave, mode};

/// VGPRs of the waves.
pub(crate) const VGPRS: usize = 48;
/// Bytes of mapped memory.
pub(crate) const MEMORY: usize = 32 * 1024;
/// Bytes of LDS the waves have.
pub(crate) const LDS: u32 = 8192;

/// Answers to messages.
pub(crate) const IDENTITY: Identity =
    Identity { doorbell: 0x1234, dispatch_id: 0x5_0000_0006, trap_memory: 0x7_0000_0008 };

/// The state in which instructions are run.
pub(crate) struct Lab {
    pub r: Random,
    pub vm: Arc<Vm>,
    /// Address of the mapped memory.
    pub base: u64,
    _memory: Vec<u128>,
    pub lds: Box<Lds>,
    name: &'static str,
    ran: usize,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let mut memory = vec![0u128; MEMORY / 16 + 256];
        let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096);
        let vm = Vm::new();
        // SAFETY: the memory was allocated for this lab and lives as long.
        unsafe { vm.map(base..base + MEMORY as u64, Access::ALL) }.expect("map");
        Lab { r: Random(1), vm, base, _memory: memory, lds: Lds::new(), name: "", ran: 0 }
    }

    /// Begins the checks of `row`, with the same random numbers every time.
    pub(crate) fn begin(&mut self, row: &OpInfo) {
        self.r = Random(row.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into())));
        self.name = row.name;
        self.ran = 0;
    }

    /// Instructions run since [`Lab::begin`].
    pub(crate) fn ran(&self) -> usize {
        self.ran
    }

    /// A wave of `halves` halves with random registers, EXEC and scalars; MODE is the default in most.
    pub(crate) fn wave(&mut self, halves: usize) -> Wave {
        let r = &mut self.r;
        let mut w = Wave::new(halves * 32, VGPRS);
        for row in &mut w.v {
            for x in &mut row.0 {
                *x = r.dword();
            }
        }
        for x in &mut w.s[..124] {
            *x = r.dword();
        }
        w.s[M0] = r.dword();
        for half in 0..2 {
            w.s[VCC + half] = match r.below(6) {
                0 => 0,
                1 => u32::MAX,
                _ => r.next(),
            };
            w.s[EXEC + half] = match r.below(8) {
                0 => 0,
                1..=3 => u32::MAX,
                4 => 1 << r.below(32),
                _ => r.next(),
            };
        }
        if halves == 1 {
            w.s[EXEC + 1] = 0;
        }
        w.scc = r.next() & 1;
        w.lds_bytes = LDS;
        if r.one_in(3) {
            w.mode = r.next() & 0xFF | (r.next() & 3) << 8;
        } else {
            w.mode = mode::FP_DEFAULT | (r.next() & 3) << 8;
        }
        w
    }

    /// Half of the waves are wave32.
    pub(crate) fn any_wave(&mut self) -> Wave {
        let halves = 1 + self.r.below(2);
        self.wave(halves)
    }

    /// Fills memory and LDS with random bytes.
    pub(crate) fn fill(&mut self) {
        let words: Vec<u8> = (0..MEMORY / 4).flat_map(|_| self.r.dword().to_le_bytes()).collect();
        self.set_memory(&words);
        for k in 0..LDS_DWORDS {
            self.lds[k] = self.r.dword();
        }
    }

    pub(crate) fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        // SAFETY: the `Lab` owns `MEMORY` bytes at its base.
        unsafe { raw::read(self.base, &mut bytes) };
        bytes
    }

    pub(crate) fn set_memory(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= MEMORY);
        // SAFETY: the `Lab` owns `MEMORY` bytes at its base.
        unsafe { raw::write(self.base, bytes) };
    }

    pub(crate) fn lds_bytes(&self) -> Vec<u8> {
        self.lds.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// Runs one encoded instruction of the row under test. `None` if it is illegal.
    pub(crate) fn try_run(&mut self, w: &mut Wave, words: &[u32]) -> Option<Flow> {
        let size = if w.halves == 2 { WaveSize::W64 } else { WaveSize::W32 };
        let mut padded = words.to_vec();
        padded.resize(4, 0xBF80_0000);
        let inst = decode_for(&padded, size)
            .unwrap_or_else(|e| panic!("{}: {words:08x?} does not decode: {e}", self.name));
        assert_eq!(inst.size as usize, words.len() * 4, "{}: {words:08x?} is {inst}", self.name);
        let shape = Shape { halves: w.halves, vgprs: VGPRS };
        let level = match self.r.one_in(2) {
            true => Level::Baseline,
            false if self.r.one_in(3) => Level::current().min(Level::Avx2),
            false => Level::current(),
        };
        self.ran += 1;
        let steps = match lower(level, shape, w.pc, &inst) {
            Lowered::Dropped => return Some(Flow::Next),
            Lowered::Illegal => return None,
            Lowered::Steps(steps) => steps,
        };
        let map = self.vm.lock();
        let mut hot = Hot::new();
        let mut env = Env::new(&map, &mut self.lds, &mut hot, IDENTITY);
        let mut flow = Flow::Next;
        for step in &steps {
            // SAFETY: `Level::current` is a level that this CPU has.
            flow = unsafe { (step.run)(w, &mut env, step) };
        }
        // Neither the spare registers nor the sink are state.
        let spare = VGPRS * w.halves;
        for row in &mut w.v[spare..] {
            row.0 = [0; 32];
        }
        w.s[SINK..].fill(0);
        w.dpp_exec = [0; 2];
        Some(flow)
    }

    /// Runs one instruction that must be legal.
    pub(crate) fn run(&mut self, w: &mut Wave, words: &[u32]) -> Flow {
        let name = self.name;
        self.try_run(w, words).unwrap_or_else(|| panic!("{name}: {words:08x?} is illegal"))
    }

    /// Compares all state of two waves.
    pub(crate) fn same(&self, want: &Wave, got: &Wave, context: &dyn std::fmt::Display) {
        let name = self.name;
        for register in 0..VGPRS {
            for lane in 0..want.lanes() {
                let (x, y) = (want.vgpr(register, lane), got.vgpr(register, lane));
                assert_eq!(y, x, "{name}: v{register} lane {lane} is {y:#x}, want {x:#x}: {context}");
            }
        }
        for k in 0..SINK {
            let (x, y) = (want.s[k], got.s[k]);
            assert_eq!(y, x, "{name}: scalar {k} is {y:#x}, want {x:#x}: {context}");
        }
        let rest = |w: &Wave| (w.scc, w.mode, w.status, w.trapsts, w.flat_scratch, w.state);
        assert_eq!(rest(got), rest(want), "{name}: SCC, MODE, STATUS and so on: {context}");
        let cause = |w: &Wave| w.cause.is_some();
        assert_eq!(cause(got), cause(want), "{name}: {:?}: {context}", got.cause);
    }
}

/// The cause a wave stopped for.
pub(crate) fn cause(w: &Wave) -> &Cause {
    w.cause.as_ref().expect("a cause")
}

/// Whether the interpreter implements `row`; a hint, which does nothing, counts.
pub(crate) fn executes(row: &OpInfo) -> bool {
    row.any(Flags::HINT | Flags::CACHE | Flags::GDS_ONLY)
        || matches!(row.name, "v_nop" | "v_pipeflush" | "s_code_end")
        || crate::valu::table_handler(Level::Baseline, row.op).is_some()
        || crate::salu::handler(row.op).is_some()
        || crate::mem::handler(Level::Baseline, row.op).is_some()
}
