// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the chunks of extents are known to be without a look at their bytes.

use queues::words::size;

use super::format::Chunk;
use super::{CHUNK_BYTES, Image};

/// What is known of one chunk of an extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownChunk {
    /// Nothing: it has to be read.
    #[default]
    Unknown,
    /// All its bytes are zero.
    Zero,
    /// The BLAKE3 of its bytes.
    Hash([u8; 32]),
}

/// What a table of chunks says of the extents with so many bytes.
pub(super) fn known_chunks(chunks: &[Chunk], extents: impl Iterator<Item = u64>) -> Vec<Vec<KnownChunk>> {
    let zeros = |bytes: u64| vec![KnownChunk::Zero; size(bytes.div_ceil(CHUNK_BYTES))];
    let mut known: Vec<Vec<KnownChunk>> = extents.map(zeros).collect();
    for chunk in chunks {
        let of_extent = known.get_mut(chunk.extent as usize);
        if let Some(place) = of_extent.and_then(|known| known.get_mut(size(chunk.offset / CHUNK_BYTES))) {
            *place = KnownChunk::Hash(chunk.hash);
        }
    }
    known
}

impl Image {
    /// What the chunks of its extents are, the n-th of which has so many bytes.
    pub fn known(&self, extents: impl Iterator<Item = u64>) -> Vec<Vec<KnownChunk>> {
        known_chunks(self.chunks(), extents)
    }
}
