// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quick code: for all lanes active only, which is looked at at the head of a block and behind every change of EXEC. Where they are
//! not, the interpreter goes on.
//!
//! INVARIANT: where it is left, the steps in front of the one that is next have been done, and no others.

use super::context::Exit;
use super::emit::Emitter;
use super::exits::Cold;
use super::flow::{Item, Unit};
use super::transfer::{Transfer, address_dwords};
use crate::engine::Effort;

impl Unit {
    pub(super) fn items(&self) -> &[Item] {
        match self {
            Unit::Lanes(items) => items,
            Unit::One(item) => std::slice::from_ref(item),
        }
    }
}

impl Emitter<'_> {
    pub(super) fn is_quick(&self) -> bool {
        self.effort == Effort::Quick
    }

    /// For each unit of a block the step in front of which quick code is left, if it is looked there whether all lanes are active: at the
    /// head and behind changes of EXEC, if anything goes by lanes before the next change.
    pub(super) fn lane_tests(&mut self, units: &[Unit]) -> Vec<Option<usize>> {
        let mut tests = vec![None; units.len()];
        if !self.is_quick() {
            return tests;
        }
        let mut start = 0;
        while start < units.len() {
            let changes = |unit: &Unit| unit.items().iter().any(|item| item.touch.writes_exec());
            let end =
                units[start..].iter().position(changes).map_or(units.len(), |change| start + change + 1);
            let goes_by_lanes =
                |unit: &Unit| unit.lanes().is_some() || unit.items().iter().any(Item::is_transfer);
            if units[start..end].iter().any(goes_by_lanes) {
                let steps = |units: &[Unit]| {
                    units.iter().flat_map(Unit::items).map(|item| item.index).collect::<Vec<_>>()
                };
                let next = steps(&units[start..]).into_iter().min();
                // Nothing changes places with what changes EXEC.
                if steps(&units[..start]).into_iter().max() >= next {
                    self.g.exhausted = true;
                }
                tests[start] = next;
            }
            start = end;
        }
        tests
    }

    /// Whether an access is done by its handler even where all lanes are active: code that finds out how its lanes are apart is long.
    pub(super) fn is_left_to_handler(&self, index: usize, t: &Transfer) -> bool {
        let step = &self.program.steps[index];
        self.is_quick() && address_dwords(step, t) > 0 && self.g.pattern(step, t).is_none()
    }

    /// Leaves for the interpreter, in front of a step, unless all lanes are active.
    pub(super) fn leave_unless_all_lanes(&mut self, step: usize) {
        let label = self.g.asm.label();
        self.test_all_lanes(label);
        let count = self.ordinal(step) - self.ordinal(self.first);
        let dirty = self.g.regs.dirty();
        self.cold.push(Cold::Leave { label, count, exit: Exit::Lanes, step, dirty });
    }
}
