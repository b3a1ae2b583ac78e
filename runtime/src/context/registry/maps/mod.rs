// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which part of which memory lies where in the reserved ranges: bookkeeping only, the driver is asked elsewhere.
//!
//! INVARIANT: mappings never overlap, and the driver's mappings are cut where the entries are: an entry is one mapping
//! on every agent it is granted to. All of an entry has the same access; a change of a part of it cuts it first.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use super::access::{Access, MapState};
use super::arena::PAGE;
use super::entry::Bo;
use super::key::{Table, TableError, TableState};
use super::persist::Persist;
use super::state::{AgentIndex, BoKey, BoRole, MapKey};

/// A registered mapping.
#[derive(Debug)]
pub struct MapEntry {
    /// What is saved.
    pub state: MapState,
    /// Agents on which the driver has it.
    pub granted: Vec<AgentIndex>,
    /// Whether the CPU has it: not where it does not see the memory.
    pub on_cpu: bool,
}

/// All mappings.
#[derive(Debug, Default)]
pub struct Maps {
    table: Table<MapEntry>,
    /// First address -> entry; follows from the table.
    places: BTreeMap<u64, MapKey>,
}

/// Why a saved mapping cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapFault {
    /// Not whole pages, or none.
    Pages,
    /// It leaves its range, or what it names is none.
    Range,
    /// It leaves its memory, or what it names is none.
    Memory,
    /// It shares addresses with another.
    Overlap,
    /// Its agents are not in order, or one may do nothing.
    Access,
}

impl fmt::Display for MapFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapFault::Pages => "is not whole pages",
            MapFault::Range => "is not inside a reserved range",
            MapFault::Memory => "is not inside a physical memory",
            MapFault::Overlap => "overlaps another",
            MapFault::Access => "lists its agents out of order, or one without access",
        })
    }
}

impl MapEntry {
    /// An entry that the driver does not know yet.
    pub fn new(state: MapState) -> Self {
        MapEntry { state, granted: Vec::new(), on_cpu: false }
    }

    /// First address after it.
    pub fn end(&self) -> u64 {
        self.state.va + self.state.bytes
    }
}

impl Maps {
    /// The entry of a key.
    pub fn get(&self, key: MapKey) -> Option<&MapEntry> {
        self.table.get(key)
    }

    /// The entry of a key. Its place and length are not to be changed.
    pub fn get_mut(&mut self, key: MapKey) -> Option<&mut MapEntry> {
        self.table.get_mut(key)
    }

    /// All entries in index order.
    pub fn iter(&self) -> impl Iterator<Item = (MapKey, &MapEntry)> {
        self.table.iter()
    }

    /// All entries in index order. See [`Maps::get_mut`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (MapKey, &mut MapEntry)> {
        self.table.iter_mut()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The entries of a range.
    pub fn of_range(&self, range: BoKey) -> impl Iterator<Item = (MapKey, &MapEntry)> {
        self.iter().filter(move |(_, entry)| entry.state.range == range)
    }

    /// The entries of a memory.
    pub fn of_memory(&self, memory: BoKey) -> impl Iterator<Item = (MapKey, &MapEntry)> {
        self.iter().filter(move |(_, entry)| entry.state.memory == memory)
    }

    /// The entries that share addresses with `[va, va + bytes)`, by address.
    pub fn touching(&self, va: u64, bytes: u64) -> Vec<MapKey> {
        let end = va.saturating_add(bytes);
        let first = self.at(va).map(|(key, _)| key);
        // The one that begins before `va`, if it reaches it; then those that begin inside.
        let begins_inside = self.places.range(va..end).map(|(_, &key)| key).filter(|key| Some(*key) != first);
        first.filter(|_| bytes > 0).into_iter().chain(begins_inside).collect()
    }

    /// The entry that holds `va`.
    pub fn at(&self, va: u64) -> Option<(MapKey, &MapEntry)> {
        let (_, &key) = self.places.range(..=va).next_back()?;
        let entry = self.table.get(key)?;
        (va < entry.end()).then_some((key, entry))
    }

    /// The first address of `[va, va + bytes)` at which nothing is mapped.
    pub fn hole(&self, va: u64, bytes: u64) -> Option<u64> {
        let end = va.saturating_add(bytes);
        let mut at = va;
        while at < end {
            match self.at(at) {
                Some((_, entry)) => at = entry.end(),
                None => return Some(at),
            }
        }
        None
    }

    /// Adds an entry at a free place.
    ///
    /// # Errors
    /// The first entry that is in the way.
    pub fn insert(&mut self, state: MapState) -> Result<MapKey, MapKey> {
        if let Some(&taken) = self.touching(state.va, state.bytes).first() {
            return Err(taken);
        }
        let va = state.va;
        let key = self.table.insert(MapEntry::new(state));
        self.places.insert(va, key);
        Ok(key)
    }

    /// Forgets an entry that nobody has mapped any more.
    pub fn remove(&mut self, key: MapKey) -> Option<MapEntry> {
        let entry = self.table.remove(key)?;
        self.places.remove(&entry.state.va);
        Some(entry)
    }

    /// Cuts an entry in two at `va`, strictly inside it. The part before keeps its key; returns that of the other.
    pub fn cut(&mut self, key: MapKey, va: u64) -> Option<MapKey> {
        let entry = self.table.get_mut(key)?;
        if va <= entry.state.va || va >= entry.end() {
            return None;
        }
        let before = va - entry.state.va;
        let state = MapState {
            va,
            bytes: entry.state.bytes - before,
            offset: entry.state.offset + before,
            ..entry.state.clone()
        };
        let other = MapEntry { state, granted: entry.granted.clone(), on_cpu: entry.on_cpu };
        entry.state.bytes = before;
        let other = self.table.insert(other);
        self.places.insert(va, other);
        Some(other)
    }

    /// Where the CPU has something mapped.
    pub fn on_cpu(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.iter().filter(|(_, entry)| entry.on_cpu).map(|(_, entry)| entry.state.va..entry.end())
    }

    /// Forgets what drivers had: it is gone, or another process's.
    pub fn forget(&mut self) {
        for (_, entry) in self.table.iter_mut() {
            entry.granted.clear();
            entry.on_cpu = false;
        }
    }

    /// Whether every entry lies inside a range and a memory of `bos`, and on no other.
    ///
    /// # Errors
    /// The first that does not, and how.
    pub fn check(&self, bos: &Table<Bo>) -> Result<(), (MapKey, MapFault)> {
        let mut ends = 0;
        for (&place, &key) in &self.places {
            let Some(MapEntry { state, .. }) = self.table.get(key) else { continue };
            if state.bytes == 0
                || [state.va, state.bytes, state.offset].iter().any(|n| !n.is_multiple_of(PAGE))
            {
                return Err((key, MapFault::Pages));
            }
            let inside = |bo, role, first: u64, start: fn(&Bo) -> u64| {
                let Some(bo) = bos.get(bo).filter(|bo| bo.state.role == role) else { return false };
                let skipped = first.checked_sub(start(bo));
                skipped
                    .and_then(|skipped| skipped.checked_add(state.bytes))
                    .is_some_and(|end| end <= bo.state.bytes)
            };
            if !inside(state.range, BoRole::Range, state.va, |bo| bo.state.va) {
                return Err((key, MapFault::Range));
            }
            if !inside(state.memory, BoRole::Physical, state.offset, |_| 0) {
                return Err((key, MapFault::Memory));
            }
            let named = |(_, access): &(AgentIndex, Access)| *access != Access::None;
            if !state.access.is_sorted_by(|(a, _), (b, _)| a < b) || !state.access.iter().all(named) {
                return Err((key, MapFault::Access));
            }
            if place < ends {
                return Err((key, MapFault::Overlap));
            }
            ends = state.va + state.bytes;
        }
        // Two at one address are one place.
        let lost = self.table.iter().find(|(key, entry)| self.places.get(&entry.state.va) != Some(key));
        lost.map_or(Ok(()), |(key, _)| Err((key, MapFault::Overlap)))
    }
}

impl Persist for MapEntry {
    type State = MapState;
    type Args = ();
    type Error = Infallible;

    fn save(&self) -> MapState {
        self.state.clone()
    }

    fn restore((): (), state: &MapState) -> Result<Self, Infallible> {
        Ok(MapEntry::new(state.clone()))
    }
}

impl Persist for Maps {
    type State = TableState<MapState>;
    type Args = ();
    type Error = TableError;

    fn save(&self) -> TableState<MapState> {
        self.table.save()
    }

    /// No other table refers to the mappings yet: [`Maps::check`] tells whether they fit.
    fn restore((): (), state: &TableState<MapState>) -> Result<Self, TableError> {
        let table = Table::<MapEntry>::restore((), state)?;
        let places = table.iter().map(|(key, entry)| (entry.state.va, key)).collect();
        Ok(Maps { table, places })
    }
}

#[cfg(test)]
mod tests;
