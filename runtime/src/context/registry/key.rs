// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generational keys and the table they index: the only handles the crate gives out.
//!
//! INVARIANT: a key is valid from its insertion to its removal and never again, though its index is reused.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use queues::words::count;
use serde::{Deserialize, Serialize};
use slab::Slab;

use super::persist::Persist;

/// Names one entry of a table, whose saved state is a `T`, for as long as it lives. Stable across checkpoint and
/// restore.
#[derive(Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub struct Key<T> {
    raw: (u32, u32),
    #[serde(skip)]
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// A key from its two numbers (as read from an image).
    pub const fn from_raw(index: u32, generation: u32) -> Self {
        Key { raw: (index, generation), kind: PhantomData }
    }

    /// Position in the table, reused after removal.
    pub const fn index(self) -> u32 {
        self.raw.0
    }

    /// How often the position had been used before.
    pub const fn generation(self) -> u32 {
        self.raw.1
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.raw.cmp(&other.raw)
    }
}
impl<T> std::hash::Hash for Key<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}
impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.raw.0, self.raw.1)
    }
}
impl<T> fmt::Display for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A slab whose keys know their generation.
#[derive(Debug)]
pub struct Table<T> {
    slab: Slab<T>,
    /// Generation of each index: of the entry there, or of the next one to be there.
    generations: Vec<u32>,
}

/// What a table is without its entries' live parts: its entries by key, and the generations of free indices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "S: Serialize + for<'a> Deserialize<'a>")]
pub struct TableState<S> {
    /// Entries in index order: (index, entry).
    pub entries: Vec<(u32, S)>,
    /// Generation of every index ever used.
    pub generations: Vec<u32>,
}

impl<S> Default for TableState<S> {
    fn default() -> Self {
        TableState { entries: Vec::new(), generations: Vec::new() }
    }
}

/// A [`TableState`] that no table can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The same index twice, or out of order.
    #[error("Table entry {index} occurs twice or out of order")]
    Order {
        /// The offending index.
        index: u32,
    },
    /// An entry at an index without generation.
    #[error("Table entry {index} has no generation: only {generations} are listed")]
    NoGeneration {
        /// The offending index.
        index: u32,
        /// Generations listed.
        generations: usize,
    },
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { slab: Slab::new(), generations: Vec::new() }
    }
}

impl<T: Persist> Table<T> {
    /// Adds an entry.
    pub fn insert(&mut self, entry: T) -> Key<T::State> {
        let index = self.slab.insert(entry);
        if index >= self.generations.len() {
            self.generations.resize(index + 1, 0);
        }
        // A table of 2^32 entries does not fit this process.
        Key::from_raw(count(index), self.generations[index])
    }

    /// The entry of a key, `None` if it was removed.
    pub fn get(&self, key: Key<T::State>) -> Option<&T> {
        self.current(key).then(|| self.slab.get(key.index() as usize)).flatten()
    }

    /// The entry of a key, `None` if it was removed.
    pub fn get_mut(&mut self, key: Key<T::State>) -> Option<&mut T> {
        if self.current(key) { self.slab.get_mut(key.index() as usize) } else { None }
    }

    /// Removes an entry; its key is stale from now on.
    pub fn remove(&mut self, key: Key<T::State>) -> Option<T> {
        if !self.current(key) {
            return None;
        }
        let entry = self.slab.try_remove(key.index() as usize)?;
        let generation = &mut self.generations[key.index() as usize];
        *generation = generation.wrapping_add(1);
        Some(entry)
    }

    fn current(&self, key: Key<T::State>) -> bool {
        self.generations.get(key.index() as usize) == Some(&key.generation())
    }

    /// All entries in index order.
    pub fn iter(&self) -> impl Iterator<Item = (Key<T::State>, &T)> {
        self.slab.iter().map(|(index, entry)| (Key::from_raw(count(index), self.generations[index]), entry))
    }

    /// All entries in index order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key<T::State>, &mut T)> {
        let generations = &self.generations;
        self.slab.iter_mut().map(|(index, entry)| (Key::from_raw(count(index), generations[index]), entry))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }
}

impl<T: Persist<Args = (), Error = Infallible>> Persist for Table<T> {
    type State = TableState<T::State>;
    type Args = ();
    type Error = TableError;

    fn save(&self) -> Self::State {
        TableState {
            entries: self.iter().map(|(key, entry)| (key.index(), entry.save())).collect(),
            generations: self.generations.clone(),
        }
    }

    /// The same keys stay valid.
    fn restore((): (), state: &Self::State) -> Result<Self, TableError> {
        let mut previous = None;
        for &(index, _) in &state.entries {
            if previous.is_some_and(|p| p >= index) {
                return Err(TableError::Order { index });
            }
            if index as usize >= state.generations.len() {
                return Err(TableError::NoGeneration { index, generations: state.generations.len() });
            }
            previous = Some(index);
        }
        let entry = |(index, state): &(u32, T::State)| match T::restore((), state) {
            Ok(entry) => (*index as usize, entry),
            Err(never) => match never {},
        };
        Ok(Table { slab: state.entries.iter().map(entry).collect(), generations: state.generations.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    macro_rules! plain {
        ($type:ty) => {
            impl Persist for $type {
                type State = $type;
                type Args = ();
                type Error = Infallible;

                fn save(&self) -> $type {
                    *self
                }

                fn restore((): (), state: &$type) -> Result<$type, Infallible> {
                    Ok(*state)
                }
            }
        };
    }

    plain!(char);
    plain!(u8);

    #[test]
    fn remove_twice_finds_a_stale_key() {
        let mut table = Table::default();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b');
        assert_eq!(second.index(), first.index());
        assert_ne!(second, first);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&'b'));
    }

    #[test]
    fn restore_rejects_entries_out_of_order_or_without_generation() {
        let twice = TableState { entries: vec![(1, 'a'), (1, 'b')], generations: vec![0, 0] };
        assert_eq!(Table::<char>::restore((), &twice).unwrap_err(), TableError::Order { index: 1 });
        let beyond = TableState { entries: vec![(3, 'a')], generations: vec![0, 0] };
        assert!(matches!(
            Table::<char>::restore((), &beyond),
            Err(TableError::NoGeneration { index: 3, .. })
        ));
    }

    proptest! {
        #[test]
        fn save_restore_save_is_equal_and_keys_stay_valid(steps in prop::collection::vec(any::<(bool, u8)>(), 0..60)) {
            let mut table = Table::default();
            let mut live: Vec<(Key<u8>, u8)> = Vec::new();
            for (add, value) in steps {
                if add || live.is_empty() {
                    live.push((table.insert(value), value));
                } else {
                    let (key, value) = live.remove(value as usize % live.len());
                    prop_assert_eq!(table.remove(key), Some(value));
                }
            }
            let state = table.save();
            let copy = Table::<u8>::restore((), &state).unwrap();
            prop_assert_eq!(copy.save(), state);
            for (key, value) in live {
                prop_assert_eq!(copy.get(key), Some(&value));
            }
        }
    }
}
