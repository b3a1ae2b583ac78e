// SPDX-License-Identifier: MIT OR Apache-2.0
//! BLAKE3 of many files at once, on all cores: small files side by side, a large one in pieces.
//!
//! The result is the plain BLAKE3 of each file, as `b3sum` prints it: the hash is a tree, whose parts are hashed apart
//! and merged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use queues::words::size;
use stasis_protocol::Limit;

use super::error::ManifestError;
use crate::image::{CHUNK_BYTES, ChunkBuffer, for_each};

/// A file to hash.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// What errors call it.
    pub path: PathBuf,
    /// How many of its bytes, from the first on; there must be as many.
    pub bytes: u64,
}

/// A piece of a file.
struct Piece {
    file: usize,
    offset: u64,
    bytes: usize,
    is_whole: bool,
}

fn pieces(files: &[Wanted]) -> Vec<Piece> {
    let of = |(file, wanted): (usize, &Wanted)| {
        let bytes = wanted.bytes;
        // An empty file has one piece, too.
        let offsets = (0..bytes.max(1)).step_by(size(CHUNK_BYTES));
        offsets.map(move |offset| Piece {
            file,
            offset,
            bytes: (bytes - offset).min(CHUNK_BYTES) as usize,
            is_whole: bytes <= CHUNK_BYTES,
        })
    };
    files.iter().enumerate().flat_map(of).collect()
}

/// The hashes of `files`; `open` opens one of them, and `progress` hears of bytes that are done.
///
/// # Errors
/// [`ManifestError::Io`], and what `open` answers.
pub(super) fn hash_all(
    files: &[Wanted],
    open: impl Fn(usize) -> Result<File, ManifestError> + Sync,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<blake3::Hash>, ManifestError> {
    let pieces = pieces(files);
    let values: Vec<OnceLock<ChainingValue>> = pieces.iter().map(|_| OnceLock::new()).collect();
    for_each(pieces.len(), 1, &Limit::none(), |n, buffer: &mut ChunkBuffer| {
        let piece = &pieces[n];
        let io = |act| {
            let path = files[piece.file].path.clone();
            move |source| ManifestError::Io { act, path, source }
        };
        let bytes = &mut buffer.bytes().map_err(io("find memory to read"))?[..piece.bytes];
        open(piece.file)?.read_exact_at(bytes, piece.offset).map_err(io("read"))?;
        let mut hasher = blake3::Hasher::new();
        let value = match piece.is_whole {
            true => *hasher.update(bytes).finalize().as_bytes(),
            false => hasher.set_input_offset(piece.offset).update(bytes).finalize_non_root(),
        };
        let _ = values[n].set(value);
        progress(piece.bytes as u64);
        Ok::<_, ManifestError>(())
    })?;
    let values: Vec<ChainingValue> = values.into_iter().filter_map(OnceLock::into_inner).collect();
    let mut hashes = Vec::with_capacity(files.len());
    for of_file in pieces.chunk_by(|one, next| one.file == next.file).scan(0, |at, of_file| {
        let from = *at;
        *at += of_file.len();
        values.get(from..*at)
    }) {
        hashes.push(merged(of_file));
    }
    Ok(hashes)
}

/// How many of `count` pieces are in the left half of their tree: the largest power of two below it.
fn left(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

fn merged(values: &[ChainingValue]) -> blake3::Hash {
    match values {
        [whole] => blake3::Hash::from_bytes(*whole),
        _ => {
            let (first, second) = values.split_at(left(values.len()));
            merge_subtrees_root(&subtree(first), &subtree(second), Mode::Hash)
        }
    }
}

fn subtree(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [one] => *one,
        _ => {
            let (first, second) = values.split_at(left(values.len()));
            merge_subtrees_non_root(&subtree(first), &subtree(second), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn hashes_are_those_of_the_files_whatever_their_length() {
        let directory = tempfile::tempdir().unwrap();
        let most = (9 * CHUNK_BYTES + 5) as usize;
        let bytes: Vec<u8> = (0..most as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let one = CHUNK_BYTES as usize;
        let lengths = [0, 1, 4096, one - 1, one, one + 1, 2 * one, 3 * one, 4 * one + 1, 8 * one, most];
        let file = |n: usize| directory.path().join(n.to_string());
        for (n, length) in lengths.iter().enumerate() {
            std::fs::write(file(n), &bytes[..*length]).unwrap();
        }
        let wanted = |(n, length): (usize, &usize)| Wanted { path: file(n), bytes: *length as u64 };
        let wanted: Vec<_> = lengths.iter().enumerate().map(wanted).collect();
        let done = AtomicU64::new(0);
        let open = |n: usize| Ok(File::open(file(n)).unwrap());
        let progress = |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
        };
        let hashes = hash_all(&wanted, open, &progress).unwrap();
        assert_eq!(hashes.len(), lengths.len());
        for (hash, length) in hashes.iter().zip(lengths) {
            assert_eq!(*hash, blake3::hash(&bytes[..length]), "{length} bytes");
        }
        assert_eq!(done.into_inner(), lengths.iter().sum::<usize>() as u64);
        let longer = [Wanted { path: file(1), bytes: 2 }];
        let error = hash_all(&longer, |_| Ok(File::open(file(1)).unwrap()), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("Cannot read"), "{error}");
    }
}
