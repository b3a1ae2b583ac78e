// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which memory a kernel may reach from its arguments, without asking it: through every aligned word that looks like an address of a
//! buffer object, in the arguments and in all memory that is reached.
//!
//! INVARIANT: what is reached without being found here is not mapped to any agent before its contents are there, so the worst is a
//! memory fault of the agent and never another value. Addresses that a kernel computes from numbers are not found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::context::registry::arena::Window;

/// What is known of the addresses in an object's memory.
#[derive(Debug, Default)]
struct Object {
    bytes: u64,
    /// The objects, by address, that words of it name.
    names: BTreeSet<u64>,
    /// Every kernel reaches it.
    is_root: bool,
    /// Anything may be in it.
    is_opaque: bool,
}

/// What is known of all memory.
#[derive(Debug, Default)]
pub(super) struct Reach {
    window: Range<u64>,
    /// By address.
    objects: BTreeMap<u64, Object>,
}

/// The words of a piece of memory that may be addresses in a window. The first byte is at a multiple of eight.
pub(super) fn addresses(bytes: &[u8], window: Range<u64>) -> impl Iterator<Item = u64> + use<'_> {
    let (words, _) = bytes.as_chunks::<8>();
    let length = window.end - window.start;
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words.filter(move |word| word.wrapping_sub(window.start) < length)
}

impl Reach {
    /// Nothing is known of the objects in a window.
    pub(super) fn begin(&mut self, window: Window) {
        *self = Self { window: window.base..window.base + window.bytes, objects: BTreeMap::new() };
    }

    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    fn object(&mut self, va: u64, bytes: u64) -> &mut Object {
        let object = self.objects.entry(va).or_default();
        object.bytes = object.bytes.max(bytes);
        object
    }

    /// There is an object.
    pub(super) fn add(&mut self, va: u64, bytes: u64) {
        self.object(va, bytes);
    }

    /// There is an object that every kernel reaches.
    pub(super) fn add_root(&mut self, va: u64, bytes: u64) {
        self.object(va, bytes).is_root = true;
    }

    /// There is an object in which anything may be.
    pub(super) fn add_opaque(&mut self, va: u64, bytes: u64) {
        self.object(va, bytes).is_opaque = true;
    }

    /// The object at an address.
    fn at(&self, address: u64) -> Option<u64> {
        let (&va, object) = self.objects.range(..=address).next_back()?;
        (address - va < object.bytes).then_some(va)
    }

    /// Addresses are, or may come to be, in the memory of an object of so many bytes.
    pub(super) fn note(&mut self, va: u64, bytes: u64, addresses: impl IntoIterator<Item = u64>) {
        let mut found = BTreeSet::new();
        for address in addresses {
            found.extend(self.at(address).filter(|named| *named != va));
        }
        if !found.is_empty() {
            self.object(va, bytes).names.extend(found);
        }
    }

    /// What is in one object, or will be, may come to be in another; each with its bytes.
    pub(super) fn link(&mut self, (one, bytes): (u64, u64), (other, other_bytes): (u64, u64)) {
        if one != other {
            self.object(other, other_bytes);
            self.object(one, bytes).names.insert(other);
        }
    }

    /// The object has gone.
    pub(super) fn forget(&mut self, va: u64) {
        self.objects.remove(&va);
    }

    /// The objects that a kernel with these words among its arguments reaches; `None`: any.
    pub(super) fn from(&self, words: impl IntoIterator<Item = u64>) -> Option<BTreeSet<u64>> {
        let roots = self.objects.iter().filter(|(_, object)| object.is_root).map(|(va, _)| *va);
        let mut left: Vec<u64> = words.into_iter().filter_map(|word| self.at(word)).chain(roots).collect();
        let mut found = BTreeSet::new();
        while let Some(va) = left.pop() {
            let Some(object) = self.objects.get(&va) else { continue };
            if object.is_opaque {
                return None;
            }
            if found.insert(va) {
                left.extend(&object.names);
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach() -> Reach {
        let mut reach = Reach::default();
        reach.begin(Window { base: 0x1000, bytes: 0x10000 });
        for va in [0x1000, 0x3000, 0x5000] {
            reach.add(va, 0x1000);
        }
        reach
    }

    fn set(of: &[u64]) -> Option<BTreeSet<u64>> {
        Some(of.iter().copied().collect())
    }

    #[test]
    fn words_in_the_window_are_found_and_others_not() {
        let words = [0, 0x0fff, 0x1000, 0x10fff, 0x11000, u64::MAX].map(u64::to_le_bytes).concat();
        let found: Vec<u64> = addresses(&words, 0x1000..0x11000).collect();
        assert_eq!(found, [0x1000, 0x10fff]);
        assert_eq!(addresses(&words[..7], 0..1).count(), 0);
    }

    #[test]
    fn kernel_reaches_what_its_arguments_name_and_what_that_names() {
        let mut reach = reach();
        assert_eq!(reach.from([7, 0x1fff, 0x2000]), set(&[0x1000]));
        reach.note(0x1000, 0x1000, [0x1008, 0x3ff0, 0x4000]);
        reach.note(0x3000, 0x1000, [0x1000, 0x5000]);
        assert_eq!(reach.from([0x1000]), set(&[0x1000, 0x3000, 0x5000]));
        assert_eq!(reach.from([0x5000]), set(&[0x5000]));
        reach.forget(0x3000);
        assert_eq!(reach.from([0x1000]), set(&[0x1000]));
    }

    #[test]
    fn every_kernel_reaches_roots_and_an_opaque_object_may_name_any() {
        let mut reach = reach();
        reach.add_root(0x5000, 0x1000);
        assert_eq!(reach.from([]), set(&[0x5000]));
        reach.note(0x5000, 0x1000, [0x3000]);
        assert_eq!(reach.from([]), set(&[0x3000, 0x5000]));
        reach.add_opaque(0x7000, 0x1000);
        assert_eq!(reach.from([0x1000]), set(&[0x1000, 0x3000, 0x5000]));
        assert_eq!(reach.from([0x7800]), None);
        reach.add_opaque(0x3000, 0x1000);
        assert_eq!(reach.from([]), None);
    }

    #[test]
    fn link_takes_along_what_the_other_names_then_and_later() {
        let mut reach = reach();
        // An object that is not known yet.
        reach.link((0x9000, 0x1000), (0x1000, 0x1000));
        assert_eq!(reach.from([0x9fff]), set(&[0x1000, 0x9000]));
        reach.note(0x1000, 0x1000, [0x3000]);
        assert_eq!(reach.from([0x9fff]), set(&[0x1000, 0x3000, 0x9000]));
        reach.link((0x3000, 0x1000), (0x3000, 0x1000));
        assert_eq!(reach.from([0x3000]), set(&[0x3000]));
        reach.add_opaque(0x3000, 0x1000);
        assert_eq!(reach.from([0x9000]), None);
    }
}
