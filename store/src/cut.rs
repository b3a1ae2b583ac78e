// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the files of a checkpoint are cut into chunks.
//!
//! Bytes are cut where their content says (FastCDC), so that two dumps of which one has a page more have most of their chunks in
//! common. Zeros are no chunk. The image of a runtime can be cut as in its own table instead, which has the hashes: its bytes need not be
//! read then.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fastcdc::v2020::FastCDC;
use queues::words::size;
use stasis::image::{Chunk, Limit, for_each};

use crate::Progress;
use crate::checkpoint::Source;
use crate::error::{StoreError, failed};
use crate::index::ChunkName;

/// Where files are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Images as in their tables, the rest by its content into 64 KiB as a rule: for what is sent once.
    Table,
    /// All by its content, into so many bytes as a rule, at least a quarter and at most four times of that: for what is kept beside others
    /// that are nearly the same.
    Bytes(u32),
}

impl Grain {
    /// Least, usual and most bytes of a chunk that is cut by its content.
    fn lengths(self) -> [usize; 3] {
        let usual = if let Self::Bytes(bytes) = self { bytes as usize } else { 64 << 10 };
        [usual / 4, usual, usual * 4]
    }
}

/// How much is cut at a time: its last cut is made by position, not by content.
const SEGMENT: u64 = 32 << 20;

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Its offset.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its hash, if it is not all zeros.
    pub(crate) hash: Option<[u8; 32]>,
}

/// The pieces of an image's file that its chunks are.
pub(crate) fn of_chunks(chunks: &[Chunk]) -> Vec<Cut> {
    let cut = |chunk: &Chunk| Cut { offset: chunk.file_offset, bytes: chunk.length, hash: Some(chunk.hash) };
    chunks.iter().map(cut).collect()
}

/// What is not in `known`, of a file of so many bytes: segments by offset and length.
fn gaps(bytes: u64, known: &[Cut]) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = 0;
    let ends = known.iter().map(|cut| (cut.offset, cut.offset + cut.bytes));
    for (from, to) in ends.chain([(bytes, bytes)]) {
        while at < from {
            let length = (from - at).min(SEGMENT);
            gaps.push((at, length));
            at += length;
        }
        at = to;
    }
    gaps
}

/// The pieces of each of the `sources`, in order and without a gap; `progress` hears of bytes that were read.
pub(crate) fn all(
    sources: &[Source],
    grain: Grain,
    open: impl Fn(usize) -> Result<std::fs::File, StoreError> + Sync,
    progress: Progress<'_>,
) -> Result<Vec<Vec<Cut>>, StoreError> {
    let segments: Vec<(usize, u64, u64)> = sources
        .iter()
        .enumerate()
        .flat_map(|(n, source)| {
            gaps(source.bytes, &source.known).into_iter().map(move |(at, bytes)| (n, at, bytes))
        })
        .collect();
    let all: u64 = segments.iter().map(|(_, _, bytes)| bytes).sum();
    let cuts: Vec<Mutex<Vec<Cut>>> = sources.iter().map(|source| Mutex::new(source.known.clone())).collect();
    let done = AtomicU64::new(0);
    for_each(segments.len(), 1, &Limit::none(), |n, _| {
        let (file, offset, length) = segments[n];
        let path = &sources[file].path;
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(size(length));
        reserved.map_err(|_| failed("find memory to read", path)(std::io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(size(length), 0);
        open(file)?.read_exact_at(&mut bytes, offset).map_err(failed("read", path))?;
        let found = segment(offset, &bytes, grain);
        // A panic in between leaves a list of pieces, as before or with them.
        cuts[file].lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        let before = done.fetch_add(length, Ordering::Relaxed);
        progress(before + length, all);
        Ok::<_, StoreError>(())
    })?;
    let sorted = cuts.into_iter().map(|cuts| {
        let mut cuts = cuts.into_inner().unwrap_or_else(PoisonError::into_inner);
        cuts.sort_unstable_by_key(|cut| cut.offset);
        cuts
    });
    Ok(sorted.collect())
}

/// The pieces of a segment at `offset`.
pub(crate) fn segment(offset: u64, bytes: &[u8], grain: Grain) -> Vec<Cut> {
    let [least, usual, most] = grain.lengths();
    let piece = |(at, bytes): (usize, &[u8])| {
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        let hash = (!is_zero).then(|| ChunkName::of(bytes).hash);
        Cut { offset: offset + at as u64, bytes: bytes.len() as u64, hash }
    };
    FastCDC::new(bytes, least, usual, most)
        .map(|chunk| piece((chunk.offset, &bytes[chunk.offset..chunk.offset + chunk.length])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        blake3::Hasher::new().update(b"pages").finalize_xof().fill(&mut noise);
        noise
    }

    #[test]
    fn gaps_are_what_is_not_known_in_pieces_of_a_segment() {
        let known = |offset, bytes| Cut { offset, bytes, hash: None };
        assert_eq!(gaps(0, &[]), []);
        assert_eq!(gaps(10, &[]), [(0, 10)]);
        assert_eq!(gaps(SEGMENT + 1, &[]), [(0, SEGMENT), (SEGMENT, 1)]);
        assert_eq!(gaps(100, &[known(10, 20), known(30, 5), known(90, 10)]), [(0, 10), (35, 55)]);
    }

    #[test]
    fn page_that_was_put_in_leaves_most_chunks_as_they_were() {
        let one = noise(5 << 20);
        let mut other = one.clone();
        other.splice(40 * 4096..40 * 4096, noise(4096));
        let hashes = |bytes: &[u8]| {
            let segments = gaps(bytes.len() as u64, &[]);
            let cut =
                |(at, length): (u64, u64)| segment(at, &bytes[size(at)..size(at + length)], Grain::Table);
            segments.into_iter().flat_map(cut).map(|cut| cut.hash).collect::<Vec<_>>()
        };
        let (one, other) = (hashes(&one), hashes(&other));
        let new = other.iter().filter(|hash| !one.contains(hash)).count();
        assert!(other.len() > 40 && new <= 2, "{new} of {}", other.len());
    }

    #[test]
    fn pieces_follow_each_other_and_zeros_have_no_hash() {
        let mut bytes = noise(300 << 10);
        bytes.resize(1 << 20, 0);
        let cuts = segment(5, &bytes, Grain::Table);
        let mut at = 5;
        for cut in &cuts {
            assert_eq!(cut.offset, at);
            at += cut.bytes;
        }
        assert_eq!(at, 5 + (1 << 20));
        assert!(cuts.iter().any(|cut| cut.hash.is_none()) && cuts[0].hash.is_some());
    }
}
