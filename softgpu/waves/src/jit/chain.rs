// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks that only the block in front of them leads to, emitted together with it: rows stay in registers over changes of
//! EXEC, and over branches that leave.
//!
//! INVARIANT: where such a branch is taken, all state is written to the wave, out of line, before the target's code runs.

use std::collections::{HashSet, VecDeque};

use iced_x86::Code;

use super::asm::Label;
use super::emit::Emitter;
use super::exits::Cold;
use super::flow::{self, Item, Unit};
use super::generator::{Accesses, next_accesses};
use super::lane_masks::LaneMasks;
use super::regs::Spill;
use super::{lane, lane_scalars, masks, scalar};
use crate::predecoded::Predecoded;

/// Most steps of blocks that are emitted together: the control is looked at as often.
const MOST: usize = 1000;

/// A piece of blocks that are emitted together.
pub(super) enum Link {
    /// Lane-wise operations, a transfer, or a scalar step that is inline.
    Unit(Unit),
    /// A branch that leaves, or not.
    Exit(Item),
    /// The head of the next block, by its number.
    Head(usize),
    /// Quick code is left in front of this step unless all lanes are active.
    Test(usize),
}

impl Link {
    fn is_transfer(&self) -> bool {
        matches!(self, Link::Unit(Unit::One(item)) if item.is_transfer())
    }

    /// Whether EXEC may be another one behind it, or the code may be left.
    fn is_boundary(&self) -> bool {
        match self {
            Link::Unit(Unit::Lanes(items)) => items.last().is_some_and(|item| item.touch.writes_exec()),
            Link::Unit(Unit::One(item)) => item.touch.writes_exec(),
            Link::Exit(_) | Link::Head(_) => true,
            Link::Test(_) => false,
        }
    }
}

/// How many links from the first one on are a chain: no access, and lane-wise operations on both sides of a change of EXEC or of
/// a branch. 0 if there is none. What is between the last boundary and an access is left to the access's region.
fn chain_length(links: &[Link]) -> usize {
    let length = match links.iter().position(Link::is_transfer) {
        Some(access) => links[..access].iter().rposition(Link::is_boundary).map_or(0, |last| last + 1),
        None => links.len(),
    };
    let has_lanes =
        |part: &&[Link]| part.iter().any(|link| matches!(link, Link::Unit(unit) if unit.lanes().is_some()));
    let parts = links[..length].split_inclusive(Link::is_boundary).filter(has_lanes).count();
    if parts >= 2 { length } else { 0 }
}

/// An operation of a chain.
enum Work {
    Lane(Item, usize),
    Scalar(Item),
    Exit(Item),
    Head(usize),
    Test(usize),
}

/// A place behind a change of EXEC.
struct Change {
    label: Label,
    /// Those that are newer than memory, or all that hold pieces.
    registers: Vec<Spill>,
    /// The place in the context that has EXEC as lanes.
    exec: Option<usize>,
}

/// Which blocks are emitted with the one in front of them: those behind a conditional branch that nothing jumps to. Loops of
/// one block are left to themselves.
pub(super) fn absorbed(program: &Predecoded, leaders: &[usize]) -> Vec<bool> {
    let targets: HashSet<usize> = program.steps.iter().map(|step| step.target as usize).collect();
    let mut absorbed = vec![false; leaders.len()];
    let mut head = 0;
    for k in 1..leaders.len() {
        let (first, end) = (leaders[k], leaders.get(k + 1).copied().unwrap_or(program.steps.len()));
        let branch = &program.steps[first - 1];
        let is_loop = head + 1 == k && branch.target as usize == leaders[head];
        let is_entry = first == program.entry.1 || targets.contains(&first);
        absorbed[k] = flow::is_conditional(branch) && !is_loop && !is_entry && end - leaders[head] <= MOST;
        if !absorbed[k] {
            head = k;
        }
    }
    absorbed
}

impl Emitter<'_> {
    /// Emits links in their order: as chains where registers would else go to memory and back, or as regions.
    pub(super) fn links(&mut self, links: Vec<Link>) {
        let mut links = VecDeque::from(links);
        let mut region: Vec<Unit> = Vec::new();
        while !links.is_empty() {
            let length = if region.is_empty() { chain_length(links.make_contiguous()) } else { 0 };
            if length > 0 {
                let chain: Vec<Link> = links.drain(..length).collect();
                self.chain(&chain);
                continue;
            }
            let Some(link) = links.pop_front() else { break };
            let is_boundary = link.is_boundary();
            match link {
                Link::Unit(Unit::One(item)) if is_boundary => {
                    self.region(std::mem::take(&mut region));
                    self.scalar_or_call(self.first, &item);
                }
                Link::Unit(unit) => {
                    region.push(unit);
                    if is_boundary {
                        self.region(std::mem::take(&mut region));
                    }
                }
                Link::Exit(item) => {
                    self.region(std::mem::take(&mut region));
                    self.exit(&item);
                }
                Link::Head(block) => {
                    self.region(std::mem::take(&mut region));
                    self.enter(block);
                }
                Link::Test(step) => {
                    self.region(std::mem::take(&mut region));
                    self.leave_unless_all_lanes(step);
                }
            }
        }
        self.region(region);
    }

    /// What is known at the head of a block.
    pub(super) fn enter(&mut self, block: usize) {
        self.facts = self.heads.get(block).cloned().flatten();
    }

    /// Emits a chain: for all lanes active, which is looked at after every change of EXEC, and for any.
    fn chain(&mut self, links: &[Link]) {
        if self.is_quick() {
            self.chain_variant(links, false);
            return;
        }
        let (any, over) = (self.g.asm.label(), self.g.asm.label());
        self.test_all_lanes(any);
        let facts = self.facts.clone();
        let from = self.chain_variant(links, false);
        self.facts = facts;
        self.g.asm.jump(Code::Jmp_rel32_64, over);
        self.g.asm.place(any);
        let to = self.chain_variant(links, true);
        self.g.asm.place(over);
        for (from, to) in from.into_iter().zip(to) {
            self.cold.push(Cold::Other {
                label: from.label,
                dirty: from.registers,
                held: to.registers,
                exec: to.exec,
                resume: to.label,
            });
        }
    }

    /// One of them. Returns the places behind changes of EXEC: where the first one leaves, and what it has to store; where the
    /// second one can be entered, and what has to be loaded.
    fn chain_variant(&mut self, links: &[Link], masked: bool) -> Vec<Change> {
        let list = self.chain_work(links, masked);
        let accesses: Vec<Accesses> = list
            .iter()
            .map(|work| match work {
                Work::Lane(item, c) => lane::accesses(&self.g, &self.program.steps[item.index], *c, masked),
                Work::Scalar(item) => lane_scalars::accesses(&self.g, &self.program.steps[item.index]),
                Work::Exit(_) | Work::Head(_) | Work::Test(_) => Accesses::new(),
            })
            .collect();
        let changes_exec = |work: &Work| match work {
            Work::Lane(item, c) => item.touch.writes_exec() && c + 1 == self.g.pieces(),
            Work::Scalar(item) => item.touch.writes_exec(),
            Work::Exit(_) | Work::Head(_) | Work::Test(_) => false,
        };
        let changes: Vec<bool> = list.iter().map(changes_exec).collect();
        let is_exit = |work: &Work| matches!(work, Work::Exit(_) | Work::Test(_));
        let leaves = |position: usize| changes[position] || is_exit(&list[position]);
        let accesses = next_accesses(&accesses, self.g.all_pieces(), leaves);
        self.g.addresses.clear();
        self.g.masked = masked;
        if masked {
            self.g.load_exec_masks();
        }
        self.g.lane_masks = LaneMasks::default();
        let wanted = self.wanted_masks(&list, &changes);
        let mut places = Vec::new();
        let mut piece = usize::MAX;
        for (((work, accesses), changes_exec), wanted) in list.iter().zip(&accesses).zip(&changes).zip(wanted)
        {
            self.g.lane_masks.wanted = wanted;
            let mut has_masks = false;
            match work {
                Work::Lane(item, c) => {
                    self.lane(item, *c, &mut piece, accesses);
                    if *c + 1 == self.g.pieces() {
                        self.pass(item.index);
                    }
                }
                Work::Scalar(item) => {
                    has_masks = masked && self.g.change_exec_masks(&self.program.steps[item.index]);
                    self.scalar_between(item);
                    self.g.end_operation(accesses);
                    self.pass(item.index);
                }
                Work::Exit(item) => self.exit(item),
                Work::Head(block) => self.enter(*block),
                Work::Test(step) => self.leave_unless_all_lanes(*step),
            }
            if *changes_exec && !self.is_quick() {
                places.push(self.changed(masked, has_masks));
                piece = usize::MAX;
            }
        }
        let scalars = |work| if let &Work::Scalar(item) = work { Some(item) } else { None };
        self.end_variant(list.iter().rev().map_while(scalars));
        self.g.lane_masks = LaneMasks::default();
        places
    }

    /// Behind a change of EXEC; if `has_masks`, its masks have been changed, too.
    fn changed(&mut self, masked: bool, has_masks: bool) -> Change {
        let label = self.g.asm.label();
        if !masked {
            self.test_all_lanes(label);
            return Change { label, registers: self.g.regs.dirty(), exec: None };
        }
        if !has_masks {
            self.g.lane_masks.forget_exec();
            self.g.load_exec_masks();
        }
        // Only pieces and masks of EXEC are loaded where the other variant goes on here.
        self.g.regs.forget_constants();
        self.g.asm.place(label);
        Change { label, registers: self.g.regs.held(), exec: self.g.lane_masks.exec() }
    }

    /// For every operation of a chain the scalar whose bits the next change of EXEC, or this one, leaves in EXEC.
    fn wanted_masks(&self, list: &[Work], changes: &[bool]) -> Vec<Option<u16>> {
        let mut wanted = Vec::with_capacity(list.len());
        let mut next = None;
        for (work, changes) in list.iter().zip(changes).rev() {
            match work {
                Work::Scalar(item) if *changes => next = masks::left_in(&self.program.steps[item.index]),
                _ if *changes => next = None,
                _ => {}
            }
            wanted.push(next);
        }
        wanted.reverse();
        wanted
    }

    fn chain_work(&self, links: &[Link], masked: bool) -> Vec<Work> {
        let mut list = Vec::new();
        for link in links {
            match link {
                Link::Unit(Unit::One(item)) if item.lane().is_none() => list.push(Work::Scalar(*item)),
                Link::Unit(unit) => {
                    let operations = self.lanes(unit.lanes().unwrap_or_default(), masked);
                    list.extend(operations.into_iter().map(|(item, c)| Work::Lane(item, c)));
                }
                Link::Exit(item) => list.push(Work::Exit(*item)),
                Link::Head(block) => list.push(Work::Head(*block)),
                Link::Test(step) => list.push(Work::Test(*step)),
            }
        }
        list
    }

    /// A branch in the middle of blocks that are emitted together.
    fn exit(&mut self, item: &Item) {
        let step = &self.program.steps[item.index];
        let taken = step.op.and_then(|op| scalar::condition(&mut self.g.asm, op, self.g.shape));
        let Some(taken) = taken else { return };
        let label = self.g.asm.label();
        self.g.asm.jump(taken, label);
        let count = self.ordinal(item.index) - self.ordinal(self.first) + 1;
        let (target, dirty) = (step.target as usize, self.g.regs.dirty());
        self.cold.push(Cold::Branch { label, count, backward: target <= item.index, target, dirty });
    }
}
