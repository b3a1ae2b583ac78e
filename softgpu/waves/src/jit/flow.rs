// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's blocks, and the order in which the pieces of a block are emitted.
//!
//! INVARIANT: a block is entered at its first step only. Within a block, lane-wise operations keep their order among
//! themselves, and so do all other steps. Another step may move in front of lane-wise operations that it shares no
//! register with; this makes the runs of lane-wise operations long.

use softgpu_isa::{Flags, Op, info};

use super::dpp;
use super::dpp_avx2;
use super::floats::Floats;
use super::generator::{Emit, Wide};
use super::lane;
use super::lane_scalars;
use super::order;
use super::permute_rows;
use super::touch::Touch;
use super::transfer::{self, Transfer};
use crate::predecoded::Predecoded;
use crate::salu::control::DEALLOC_VGPRS;
use crate::step::{Kind, Step};

/// Most lane-wise operations that another step may move in front of.
const MAX_PENDING: usize = 512;
/// Most steps of a block. A longer straight run is divided, so that the control is checked.
const MAX_BLOCK: usize = 1024;

/// How a step is emitted.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// Inline, lane-wise.
    Lane(Emit),
    /// The same, but that the first lane will do while all are active.
    Progression(Emit),
    /// Inline, on the scalar file, if `scalar::emit` can; by its handler otherwise.
    Scalar,
    /// Conditional or unconditional direct branch.
    Branch,
    /// Inline for common patterns.
    Transfer(Transfer),
    /// By its handler.
    Call,
}

/// One step of a block.
#[derive(Clone, Copy)]
pub(super) struct Item {
    /// Index in the program.
    pub index: usize,
    pub what: What,
    /// Whether the step may change places with lane-wise operations.
    pub loose: bool,
    /// Whether the step reads other lanes than those of its piece, so that it is emitted apart.
    pub alone: bool,
    pub touch: Touch,
}

impl Item {
    /// How it is emitted for a piece, if it is lane-wise.
    pub(super) fn lane(&self) -> Option<Emit> {
        match self.what {
            What::Lane(emit) | What::Progression(emit) => Some(emit),
            _ => None,
        }
    }

    pub(super) fn is_transfer(&self) -> bool {
        matches!(self.what, What::Transfer(_))
    }
}

/// Pieces of a block in the order of emission.
pub(super) enum Unit {
    Lanes(Vec<Item>),
    One(Item),
}

impl Unit {
    /// The lane-wise steps, if it is some.
    pub(super) fn lanes(&self) -> Option<&[Item]> {
        match self {
            Unit::Lanes(items) => Some(items),
            Unit::One(item) if item.lane().is_some() => Some(std::slice::from_ref(item)),
            Unit::One(_) => None,
        }
    }
}

/// Whether the block must end with `step`.
pub(super) fn ends_block(step: &Step) -> bool {
    use Op::*;
    let Some(op) = step.op else { return step.target == u32::MAX && step.size != 0 };
    let row = info(op);
    row.any(Flags::BRANCH | Flags::END | Flags::BARRIER | Flags::WRITES_MODE)
        || matches!(
            op,
            S_SLEEP
                | S_WAKEUP
                | S_TRAP
                | S_SETHALT
                | S_SENDMSGHALT
                | S_SENDMSG_RTN_B32
                | S_SENDMSG_RTN_B64
                | S_RFE_B64
        )
        || op == S_SENDMSG && step.imm & 0xFF != DEALLOC_VGPRS
}

/// Whether `step` is a conditional branch whose target is known.
pub(super) fn is_conditional(step: &Step) -> bool {
    step.op.is_some_and(|op| is_direct_branch(op) && op != Op::S_BRANCH)
}

fn is_direct_branch(op: Op) -> bool {
    use Op::*;
    matches!(
        op,
        S_BRANCH
            | S_CBRANCH_SCC0
            | S_CBRANCH_SCC1
            | S_CBRANCH_VCCZ
            | S_CBRANCH_VCCNZ
            | S_CBRANCH_EXECZ
            | S_CBRANCH_EXECNZ
    )
}

/// First step of every block, sorted.
pub(super) fn leaders(program: &Predecoded) -> Vec<usize> {
    let steps = &program.steps;
    let mut leaders = vec![program.entry.1, 0];
    for (k, step) in steps.iter().enumerate() {
        if step.target != u32::MAX {
            leaders.push(step.target as usize);
        }
        let whole = steps.get(k + 1).is_none_or(|next| next.pc != step.pc);
        if whole && ends_block(step) {
            leaders.push(k + 1);
        }
    }
    leaders.retain(|&k| k < steps.len());
    leaders.sort_unstable();
    leaders.dedup();
    // Long runs are divided between instructions.
    let mut cuts = Vec::new();
    for (&a, &b) in leaders.iter().zip(leaders.iter().skip(1).chain([&steps.len()])) {
        let mut from = a;
        for k in a..b {
            if k - from >= MAX_BLOCK && steps[k - 1].pc != steps[k].pc {
                cuts.push(k);
                from = k;
            }
        }
    }
    leaders.extend(cuts);
    leaders.sort_unstable();
    leaders
}

pub(super) fn classify(program: &Predecoded, index: usize, wide: Wide, floats: Floats) -> Item {
    let step = &program.steps[index];
    let ordinal = step.ordinal as usize;
    let Some(inst) = program.inst(ordinal) else {
        return Item { index, what: What::Call, loose: false, alone: false, touch: Touch::default() };
    };
    let siblings = program.steps_of(index);
    let touch = Touch::of(inst, siblings, program.shape);
    let item = |what, loose| Item { index, what, loose, alone: false, touch };
    if inst.dpp.is_some() {
        let at = siblings.iter().position(|s| std::ptr::eq(s, step)).unwrap_or_default();
        let emit = dpp::emitter(siblings, at, wide, floats)
            .filter(|_| siblings.iter().all(|s| scalar_data(s) & touch.written_scalars() == 0));
        let alone = emit.is_some() && at == 0 && wide == Wide::Y && dpp_avx2::crosses(step);
        return Item { alone, ..item(emit.map_or(What::Call, What::Lane), false) };
    }
    let Some(op) = step.op else { return item(What::Call, false) };
    let row = info(op);
    if ends_block(step) {
        return item(if is_direct_branch(op) { What::Branch } else { What::Call }, false);
    }
    use softgpu_isa::Enc::*;
    match inst.enc {
        Sop1 | Sop2 | Sopk | Sopc | Sopp => item(What::Scalar, true),
        Smem => item(What::Call, true),
        Ds | Flat | Global | Scratch | Mubuf => match transfer::transfer(step, program.shape.halves) {
            Some(transfer) => item(What::Transfer(transfer), true),
            None => item(What::Call, !row.any(Flags::ATOMIC)),
        },
        _ if lane_scalars::is_inline(step) => item(What::Scalar, true),
        _ if permute_rows::is_one(step) => {
            let what = permute_rows::emitter(step).map_or(What::Call, What::Lane);
            Item { alone: true, ..item(what, false) }
        }
        _ => match lane::emitter(step, floats) {
            Some(emit) if scalar_data(step) & touch.written_scalars() == 0 => item(What::Lane(emit), false),
            _ => item(What::Call, siblings.len() == 1 && !row.any(Flags::READS_M0)),
        },
    }
}

/// The steps `from..to` in the order of emission; `progressions` says of which the first lane may do.
pub(super) fn units(
    program: &Predecoded,
    from: usize,
    to: usize,
    wide: Wide,
    floats: Floats,
    progressions: &[bool],
) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut pending: Vec<Item> = Vec::new();
    let mut touched = Touch::default();
    // Scalars that pending operations read in all lanes: no step that writes one of them lane by lane may come in
    // between.
    let mut data = 0u128;
    let flush = |pending: &mut Vec<Item>, touched: &mut Touch, units: &mut Vec<Unit>| {
        if !pending.is_empty() {
            units.push(Unit::Lanes(order::by_chains(std::mem::take(pending))));
        }
        *touched = Touch::default();
    };
    for index in from..to {
        let mut item = classify(program, index, wide, floats);
        if let (What::Lane(emit), true) = (item.what, progressions[index - from]) {
            item = Item { what: What::Progression(emit), loose: true, ..item };
        }
        match item.what {
            What::Lane(_) => {
                // A mask that is written lane by lane is complete only after the last piece.
                let step = &program.steps[index];
                let reads = scalar_data(step);
                let reads_made = reads & touched.written_scalars() != 0;
                let makes_read = item.touch.written_scalars() & data != 0;
                if reads_made || makes_read || pending.len() >= MAX_PENDING {
                    flush(&mut pending, &mut touched, &mut units);
                    data = 0;
                }
                if item.alone {
                    flush(&mut pending, &mut touched, &mut units);
                    data = 0;
                }
                data |= reads;
                touched.add(&item.touch);
                let ends = item.alone || item.touch.writes_exec();
                pending.push(item);
                if ends {
                    flush(&mut pending, &mut touched, &mut units);
                    data = 0;
                }
            }
            _ => {
                if !item.loose || item.touch.conflicts(&touched) {
                    flush(&mut pending, &mut touched, &mut units);
                    data = 0;
                }
                units.push(Unit::One(item));
            }
        }
    }
    flush(&mut pending, &mut touched, &mut units);
    units
}

/// Scalars that a lane-wise step reads the same in all lanes, as bits.
pub(super) fn scalar_data(step: &Step) -> u128 {
    let row = step.op.map(info);
    step.src.iter().enumerate().fold(0, |set, (k, src)| {
        let slot = row.and_then(|row| row.src.get(k));
        let data = slot.is_none_or(|slot| slot.class != softgpu_isa::Class::M);
        let pair = slot.is_some_and(|slot| slot.ty.dwords() == 2);
        match src.kind {
            Kind::Scalar | Kind::ScalarMod if data && src.index < 127 => {
                set | if pair { 3 } else { 1 } << src.index
            }
            Kind::Scalar | Kind::ScalarMod if data => set | 1 << 127,
            _ => set,
        }
    })
}
