// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry of a checkpoint in a store: which chunks its index is made of, and where every object is.
//!
//! ```text
//! version 2   "STASISI2"  16 random bytes  32 bytes: name of the object  u64 length of its bytes  the object of a JSON list:
//!             {"index": [[chunk, pack, offset, length]...], "places": [...]}: the pieces of two texts,
//!             that of the index, and where the objects of its chunks are, in the order of its list:
//!             [["pack", offset, [length...]]...], objects that follow each other in a pack
//! version 1   "STASISIX"  the same, without random bytes, of [chunk...], the pieces of the index's text; each object is a file
//! ```
//! The random bytes tell two entries of a name from each other that are the same otherwise; the first eight of them stay when the entry of a
//! checkpoint is replaced.
//!
//! INVARIANT: an entry that was read has a location for each chunk of its index, and none is longer than an object can be.

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::index::{ChunkName, MAX_CHUNK_BYTES, MAX_INDEX_BYTES};
use crate::object::{Codec, Kind};
use crate::pack::{Location, PackName, Placed};
use crate::random::random;

/// The first bytes of an entry whose objects are in packs.
pub(crate) const MAGIC: &[u8; 8] = b"STASISI2";
/// The first bytes of an entry whose objects are files.
pub(crate) const MAGIC_1: &[u8; 8] = b"STASISIX";
/// Random bytes behind that: the first eight tell the checkpoint from others of its name, and stay.
const NUMBER: usize = 16;
/// The bytes that stay.
const IDENTITY: usize = 8;
/// Bytes of the object's name and length.
const FRONT: usize = 32 + 8;
/// Longest list of the pieces of both texts, bytes.
const MAX_PIECES_BYTES: u64 = 64 << 20;

/// The pieces of the texts that belong to a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Of the text of its index.
    pub(crate) index: Vec<Placed>,
    /// Of the text that says where the objects of the index's chunks are; `None` in version 1, where each is a file.
    pub(crate) places: Option<Vec<Placed>>,
}

/// What tells a checkpoint from others that have, or had, its name.
pub(crate) type Identity = [u8; IDENTITY];

/// A piece in the list.
type TextPiece = (ChunkName, PackName, u32, u32);

#[derive(Debug, Serialize, Deserialize)]
struct Text {
    index: Vec<TextPiece>,
    places: Vec<TextPiece>,
}

/// Objects that follow each other in a pack.
type Run = (PackName, u32, Vec<u32>);

impl Entry {
    /// Most bytes of an entry.
    pub(crate) fn most() -> u64 {
        (MAGIC.len() + NUMBER + FRONT) as u64 + Codec::most(MAX_PIECES_BYTES)
    }

    /// All pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Placed> {
        self.index.iter().chain(self.places.iter().flatten())
    }

    /// Which checkpoint the bytes of an entry are of; `None` in version 1.
    pub(crate) fn identity(bytes: &[u8]) -> Option<Identity> {
        bytes.strip_prefix(MAGIC)?.first_chunk().copied()
    }

    /// The bytes of the entry of a checkpoint with this name: of a new one, or of the one that is known by this.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`], [`StoreError::Io`]; [`StoreError::Index`] for one of version 1, which is not written.
    pub(crate) fn encode(
        &self,
        name: &str,
        codec: &Codec,
        identity: Option<Identity>,
    ) -> Result<Vec<u8>, StoreError> {
        let bad = |what: String| StoreError::Index { what };
        let piece = |placed: &Placed| match placed.location {
            Location::Pack { pack, offset, bytes } => Some((placed.chunk, pack, offset, bytes)),
            Location::File => None,
        };
        let pieces = |placed: &[Placed]| placed.iter().map(piece).collect::<Option<Vec<_>>>();
        let places = self.places.as_deref().and_then(pieces);
        let (Some(index), Some(places)) = (pieces(&self.index), places) else {
            return Err(bad("a piece of it is in no pack".to_owned()));
        };
        let list = serde_json::to_vec(&Text { index, places }).map_err(|error| bad(error.to_string()))?;
        if list.len() as u64 > MAX_PIECES_BYTES {
            let index = self.pieces().map(|placed| placed.chunk.bytes).sum();
            return Err(StoreError::TooLarge { bytes: 0, index });
        }
        let (kind, chunk) = (Kind::Index(name), ChunkName::of(&list));
        let object = codec.encode(kind, &chunk, &list);
        let named = codec.name_of(kind, &chunk.hash);
        let identity = identity.map_or_else(random, Ok)?;
        let number: [u8; NUMBER - IDENTITY] = random()?;
        Ok([MAGIC, &identity[..], &number, &named, &chunk.bytes.to_le_bytes(), &object].concat())
    }

    /// The same entry with another number; `None` if it has none.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn renumbered(bytes: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((number, rest)) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(NUMBER))
        else {
            return Ok(None);
        };
        let new: [u8; NUMBER - IDENTITY] = random()?;
        Ok(Some([MAGIC, &number[..IDENTITY], &new, rest].concat()))
    }

    /// Takes the bytes of an entry apart that somebody else wrote.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Object`], [`StoreError::OtherKey`].
    pub(crate) fn parse(name: &str, codec: &Codec, bytes: &[u8]) -> Result<Self, StoreError> {
        let bad = |what: &str| StoreError::Index { what: format!("checkpoints/{name}: {what}") };
        let (is_first, rest) = match (bytes.strip_prefix(MAGIC), bytes.strip_prefix(MAGIC_1)) {
            (Some(rest), _) => (false, rest.get(NUMBER..).unwrap_or_default()),
            (_, Some(rest)) => (true, rest),
            _ => return Err(bad("it does not begin like one")),
        };
        let (front, object) = rest.split_first_chunk::<FRONT>().ok_or_else(|| bad("it is too short"))?;
        let Some((kept, length)) = front.split_first_chunk::<32>() else {
            return Err(bad("it is too short"));
        };
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if length > MAX_PIECES_BYTES {
            return Err(bad("it is too long"));
        }
        let list = codec.decode_named(Kind::Index(name), kept, length, object)?;
        let wrong = |error: serde_json::Error| bad(&error.to_string());
        let entry = if is_first {
            let pieces: Vec<ChunkName> = serde_json::from_slice(&list).map_err(wrong)?;
            let placed = |chunk| Placed { chunk, location: Location::File };
            Self { index: pieces.into_iter().map(placed).collect(), places: None }
        } else {
            let text: Text = serde_json::from_slice(&list).map_err(wrong)?;
            let placed = |(chunk, pack, offset, bytes)| Placed {
                chunk,
                location: Location::Pack { pack, offset, bytes },
            };
            let pieces = |pieces: Vec<TextPiece>| pieces.into_iter().map(placed).collect::<Vec<_>>();
            Self { index: pieces(text.index), places: Some(pieces(text.places)) }
        };
        let length = |placed: &[Placed]| {
            placed.iter().fold(0_u64, |sum, placed| sum.saturating_add(placed.chunk.bytes))
        };
        let is_short = |placed: &[Placed]| length(placed) <= MAX_INDEX_BYTES;
        let is_possible =
            |placed: &Placed| placed.chunk.bytes <= MAX_CHUNK_BYTES && is_possible(&placed.location);
        match is_short(&entry.index)
            && entry.places.as_deref().is_none_or(is_short)
            && entry.pieces().all(is_possible)
        {
            true => Ok(entry),
            false => Err(bad("it is too long")),
        }
    }
}

/// Whether an object can be as long.
fn is_possible(location: &Location) -> bool {
    match *location {
        Location::File => true,
        Location::Pack { offset, bytes, .. } => {
            u64::from(bytes) <= Codec::most(MAX_CHUNK_BYTES) && offset.checked_add(bytes).is_some()
        }
    }
}

/// Reads an entry, and where objects are, as somebody else may have written them: for the fuzz target.
///
/// # Panics
/// When what was read is not written as it was.
#[doc(hidden)]
pub fn read_any(bytes: &[u8]) {
    let codec = Codec::default();
    if let Ok(entry) = Entry::parse("it", &codec, bytes)
        && let Ok(again) = entry.encode("it", &codec, None)
    {
        assert!(Entry::parse("it", &codec, &again).is_ok_and(|again| again == entry), "its own entry");
    }
    let runs = bytes.iter().filter(|byte| **byte == b'[').count();
    for chunks in [1, runs] {
        if let Ok(places) = parse_places(bytes, chunks) {
            let again = encode_places(&places).and_then(|text| parse_places(&text, chunks));
            assert!(again.is_ok_and(|again| again == places), "its own places");
        }
    }
}

/// The text that says where objects are.
///
/// # Errors
/// [`StoreError::Index`] when one of them is in no pack.
pub(crate) fn encode_places(locations: &[Location]) -> Result<Vec<u8>, StoreError> {
    let bad = |what: String| StoreError::Index { what };
    let mut runs: Vec<Run> = Vec::new();
    let mut end = 0;
    for location in locations {
        let Location::Pack { pack, offset, bytes } = *location else {
            return Err(bad("a chunk of it is in no pack".to_owned()));
        };
        match runs.last_mut() {
            Some((last, _, lengths)) if *last == pack && end == offset => lengths.push(bytes),
            _ => runs.push((pack, offset, vec![bytes])),
        }
        end = offset.saturating_add(bytes);
    }
    let text = serde_json::to_vec(&runs).map_err(|error| bad(error.to_string()))?;
    match text.len() as u64 > MAX_INDEX_BYTES {
        true => Err(StoreError::TooLarge { bytes: 0, index: text.len() as u64 }),
        false => Ok(text),
    }
}

/// Where so many objects are, from a text that somebody else wrote.
///
/// # Errors
/// [`StoreError::Index`].
pub(crate) fn parse_places(text: &[u8], chunks: usize) -> Result<Vec<Location>, StoreError> {
    let bad = |what: String| StoreError::Index { what };
    // Each value but the first has one before it: so much memory is used for them at most.
    let commas = text.iter().filter(|byte| **byte == b',').count();
    if commas > 3 * chunks {
        return Err(bad("it says where chunks are that it does not have".to_owned()));
    }
    let runs: Vec<Run> = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    let mut locations = Vec::with_capacity(chunks);
    for (pack, mut offset, lengths) in runs {
        for bytes in lengths {
            let location = Location::Pack { pack, offset, bytes };
            if !is_possible(&location) {
                return Err(bad(format!("an object of {bytes} bytes at offset {offset} is not possible")));
            }
            locations.push(location);
            offset += bytes;
        }
    }
    match locations.len() == chunks {
        true => Ok(locations),
        false => Err(bad(format!("it says where {} of its {chunks} chunks are", locations.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn pack(digit: char) -> PackName {
        PackName::parse(&digit.to_string().repeat(32)).unwrap()
    }

    fn at(digit: char, offset: u32, bytes: u32) -> Location {
        Location::Pack { pack: pack(digit), offset, bytes }
    }

    fn entry() -> Entry {
        let placed = |bytes: &[u8], location| Placed { chunk: ChunkName::of(bytes), location };
        let index = vec![placed(b"one", at('a', 8, 4)), placed(b"two", at('b', 8, 4))];
        Entry { index, places: Some(vec![placed(b"[]", at('b', 12, 3))]) }
    }

    #[test]
    fn entry_is_parsed_as_it_was_encoded_and_by_its_name_only() {
        for codec in [Codec::default(), Codec { key: Some(Key::new(&[1; 32])), ..Codec::default() }] {
            let bytes = entry().encode("web-1", &codec, None).unwrap();
            assert_eq!(Entry::parse("web-1", &codec, &bytes).unwrap(), entry());
            assert_eq!(Entry::parse("web-2", &codec, &bytes).is_err(), codec.key.is_some());
            let renumbered = Entry::renumbered(&bytes).unwrap().unwrap();
            assert_ne!(renumbered, bytes);
            assert_eq!(Entry::identity(&renumbered), Entry::identity(&bytes));
            let other = entry().encode("web-1", &codec, None).unwrap();
            assert_ne!(Entry::identity(&other), Entry::identity(&bytes));
            assert_eq!(Entry::parse("web-1", &codec, &renumbered).unwrap(), entry());
            assert_eq!(Entry::renumbered(b"STASISI2").unwrap(), None);
            for bit in (0..bytes.len() * 8).filter(|bit| !(64..192).contains(bit)) {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(Entry::parse("web-1", &codec, &changed).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn entry_of_the_first_version_has_files() {
        let chunks = [ChunkName::of(b"one"), ChunkName::of(b"two")];
        let list = serde_json::to_vec(&chunks).unwrap();
        let (chunk, codec) = (ChunkName::of(&list), Codec::default());
        let object = codec.encode(Kind::Index("it"), &chunk, &list);
        let bytes = [MAGIC_1, &chunk.hash[..], &chunk.bytes.to_le_bytes(), &object].concat();
        let entry = Entry::parse("it", &codec, &bytes).unwrap();
        assert_eq!(entry.pieces().map(|placed| placed.chunk).collect::<Vec<_>>(), chunks);
        assert!(entry.pieces().all(|placed| placed.location == Location::File) && entry.places.is_none());
        assert!(entry.encode("it", &codec, None).is_err());
    }

    #[test]
    fn impossible_entries_are_refused() {
        let codec = Codec::default();
        let refused = |change: &dyn Fn(&mut Placed)| {
            let mut entry = entry();
            change(&mut entry.index[1]);
            let bytes = entry.encode("it", &codec, None).unwrap();
            assert!(Entry::parse("it", &codec, &bytes).is_err());
        };
        refused(&|placed| placed.chunk.bytes = u64::MAX);
        refused(&|placed| placed.chunk.bytes = MAX_CHUNK_BYTES + 1);
        refused(&|placed| placed.location = at('a', u32::MAX, 1));
        refused(&|placed| placed.location = at('a', 8, u32::MAX - 8));
        for other in [&b""[..], b"STASISIX", &[0; 100], &[MAGIC.as_slice(), &[0xff; 60]].concat()] {
            assert!(Entry::parse("it", &codec, other).is_err());
        }
    }

    #[test]
    fn places_are_runs_and_come_back() {
        let locations = [at('a', 8, 4), at('a', 12, 5), at('b', 8, 1), at('a', 8, 4), at('a', 13, 1)];
        let text = encode_places(&locations).unwrap();
        assert_eq!(
            text.iter().filter(|byte| **byte == b'"').count(),
            2 * 4,
            "{}",
            String::from_utf8_lossy(&text)
        );
        assert_eq!(parse_places(&text, 5).unwrap(), locations);
        assert!(parse_places(&text, 4).is_err() && parse_places(&text, 6).is_err());
        assert!(encode_places(&[Location::File]).is_err());
        assert_eq!(parse_places(&encode_places(&[]).unwrap(), 0).unwrap(), []);
    }

    #[test]
    fn impossible_places_are_refused() {
        let digits = "a".repeat(32);
        for text in [
            String::new(),
            "[".repeat(1000),
            format!("[[\"{digits}\",8,[4294967295]]]"),
            format!("[[\"{digits}\",4294967295,[1]]]"),
            format!("[[\"{digits}\",8,[-1]]]"),
            "[[\"../../../../../../etc/passwd/...\",8,[1]]]".to_owned(),
            format!("[{}[\"{digits}\",8,[1]]]", "[],".repeat(100)),
        ] {
            assert!(parse_places(text.as_bytes(), 1).is_err(), "{text}");
        }
    }
}
