// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packs: objects one behind the other in one file of some tens of MiB.
//!
//! ```text
//! 0  "STASISPK"
//! 8  objects, without anything between them
//! ```
//! A pack does not say what is in it. Whoever needs one of its objects has the [`Location`] in the entry of a checkpoint.
//!
//! INVARIANT: the name of a pack is random and never used for another one.

use std::fmt;

use queues::words::{count, size};
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::index::ChunkName;
use crate::random::random;

/// The first bytes of a pack.
pub(crate) const MAGIC: &[u8; 8] = b"STASISPK";
/// Objects of so many bytes are enough for a pack.
pub(crate) const PACK_BYTES: usize = 32 << 20;
/// Most bytes that are read at once for several objects.
const SPAN_BYTES: u64 = 8 << 20;
/// Bytes between two objects that are read in vain rather than in two reads.
const GAP_BYTES: u64 = 64 << 10;

/// The name of a pack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackName([u8; 16]);

impl PackName {
    /// A name that no other pack has.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn new() -> Result<Self, StoreError> {
        Ok(Self(random()?))
    }

    /// The name with these 32 digits.
    pub(crate) fn parse(digits: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 32 || !digits.bytes().all(is_digit) {
            return None;
        }
        u128::from_str_radix(digits, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PackName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PackName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        Self::parse(&digits)
            .ok_or_else(|| serde::de::Error::custom("a pack's name has 32 hexadecimal digits"))
    }
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Location {
    /// In a file of its own, by its name: of a store of version 1.
    File,
    /// In a pack.
    Pack {
        /// Which.
        pack: PackName,
        /// Where it begins.
        offset: u32,
        /// Its length.
        bytes: u32,
    },
}

/// A chunk, and where its object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) chunk: ChunkName,
    pub(crate) location: Location,
}

/// A pack that is being filled.
#[derive(Debug)]
pub(crate) struct PackWriter {
    name: PackName,
    bytes: Vec<u8>,
}

impl PackWriter {
    /// An empty one.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn new() -> Result<Self, StoreError> {
        Ok(Self { name: PackName::new()?, bytes: MAGIC.to_vec() })
    }

    /// Adds an object; returns where it is.
    pub(crate) fn push(&mut self, object: &[u8]) -> Location {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(object);
        // A pack has 32 MiB and an object.
        let (offset, bytes) = (count(offset), count(object.len()));
        Location::Pack { pack: self.name, offset, bytes }
    }

    /// Its name and its bytes.
    pub(crate) fn finish(self) -> (PackName, Vec<u8>) {
        (self.name, self.bytes)
    }
}

/// Parts of lists whose bytes are enough for a pack: the numbers of the first and behind the last.
pub(crate) fn batches(bytes: impl Iterator<Item = u64>) -> Vec<(usize, usize)> {
    let (mut batches, mut from, mut sum, mut end) = (Vec::new(), 0, 0_u64, 0);
    for bytes in bytes {
        end += 1;
        sum += bytes;
        if sum >= PACK_BYTES as u64 {
            batches.push((from, end));
            (from, sum) = (end, 0);
        }
    }
    if from < end {
        batches.push((from, end));
    }
    batches
}

/// What is read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// The object of this item, which has a file of its own.
    File(usize),
    /// A part of a pack.
    Pack {
        pack: PackName,
        offset: u64,
        bytes: u64,
        /// The items in it: their numbers, offsets in the part and lengths.
        items: Vec<(usize, usize, usize)>,
    },
}

/// In which reads objects are had.
pub(crate) fn spans(locations: impl Iterator<Item = Location>) -> Vec<Span> {
    let mut items: Vec<(Location, usize)> =
        locations.enumerate().map(|(n, location)| (location, n)).collect();
    items.sort_unstable();
    let mut spans: Vec<Span> = Vec::new();
    for (location, item) in items {
        let Location::Pack { pack, offset, bytes } = location else {
            spans.push(Span::File(item));
            continue;
        };
        let (offset, length) = (u64::from(offset), u64::from(bytes));
        let end = offset + length;
        match spans.last_mut() {
            Some(Span::Pack { pack: last, offset: from, bytes, items })
                if *last == pack && offset <= *from + *bytes + GAP_BYTES && end - *from <= SPAN_BYTES =>
            {
                *bytes = (*bytes).max(end - *from);
                items.push((item, size(offset - *from), size(length)));
            }
            _ => spans.push(Span::Pack { pack, offset, bytes: length, items: vec![(item, 0, size(length))] }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(n: u8) -> PackName {
        PackName([n; 16])
    }

    fn at(n: u8, offset: u32, bytes: u32) -> Location {
        Location::Pack { pack: pack(n), offset, bytes }
    }

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        let name = PackName::new().unwrap();
        assert_eq!(PackName::parse(&name.to_string()), Some(name));
        assert_ne!(PackName::new().unwrap(), name);
        let digits = "0123456789abcdef".repeat(2);
        for other in ["", &digits[1..], &digits.to_uppercase(), &format!("+{}", &digits[1..]), "../../etc"] {
            assert_eq!(PackName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn objects_are_found_where_the_writer_has_put_them() {
        let mut writer = PackWriter::new().unwrap();
        let places = [writer.push(b"one"), writer.push(b""), writer.push(b"three")];
        let (name, bytes) = writer.finish();
        assert_eq!(bytes, b"STASISPKonethree");
        let place = |offset, bytes| Location::Pack { pack: name, offset, bytes };
        assert_eq!(places, [place(8, 3), place(11, 0), place(11, 5)]);
    }

    #[test]
    fn batches_are_packs_and_a_rest() {
        let half = PACK_BYTES as u64 / 2;
        assert_eq!(batches([half, half, 1, half, half, 5].into_iter()), [(0, 2), (2, 5), (5, 6)]);
        assert_eq!(batches([2 * half].into_iter()), [(0, 1)]);
        assert_eq!(batches([].into_iter()), []);
    }

    #[test]
    fn near_objects_are_read_at_once_and_distant_ones_are_not() {
        let gap = GAP_BYTES as u32;
        let locations =
            [at(1, 100, 50), at(2, 8, 10), Location::File, at(1, 8, 92), at(1, 151 + gap, 4), at(1, 100, 50)];
        let span = |n, offset, bytes, items: &[(usize, usize, usize)]| Span::Pack {
            pack: pack(n),
            offset,
            bytes,
            items: items.to_vec(),
        };
        assert_eq!(
            spans(locations.into_iter()),
            [
                Span::File(2),
                span(1, 8, 142, &[(3, 0, 92), (0, 92, 50), (5, 92, 50)]),
                span(1, 151 + gap as u64, 4, &[(4, 0, 4)]),
                span(2, 8, 10, &[(1, 0, 10)]),
            ]
        );
        let mib = 1 << 20;
        assert_eq!(spans((0..20).map(|n| at(1, 8 + n * mib, mib))).len(), 3);
    }
}
