// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps whose results are arithmetic progressions over the lanes, and are addresses: it suffices to compute the first lane.
//!
//! INVARIANT: that the lanes of a result are at a constant distance follows from [`Facts`], not from what was seen. This module
//! emits no code; [`super::first_lanes`] does.

use std::collections::HashSet;

use softgpu_isa::Op;

use super::analysis::{Facts, Low};
use super::emit::Emitter;
use super::flow::{self, What};
use super::transfer::{address_dwords, transfer};
use crate::step::{FLAG_ALL_LANES, Kind, Src, Step};

/// How the first lane is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The operation on first lanes, 32 bits.
    Word,
    /// A shift of 64 bits, of which the upper ones may be known to be zero. If the lower ones may exceed 32 bits within the lanes,
    /// they have a span.
    Long { is_short: bool, span: u32 },
    /// A sum of low halves. Those of the two sources that may exceed 32 bits within the lanes have a span.
    Low { spans: [u32; 2] },
    /// The sum of high halves that belongs to it.
    High,
}

/// A result whose lanes are at a constant distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progression {
    pub how: How,
    /// From one lane to the next; of 64 bits for a pair.
    pub stride: u32,
}

/// Distances from which on lanes are not recomputed from the first one.
pub(super) const FAR: u32 = 1 << 20;

/// From the first lane to the last one.
pub(super) fn span(stride: u32) -> u32 {
    31 * stride
}

impl Progression {
    /// What `step` results in, if it is one, all lanes are active, and the wave has 32 lanes.
    pub(super) fn of(facts: &Facts, step: &Step) -> Option<Progression> {
        use Op::*;
        let op = step.op?;
        let is_plain = step.out == 0 && step.flags & !FLAG_ALL_LANES == 0;
        let sources = softgpu_isa::info(op).src.len().min(3);
        let is_known =
            |s: &Src| matches!(s.kind, Kind::Vgpr | Kind::Scalar | Kind::Const | Kind::ConstSigned);
        if facts.halves() != 1 || !is_plain || !step.src[..sources].iter().all(is_known) {
            return None;
        }
        let whole =
            |how, stride: u32, width: u8| (width == 5 && stride < FAR).then_some(Progression { how, stride });
        match op {
            V_ADD_CO_U32 => {
                let carry = facts.sum(step)?.ok()?;
                let spans = [0, 1].map(|k| match facts.low(&step.src[k]) {
                    Some((Low::Pair(_), stride, _)) => span(stride.min(FAR)),
                    _ => 0,
                });
                whole(How::Low { spans }, carry.stride, carry.width)
            }
            V_ADD_CO_CI_U32 => {
                let pair = facts.sum(step)?.err()?;
                whole(How::High, pair.stride, pair.width)
            }
            V_LSHLREV_B64 => {
                let (_, pair) = facts.long_result(step)?;
                let [_, from, _] = &step.src;
                let is_short = facts.of(high_half(step, 1)).is_zero();
                let low = facts.of(from.index);
                let is_pair = !is_split(step) && facts.pair(from.index).is_some();
                let stays = !is_short || is_pair || low.stays_in_range();
                let span = if stays { 0 } else { span(low.stride.min(FAR)) };
                whole(How::Long { is_short, span }, pair?.stride, pair?.width)
            }
            _ if is_word(op) => {
                let fact = facts.result(step)?;
                whole(How::Word, fact.stride, fact.width)
            }
            _ => None,
        }
    }
}

/// Whether the halves of what a step shifts are in registers that do not follow each other: the high half is the third source
/// then, which the operation does not have. Only renamed registers are so.
pub(super) fn is_split(step: &Step) -> bool {
    step.op == Some(Op::V_LSHLREV_B64) && step.src[2].kind == Kind::Vgpr
}

/// The row of the high half of what a step shifts, in a wave of so many halves.
pub(super) fn high_half(step: &Step, halves: usize) -> u16 {
    // CAST: one or two.
    if is_split(step) { step.src[2].index } else { step.src[1].index + halves as u16 }
}

/// Which source of the sum of high halves belongs to the first one of the sum of low halves, if both can be done as one sum of
/// 64 bits.
pub(super) fn as_one_sum(facts: &Facts, low: &Step, high: &Step) -> Option<[usize; 2]> {
    let belongs = |a: &Src, b: &Src| match facts.low(a) {
        Some((Low::Pair(first), ..)) => b.kind == Kind::Vgpr && b.index as usize == first + 1,
        Some((Low::Short, ..)) => matches!(b.kind, Kind::Const | Kind::ConstSigned) && b.value == 0,
        Some((Low::Uniform, ..)) => matches!(b.kind, Kind::Scalar | Kind::Const | Kind::ConstSigned),
        None => false,
    };
    let fits = |order: &[usize; 2]| (0..2).all(|k| belongs(&low.src[k], &high.src[order[k]]));
    let is_next = high.dst == low.dst + 1 && high.sdst == low.sdst;
    [[0, 1], [1, 0]].into_iter().find(|order| is_next && fits(order))
}

/// Whether `first_lanes` can do the operation on first lanes.
fn is_word(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        V_MOV_B32
            | V_ADD_NC_U32
            | V_ADD_NC_I32
            | V_SUB_NC_U32
            | V_SUB_NC_I32
            | V_SUBREV_NC_U32
            | V_ADD3_U32
            | V_MUL_LO_U32
            | V_LSHLREV_B32
            | V_LSHRREV_B32
            | V_LSHL_ADD_U32
            | V_ADD_LSHL_U32
            | V_LSHL_OR_B32
            | V_AND_B32
            | V_OR_B32
            | V_OR3_B32
    )
}

impl Emitter<'_> {
    /// Which of the steps `first..end` of a block are such that an access of the block needs their results as addresses.
    pub(super) fn progressions(&mut self, block: usize, first: usize, end: usize) -> Vec<bool> {
        let mut chosen = vec![false; end - first];
        let halves = self.program.shape.halves;
        let has_accesses = self.program.steps[first..end].iter().any(|s| transfer(s, halves).is_some());
        let facts = self.heads.get(block).cloned().flatten();
        let Some(facts) = facts.filter(|_| has_accesses && halves == 1) else { return chosen };
        // What each step could be, and how many registers are the address of each access.
        let mut steps = Vec::with_capacity(end - first);
        self.g.facts = Some(facts);
        for index in first..end {
            let step = &self.program.steps[index];
            let item = flow::classify(self.program, index, self.g.wide, self.floats);
            let is_lane = matches!(item.what, What::Lane(_)) && !item.alone;
            let facts = self.g.facts.as_ref().filter(|_| is_lane);
            let is_possible = facts.is_some_and(|facts| Progression::of(facts, step).is_some());
            let address = match item.what {
                What::Transfer(t) if self.g.pattern(step, &t).is_some() => address_dwords(step, &t),
                _ => 0,
            };
            steps.push((step, item, is_possible, address));
            if let Some(facts) = &mut self.g.facts {
                facts.apply(self.program, index);
            }
        }
        self.g.facts = None;
        let mut wanted: HashSet<u16> = HashSet::new();
        for (chosen, (step, item, is_possible, address)) in chosen.iter_mut().zip(&steps).rev() {
            let written = step.dst..step.dst + registers(step);
            *chosen = *is_possible && written.clone().any(|register| wanted.contains(&register));
            if *chosen {
                written.for_each(|register| {
                    wanted.remove(&register);
                });
                let read = step.src.iter().filter(|s| s.kind == Kind::Vgpr);
                wanted.extend(read.flat_map(|s| s.index..s.index + registers(step)));
            } else if matches!(item.what, What::Lane(_)) {
                // Not what the other half of a dual instruction writes.
                wanted.remove(&step.dst);
            } else {
                // CAST: those of a wave are fewer than 256.
                item.touch.each_write(|register| {
                    wanted.remove(&(register as u16));
                });
            }
            wanted.extend((0..*address as u16).map(|d| step.src[0].index + d));
        }
        chosen
    }
}

/// How many registers a step that may be a progression writes, and reads of a source.
fn registers(step: &Step) -> u16 {
    if step.op == Some(Op::V_LSHLREV_B64) { 2 } else { 1 }
}
