// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chunk table of an untrusted image, and the order in which its chunks lie in the files.
//!
//! INVARIANT: a chunk that is given out lies within its file, and overlaps no other one there.

use std::path::Path;

use queues::words::count;

use super::CHUNK_BYTES;
use super::format::{CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, ImageError, Section};
use super::worker::PAGE;

/// The chunk table; `ends` are those of the files' contents, by number.
pub(super) fn decode_chunks(
    path: &Path,
    bytes: &[u8],
    table: &Section,
    ends: &[u64],
) -> Result<Vec<Chunk>, ImageError> {
    let mut chunks: Vec<Chunk> = Vec::with_capacity(bytes.len() / CHUNK_ENTRY_BYTES);
    for (n, entry) in bytes.chunks_exact(CHUNK_ENTRY_BYTES).enumerate() {
        let chunk = Chunk::decode(entry);
        let offset = table.offset + (n * CHUNK_ENTRY_BYTES) as u64;
        let bad = |what| Err(ImageError::Corrupt { path: path.into(), section: "chunks", offset, what });
        let Some(contents_end) = ends.get(chunk.file as usize) else {
            return bad("a chunk is in a file that is not listed");
        };
        if chunk.length == 0 || chunk.length > CHUNK_BYTES || !chunk.offset.is_multiple_of(CHUNK_BYTES) {
            return bad("a chunk has an impossible length or offset");
        }
        let inside = chunk.file_offset >= CONTENTS_OFFSET
            && chunk.file_offset.is_multiple_of(PAGE)
            && chunk
                .file_offset
                .checked_add(chunk.length.next_multiple_of(PAGE))
                .is_some_and(|end| end <= *contents_end);
        if !inside || chunk.offset.checked_add(chunk.length).is_none() {
            return bad("a chunk lies outside the contents");
        }
        if chunks.last().is_some_and(|before| (before.extent, before.offset) >= (chunk.extent, chunk.offset))
        {
            return bad("the chunks are not in order");
        }
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// The chunks in the order of the files. In the image's own they have to lie without gap or overlap, in earlier ones without overlap.
pub(super) fn place(
    path: &Path,
    chunks: &[Chunk],
    table: &Section,
    contents: &Section,
) -> Result<Vec<u32>, ImageError> {
    let bad = |entry: u64, what| {
        let offset = table.offset + entry * CHUNK_ENTRY_BYTES as u64;
        Err(ImageError::Corrupt { path: path.into(), section: "chunks", offset, what })
    };
    // CAST: MAX_CHUNKS is below 2^32.
    let mut placed: Vec<u32> = (0..count(chunks.len())).collect();
    placed.sort_unstable_by_key(|&index| {
        let chunk = &chunks[index as usize];
        (chunk.file, chunk.file_offset)
    });
    let (mut end, mut file) = (contents.offset, 0);
    let is_covered = |end| end == contents.offset + contents.length;
    for &index in &placed {
        let chunk = &chunks[index as usize];
        if chunk.file != file {
            if file == 0 && !is_covered(end) {
                return bad(0, "the chunks do not cover the contents");
            }
            (file, end) = (chunk.file, CONTENTS_OFFSET);
        }
        if chunk.file_offset < end || file == 0 && chunk.file_offset > end {
            return bad(u64::from(index), "a chunk overlaps another or leaves a gap");
        }
        end = chunk.file_end();
    }
    if file == 0 && !is_covered(end) {
        return bad(0, "the chunks do not cover the contents");
    }
    Ok(placed)
}
