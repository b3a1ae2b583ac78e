// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predecoded code: all instructions reachable from an entry by direct branches, as one array of steps.
//!
//! INVARIANT: it keeps the words it was made from, so that they can be compared with what memory holds. Steps are sorted by
//! address, and after the last step of every straight run there is one that cannot fall through.

use std::collections::{BTreeMap, HashMap};

use softgpu_isa::{Flags, Inst, WaveSize, info};

use crate::env::Env;
use crate::exception::{AccessKind, Cause};
use crate::level::Level;
use crate::predecode::{Lowered, Shape, blank, lower};
use crate::step::{Flow, Step, stop};
use crate::vm::{Map, MemoryFault};
use crate::wave::Wave;

/// Instructions a program may have; more is taken for a runaway decode.
const MAX_INSTRUCTIONS: usize = 1 << 18;

/// Why there is no step to run at an address.
#[derive(Clone, Debug)]
enum Gap {
    Illegal(Vec<u32>),
    Fault(MemoryFault),
}

/// Predecoded steps of one entry.
#[derive(Debug)]
pub(crate) struct Predecoded {
    pub steps: Vec<Step>,
    /// Address of every decoded instruction (dropped ones too), sorted.
    addresses: Vec<u64>,
    /// Words by address range, for the comparison.
    words: Vec<(u64, Vec<u32>)>,
    gaps: HashMap<u64, Gap>,
    /// Decoded instructions by ordinal; none in a gap.
    insts: Vec<Option<Inst>>,
    /// Address and step index of the entry.
    pub entry: (u64, usize),
    pub shape: Shape,
}

enum Fetched {
    Inst(Inst, Vec<u32>),
    Gap(Gap),
}

fn fetch(map: &Map, halves: usize, pc: u64) -> Fetched {
    let mut words = Vec::with_capacity(3);
    for k in 0..3 {
        let address = pc.wrapping_add(4 * k);
        match map.fetch(address) {
            Ok(word) => words.push(word),
            Err(fault) if k == 0 => return Fetched::Gap(Gap::Fault(fault)),
            Err(_) => break,
        }
    }
    let wave = if halves == 2 { WaveSize::W64 } else { WaveSize::W32 };
    match softgpu_isa::decode_for(&words, wave) {
        Ok(inst) => {
            words.truncate(inst.size as usize / 4);
            Fetched::Inst(inst, words)
        }
        Err(_) => Fetched::Gap(Gap::Illegal(words)),
    }
}

fn gap_step(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    // The memory is read again: the step only marks the place.
    let cause = match fetch(env.map, w.halves, s.pc) {
        Fetched::Gap(Gap::Fault(fault)) => Cause::from(fault),
        Fetched::Gap(Gap::Illegal(words)) | Fetched::Inst(_, words) => Cause::IllegalInstruction { words },
    };
    stop(w, cause)
}

/// Direct branch target.
pub(crate) fn branch_target(inst: &Inst, pc: u64) -> Option<u64> {
    use softgpu_isa::Op::*;
    let direct =
        info(inst.op).any(Flags::BRANCH) && !matches!(inst.op, S_SETPC_B64 | S_SWAPPC_B64 | S_RFE_B64);
    direct.then(|| pc.wrapping_add(u64::from(inst.size)).wrapping_add((i64::from(inst.imm) * 4) as u64))
}

/// Whether control never continues behind `inst`.
fn ends_run(inst: &Inst) -> bool {
    use softgpu_isa::Op::*;
    matches!(
        inst.op,
        S_BRANCH | S_SETPC_B64 | S_SWAPPC_B64 | S_RFE_B64 | S_ENDPGM | S_ENDPGM_SAVED | S_CODE_END
    )
}

impl Predecoded {
    /// Decodes what is reachable from `entry`.
    pub(crate) fn build(map: &Map, level: Level, shape: Shape, entry: u64) -> Predecoded {
        let mut found: BTreeMap<u64, (Inst, Vec<u32>)> = BTreeMap::new();
        let mut gaps = HashMap::new();
        let mut work = vec![entry & !3];
        while let Some(mut pc) = work.pop() {
            while !found.contains_key(&pc) && !gaps.contains_key(&pc) {
                let fetched = if found.len() < MAX_INSTRUCTIONS {
                    fetch(map, shape.halves, pc)
                } else {
                    Fetched::Gap(Gap::Illegal(vec![]))
                };
                match fetched {
                    Fetched::Gap(gap) => {
                        gaps.insert(pc, gap);
                    }
                    Fetched::Inst(inst, words) => {
                        let next = pc.wrapping_add(u64::from(inst.size));
                        if let Some(target) = branch_target(&inst, pc) {
                            work.push(target);
                        }
                        let ends = ends_run(&inst);
                        found.insert(pc, (inst, words));
                        if ends {
                            break;
                        }
                        pc = next;
                    }
                }
            }
        }
        let mut program = Predecoded::lay_out(level, shape, &found, gaps);
        program.entry = (entry, program.index_of(entry & !3).unwrap_or(program.steps.len() - 1));
        program
    }

    fn lay_out(
        level: Level,
        shape: Shape,
        found: &BTreeMap<u64, (Inst, Vec<u32>)>,
        gaps: HashMap<u64, Gap>,
    ) -> Predecoded {
        let mut program = Predecoded {
            steps: Vec::new(),
            addresses: Vec::new(),
            words: Vec::new(),
            gaps,
            insts: Vec::new(),
            entry: (0, 0),
            shape,
        };
        let mut all: Vec<u64> = found.keys().chain(program.gaps.keys()).copied().collect();
        all.sort_unstable();
        let gap_at = |pc, size| {
            let mut step = blank(pc, size);
            step.run = gap_step;
            step
        };
        let mut targets = Vec::new();
        for (ordinal, &pc) in all.iter().enumerate() {
            program.addresses.push(pc);
            program.insts.push(found.get(&pc).map(|(inst, _)| *inst));
            let start = program.steps.len();
            match found.get(&pc) {
                None => program.steps.push(gap_at(pc, 4)),
                Some((inst, words)) => {
                    program.keep_words(pc, words);
                    match lower(level, shape, pc, inst) {
                        Lowered::Dropped => {}
                        Lowered::Steps(steps) => program.steps.extend(steps),
                        Lowered::Illegal => program.steps.push(gap_at(pc, inst.size)),
                    }
                    if let (Some(target), true) = (branch_target(inst, pc), program.steps.len() > start) {
                        targets.push((program.steps.len() - 1, target));
                    }
                }
            }
            for step in &mut program.steps[start..] {
                step.ordinal = ordinal as u32;
            }
        }
        // A run that falls off the last decoded instruction (only dropped ones behind it) must not leave the array.
        let end = all.last().map_or(0, |&pc| pc.wrapping_add(4));
        program.steps.push(gap_at(end, 4));
        for (index, target) in targets {
            program.steps[index].target = program.index_of(target).unwrap_or(program.steps.len() - 1) as u32;
        }
        program
    }

    /// Address of the instruction that it was predecoded from.
    pub(crate) fn base(&self) -> u64 {
        self.entry.0 & !3
    }

    /// Calls `visit` with all that its steps were made of, handlers apart: the distance of every range of words from the base,
    /// and the words; then the distance of every gap, and no words.
    pub(crate) fn each_part(&self, mut visit: impl FnMut(u64, &[u32])) {
        for (start, words) in &self.words {
            visit(start.wrapping_sub(self.base()), words);
        }
        let mut gaps: Vec<u64> = self.gaps.keys().map(|pc| pc.wrapping_sub(self.base())).collect();
        gaps.sort_unstable();
        gaps.into_iter().for_each(|gap| visit(gap, &[]));
    }

    /// The instruction with this ordinal.
    pub(crate) fn inst(&self, ordinal: usize) -> Option<&Inst> {
        self.insts.get(ordinal)?.as_ref()
    }

    /// All steps of the instruction that step `index` is of.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn steps_of(&self, index: usize) -> &[Step] {
        let pc = self.steps[index].pc;
        let before = self.steps[..index].iter().rev().take_while(|s| s.pc == pc).count();
        let first = index - before;
        let count = self.steps[first..].iter().take_while(|s| s.pc == pc).count();
        &self.steps[first..first + count]
    }

    fn keep_words(&mut self, pc: u64, words: &[u32]) {
        match self.words.last_mut() {
            Some((start, run)) if *start + run.len() as u64 * 4 == pc => run.extend_from_slice(words),
            _ => self.words.push((pc, words.to_vec())),
        }
    }

    /// Whether step `index` is the first to run at `pc`: the entry's, one with that address, or one behind the step that
    /// ended there.
    pub(crate) fn starts_at(&self, index: usize, pc: u64) -> bool {
        let Some(step) = self.steps.get(index) else { return false };
        match index.checked_sub(1).map(|before| &self.steps[before]) {
            _ if (pc, index) == self.entry => true,
            Some(before) if before.pc != pc && step.pc == pc => true,
            // What is dropped between the two is there, unless control never continues behind the one before.
            Some(before) => {
                let inst = self.insts.get(before.ordinal as usize).and_then(Option::as_ref);
                before.next_pc() == pc && inst.is_some_and(|inst| !ends_run(inst))
            }
            None => step.pc == pc,
        }
    }

    /// Addresses of all instructions, sorted: by ordinal.
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The ordinal of the instruction at `pc`.
    pub(crate) fn ordinal_of(&self, pc: u64) -> Option<usize> {
        self.addresses.binary_search(&pc).ok()
    }

    /// Index of the first step of the instruction at `pc`, or of the one behind it when it has no steps.
    pub(crate) fn index_of(&self, pc: u64) -> Option<usize> {
        self.addresses.binary_search(&pc).ok()?;
        Some(self.steps.partition_point(|s| s.pc < pc))
    }

    /// Whether memory still holds the words this was made from.
    pub(crate) fn is_current(&self, map: &Map) -> bool {
        let words = self.words.iter().all(|(start, run)| map.holds(*start, run));
        words
            && self.gaps.iter().all(|(&pc, gap)| match (gap, fetch(map, self.shape.halves, pc)) {
                (Gap::Fault(old), Fetched::Gap(Gap::Fault(new))) => *old == new,
                (Gap::Illegal(old), Fetched::Gap(Gap::Illegal(new))) => old.is_empty() || *old == new,
                _ => false,
            })
    }

    /// Whether what this was made from may be executed, and nothing more, whatever memory holds.
    pub(crate) fn is_allowed(&self, map: &Map) -> bool {
        let words = self.words.iter().all(|(start, run)| {
            let bytes = run.len() as u64 * 4;
            map.check(*start, bytes, AccessKind::Execute).is_ok()
        });
        words
            && self.gaps.iter().all(|(&pc, gap)| match gap {
                Gap::Fault(old) => map.check(pc, 4, AccessKind::Execute).is_err_and(|new| new == *old),
                Gap::Illegal(_) => true,
            })
    }
}
