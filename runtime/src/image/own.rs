// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chunks in an image's own file, of whoever has that file alone: that of an earlier image, say, whose own earlier files may be gone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use queues::words::size;

use super::format::{
    CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, EARLIER_ENTRY_BYTES, ImageError, decode_front, front_bytes,
};
use super::place::regular;
use super::table::decode_chunks;

/// The chunks that lie in `file`, which is an image of ours, in their order there; `path` is what errors call it. Their bytes are not
/// looked at.
///
/// # Errors
/// [`ImageError`], of the file's front and its chunk table.
pub fn own_chunks(file: &File, path: &Path) -> Result<Vec<Chunk>, ImageError> {
    let io = |act| move |source| ImageError::Io { act, path: path.into(), source };
    let bytes = regular(file, path, |_, _| Ok(()))?;
    let mut front = vec![0; size(CONTENTS_OFFSET.min(bytes))];
    file.read_exact_at(&mut front, 0).map_err(io("read"))?;
    let tables = front_bytes(&front);
    let [contents, table, _, earlier] = decode_front(path, &front[..tables], bytes)?;
    let mut text = Vec::new();
    let reserved = text.try_reserve_exact(size(table.length));
    reserved.map_err(|_| io("find memory to read")(std::io::ErrorKind::OutOfMemory.into()))?;
    text.resize(size(table.length), 0);
    file.read_exact_at(&mut text, table.offset).map_err(io("read"))?;
    if *blake3::hash(&text).as_bytes() != table.hash {
        let what = "the hash of the chunk table does not fit";
        return Err(ImageError::Corrupt { path: path.into(), section: "chunks", offset: table.offset, what });
    }
    // Where the others end is theirs to say.
    let others = size(earlier.length) / EARLIER_ENTRY_BYTES;
    let mut ends = vec![contents.offset + contents.length];
    ends.resize(1 + others, u64::MAX);
    debug_assert!(text.len().is_multiple_of(CHUNK_ENTRY_BYTES));
    let mut chunks = decode_chunks(path, &text, &table, &ends)?;
    chunks.retain(|chunk| chunk.file == 0);
    chunks.sort_unstable_by_key(|chunk| chunk.file_offset);
    if chunks.windows(2).any(|pair| pair[0].file_end() > pair[1].file_offset) {
        let what = "a chunk overlaps another";
        return Err(ImageError::Corrupt { path: path.into(), section: "chunks", offset: table.offset, what });
    }
    Ok(chunks)
}
