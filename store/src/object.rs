// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects: what is kept or sent of a chunk, or of an index.
//!
//! ```text
//! 0  u8   bits 0-3: 0 as it is, 1 lz4 block, 2 zstd frame; bit 7: sealed
//! 1  ...  the bytes; sealed: 24 bytes of nonce, the bytes, 16 bytes of tag
//! ```
//! The context of a seal is the first byte, the kind (0 a chunk, 1 an index), the object's name, the length of its bytes, and of an index
//! the checkpoint's name in the store.
//!
//! INVARIANT: what is decoded has the hash that it is to have, and no more memory is used for it than its length.

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::index::ChunkName;
use crate::key::{Key, SEAL_BYTES};

/// The bit of a sealed object.
const SEALED: u8 = 1 << 7;
/// The level at which zstd is fast.
const ZSTD_LEVEL: i32 = 1;
/// Compressed bytes are kept if they are less than seven eighths.
const WORTH: (usize, usize) = (7, 8);

/// How chunks are compressed. One that would not be an eighth shorter is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// By LZ4: some gigabytes a second.
    Lz4,
    /// By zstd at its first level: shorter, and some hundred megabytes a second.
    Zstd,
}

/// The bits of the first byte that say how it is compressed.
fn method(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

/// What an object is made of: one of a kind is never taken for one of the other, whoever moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'k> {
    /// A chunk of a checkpoint.
    Chunk,
    /// The index of the checkpoint that has this name in a store; without a name, of one that is sent.
    Index(&'k str),
}

impl Kind<'_> {
    fn number(self) -> u8 {
        match self {
            Self::Chunk => 0,
            Self::Index(_) => 1,
        }
    }

    fn checkpoint(&self) -> &str {
        match self {
            Self::Chunk => "",
            Self::Index(name) => name,
        }
    }
}

/// How objects are made of bytes, and bytes of objects.
#[derive(Clone, Debug, Default)]
pub struct Codec {
    /// How bytes are compressed; what is read may be compressed in any way.
    pub compression: Compression,
    /// With what they are sealed, and have to be.
    pub key: Option<Key>,
}

impl Codec {
    /// The name of the object of a chunk with this hash.
    pub(crate) fn name(&self, hash: &[u8; 32]) -> [u8; 32] {
        self.name_of(Kind::Chunk, hash)
    }

    /// The name of the object of bytes with this hash.
    pub(crate) fn name_of(&self, kind: Kind<'_>, hash: &[u8; 32]) -> [u8; 32] {
        self.key.as_ref().map_or(*hash, |key| key.name(kind.number(), hash))
    }

    /// Most bytes of the object of so many.
    pub(crate) fn most(bytes: u64) -> u64 {
        1 + bytes + SEAL_BYTES as u64
    }

    /// The object of `bytes`, which `chunk` names.
    pub(crate) fn encode(&self, kind: Kind<'_>, chunk: &ChunkName, bytes: &[u8]) -> Vec<u8> {
        let compressed = match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some(lz4_flex::block::compress(bytes)),
            // It fails for want of memory only.
            Compression::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL).ok(),
        };
        let compressed = compressed.filter(|short| short.len() < bytes.len() / WORTH.1 * WORTH.0);
        let first = if compressed.is_some() { method(self.compression) } else { 0 };
        let payload = compressed.as_deref().unwrap_or(bytes);
        let mut object = Vec::with_capacity(1 + payload.len() + SEAL_BYTES);
        match &self.key {
            None => {
                object.push(first);
                object.extend_from_slice(payload);
            }
            Some(key) => {
                let first = first | SEALED;
                object.push(first);
                let name = self.name_of(kind, &chunk.hash);
                object.extend(key.seal(payload, &context(first, kind, &name, chunk.bytes)));
            }
        }
        object
    }

    /// The bytes of a chunk.
    ///
    /// # Errors
    /// [`StoreError::Object`] when they are not those, [`StoreError::OtherKey`] when they are sealed and there is no key
    /// here, or the other way round.
    pub(crate) fn decode(&self, chunk: &ChunkName, object: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.decode_named(Kind::Chunk, &self.name(&chunk.hash), chunk.bytes, object)
    }

    /// The bytes of an object of which the name and their length are known.
    ///
    /// # Errors
    /// As for [`Codec::decode`].
    pub(crate) fn decode_named(
        &self,
        kind: Kind<'_>,
        name: &[u8; 32],
        length: u64,
        object: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let bad = |what| StoreError::Object { chunk: digits(name), what };
        let (&first, payload) = object.split_first().ok_or_else(|| bad("it is empty"))?;
        let opened = match (&self.key, first & SEALED) {
            (None, 0) => None,
            (Some(key), SEALED) => {
                let opened = key.open(payload, &context(first, kind, name, length));
                Some(opened.ok_or_else(|| bad("it was not sealed with this key, or was changed"))?)
            }
            (None, _) => return Err(StoreError::OtherKey("The objects are sealed: give the key file")),
            (Some(_), _) => {
                return Err(StoreError::OtherKey(
                    "The objects are not sealed, and with a key they have to be",
                ));
            }
        };
        let payload = opened.as_deref().unwrap_or(payload);
        let size = usize::try_from(length).map_err(|_| bad("it is too long"))?;
        let bytes = match first & !SEALED {
            0 => payload.to_vec(),
            1 => lz4_flex::block::decompress(payload, size)
                .map_err(|_| bad("it is no LZ4 block of its length"))?,
            2 => {
                zstd::bulk::decompress(payload, size).map_err(|_| bad("it is no zstd frame of its length"))?
            }
            _ => return Err(bad("it is compressed in an unknown way")),
        };
        let found = ChunkName::of(&bytes);
        match found.bytes == length && self.name_of(kind, &found.hash) == *name {
            true => Ok(bytes),
            false => Err(bad("its bytes have another hash")),
        }
    }
}

/// What an object is sealed for: nothing else is read from it.
fn context(first: u8, kind: Kind<'_>, name: &[u8; 32], bytes: u64) -> Vec<u8> {
    [&[first, kind.number()][..], name, &bytes.to_le_bytes(), kind.checkpoint().as_bytes()].concat()
}

/// The first digits of a name, for errors.
pub(crate) fn digits(name: &[u8; 32]) -> String {
    blake3::Hash::from(*name).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codecs() -> impl Iterator<Item = Codec> {
        let keys = [None, Some(Key::new(&[3; 32]))];
        let of = |compression| keys.clone().map(|key| Codec { compression, key });
        [Compression::None, Compression::Lz4, Compression::Zstd].map(of).into_iter().flatten()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut noise);
        noise
    }

    #[test]
    fn objects_decode_to_their_chunks_and_every_changed_bit_is_found() {
        let text = b"the same words, the same words, the same words, again the same words".repeat(3);
        for (bytes, codec) in [text, noise(100), vec![9]].iter().flat_map(|b| codecs().map(move |c| (b, c))) {
            let chunk = ChunkName::of(bytes);
            let object = codec.encode(Kind::Chunk, &chunk, bytes);
            assert_eq!(codec.decode(&chunk, &object).unwrap(), *bytes);
            assert!(object.len() as u64 <= Codec::most(bytes.len() as u64));
            for bit in 0..object.len() * 8 {
                let mut changed = object.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                // A compressor may have more than one text for the same bytes: then they are right.
                assert!(
                    codec.decode(&chunk, &changed).is_ok_and(|read| read == *bytes)
                        || codec.decode(&chunk, &changed).is_err()
                );
                if codec.compression == Compression::None {
                    assert!(codec.decode(&chunk, &changed).is_err(), "bit {bit}");
                }
            }
            assert!(codec.decode(&chunk, &object[..object.len() - 1]).is_err());
            assert!(codec.decode(&chunk, b"").is_err());
        }
    }

    #[test]
    fn what_does_not_get_shorter_is_left_as_it_is() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let codec = Codec { compression, key: None };
            let (same, noise) = (vec![5; 4096], noise(4096));
            assert!(codec.encode(Kind::Chunk, &ChunkName::of(&same), &same).len() < 100);
            let object = codec.encode(Kind::Chunk, &ChunkName::of(&noise), &noise);
            assert_eq!((object[0], &object[1..]), (0, &noise[..]));
        }
    }

    #[test]
    fn key_is_wanted_where_objects_are_sealed_and_only_there() {
        let chunk = ChunkName::of(b"bytes");
        let (plain, sealed) = (Codec::default(), Codec { key: Some(Key::new(&[1; 32])), ..Codec::default() });
        let objects =
            [plain.encode(Kind::Chunk, &chunk, b"bytes"), sealed.encode(Kind::Chunk, &chunk, b"bytes")];
        assert!(matches!(plain.decode(&chunk, &objects[1]), Err(StoreError::OtherKey(_))));
        assert!(matches!(sealed.decode(&chunk, &objects[0]), Err(StoreError::OtherKey(_))));
        assert_ne!(sealed.name(&chunk.hash), chunk.hash);
    }

    #[test]
    fn long_output_of_few_bytes_is_not_made() {
        let (bytes, chunk) = (vec![0; 1 << 20], ChunkName { bytes: 100, ..ChunkName::of(&[0; 100]) });
        for compression in [Compression::Lz4, Compression::Zstd] {
            let codec = Codec { compression, key: None };
            let object = codec.encode(Kind::Chunk, &ChunkName::of(&bytes), &bytes);
            assert!(matches!(codec.decode(&chunk, &object), Err(StoreError::Object { .. })));
        }
    }

    #[test]
    fn object_of_one_kind_or_checkpoint_is_not_taken_for_another() {
        let codec = Codec { key: Some(Key::new(&[1; 32])), ..Codec::default() };
        let (bytes, chunk) = (b"{}", ChunkName::of(b"{}"));
        let object = codec.encode(Kind::Index("web-1"), &chunk, bytes);
        let name = codec.name_of(Kind::Index("web-1"), &chunk.hash);
        let read = |kind, name| codec.decode_named(kind, name, 2, &object);
        assert_eq!(read(Kind::Index("web-1"), &name).unwrap(), bytes);
        assert!(read(Kind::Index("web-2"), &name).is_err() && read(Kind::Chunk, &name).is_err());
        assert!(read(Kind::Chunk, &codec.name(&chunk.hash)).is_err());
    }
}
