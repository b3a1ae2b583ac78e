// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts by which an instruction is counted, computed once per program.
//!
//! INVARIANT: one fact per address of a program, in the program's order, hints that execute nothing included.

use softgpu_isa::{Enc, Flags, Inst, Op, info};

use crate::mem::flat::Place;
use crate::mem::global::addresses;
use crate::predecoded::branch_target;
use crate::program::Program;
use crate::step::Step;
use crate::wave::Wave;

/// Classes of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Vector arithmetic, one operation an instruction.
    Valu,
    /// Vector arithmetic, two operations an instruction.
    Vopd,
    /// Matrix multiplication.
    Matrix,
    /// Scalar arithmetic.
    Salu,
    /// Scalar loads.
    Smem,
    /// Vector loads from global memory, buffers and scratch.
    VmemLoad,
    /// Vector stores to global memory, buffers and scratch.
    VmemStore,
    /// LDS without atomics, and the lane crossbar.
    Ds,
    /// Atomics on any memory.
    Atomic,
    /// Branches, taken or not, and calls.
    Branch,
    /// Waits, delays, prefetches, cache operations.
    Hint,
    /// The end of waves, barriers, messages, sleep, modes.
    Other,
}

impl Class {
    /// Names in the order of the variants.
    pub const NAMES: [&'static str; 12] = [
        "valu",
        "vopd",
        "matrix",
        "salu",
        "smem",
        "vmem_load",
        "vmem_store",
        "ds",
        "atomic",
        "branch",
        "hint",
        "other",
    ];

    fn of(inst: &Inst) -> Class {
        let row = info(inst.op);
        match inst.enc {
            _ if row.any(Flags::HINT | Flags::CACHE) || matches!(inst.op, Op::V_NOP | Op::V_PIPEFLUSH) => {
                Class::Hint
            }
            _ if row.any(Flags::ATOMIC) => Class::Atomic,
            _ if row.any(Flags::BRANCH) => Class::Branch,
            Enc::Vopd => Class::Vopd,
            Enc::Smem => Class::Smem,
            Enc::Ds => Class::Ds,
            Enc::Flat | Enc::Global | Enc::Scratch | Enc::Mubuf | Enc::Mtbuf if row.any(Flags::STORE) => {
                Class::VmemStore
            }
            Enc::Flat | Enc::Global | Enc::Scratch | Enc::Mubuf | Enc::Mtbuf => Class::VmemLoad,
            Enc::Sopp => Class::Other,
            _ if row.any(Flags::MESSAGE | Flags::TRAP | Flags::WRITES_MODE) => Class::Other,
            Enc::Sop1 | Enc::Sop2 | Enc::Sopk | Enc::Sopc => Class::Salu,
            _ if row.name.starts_with("v_wmma") => Class::Matrix,
            Enc::Vop1 | Enc::Vop2 | Enc::Vop3 | Enc::Vop3sd | Enc::Vop3p | Enc::Vinterp | Enc::Vopc => {
                Class::Valu
            }
        }
    }
}

/// The memories for which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Through vector memory instructions.
    Global,
    Lds,
    Scratch,
    /// Global memory through scalar loads.
    Scalar,
}

impl Space {
    /// Names in the order of the variants.
    pub const NAMES: [&'static str; 4] = ["global", "lds", "scratch", "scalar"];
}

/// How many times an instruction moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    /// Once for every active lane, in this memory.
    Lanes(Space),
    /// Once for every active lane, in the memory that its address points into.
    Flat,
    /// Once for the wave.
    Once(Space),
}

/// Memory that an instruction moves, bytes for each lane (or once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    touch: Touch,
    loaded: u32,
    stored: u32,
}

impl Access {
    /// An atomic reads and writes the value in memory; compare-and-swap writes one of its two operands.
    fn of(inst: &Inst) -> Option<Access> {
        let row = info(inst.op);
        let touch = match inst.enc {
            Enc::Smem => Touch::Once(Space::Scalar),
            Enc::Ds if matches!(inst.op, Op::DS_APPEND | Op::DS_CONSUME) => Touch::Once(Space::Lds),
            Enc::Ds => Touch::Lanes(Space::Lds),
            Enc::Global | Enc::Mubuf => Touch::Lanes(Space::Global),
            Enc::Scratch => Touch::Lanes(Space::Scratch),
            Enc::Flat => Touch::Flat,
            _ => return None,
        };
        let result = row.dst.first().map(|slot| slot.ty.bytes());
        let source = |k: usize| row.src.get(k).map_or(0, |slot| slot.ty.bytes());
        let (loaded, stored) = if row.any(Flags::ATOMIC) {
            let value = result.unwrap_or_else(|| source(1));
            (value, value)
        } else if row.any(Flags::STORE) {
            (0, if row.any(Flags::TWO_OFFSETS) { source(1) + source(2) } else { source(1) })
        } else if row.any(Flags::LOAD) {
            (result.unwrap_or(0), 0)
        } else {
            return None;
        };
        Some(Access { touch, loaded, stored })
    }
}

/// What is known of the instruction at one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fact {
    /// Its address.
    pub pc: u64,
    /// The address after it.
    pub next: u64,
    /// The target of a branch.
    pub target: u64,
    /// Its steps in the program: the first, and the one after the last.
    pub steps: (usize, usize),
    pub class: Class,
    /// Whether it works only in the lanes of EXEC.
    pub is_vector: bool,
    access: Option<Access>,
}

impl Fact {
    /// The facts of a program.
    pub(super) fn all(program: &Program) -> Vec<Fact> {
        let mut first = 0;
        let mut facts = Vec::with_capacity(program.addresses().len());
        for (ordinal, &pc) in program.addresses().iter().enumerate() {
            let count = program.steps[first..].iter().take_while(|step| step.pc == pc).count();
            let steps = (first, first + count);
            first += count;
            facts.push(match program.inst(ordinal) {
                Some(inst) => Fact::of(inst, pc, steps),
                // A gap: its step stops the wave.
                None => Fact {
                    pc,
                    next: pc.wrapping_add(4),
                    target: pc,
                    steps,
                    class: Class::Other,
                    is_vector: false,
                    access: None,
                },
            });
        }
        facts
    }

    fn of(inst: &Inst, pc: u64, steps: (usize, usize)) -> Fact {
        let class = Class::of(inst);
        let is_scalar =
            matches!(inst.enc, Enc::Sop1 | Enc::Sop2 | Enc::Sopk | Enc::Sopc | Enc::Sopp | Enc::Smem);
        Fact {
            pc,
            next: pc.wrapping_add(u64::from(inst.size)),
            target: branch_target(inst, pc).unwrap_or(pc),
            steps,
            class,
            is_vector: !is_scalar && class != Class::Hint,
            access: Access::of(inst),
        }
    }

    /// Bytes that it is about to load and store in each memory, by [`Space`].
    pub(super) fn bytes(&self, w: &Wave, step: Option<&Step>) -> [[u64; 4]; 2] {
        let (Some(access), Some(step)) = (self.access, step) else { return [[0; 4]; 2] };
        let mut times = [0u64; 4];
        match access.touch {
            Touch::Lanes(space) => times[space as usize] = u64::from(w.exec().count_ones()),
            Touch::Once(space) => times[space as usize] = 1,
            Touch::Flat => count_places(w, step, &mut times),
        }
        [access.loaded, access.stored].map(|width| times.map(|n| n * u64::from(width)))
    }
}

/// Counts the active lanes that point into each memory.
fn count_places(w: &Wave, step: &Step, times: &mut [u64; 4]) {
    for half in 0..w.halves {
        let mut at = [0; 32];
        addresses(w, step, half, &mut at);
        let active = (0..32).filter(|lane| w.exec_half(half) >> lane & 1 != 0);
        for lane in active {
            let space = match Place::of(at[lane]) {
                Place::Global => Space::Global,
                Place::Shared => Space::Lds,
                Place::Private => Space::Scratch,
            };
            times[space as usize] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(words: &[u32]) -> Inst {
        softgpu_isa::decode(words).unwrap()
    }

    fn access(words: &[u32]) -> (Class, Option<(Touch, u32, u32)>) {
        let inst = decoded(words);
        (Class::of(&inst), Access::of(&inst).map(|a| (a.touch, a.loaded, a.stored)))
    }

    #[test]
    fn instructions_count_as_what_they_are() {
        // v_add_f32, s_addc_u32, v_dual_mul_f32, s_waitcnt, s_endpgm, s_barrier, s_branch, s_mov_b64
        let classes = [
            (&[0x0602_0501][..], Class::Valu),
            (&[0x8204_0810], Class::Salu),
            (&[0xc8c6_0901, 0x0a10_0f02], Class::Vopd),
            (&[0xbf89_0000], Class::Hint),
            (&[0xbfb0_0000], Class::Other),
            (&[0xbfbd_0000], Class::Other),
            (&[0xbfa0_0001], Class::Branch),
            (&[0xbe84_0110], Class::Salu),
        ];
        for (words, class) in classes {
            assert_eq!(access(words), (class, None), "{}", decoded(words));
        }
    }

    #[test]
    fn memory_instructions_move_their_width() {
        let global = Touch::Lanes(Space::Global);
        let lds = Touch::Lanes(Space::Lds);
        let moves = [
            // global_load_b64 v[12:13], v2, s[4:5]
            (&[0xdc56_0000, 0x0c04_0002], Class::VmemLoad, (global, 8, 0)),
            // global_store_b8 v2, v3, s[4:5]
            (&[0xdc62_0000, 0x0004_0302], Class::VmemStore, (global, 0, 1)),
            // global_atomic_cmpswap_b32 v2, v[4:5], s[4:5]
            (&[0xdcd2_0000, 0x0004_0402], Class::Atomic, (global, 4, 4)),
            // ds_store_2addr_b32 v2, v3, v4 offset1:64
            (&[0xd838_4000, 0x0004_0302], Class::Ds, (lds, 0, 8)),
            // ds_load_b128 v[4:7], v2
            (&[0xdbfc_0000, 0x0400_0002], Class::Ds, (lds, 16, 0)),
            // ds_add_u32 v2, v3
            (&[0xd800_0000, 0x0000_0302], Class::Atomic, (lds, 4, 4)),
            // s_load_b128 s[4:7], s[0:1], null
            (&[0xf408_0100, 0xf800_0000], Class::Smem, (Touch::Once(Space::Scalar), 16, 0)),
        ];
        for (words, class, moved) in moves {
            assert_eq!(access(words), (class, Some(moved)), "{}", decoded(words));
        }
    }
}
