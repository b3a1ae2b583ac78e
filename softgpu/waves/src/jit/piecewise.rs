// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of loads and lane-wise operations, done for one piece of the rows after the other, so that accumulators stay in
//! registers from the first load to the last.
//!
//! INVARIANT: all accesses are checked before anything is changed. The loads' addresses are not written in the run, and
//! what is known of them is known before the program runs; so the pieces do not depend on each other.

use std::collections::HashSet;

use super::asm::Label;
use super::emit::Emitter;
use super::flow::{Item, Unit, What};
use super::generator::{Accesses, next_accesses};
use super::order;
use super::products::{Part, Products};
use super::region::SPARE;

use super::regs::Piece;
use super::touch::Touch;
use super::transfer::{KNOWN, Kept, Space, Transfer, address_dwords};
use super::{lane, vmem};

/// A run with fewer loads, or fewer lane-wise operations, is not worth an end of its region.
const LOADS: usize = 3;
const LANES: usize = 6;
/// Registers that pieces side by side leave for results that are needed at once.
const MORE: usize = 4;

/// An operation on a piece.
#[derive(Clone, Copy)]
enum Work {
    Lane(Item),
    Load(Item, Transfer),
}

impl Work {
    fn of(units: &[Unit]) -> Vec<Work> {
        let mut work = Vec::new();
        for unit in units {
            match unit {
                Unit::Lanes(items) => work.extend(items.iter().map(|&item| Work::Lane(item))),
                Unit::One(item) => match item.what {
                    What::Transfer(t) => work.push(Work::Load(*item, t)),
                    _ if item.lane().is_some() => work.push(Work::Lane(*item)),
                    _ => {}
                },
            }
        }
        work
    }

    /// In the order of the program.
    fn in_order(work: &[Work]) -> Vec<Work> {
        let mut work = work.to_vec();
        work.sort_by_key(|w| w.item().index);
        work
    }

    fn item(&self) -> &Item {
        match self {
            Work::Lane(item) | Work::Load(item, _) => item,
        }
    }
}

impl Emitter<'_> {
    /// How many of `units`, which begin at this point of the code, are a run, and whether it is worth it.
    pub(super) fn piecewise_run(&mut self, units: &[Unit]) -> (usize, bool) {
        let Some(facts) = self.facts.clone() else { return (0, false) };
        self.g.facts = Some(facts);
        let (mut count, mut loads, mut lanes) = (0, 0, 0);
        let mut all = Touch::default();
        let mut scalars = Touch::default();
        let mut addresses = HashSet::new();
        for unit in units {
            if let Some(items) = unit.lanes() {
                if !items.iter().all(stays_in_its_piece) {
                    break;
                }
                items.iter().for_each(|item| all.add(&item.touch));
                lanes += items.len();
            }
            match unit {
                Unit::One(item) => match item.what {
                    _ if item.lane().is_some() => {}
                    What::Transfer(t) if self.is_independent(item, &t, &all, &scalars) => {
                        let step = &self.program.steps[item.index];
                        addresses.insert((step.src[0].index, Kept::of(step, &t)));
                        // What is known of an address is not found again: its register may be written by then.
                        if addresses.len() * self.g.pieces() > KNOWN {
                            break;
                        }
                        all.add(&item.touch);
                        loads += 1;
                    }
                    What::Scalar if !item.touch.conflicts(&all) => scalars.add(&item.touch),
                    _ => break,
                },
                Unit::Lanes(_) => {}
            }
            count += 1;
        }
        self.g.facts = None;
        (count, loads >= LOADS && lanes >= LANES)
    }

    /// Whether a transfer is a load whose address is known, and neither written in the run nor read from its scalars.
    fn is_independent(&self, item: &Item, t: &Transfer, all: &Touch, scalars: &Touch) -> bool {
        let step = &self.program.steps[item.index];
        let halves = self.g.shape.halves;
        let dwords = address_dwords(step, t);
        let first = step.src[0].index as usize / halves;
        let is_kept = || {
            let mut address = first..first + dwords;
            address.end <= self.g.shape.vgprs && address.all(|register| !all.writes_register(register))
        };
        let is_known = || is_kept() && self.g.pattern(step, t).is_some();
        !t.store && !item.touch.reads_scalars_of(scalars) && (dwords == 0 || is_known())
    }

    /// Emits a run; to `otherwise`, with nothing changed, if an access is not allowed or not inline.
    pub(super) fn piecewise(&mut self, units: &[Unit], otherwise: Label) {
        self.g.addresses.clear();
        self.g.facts.clone_from(&self.facts);
        self.check_all(units, otherwise);
        for unit in units {
            if let Unit::One(item @ Item { what: What::Scalar, .. }) = unit {
                self.scalar_step(item.index);
            }
        }
        let work = Work::of(units);
        // In the order of the program few results wait, if loads come late; in that of chains, accumulators change seldom.
        let in_order = Work::in_order(&work);
        let late = self.loads_late(&in_order);
        let (registers, pieces) = (self.g.wide.registers(), self.g.pieces());
        let live = self.live(&late);
        if live + SPARE > registers
            && let Some(products) = self.products_of(&in_order)
        {
            self.g.products(&products);
            self.g.facts = None;
            return;
        }
        let order = if live + SPARE <= registers { late } else { work };
        let list = order::by_pieces(&order, pieces, order::side_by_side(live, pieces, registers, MORE));
        let accesses: Vec<Accesses> = list.iter().map(|(w, c)| self.accesses_of_piece(w, *c)).collect();
        let accesses = next_accesses(&accesses, self.g.all_pieces(), |_| false);
        for ((w, c), accesses) in list.iter().zip(&accesses) {
            let step = &self.program.steps[w.item().index];
            match w {
                Work::Lane(item) => {
                    if let Some(emit) = item.lane() {
                        emit(&mut self.g, step, *c);
                    }
                }
                Work::Load(_, t) => self.g.load_piece(step, t, *c),
            }
            self.g.end_operation(accesses);
        }
        self.g.write_back(true);
        self.g.facts = None;
    }

    /// A run in tiles, if it is an outer product.
    fn products_of(&self, run: &[Work]) -> Option<Products> {
        let part = |w: &Work| {
            let step = self.program.steps[w.item().index];
            match w {
                Work::Lane(item) => item.lane().map(|emit| Part::Lane(step, emit)),
                Work::Load(_, t) => Some(Part::Load(step, *t)),
            }
        };
        let run: Option<Vec<Part>> = run.iter().map(part).collect();
        Products::of(&self.g, &run?)
    }

    /// Whether a run is an outer product.
    #[cfg(test)]
    pub(super) fn has_products(&self, units: &[Unit]) -> bool {
        self.products_of(&Work::in_order(&Work::of(units))).is_some()
    }

    /// Checks all accesses. Of those in LDS with one address, only the one that reaches furthest.
    fn check_all(&mut self, units: &[Unit], otherwise: Label) {
        let mut checked: Vec<(usize, Transfer)> = Vec::new();
        for unit in units {
            let Unit::One(Item { index, what: What::Transfer(t), .. }) = unit else { continue };
            let row = |index: usize| self.program.steps[index].src[0].index;
            let is_same = |other: usize, u: &Transfer| {
                (u.space, t.space) == (Space::Lds, Space::Lds) && row(other) == row(*index)
            };
            match checked.iter_mut().find(|(other, u)| is_same(*other, u)) {
                Some((other, u)) if u.reach() < t.reach() => (*other, *u) = (*index, *t),
                Some(_) => {}
                None => checked.push((*index, *t)),
            }
        }
        let checks = self.checks;
        for (index, t) in checked {
            self.g.check(&self.program.steps[index], &t, &checks, otherwise);
        }
    }

    /// The same work, with every load in front of the first operation that reads or writes what is loaded.
    fn loads_late(&self, work: &[Work]) -> Vec<Work> {
        let mut order = Vec::with_capacity(work.len());
        let mut waiting: Vec<(Work, Vec<Piece>)> = Vec::new();
        for w in work {
            let pieces: Vec<Piece> = self.accesses_of_piece(w, 0).iter().map(|a| a.piece).collect();
            let shares = |other: &[Piece]| other.iter().any(|piece| pieces.contains(piece));
            // Loads of the same registers keep their order, since both wait or the first one has left.
            let mut k = 0;
            while k < waiting.len() {
                if shares(&waiting[k].1) { order.push(waiting.remove(k).0) } else { k += 1 }
            }
            match w {
                Work::Load(..) => waiting.push((*w, pieces)),
                Work::Lane(_) => order.push(*w),
            }
        }
        order.extend(waiting.into_iter().map(|(w, _)| w));
        order
    }

    /// Most pieces that are read later at any point of `work`, of those with the same lanes.
    fn live(&self, work: &[Work]) -> usize {
        let list: Vec<Accesses> = work.iter().map(|w| self.accesses_of_piece(w, 0)).collect();
        let mut live = HashSet::new();
        let mut most = 0;
        for accesses in list.iter().rev() {
            for a in accesses.iter().filter(|a| a.overwrites) {
                live.remove(&a.piece);
            }
            live.extend(accesses.iter().filter(|a| !a.overwrites).map(|a| a.piece));
            most = most.max(live.len());
        }
        most
    }

    fn accesses_of_piece(&self, w: &Work, c: usize) -> Accesses {
        let step = &self.program.steps[w.item().index];
        match w {
            Work::Lane(_) => lane::accesses(&self.g, step, c, false),
            Work::Load(_, t) => vmem::loaded(&self.g, step, t, c),
        }
    }
}

/// Whether a lane-wise operation writes nothing but its own lanes of VGPRs.
fn stays_in_its_piece(item: &Item) -> bool {
    !item.alone && item.touch.written_scalars() == 0
}
