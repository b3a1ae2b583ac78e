// SPDX-License-Identifier: MIT OR Apache-2.0
//! Straight runs of loads and accumulations that are an outer product, as guests' compilers make of the inner loop of a matrix
//! multiplication: many loads first, to registers of their own, then tiles of accumulators.
//!
//! INVARIANT: what is loaded has a row of its own until its last reader; at the end of the run every register that was loaded has
//! what the last load of it gave. Nothing else of the wave changes but the accumulators.

use std::collections::{HashMap, HashSet, VecDeque};

use iced_x86::Code;

use super::asm::{RENAMED, context};
use super::codes;
use super::context::JitContext;
use super::generator::{Emit, Gen};
use super::regs::{Piece, Spill};
use super::tiles;
use super::transfer::Transfer;
use crate::step::Step;
use crate::wave::{PREDECODE_VGPRS, RENAMED_VGPRS};

/// A step of a run, in the order of the program.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Load(Step, Transfer),
    Lane(Step, Emit),
}

/// Loads, and then accumulations in an order of tiles.
struct Batch {
    loads: Vec<(Step, Transfer)>,
    accumulations: Vec<(Step, Emit)>,
}

/// A run that can be done in batches.
pub(super) struct Products {
    batches: Vec<Batch>,
    /// Rows that are renamed at the end: to, from.
    moves: Vec<(u16, u16)>,
}

/// Rows that what is loaded can have.
struct Rows {
    /// The first row, and rows of a register.
    first: usize,
    halves: usize,
    /// How many registers now have this one, or will still read it.
    users: [usize; RENAMED_VGPRS],
}

impl Rows {
    /// The first row of so many registers that nobody uses.
    fn take(&mut self, registers: usize) -> Option<u16> {
        let at = self.users.windows(registers).position(|users| users.iter().all(|n| *n == 0))?;
        self.users[at..at + registers].fill(1);
        Some((self.first + at * self.halves) as u16)
    }

    fn user(&mut self, row: u16) -> Option<&mut usize> {
        self.users.get_mut((row as usize).checked_sub(self.first)? / self.halves)
    }
}

/// The state of a run that is divided.
struct Division<'a> {
    g: &'a Gen,
    rows: Rows,
    /// Where a register's last loaded value is.
    now: HashMap<u16, u16>,
    /// Accumulations that have not been done, by accumulator.
    waiting: Vec<(Piece, VecDeque<(Step, Emit)>)>,
    loads: Vec<(Step, Transfer)>,
    products: Products,
}

impl Products {
    /// Divides a run; `None` if it is no outer product, or what is loaded has no room.
    pub(super) fn of(g: &Gen, run: &[Part]) -> Option<Products> {
        let halves = g.shape.halves;
        let mut waiting: Vec<(Piece, VecDeque<(Step, Emit)>)> = Vec::new();
        for part in run {
            if let Part::Lane(step, _) = part {
                let to = g.accumulation(step)?.to;
                if !waiting.iter().any(|(known, _)| *known == to) {
                    waiting.push((to, VecDeque::new()));
                }
            }
        }
        let rows =
            Rows { first: (g.shape.vgprs + PREDECODE_VGPRS) * halves, halves, users: [0; RENAMED_VGPRS] };
        let products = Products { batches: Vec::new(), moves: Vec::new() };
        let mut division = Division { g, rows, now: HashMap::new(), waiting, loads: Vec::new(), products };
        let last = LastLoads::of(run, halves);
        for (at, part) in run.iter().enumerate() {
            match part {
                Part::Load(step, t) => division.load(step, t, last.are_by(at, step, t))?,
                Part::Lane(step, emit) => division.accumulate(step, *emit)?,
            }
        }
        if division.waiting.iter().any(|(_, steps)| !steps.is_empty()) {
            division.batch()?;
        }
        division.loads_only();
        if division.waiting.iter().any(|(_, steps)| !steps.is_empty()) {
            return None;
        }
        let mut moves: Vec<(u16, u16)> = division.now.into_iter().filter(|(to, from)| to != from).collect();
        moves.sort_unstable();
        Some(Products { moves, ..division.products })
    }
}

/// Registers' last loads, and those that are read before their first one.
struct LastLoads {
    last: HashMap<u16, usize>,
    read_before: HashSet<u16>,
    halves: usize,
}

impl LastLoads {
    fn of(run: &[Part], halves: usize) -> LastLoads {
        let mut found = LastLoads { last: HashMap::new(), read_before: HashSet::new(), halves };
        for (at, part) in run.iter().enumerate() {
            match part {
                Part::Load(step, t) => {
                    for row in loaded(step, t, halves) {
                        found.last.insert(row, at);
                    }
                }
                Part::Lane(step, _) => {
                    let read = step.src.iter().map(|s| s.index);
                    found.read_before.extend(read.filter(|row| !found.last.contains_key(row)));
                }
            }
        }
        found
    }

    /// Whether the load at `at` is the last one of all its registers, which nobody needs before.
    fn are_by(&self, at: usize, step: &Step, t: &Transfer) -> bool {
        let mut rows = loaded(step, t, self.halves);
        rows.all(|row| self.last.get(&row) == Some(&at) && !self.read_before.contains(&row))
    }
}

/// The first rows of the registers that a load writes.
fn loaded(step: &Step, t: &Transfer, halves: usize) -> impl Iterator<Item = u16> + use<> {
    let first = step.dst;
    (0..t.dwords * t.parts).map(move |d| first + (d * halves) as u16)
}

impl Division<'_> {
    fn load(&mut self, step: &Step, t: &Transfer, is_last: bool) -> Option<()> {
        let registers = t.dwords * t.parts;
        let mut renamed = *step;
        if !is_last {
            renamed.dst = match self.rows.take(registers) {
                Some(row) => row,
                None => {
                    self.batch()?;
                    self.rows.take(registers)?
                }
            };
        }
        for (row, to) in loaded(step, t, self.rows.halves).zip(loaded(&renamed, t, self.rows.halves)) {
            if self.waiting.iter().any(|(accumulator, _)| *accumulator == self.g.piece(row, 0, 0)) {
                return None;
            }
            if let Some(users) = self.now.insert(row, to).and_then(|old| self.rows.user(old)) {
                *users -= 1;
            }
        }
        self.loads.push((renamed, *t));
        Some(())
    }

    fn accumulate(&mut self, step: &Step, emit: Emit) -> Option<()> {
        let to = self.g.accumulation(step)?.to;
        let mut renamed = *step;
        for s in &mut renamed.src[..2] {
            s.index = self.now.get(&s.index).copied().unwrap_or(s.index);
            if let Some(users) = self.rows.user(s.index) {
                *users += 1;
            }
        }
        self.waiting.iter_mut().find(|(known, _)| *known == to)?.1.push_back((renamed, emit));
        Some(())
    }

    /// Loads behind the last accumulation.
    fn loads_only(&mut self) {
        if !self.loads.is_empty() {
            let loads = std::mem::take(&mut self.loads);
            self.products.batches.push(Batch { loads, accumulations: Vec::new() });
        }
    }

    /// Ends a batch: as many accumulations as every accumulator has waiting.
    fn batch(&mut self) -> Option<()> {
        let turns = self.waiting.iter().map(|(_, steps)| steps.len()).min()?;
        let mut steps = Vec::with_capacity(turns * self.waiting.len());
        for turn in 0..turns {
            for (_, waiting) in &self.waiting {
                steps.push(*waiting.get(turn)?);
            }
        }
        for (_, waiting) in &mut self.waiting {
            waiting.drain(..turns);
        }
        let list: Option<Vec<_>> = steps.iter().map(|(step, _)| self.g.accumulation(step)).collect();
        let order = tiles::order(&list?, self.g.wide.registers())?;
        for s in steps.iter().flat_map(|(step, _)| &step.src[..2]) {
            if let Some(users) = self.rows.user(s.index) {
                *users -= 1;
            }
        }
        let accumulations = order.into_iter().map(|k| steps[k]).collect();
        self.products.batches.push(Batch { loads: std::mem::take(&mut self.loads), accumulations });
        Some(())
    }
}

impl Gen {
    /// Stores what was loaded for piece `c`, which registers still have, for piece `again` as well.
    fn store_again(&mut self, s: &Step, t: &Transfer, c: usize, again: usize) {
        for d in 0..t.parts * t.dwords {
            let [from, to] = [c, again].map(|c| self.piece(s.dst, d, c));
            if let Some(register) = self.regs.find(to) {
                self.regs.free(register);
            }
            match self.regs.find(from) {
                Some(register) => self.store(Spill { register, piece: to }),
                None => {
                    let register = self.hold(from);
                    self.load(register, from);
                    self.store(Spill { register, piece: to });
                    self.regs.end_operation();
                }
            }
        }
    }

    /// Emits a run whose accesses have been checked.
    pub(super) fn products(&mut self, products: &Products) {
        let rows = context(std::mem::offset_of!(JitContext, renamed));
        self.asm.op2(Code::Mov_r64_rm64, RENAMED, rows);
        for Batch { loads, accumulations } in &products.batches {
            for (step, t) in loads {
                let pieces = self.different_pieces(step, t);
                for c in 0..pieces {
                    self.load_piece(step, t, c);
                    self.write_back(false);
                    if pieces < self.pieces() {
                        self.store_again(step, t, c, c + pieces);
                    }
                }
            }
            let accumulations: Vec<(&Step, Emit)> =
                accumulations.iter().map(|(step, emit)| (step, *emit)).collect();
            if !accumulations.is_empty() {
                self.for_all_pieces(&accumulations);
            }
        }
        for &(to, from) in &products.moves {
            for c in 0..self.pieces() {
                let from = self.piece(from, 0, c);
                let from = self.piece_register(from);
                self.finish(codes::MOVE, to, 0, c, &[from.into()]);
                self.end_operation(&[]);
            }
        }
        self.write_back(true);
    }
}
