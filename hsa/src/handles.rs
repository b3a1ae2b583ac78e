// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: numbers that name an object of one kind, of which a destroyed or foreign one is told from a live one.
//!
//! INVARIANT: a handle is never given twice: it has its kind, and the count of objects that were in its place before. Handles are no
//! addresses, so they are the same after a restore.

use std::sync::Arc;

use parking_lot::RwLock;
use slab::Slab;

/// The kinds of objects; part of each handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Agent = 0x5a01,
    Isa,
    Wavefront,
    Cache,
    Pool,
    Region,
    Reader,
    Executable,
    Symbol,
    LoadedCodeObject,
    CodeObject,
    SignalGroup,
    Memory,
}

/// A handle of a kind with this number, for objects that are never destroyed.
pub const fn fixed(kind: Kind, number: u32) -> u64 {
    (kind as u64) << 48 | number as u64
}

/// The number of a handle of [`fixed`].
pub fn number(kind: Kind, handle: u64) -> Option<usize> {
    let number = u32::try_from(handle & 0xffff_ffff).ok()?;
    (handle == fixed(kind, number)).then(|| usize::try_from(number).ok()).flatten()
}

/// Objects of one kind under handles.
#[derive(Debug)]
pub struct Table<T> {
    kind: Kind,
    entries: RwLock<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    slab: Slab<(u64, Arc<T>)>,
    made: u64,
}

/// Bits of a place and of the count of objects made.
const PLACE_BITS: u32 = 20;
const MADE_MASK: u64 = (1 << (48 - PLACE_BITS)) - 1;

impl<T> Table<T> {
    pub const fn new(kind: Kind) -> Self {
        Table { kind, entries: RwLock::new(Entries { slab: Slab::new(), made: 0 }) }
    }

    /// Adds an object; its handle, or `None` when there are too many.
    pub fn add(&self, object: T) -> Option<u64> {
        self.add_shared(Arc::new(object))
    }

    /// The same for one that others have, too.
    pub fn add_shared(&self, object: Arc<T>) -> Option<u64> {
        let mut entries = self.entries.write();
        let place = entries.slab.vacant_key() as u64;
        if place >> PLACE_BITS != 0 {
            return None;
        }
        entries.made = entries.made.wrapping_add(1);
        let handle = (self.kind as u64) << 48 | (entries.made & MADE_MASK) << PLACE_BITS | place;
        entries.slab.insert((handle, object));
        Some(handle)
    }

    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        let entries = self.entries.read();
        let (named, object) = entries.slab.get(place_of(handle))?;
        (*named == handle).then(|| Arc::clone(object))
    }

    /// Takes an object out.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        let mut entries = self.entries.write();
        let place = place_of(handle);
        let named = entries.slab.get(place).is_some_and(|(named, _)| *named == handle);
        named.then(|| entries.slab.remove(place).1)
    }

    /// All of them, with their handles.
    pub fn all(&self) -> Vec<(u64, Arc<T>)> {
        let entries = self.entries.read();
        entries.slab.iter().map(|(_, (handle, object))| (*handle, Arc::clone(object))).collect()
    }

    /// Takes all out.
    pub fn clear(&self) {
        self.entries.write().slab.clear();
    }
}

fn place_of(handle: u64) -> usize {
    // CAST: 20 bits.
    (handle & ((1 << PLACE_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_handle_names_nothing_even_when_its_place_is_taken() {
        let table = Table::new(Kind::Executable);
        let first = table.add(1).unwrap();
        assert_eq!(table.get(first).as_deref(), Some(&1));
        assert_eq!(table.remove(first).as_deref(), Some(&1));
        let second = table.add(2).unwrap();
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.remove(first)), (None, None));
        assert_eq!(table.get(second).as_deref(), Some(&2));
    }

    #[test]
    fn handle_of_another_kind_names_nothing() {
        let (executables, readers) = (Table::new(Kind::Executable), Table::new(Kind::Reader));
        let executable = executables.add(()).unwrap();
        readers.add(()).unwrap();
        assert_eq!(readers.get(executable), None);
        for handle in [0, 1, u64::MAX, executable ^ 1 << 63, executable + 1] {
            assert_eq!(executables.get(handle), None, "{handle:#x}");
        }
    }

    #[test]
    fn fixed_handle_gives_its_number_back() {
        assert_eq!(number(Kind::Agent, fixed(Kind::Agent, 3)), Some(3));
        assert_eq!(number(Kind::Pool, fixed(Kind::Agent, 3)), None);
        assert_eq!(number(Kind::Agent, 3), None);
        assert_eq!(number(Kind::Agent, fixed(Kind::Agent, 3) | 1 << 40), None);
    }
}
