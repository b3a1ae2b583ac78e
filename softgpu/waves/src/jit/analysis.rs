// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about registers at every place of a program, from what its waves start with.
//!
//! INVARIANT: facts are true for the active lanes of every wave that started as [`Facts`] of the entry say, and ran only code
//! of this program since. A change of EXEC that may add lanes keeps only what is true for all lanes. A program with jumps
//! whose targets are not known has no facts.

use softgpu_isa::{Enc, Flags, Op, info};

use super::progressions::{FAR, high_half, is_split};
use super::touch::Touch;
use crate::facts::Fact;
use crate::predecoded::Predecoded;
use crate::step::{FLAG_ALL_LANES, FLAG_DPP_MASK, Kind, Src, Step};
use crate::wave::{EXEC, NAMED_SCALARS, SPARE_VGPRS};

/// A register and the next one: 64-bit values, of which those of a group of lanes are `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    register: usize,
    pub stride: u32,
    /// Of a group, as a power of two.
    pub width: u8,
    /// Whether it is true for inactive lanes, too.
    is_full: bool,
}

/// The low half of an addend of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Low {
    /// Of a known pair, whose first register was this.
    Pair(usize),
    /// Of 32 bits: its high half must be zero.
    Short,
    /// The same in all lanes.
    Uniform,
}

/// A sum of low halves, whose carries are still in the mask that they were written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carry {
    mask: u16,
    /// The register of the sum.
    sum: usize,
    parts: [Low; 2],
    pub stride: u32,
    pub width: u8,
}

/// What is known at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    halves: usize,
    /// Of the active lanes, by register.
    active: Vec<Fact>,
    /// Of all lanes.
    all: Vec<Fact>,
    pairs: Vec<Pair>,
    carry: Option<Carry>,
    /// Scalars with all bits set.
    ones: u128,
    /// Whether numbers of 32 bits that become longer may be taken to stay below 2 to the power of 32 in all lanes, because that is
    /// looked at when the program runs.
    assumes: bool,
}

impl Facts {
    /// Those of a wave that starts with all lanes active, and its work-items' numbers in the first register.
    fn start(program: &Predecoded, items: Fact) -> Facts {
        let registers = program.shape.vgprs + SPARE_VGPRS;
        let mut all = vec![Fact::NOTHING; registers];
        all[0] = items;
        let ones = if program.shape.halves == 2 { 3 << EXEC } else { 1 << EXEC };
        Facts {
            halves: program.shape.halves,
            active: all.clone(),
            all,
            pairs: Vec::new(),
            carry: None,
            ones,
            assumes: false,
        }
    }

    fn join(&self, other: &Facts) -> Facts {
        let each = |a: &[Fact], b: &[Fact]| a.iter().zip(b).map(|(a, b)| a.join(*b)).collect();
        let pairs = self.pairs.iter().filter_map(|a| {
            let b = other.pairs.iter().find(|b| b.register == a.register && b.stride == a.stride)?;
            Some(Pair { width: a.width.min(b.width), is_full: a.is_full && b.is_full, ..*a })
        });
        Facts {
            halves: self.halves,
            active: each(&self.active, &other.active),
            all: each(&self.all, &other.all),
            pairs: pairs.collect(),
            carry: None,
            ones: self.ones & other.ones,
            assumes: false,
        }
    }

    /// The same for code that is left where a number does not stay below 2 to the power of 32.
    pub(super) fn assuming(&self) -> Facts {
        Facts { assumes: true, ..self.clone() }
    }

    /// Halves of 32 lanes.
    pub(super) fn halves(&self) -> usize {
        self.halves
    }

    fn has_all_lanes(&self) -> bool {
        let exec = if self.halves == 2 { 3 << EXEC } else { 1 << EXEC };
        self.ones & exec == exec
    }

    /// Of the register whose first row is `row`.
    pub(super) fn of(&self, row: u16) -> Fact {
        self.active.get(row as usize / self.halves).copied().unwrap_or(Fact::NOTHING)
    }

    /// Of that register and the next one.
    pub(super) fn pair(&self, row: u16) -> Option<Pair> {
        self.pairs.iter().find(|p| p.register == row as usize / self.halves).copied()
    }

    fn source(&self, s: &Src) -> Fact {
        match s.kind {
            Kind::Vgpr => self.of(s.index),
            Kind::Const | Kind::ConstSigned => Fact::constant(s.value),
            Kind::Scalar => Fact::UNIFORM,
            _ => Fact::NOTHING,
        }
    }

    fn forget(&mut self, register: usize) {
        self.pairs.retain(|p| p.register != register && p.register + 1 != register);
        let uses = |part: &Low| matches!(*part, Low::Pair(first) if first + 1 == register);
        if self.carry.is_some_and(|c| c.sum == register || c.parts.iter().any(uses)) {
            self.carry = None;
        }
    }

    fn write(&mut self, row: u16, fact: Fact, to_all: bool) {
        let register = row as usize / self.halves;
        self.forget(register);
        let to_all = to_all || self.has_all_lanes();
        if let (Some(active), Some(all)) = (self.active.get_mut(register), self.all.get_mut(register)) {
            *active = fact;
            *all = if to_all { fact } else { Fact::NOTHING };
        }
    }

    /// EXEC has changed: `is_less` if no lane was added.
    fn change_lanes(&mut self, is_less: bool) {
        if !is_less {
            self.active.clone_from(&self.all);
            self.pairs.retain(|p| p.is_full);
            self.carry = None;
        }
    }

    /// Applies the step at `index`.
    pub(super) fn apply(&mut self, program: &Predecoded, index: usize) {
        let step = &program.steps[index];
        let Some(inst) = program.inst(step.ordinal as usize) else { return };
        let touch = Touch::of(inst, program.steps_of(index), program.shape);
        let ones = self.ones_after(step, &touch);
        let sum = self.sum(step);
        if self.carry.is_some_and(|carry| touch.written_scalars() >> carry.mask & 3 != 0) {
            self.carry = None;
        }
        match self.result(step) {
            Some(fact) => {
                let to_all = step.flags & FLAG_ALL_LANES != 0;
                let pair = self.long_result(step);
                self.write(step.dst, fact, to_all);
                if let Some((high, pair)) = pair {
                    self.write(step.dst + self.halves as u16, high, to_all);
                    self.pairs.extend(pair);
                }
            }
            // Each half of a dual instruction is a step of its own.
            None if inst.enc == Enc::Vopd => self.write(step.dst, Fact::NOTHING, false),
            None => {
                let halves = self.halves as u16;
                let mut rows = Vec::new();
                touch.each_write(|r| match r {
                    0..256 => rows.push(r as u16 * halves),
                    256..264 => rows.push((program.shape.vgprs + r - 256) as u16 * halves),
                    _ => {}
                });
                rows.into_iter().for_each(|row| self.write(row, Fact::NOTHING, false));
            }
        }
        match sum {
            Some(Ok(carry)) => self.carry = Some(carry),
            Some(Err(pair)) => self.pairs.push(pair),
            None => {}
        }
        self.ones = ones;
        if touch.writes_exec() {
            self.change_lanes(is_less(step));
        }
    }

    /// Applies a step whose registers were renamed, which writes `rows` and no scalar.
    pub(super) fn apply_renamed(&mut self, step: &Step, rows: &[u16]) {
        let sum = self.sum(step);
        let result = self.result(step);
        let long = self.long_result(step);
        for &row in rows {
            self.write(row, Fact::NOTHING, false);
        }
        if let Some(fact) = result {
            self.write(step.dst, fact, false);
            if let Some((high, pair)) = long {
                self.write(step.dst + self.halves as u16, high, false);
                self.pairs.extend(pair);
            }
        }
        match sum {
            Some(Ok(carry)) => self.carry = Some(carry),
            Some(Err(pair)) => self.pairs.push(pair),
            None => {}
        }
    }

    /// Scalars with all bits set behind `step`.
    fn ones_after(&self, step: &Step, touch: &Touch) -> u128 {
        let mut ones = self.ones & !touch.written_scalars();
        let has = |s: &Src, dwords: u32| match s.kind {
            Kind::Scalar if s.index < 128 => self.ones >> s.index & u128::from(dwords) == dwords.into(),
            Kind::ConstSigned => s.value == u32::MAX,
            Kind::Const => s.value == u32::MAX && dwords == 1,
            _ => false,
        };
        let [a, b, _] = &step.src;
        let written = match step.op {
            Some(Op::S_MOV_B32) if has(a, 1) => 1,
            Some(Op::S_MOV_B64) if has(a, 3) => 3,
            Some(Op::S_OR_B32) if has(a, 1) || has(b, 1) => 1,
            Some(Op::S_OR_B64) if has(a, 3) || has(b, 3) => 3,
            Some(Op::S_AND_SAVEEXEC_B32 | Op::S_AND_NOT1_SAVEEXEC_B32) if self.has_all_lanes() => 1,
            Some(Op::S_AND_SAVEEXEC_B64 | Op::S_AND_NOT1_SAVEEXEC_B64) if self.has_all_lanes() => 3,
            _ => 0,
        };
        // What is written to nowhere is not found there again. EXEC itself has what an AND leaves.
        let is_exec = touch.writes_exec()
            && !matches!(step.op, Some(Op::S_MOV_B32 | Op::S_MOV_B64 | Op::S_OR_B32 | Op::S_OR_B64));
        let kept = if is_exec { !(3 << EXEC) } else { u128::MAX };
        if step.dst < 127 {
            ones |= written << step.dst & kept;
        }
        ones
    }

    /// The fact about the first register that `step` writes; `None` if it may write others, too.
    pub(super) fn result(&self, step: &Step) -> Option<Fact> {
        let op = step.op?;
        if step.out != 0 || step.flags & FLAG_DPP_MASK != 0 {
            return None;
        }
        let [a, b, c] = [0, 1, 2].map(|k| self.source(&step.src[k]));
        let value = |k: usize| {
            matches!(step.src[k].kind, Kind::Const | Kind::ConstSigned).then_some(step.src[k].value)
        };
        let shift_left = |x: Fact, by: Option<u32>| by.map_or(Fact::NOTHING, |by| x.shift_left(by));
        let shift_right = |x: Fact, by: Option<u32>| by.map_or(Fact::NOTHING, |by| x.shift_right(by));
        let and = |x: Fact, mask: Option<u32>| mask.map(|mask| x.and(mask));
        let multiply = |a: Fact, b: Fact| match (value(0), value(1)) {
            (Some(v), _) => b.multiply(a, Some(v)),
            (_, v) => a.multiply(b, v),
        };
        Some(match op {
            Op::V_MOV_B32 => a,
            Op::V_ADD_NC_U32 | Op::V_ADD_NC_I32 | Op::V_ADD_CO_U32 => a.add(b),
            Op::V_ADD_CO_CI_U32 => Fact::NOTHING,
            Op::V_SUB_NC_U32 | Op::V_SUB_NC_I32 => a.subtract(b),
            Op::V_SUBREV_NC_U32 => b.subtract(a),
            Op::V_ADD3_U32 => a.add(b).add(c),
            Op::V_MUL_LO_U32 => multiply(a, b),
            Op::V_MUL_U32_U24 if a.bits <= 24 && b.bits <= 24 => multiply(a, b),
            Op::V_MAD_U32_U24 if a.bits <= 24 && b.bits <= 24 => multiply(a, b).add(c),
            Op::V_LSHLREV_B32 => shift_left(b, value(0)),
            Op::V_LSHRREV_B32 => shift_right(b, value(0)),
            Op::V_LSHL_ADD_U32 => shift_left(a, value(1)).add(c),
            Op::V_ADD_LSHL_U32 => shift_left(a.add(b), value(2)),
            Op::V_LSHL_OR_B32 => shift_left(a, value(1)).inclusive_or(c),
            Op::V_AND_B32 => and(b, value(0)).or_else(|| and(a, value(1))).unwrap_or(Fact::NOTHING),
            Op::V_AND_OR_B32 => {
                and(b, value(0)).or_else(|| and(a, value(1))).unwrap_or(Fact::NOTHING).inclusive_or(c)
            }
            Op::V_OR_B32 => a.inclusive_or(b),
            Op::V_OR3_B32 => a.inclusive_or(b).inclusive_or(c),
            Op::V_BFE_U32 => match (value(1), value(2)) {
                (Some(from), Some(bits)) => a.shift_right(from).and((1 << (bits & 31)) - 1),
                _ => Fact::NOTHING,
            },
            Op::V_LSHLREV_B64 => shift_left(self.source(&step.src[1]), value(0).filter(|by| by & 63 < 32)),
            _ => return None,
        })
    }

    /// The fact about the second register that `step` writes, and what is known of both.
    pub(super) fn long_result(&self, step: &Step) -> Option<(Fact, Option<Pair>)> {
        if step.op != Some(Op::V_LSHLREV_B64) {
            return None;
        }
        let [amount, from, _] = &step.src;
        let by = (amount.kind == Kind::Const && amount.value & 63 < 32).then_some(amount.value & 31);
        let is_vgpr = from.kind == Kind::Vgpr;
        let Some(by) = by.filter(|_| is_vgpr) else { return Some((Fact::NOTHING, None)) };
        let (low, high) = (self.of(from.index), self.of(high_half(step, self.halves)));
        let pair = |stride: u32, width| Pair {
            register: step.dst as usize / self.halves,
            stride,
            width,
            is_full: self.has_all_lanes(),
        };
        let narrow = |stride: u32| stride.checked_mul(1 << by).filter(|stride| stride >> 24 == 0);
        if let Some(known) = self.pair(from.index).filter(|_| !is_split(step)) {
            return Some((Fact::NOTHING, narrow(known.stride).map(|stride| pair(stride, known.width))));
        }
        if !high.is_zero() {
            return Some((Fact::NOTHING, None));
        }
        let above = if u32::from(low.bits) + by <= 32 { Fact::constant(0) } else { Fact::NOTHING };
        let is_known =
            |stride: &u32| low.stays_in_range() || self.assumes && may_assume(self.halves, low, *stride);
        let known = narrow(low.stride).filter(is_known);
        Some((above, known.map(|stride| pair(stride, low.width))))
    }

    /// A sum of low halves (`Ok`), or the pair that a sum of high halves completes.
    pub(super) fn sum(&self, step: &Step) -> Option<Result<Carry, Pair>> {
        if step.out != 0 || step.flags != 0 {
            return None;
        }
        let [a, b, _] = &step.src;
        let register = step.dst as usize / self.halves;
        match step.op? {
            // Carries that are written to nowhere cannot be added.
            Op::V_ADD_CO_U32 if !(127..NAMED_SCALARS).contains(&step.sdst.into()) => {
                let ((low_a, stride_a, width_a), (low_b, stride_b, width_b)) = (self.low(a)?, self.low(b)?);
                let stride = stride_a.checked_add(stride_b).filter(|stride| stride >> 24 == 0)?;
                let width = width_a.min(width_b);
                Some(Ok(Carry { mask: step.sdst, sum: register, parts: [low_a, low_b], stride, width }))
            }
            Op::V_ADD_CO_CI_U32 => {
                let carry = self.carry.filter(|c| c.mask == step.src[2].index && c.sum + 1 == register)?;
                let [x, y] = carry.parts;
                let is_high = |part: Low, s: &Src| match part {
                    Low::Pair(first) => s.kind == Kind::Vgpr && s.index as usize / self.halves == first + 1,
                    Low::Short => self.source(s).is_zero(),
                    Low::Uniform => matches!(s.kind, Kind::Scalar | Kind::Const | Kind::ConstSigned),
                };
                let fits = is_high(x, a) && is_high(y, b) || is_high(x, b) && is_high(y, a);
                let is_full = self.has_all_lanes();
                fits.then_some(Err(Pair {
                    register: carry.sum,
                    stride: carry.stride,
                    width: carry.width,
                    is_full,
                }))
            }
            _ => None,
        }
    }

    pub(super) fn low(&self, s: &Src) -> Option<(Low, u32, u8)> {
        match s.kind {
            Kind::Scalar | Kind::Const | Kind::ConstSigned => Some((Low::Uniform, 0, 5)),
            Kind::Vgpr => {
                if let Some(pair) = self.pair(s.index) {
                    return Some((Low::Pair(pair.register), pair.stride, pair.width));
                }
                let fact = self.of(s.index);
                (fact.width > 0 && fact.stays_in_range()).then_some((Low::Short, fact.stride, fact.width))
            }
            _ => None,
        }
    }
}

/// Whether it can be looked at whether a number stays below 2 to the power of 32, which becomes one with this stride.
fn may_assume(halves: usize, low: Fact, stride: u32) -> bool {
    halves == 1 && low.width == 5 && stride < FAR
}

/// Whether a change of EXEC by `step` adds no lane.
fn is_less(step: &Step) -> bool {
    let is_exec = |s: &Src| s.kind == Kind::Scalar && s.index as usize == EXEC;
    match step.op {
        Some(Op::S_AND_SAVEEXEC_B32 | Op::S_AND_SAVEEXEC_B64) => true,
        Some(Op::S_AND_B32 | Op::S_AND_B64) => is_exec(&step.src[0]) || is_exec(&step.src[1]),
        Some(Op::S_AND_NOT1_B32 | Op::S_AND_NOT1_B64) => is_exec(&step.src[0]),
        // Compares write the active lanes' bits only, and zero for the others.
        Some(op) => info(op).any(Flags::WRITES_EXEC) && info(op).name.starts_with("v_cmpx"),
        None => false,
    }
}

/// Whether control may reach an instruction from one that no step names.
fn has_unknown_jumps(program: &Predecoded) -> bool {
    use Op::*;
    program.steps.iter().any(|step| {
        matches!(
            step.op,
            Some(
                S_SETPC_B64
                    | S_SWAPPC_B64
                    | S_CALL_B64
                    | S_RFE_B64
                    | S_SUBVECTOR_LOOP_BEGIN
                    | S_SUBVECTOR_LOOP_END
            )
        )
    })
}

/// The facts at the head of every block of `program`, whose first steps are `leaders`, for waves whose work-items' numbers
/// are as `items` says; none for blocks that are not reached.
pub(super) fn heads(program: &Predecoded, leaders: &[usize], items: Fact) -> Vec<Option<Facts>> {
    let mut heads: Vec<Option<Facts>> = vec![None; leaders.len()];
    if has_unknown_jumps(program) {
        return heads;
    }
    let block_of = |step: usize| leaders.binary_search(&step).ok();
    let Some(entry) = block_of(program.entry.1) else { return heads };
    heads[entry] = Some(Facts::start(program, items));
    let mut work = vec![entry];
    while let Some(block) = work.pop() {
        let Some(mut facts) = heads[block].clone() else { continue };
        let end = leaders.get(block + 1).copied().unwrap_or(program.steps.len());
        let mut successors = Vec::new();
        for index in leaders[block]..end {
            facts.apply(program, index);
            let step = &program.steps[index];
            if step.target != u32::MAX {
                successors.push(step.target as usize);
            }
        }
        let last = program.steps[end - 1].op;
        if !matches!(last, Some(Op::S_BRANCH | Op::S_ENDPGM | Op::S_ENDPGM_SAVED)) {
            successors.push(end);
        }
        for next in successors.into_iter().filter_map(block_of) {
            let joined = heads[next].as_ref().map_or_else(|| facts.clone(), |known| known.join(&facts));
            if heads[next].as_ref() != Some(&joined) {
                heads[next] = Some(joined);
                work.push(next);
            }
        }
    }
    heads
}
