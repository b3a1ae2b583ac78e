// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several turns of a loop as one straight run, with registers of their own.
//!
//! INVARIANT: scalars, addresses and what is loaded are written to renamed registers in every turn, so that up to the last
//! check of an access the wave's own registers are as they were at the loop's head. This module emits no code.

use std::collections::HashMap;

use softgpu_isa::{Class, Op, Slot, info};

use super::flow::{self, Item, What};
use super::generator::{Emit, Wide};
use super::transfer::{Space, Transfer, address_dwords};
use super::{floats::Floats, lane, scalar};
use crate::predecoded::Predecoded;
use crate::step::{Kind, Src, Step};
use crate::wave::{NAMED_SCALARS, PREDECODE_VGPRS, RENAMED_SCALARS, RENAMED_VGPRS, VCC};

/// How a step of a run is emitted.
#[derive(Clone, Copy)]
pub(super) enum How {
    Lane(Emit),
    Load(Transfer),
}

/// A step with renamed registers.
#[derive(Clone)]
pub(super) struct Renamed {
    pub step: Step,
    pub how: How,
}

/// Several turns of a loop.
pub(super) struct Copies {
    /// Scalar steps of each turn.
    pub scalars: Vec<Vec<Step>>,
    /// Addresses, and loads; in their order.
    pub early: Vec<Renamed>,
    /// Everything else.
    pub late: Vec<Renamed>,
    /// Rows that are renamed at the end: to, from.
    pub rows: Vec<(u16, u16)>,
    /// Scalars that are: to, from.
    pub scalar_results: Vec<(u16, u16)>,
}

/// Most turns of a run.
const TURNS: usize = 8;
/// A body with fewer lane-wise steps is not worth it.
const LEAST: usize = 3;
/// Most steps of a run.
const STEPS: usize = 900;
/// Scalars above this have a meaning of their own.
const SGPRS: u16 = 106;

/// The vector registers of a step: dwords of each source, and of the destination.
struct Shape {
    sources: [usize; 3],
    destination: usize,
}

impl Shape {
    fn of(step: &Step, how: How) -> Option<Shape> {
        match how {
            How::Load(t) => {
                Some(Shape { sources: [address_dwords(step, &t), 0, 0], destination: t.dwords * t.parts })
            }
            How::Lane(_) => {
                let row = info(step.op?);
                let dwords = |slot: &Slot| slot.ty.dwords() as usize;
                // An accumulator has no slot of its own.
                let source = |k: usize| row.src.get(k).map_or(1, dwords);
                let destination = row.dst.first().filter(|slot| slot.class == Class::V).map(dwords)?;
                Some(Shape { sources: [0, 1, 2].map(source), destination })
            }
        }
    }
}

/// The body of a loop: its steps in their order.
pub(super) struct Body<'a> {
    program: &'a Predecoded,
    lanes: Vec<(usize, How)>,
    scalars: Vec<usize>,
    /// Which of both come first, in the order of the program.
    order: Vec<bool>,
}

impl<'a> Body<'a> {
    /// The steps `from..to`, if they can be a run's.
    pub(super) fn of(
        program: &'a Predecoded,
        from: usize,
        to: usize,
        wide: Wide,
        floats: Floats,
    ) -> Option<Body<'a>> {
        let mut body = Body { program, lanes: Vec::new(), scalars: Vec::new(), order: Vec::new() };
        for index in from..to {
            let item = flow::classify(program, index, wide, floats);
            let step = &program.steps[index];
            match Self::how(program, &item) {
                Some(how) => body.lanes.push((index, how)),
                None if is_simple(step) => body.scalars.push(index),
                None => return None,
            }
            body.order.push(matches!(item.what, What::Scalar));
        }
        let loads = body.lanes.iter().any(|(_, how)| matches!(how, How::Load(_)));
        let is_worth_it = loads
            && body.lanes.len() > LEAST
            && body.scalars.iter().any(|&index| writes_scc(&program.steps[index]));
        is_worth_it.then_some(body)
    }

    fn how(program: &Predecoded, item: &Item) -> Option<How> {
        let step = &program.steps[item.index];
        let inst = program.inst(step.ordinal as usize)?;
        match item.what {
            What::Lane(emit)
                if inst.dpp.is_none()
                    && !item.alone
                    && step.flags == 0
                    && !lane::keeps_destination(step)
                    && (item.touch.written_scalars() == 0 || is_sum(program, step)) =>
            {
                Some(How::Lane(emit))
            }
            What::Transfer(t) if !t.store && (t.space == Space::Lds || t.parts == 1) => Some(How::Load(t)),
            _ => None,
        }
    }

    /// Which of `lanes` are early: loads, and what their addresses are made from.
    fn early(&self) -> Option<Vec<bool>> {
        let halves = self.program.shape.halves;
        let range = |row: u16, dwords: usize| row as usize..row as usize + dwords * halves;
        let mut early: Vec<bool> = self.lanes.iter().map(|(_, how)| matches!(how, How::Load(_))).collect();
        loop {
            let mut read = Vec::new();
            for ((index, how), _) in self.lanes.iter().zip(&early).filter(|(_, early)| **early) {
                let step = &self.program.steps[*index];
                let shape = Shape::of(step, *how)?;
                let sources = step.src.iter().zip(shape.sources).filter(|(s, _)| s.is_vgpr());
                read.extend(sources.map(|(s, dwords)| range(s.index, dwords)));
            }
            let mut has_changed = false;
            for (k, (index, how)) in self.lanes.iter().enumerate() {
                let step = &self.program.steps[*index];
                let written = range(step.dst, Shape::of(step, *how)?.destination);
                let is_read = read.iter().any(|r| r.start < written.end && written.start < r.end);
                if is_read && !early[k] {
                    early[k] = true;
                    has_changed = true;
                }
            }
            if !has_changed {
                return Some(early);
            }
        }
    }

    /// As many turns as there are registers for, at least two: a power of two, since loops go round so often.
    pub(super) fn copies(&self) -> Option<Copies> {
        let early = self.early()?;
        let mut turns = TURNS;
        while turns > 1 {
            if turns * self.order.len() <= STEPS
                && let Some(copies) = Renaming::new(self).turns(turns, &early)
            {
                return Some(copies);
            }
            turns /= 2;
        }
        None
    }
}

/// Whether `step` is half of a sum of 64 bits in a wave32, whose carries are in a register that can be renamed.
fn is_sum(program: &Predecoded, step: &Step) -> bool {
    let is_one = matches!(step.op, Some(Op::V_ADD_CO_U32 | Op::V_ADD_CO_CI_U32));
    is_one && program.shape.halves == 1 && step.sdst as usize <= VCC
}

/// Whether a scalar step of a body writes SCC.
pub(super) fn writes_scc(step: &Step) -> bool {
    !matches!(step.op, None | Some(Op::S_MOV_B32 | Op::S_MOVK_I32 | Op::S_MUL_I32))
}

/// Whether a scalar step may be done in advance: it reads no SCC, and has one result of 32 bits.
fn is_simple(step: &Step) -> bool {
    use Op::*;
    let Some(op) = step.op else { return false };
    let is_known = matches!(
        op,
        S_ADD_U32
            | S_ADD_I32
            | S_SUB_U32
            | S_SUB_I32
            | S_ADDK_I32
            | S_MOV_B32
            | S_MOVK_I32
            | S_LSHL_B32
            | S_LSHR_B32
            | S_AND_B32
            | S_OR_B32
            | S_MUL_I32
    );
    let compares = matches!(
        op,
        S_CMP_EQ_I32
            | S_CMP_EQ_U32
            | S_CMP_LG_I32
            | S_CMP_LG_U32
            | S_CMP_GT_I32
            | S_CMP_GE_I32
            | S_CMP_LT_I32
            | S_CMP_LE_I32
            | S_CMP_GT_U32
            | S_CMP_GE_U32
            | S_CMP_LT_U32
            | S_CMP_LE_U32
            | S_CMPK_EQ_I32
            | S_CMPK_LG_I32
            | S_CMPK_GT_I32
            | S_CMPK_GE_I32
            | S_CMPK_LT_I32
            | S_CMPK_LE_I32
            | S_CMPK_EQ_U32
            | S_CMPK_LG_U32
            | S_CMPK_GT_U32
            | S_CMPK_GE_U32
            | S_CMPK_LT_U32
            | S_CMPK_LE_U32
    );
    let in_place = |s: &Src| s.kind != Kind::Special;
    (compares || is_known && step.dst < SGPRS)
        && step.src.iter().all(in_place)
        && scalar::emit(&mut super::asm::Asm::new(), step)
}

/// Which registers hold the wave's at a place in the run.
struct Renaming<'a> {
    body: &'a Body<'a>,
    rows: HashMap<u16, u16>,
    scalars: HashMap<u16, u16>,
    next_row: usize,
    next_scalar: usize,
}

impl<'a> Renaming<'a> {
    fn new(body: &'a Body<'a>) -> Renaming<'a> {
        let shape = body.program.shape;
        Renaming {
            body,
            rows: HashMap::new(),
            scalars: HashMap::new(),
            next_row: (shape.vgprs + PREDECODE_VGPRS) * shape.halves,
            next_scalar: NAMED_SCALARS,
        }
    }

    fn halves(&self) -> usize {
        self.body.program.shape.halves
    }

    fn row(&self, row: u16) -> u16 {
        self.rows.get(&row).copied().unwrap_or(row)
    }

    fn scalar(&self, scalar: u16) -> u16 {
        self.scalars.get(&scalar).copied().unwrap_or(scalar)
    }

    /// The registers of so many dwords, which must still be one behind the other.
    fn consecutive(&self, first: u16, dwords: usize, step: u16, map: impl Fn(u16) -> u16) -> Option<u16> {
        let to = map(first);
        (1..dwords as u16).all(|d| map(first + d * step) == to + d * step).then_some(to)
    }

    /// The carries of a sum get a register of their own: one for both halves of a sum.
    fn carries(&mut self, step: &mut Step) -> Option<()> {
        let old = step.sdst;
        let is_second =
            step.op == Some(Op::V_ADD_CO_CI_U32) && self.scalars.get(&old) == Some(&step.src[2].index);
        step.sdst = if is_second { step.src[2].index } else { self.fresh_scalar(old)? };
        Some(())
    }

    fn fresh_scalar(&mut self, old: u16) -> Option<u16> {
        let new = self.next_scalar as u16;
        self.next_scalar += 1;
        self.scalars.insert(old, new);
        (self.next_scalar <= NAMED_SCALARS + RENAMED_SCALARS).then_some(new)
    }

    fn sources(&self, step: &mut Step, shape: &Shape, how: How) -> Option<()> {
        let halves = self.halves() as u16;
        for (k, dwords) in shape.sources.into_iter().enumerate() {
            let s = &mut step.src[k];
            let is_base = k == 2 && matches!(how, How::Load(t) if t.space == Space::Global);
            match s.kind {
                Kind::Vgpr | Kind::VgprMod => {
                    match self.consecutive(s.index, dwords, halves, |row| self.row(row)) {
                        Some(first) => s.index = first,
                        None if step.op == Some(Op::V_LSHLREV_B64) && k == 1 => {
                            let high = Src::vgpr(self.row(s.index + halves).into());
                            (s.index, step.src[2]) = (self.row(s.index), high);
                        }
                        None => return None,
                    }
                }
                Kind::Scalar | Kind::ScalarMod => {
                    let dwords = if is_base { 2 } else { dwords };
                    s.index = self.consecutive(s.index, dwords, 1, |scalar| self.scalar(scalar))?;
                }
                _ => {}
            }
        }
        Some(())
    }

    fn fresh_rows(&mut self, step: &mut Step, dwords: usize) -> Option<()> {
        let shape = self.body.program.shape;
        let end = (shape.vgprs + PREDECODE_VGPRS + RENAMED_VGPRS) * shape.halves;
        let to = self.next_row;
        self.next_row += dwords * shape.halves;
        if self.next_row > end {
            return None;
        }
        for d in 0..dwords {
            self.rows.insert(step.dst + (d * shape.halves) as u16, (to + d * shape.halves) as u16);
        }
        step.dst = to as u16;
        Some(())
    }

    /// A scalar step with renamed registers. One that reads its destination gets a copy of it first.
    fn scalar_step(&mut self, index: usize, steps: &mut Vec<Step>) -> Option<()> {
        let mut step = self.body.program.steps[index];
        for s in step.src.iter_mut().filter(|s| s.kind == Kind::Scalar) {
            s.index = self.scalar(s.index);
        }
        let has_result = info(step.op?).dst.first().is_some_and(|slot| slot.class != Class::V);
        if has_result {
            let old = self.scalar(step.dst);
            let new = self.fresh_scalar(step.dst)?;
            if step.op == Some(Op::S_ADDK_I32) {
                let mut copy = step;
                copy.op = Some(Op::S_MOV_B32);
                copy.src = [
                    Src { kind: Kind::Scalar, mods: 0, index: old, value: 0 },
                    Src::constant(0),
                    Src::constant(0),
                ];
                copy.dst = new;
                steps.push(copy);
            }
            step.dst = new;
        }
        steps.push(step);
        Some(())
    }

    fn turns(mut self, turns: usize, is_early: &[bool]) -> Option<Copies> {
        let body = self.body;
        let mut copies = Copies {
            scalars: Vec::new(),
            early: Vec::new(),
            late: Vec::new(),
            rows: Vec::new(),
            scalar_results: Vec::new(),
        };
        for turn in 0..turns {
            let (mut lanes, mut scalars) = (0, body.scalars.iter());
            let mut steps = Vec::new();
            for &is_scalar in &body.order {
                if is_scalar {
                    self.scalar_step(*scalars.next()?, &mut steps)?;
                    continue;
                }
                let (index, how) = body.lanes[lanes];
                let original = &body.program.steps[index];
                let shape = Shape::of(original, how)?;
                let mut step = *original;
                self.sources(&mut step, &shape, how)?;
                let is_early = is_early[lanes];
                lanes += 1;
                if is_sum(body.program, original) {
                    if !is_early {
                        return None;
                    }
                    self.carries(&mut step)?;
                }
                if is_early || (turn + 1 < turns && !self.reads_its_own(original, &shape)) {
                    self.fresh_rows(&mut step, shape.destination)?;
                } else {
                    for d in 0..shape.destination {
                        self.rows.remove(&(step.dst + (d * self.halves()) as u16));
                    }
                }
                let renamed = Renamed { step, how };
                if is_early { copies.early.push(renamed) } else { copies.late.push(renamed) }
            }
            copies.scalars.push(steps);
        }
        copies.rows = self.rows.into_iter().collect();
        copies.rows.sort_unstable();
        copies.scalar_results = self.scalars.into_iter().collect();
        copies.scalar_results.sort_unstable();
        Some(copies)
    }

    fn reads_its_own(&self, step: &Step, shape: &Shape) -> bool {
        let halves = self.halves();
        let range = |row: u16, dwords: usize| row as usize..row as usize + dwords * halves;
        let written = range(step.dst, shape.destination);
        let sources = step.src.iter().zip(shape.sources).filter(|(s, _)| s.is_vgpr());
        sources
            .map(|(s, dwords)| range(s.index, dwords))
            .any(|r| r.start < written.end && written.start < r.end)
    }
}
