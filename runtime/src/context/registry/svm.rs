// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of shared virtual memory: what was set for which addresses of the process.
//!
//! INVARIANT: ranges are whole pages, in order, and never overlap. What is saved of one is enough to set it again in a driver that knows
//! nothing of it.

use std::collections::BTreeMap;
use std::ops::Range;

use kfd::ioctl;
pub use kfd::ioctl::SvmUse;
use serde::{Deserialize, Serialize};

use super::arena::PAGE;
use super::persist::Persist;
use super::state::AgentIndex;

/// Where the memory of a range is to be.
pub type SvmPlace = ioctl::SvmPlace<AgentIndex>;
/// Something that is set for a range.
pub type SvmAttribute = ioctl::SvmAttribute<AgentIndex>;
/// What is set for all of a range; how each agent may use it, in the agents' order.
pub type SvmAnswer = ioctl::SvmAnswer<AgentIndex>;

/// All that was set for a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SvmState {
    preferred: Option<SvmPlace>,
    prefetch: Option<SvmPlace>,
    granularity: Option<u32>,
    /// Flags that were set last, and those that were cleared last.
    set: u32,
    clear: u32,
    uses: BTreeMap<AgentIndex, SvmUse>,
}

impl SvmState {
    fn change(&mut self, attribute: SvmAttribute) {
        match attribute {
            SvmAttribute::Preferred(place) => self.preferred = Some(place),
            SvmAttribute::Prefetch(place) => self.prefetch = Some(place),
            SvmAttribute::Access(agent, access) => drop(self.uses.insert(agent, access)),
            SvmAttribute::SetFlags(flags) => (self.set, self.clear) = (self.set | flags, self.clear & !flags),
            SvmAttribute::ClearFlags(flags) => {
                (self.set, self.clear) = (self.set & !flags, self.clear | flags)
            }
            SvmAttribute::Granularity(pages) => self.granularity = Some(pages),
        }
    }

    /// What sets all of it anew.
    pub fn attributes(&self) -> Vec<SvmAttribute> {
        let flags = [SvmAttribute::SetFlags(self.set), SvmAttribute::ClearFlags(self.clear)];
        let flags = flags
            .into_iter()
            .filter(|flags| !matches!(flags, SvmAttribute::SetFlags(0) | SvmAttribute::ClearFlags(0)));
        let access = self.uses.iter().map(|(agent, access)| SvmAttribute::Access(*agent, *access));
        let all = self.granularity.map(SvmAttribute::Granularity).into_iter();
        let all = all.chain(self.preferred.map(SvmAttribute::Preferred)).chain(flags).chain(access);
        // Last: it moves the memory.
        all.chain(self.prefetch.map(SvmAttribute::Prefetch)).collect()
    }

    /// The agents that may use it, and how.
    pub fn users(&self) -> impl Iterator<Item = (AgentIndex, SvmUse)> {
        self.uses.iter().map(|(agent, access)| (*agent, *access)).filter(|(_, access)| *access != SvmUse::No)
    }
}

/// A range, as it is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SvmRangeState {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// What was set.
    pub state: SvmState,
}

/// Saved ranges that are not whole pages, out of order, or overlap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The saved range {0:#x?} is not whole pages behind the one before it")]
pub struct SvmRangeFault(pub Range<u64>);

/// All ranges: the first address of each, with the end and what was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SvmRanges {
    ranges: BTreeMap<u64, (u64, SvmState)>,
    /// Whether the driver has them; not saved.
    is_made: bool,
}

impl SvmRanges {
    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &SvmState)> {
        self.ranges.iter().map(|(&start, (end, state))| (start..*end, state))
    }

    /// Whether the driver has them.
    pub fn is_made(&self) -> bool {
        self.is_made
    }

    /// Notes whether the driver has them.
    pub fn set_made(&mut self, is_made: bool) {
        self.is_made = is_made;
    }

    /// Forgets addresses outside of these, which are in order: what the process has unmapped, the driver has forgotten.
    pub fn keep_only(&mut self, mapped: &[Range<u64>]) {
        let mut hole = 0;
        for range in mapped.iter().cloned().chain(std::iter::once(u64::MAX..u64::MAX)) {
            if hole < range.start && self.iter().any(|(held, _)| held.start < range.start && hole < held.end)
            {
                self.forget(&(hole..range.start));
            }
            hole = hole.max(range.end);
        }
    }

    /// How an agent may use each part of these addresses.
    pub fn uses(&self, agent: AgentIndex, addresses: &Range<u64>) -> Vec<(Range<u64>, SvmUse)> {
        let mut parts = Vec::new();
        let mut at = addresses.start;
        for (held, state) in
            self.iter().filter(|(held, _)| held.start < addresses.end && addresses.start < held.end)
        {
            let (start, end) = (held.start.max(addresses.start), held.end.min(addresses.end));
            if at < start {
                parts.push((at..start, SvmUse::No));
            }
            let how = state.users().find(|(user, _)| *user == agent).map_or(SvmUse::No, |(_, how)| how);
            parts.push((start..end, how));
            at = end;
        }
        if at < addresses.end {
            parts.push((at..addresses.end, SvmUse::No));
        }
        parts
    }

    /// Whether an agent may use all of these addresses.
    pub fn lets(&self, agent: AgentIndex, addresses: &Range<u64>) -> bool {
        self.uses(agent, addresses).iter().all(|(_, how)| *how != SvmUse::No)
    }

    /// Has a range begin at `at`, if one goes over it.
    fn cut(&mut self, at: u64) {
        let before = self.ranges.range_mut(..at).next_back().filter(|(_, (end, _))| *end > at);
        if let Some((_, (end, state))) = before {
            let behind = (std::mem::replace(end, at), state.clone());
            self.ranges.insert(at, behind);
        }
    }

    /// Forgets what was set for these addresses.
    pub fn forget(&mut self, addresses: &Range<u64>) {
        self.cut(addresses.start);
        self.cut(addresses.end);
        self.ranges.retain(|start, _| !addresses.contains(start));
    }

    /// Notes what was set for these addresses, whole pages.
    pub fn set(&mut self, addresses: &Range<u64>, attributes: &[SvmAttribute]) {
        self.cut(addresses.start);
        self.cut(addresses.end);
        let inside: Vec<Range<u64>> =
            self.ranges.range(addresses.clone()).map(|(&start, (end, _))| start..*end).collect();
        let mut gap = addresses.start;
        for range in inside.into_iter().chain(std::iter::once(addresses.end..addresses.end)) {
            if gap < range.start {
                self.ranges.insert(gap, (range.start, SvmState::default()));
            }
            gap = range.end;
        }
        self.is_made = true;
        for (_, (_, state)) in self.ranges.range_mut(addresses.clone()) {
            attributes.iter().for_each(|attribute| state.change(*attribute));
        }
        self.merge();
    }

    /// Makes one range of neighbours for which the same was set.
    fn merge(&mut self) {
        let mut merged: Vec<(u64, (u64, SvmState))> = Vec::new();
        for (start, (end, state)) in std::mem::take(&mut self.ranges) {
            match merged.last_mut() {
                Some((_, (last, same))) if *last == start && *same == state => *last = end,
                _ => merged.push((start, (end, state))),
            }
        }
        self.ranges = merged.into_iter().collect();
    }
}

impl Persist for SvmRanges {
    type State = Vec<SvmRangeState>;
    type Args = ();
    type Error = SvmRangeFault;

    fn save(&self) -> Self::State {
        self.iter().map(|(addresses, state)| SvmRangeState { addresses, state: state.clone() }).collect()
    }

    fn restore((): (), state: &Self::State) -> Result<Self, SvmRangeFault> {
        let mut end = 0;
        for SvmRangeState { addresses, .. } in state {
            let is_whole = addresses.start.is_multiple_of(PAGE) && addresses.end.is_multiple_of(PAGE);
            if !is_whole || addresses.is_empty() || addresses.start < end {
                return Err(SvmRangeFault(addresses.clone()));
            }
            end = addresses.end;
        }
        let entry =
            |range: &SvmRangeState| (range.addresses.start, (range.addresses.end, range.state.clone()));
        Ok(SvmRanges { ranges: state.iter().map(entry).collect(), is_made: false })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGENT: AgentIndex = AgentIndex(1);

    fn addresses(ranges: &SvmRanges) -> Vec<Range<u64>> {
        ranges.iter().map(|(addresses, _)| addresses.start / PAGE..addresses.end / PAGE).collect()
    }

    fn pages(pages: Range<u64>) -> Range<u64> {
        pages.start * PAGE..pages.end * PAGE
    }

    #[test]
    fn ranges_are_cut_where_something_else_is_set_and_merged_where_the_same_is() {
        let mut ranges = SvmRanges::default();
        let access = [SvmAttribute::Access(AGENT, SvmUse::Migrating)];
        ranges.set(&pages(2..8), &access);
        ranges.set(&pages(4..6), &[SvmAttribute::Access(AGENT, SvmUse::InPlace)]);
        assert_eq!(addresses(&ranges), [2..4, 4..6, 6..8]);
        ranges.set(&pages(3..7), &access);
        assert_eq!(addresses(&ranges).as_slice(), std::slice::from_ref(&(2..8)));
        ranges.set(&pages(0..10), &[SvmAttribute::Granularity(3)]);
        assert_eq!(addresses(&ranges), [0..2, 2..8, 8..10]);
        for (part, wanted) in [(2..8, true), (3..4, true), (1..3, false), (7..9, false), (0..10, false)] {
            assert_eq!(ranges.lets(AGENT, &pages(part.clone())), wanted, "{part:?}");
        }
        assert!(!ranges.lets(AgentIndex(0), &pages(3..4)));
        ranges.forget(&pages(1..4));
        assert_eq!(addresses(&ranges), [0..1, 4..8, 8..10]);
        assert!(!ranges.lets(AGENT, &pages(3..5)) && ranges.lets(AGENT, &pages(4..8)));
        let uses: Vec<_> =
            ranges.uses(AGENT, &pages(0..9)).into_iter().map(|(part, how)| (part.end / PAGE, how)).collect();
        let wanted = [(1, SvmUse::No), (4, SvmUse::No), (8, SvmUse::Migrating), (9, SvmUse::No)];
        assert_eq!(uses, wanted);
        ranges.keep_only(&[pages(0..5), pages(5..6), pages(7..20)]);
        assert_eq!(addresses(&ranges), [0..1, 4..6, 7..8, 8..10]);
        ranges.keep_only(&[]);
        assert_eq!(addresses(&ranges), [0..0; 0]);
    }

    #[test]
    fn what_was_set_last_is_set_again() {
        let mut ranges = SvmRanges::default();
        let all = [
            SvmAttribute::SetFlags(0b110),
            SvmAttribute::ClearFlags(0b011),
            SvmAttribute::Prefetch(SvmPlace::Gpu(AGENT)),
            SvmAttribute::Preferred(SvmPlace::Host),
            SvmAttribute::Access(AGENT, SvmUse::Migrating),
            SvmAttribute::Access(AgentIndex(0), SvmUse::No),
        ];
        ranges.set(&pages(1..2), &all);
        let (_, state) = ranges.iter().next().unwrap();
        let wanted = [
            SvmAttribute::Preferred(SvmPlace::Host),
            SvmAttribute::SetFlags(0b100),
            SvmAttribute::ClearFlags(0b011),
            SvmAttribute::Access(AgentIndex(0), SvmUse::No),
            SvmAttribute::Access(AGENT, SvmUse::Migrating),
            SvmAttribute::Prefetch(SvmPlace::Gpu(AGENT)),
        ];
        assert_eq!(state.attributes(), wanted);
        assert_eq!(state.users().collect::<Vec<_>>(), [(AGENT, SvmUse::Migrating)]);
    }

    #[test]
    fn saved_ranges_that_cannot_be_are_refused() {
        let range = |addresses: Range<u64>| SvmRangeState { addresses, state: SvmState::default() };
        for bad in [
            vec![range(0..0)],
            vec![range(5..PAGE)],
            vec![range(0..PAGE + 1)],
            vec![range(pages(0..2)), range(pages(1..3))],
            vec![range(pages(2..3)), range(pages(0..1))],
        ] {
            let last = bad.last().unwrap().addresses.clone();
            assert_eq!(SvmRanges::restore((), &bad), Err(SvmRangeFault(last)));
        }
    }

    fn attribute() -> impl Strategy<Value = SvmAttribute> {
        let place = prop_oneof![
            Just(SvmPlace::Undefined),
            Just(SvmPlace::Host),
            (0..2u32).prop_map(|agent| SvmPlace::Gpu(AgentIndex(agent)))
        ];
        let access = prop_oneof![Just(SvmUse::No), Just(SvmUse::InPlace), Just(SvmUse::Migrating)];
        prop_oneof![
            place.clone().prop_map(SvmAttribute::Preferred),
            place.prop_map(SvmAttribute::Prefetch),
            (0..2u32, access).prop_map(|(agent, access)| SvmAttribute::Access(AgentIndex(agent), access)),
            (0..4u32).prop_map(SvmAttribute::SetFlags),
            (0..4u32).prop_map(SvmAttribute::ClearFlags),
            (0..4u32).prop_map(SvmAttribute::Granularity),
        ]
    }

    proptest! {
        /// Against a list of what was set for each page.
        #[test]
        fn every_page_has_what_was_set_for_it(
            steps in prop::collection::vec((0..16u64, 1..8u64, prop::option::of(attribute())), 0..40)
        ) {
            let mut ranges = SvmRanges::default();
            let mut model: Vec<Option<SvmState>> = vec![None; 24];
            for (first, count, attribute) in steps {
                let touched = &mut model[first as usize..(first + count) as usize];
                match attribute {
                    Some(attribute) => {
                        ranges.set(&pages(first..first + count), &[attribute]);
                        touched.iter_mut().for_each(|page| page.get_or_insert_default().change(attribute));
                    }
                    None => {
                        ranges.forget(&pages(first..first + count));
                        touched.fill(None);
                    }
                }
            }
            let mut found = vec![None; 24];
            let mut end = 0;
            for (addresses, state) in ranges.iter() {
                prop_assert!(addresses.start >= end && !addresses.is_empty());
                end = addresses.end;
                for page in addresses.start / PAGE..addresses.end / PAGE {
                    found[page as usize] = Some(state.clone());
                }
            }
            prop_assert_eq!(found, model);
            let saved = ranges.save();
            let again = SvmRanges::restore((), &saved).unwrap();
            prop_assert_eq!(again.save(), saved);
            prop_assert_eq!(again.ranges, ranges.ranges);
        }
    }
}
