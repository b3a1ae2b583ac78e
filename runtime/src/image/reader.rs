// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads an image, believing nothing: structure and metadata at once, contents chunk by chunk against their hashes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::format::{
    CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, HEADER_BYTES, ImageError, SECTION_BYTES, Section, decode_front,
};
use super::worker::{ChunkBuffer, PAGE, for_each, open_bulk};
use super::{CHUNK_BYTES, Extent};
use crate::limit::Limit;

/// What filling buffers from an image moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadStats {
    /// Bytes of all extents.
    pub content_bytes: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
}

/// An opened image whose structure, chunk table and metadata have been checked.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    file_bytes: u64,
    bulk: File,
    chunks: Vec<Chunk>,
    metadata: Vec<u8>,
    metadata_offset: u64,
}

impl Image {
    /// Opens and checks an image; its contents are checked by [`Image::verify`] or while they are read.
    ///
    /// # Errors
    /// Every way an image can be wrong has its [`ImageError`], naming section and offset.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let io = |act| move |source| ImageError::Io { act, path: path.into(), source };
        let file = OpenOptions::new().read(true).open(path).map_err(io("open"))?;
        let file_bytes = file.metadata().map_err(io("stat"))?.len();
        let mut front = vec![0; (HEADER_BYTES + 3 * SECTION_BYTES).min(file_bytes as usize)];
        file.read_exact_at(&mut front, 0).map_err(io("read"))?;
        let [contents, table, metadata] = decode_front(path, &front, file_bytes)?;
        let read = |section: &Section| -> Result<_, ImageError> {
            let mut bytes = vec![0; section.length as usize];
            file.read_exact_at(&mut bytes, section.offset).map_err(io("read"))?;
            Ok((*blake3::hash(&bytes).as_bytes() == section.hash).then_some(bytes))
        };
        let corrupt =
            |section, offset, what| ImageError::Corrupt { path: path.into(), section, offset, what };
        let chunk_bytes = read(&table)?
            .ok_or_else(|| corrupt("chunks", table.offset, "the hash of the chunk table does not fit"))?;
        if contents.hash != table.hash {
            return Err(corrupt("contents", contents.offset, "its hash is not the chunk table's"));
        }
        let metadata_bytes =
            read(&metadata)?.ok_or_else(|| corrupt("metadata", metadata.offset, "its hash does not fit"))?;
        let chunks = decode_chunks(path, &chunk_bytes, &table, &contents)?;
        let bulk = open_bulk(path, OpenOptions::new().read(true)).map_err(io("open"))?;
        Ok(Self {
            path: path.into(),
            file_bytes,
            bulk,
            chunks,
            metadata: metadata_bytes,
            metadata_offset: metadata.offset,
        })
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The non-zero chunks, ordered by extent and offset.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Decodes the metadata.
    ///
    /// # Errors
    /// [`ImageError::Metadata`] when it does not fit `M`.
    pub fn metadata<M: DeserializeOwned>(&self) -> Result<M, ImageError> {
        serde_json::from_slice(&self.metadata)
            .map_err(|source| ImageError::Metadata { path: self.path.clone(), source })
    }

    /// Byte offset of the metadata in the file.
    #[must_use]
    pub fn metadata_offset(&self) -> u64 {
        self.metadata_offset
    }

    /// Reads all contents and checks every hash.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] naming the first bad chunk found, [`ImageError::Io`].
    pub fn verify(&self) -> Result<ReadStats, ImageError> {
        for_each(self.chunks.len(), &Limit::none(), |n, buffer| {
            self.read_chunk(&self.chunks[n], buffer).map(|_| ())
        })?;
        let bytes = self.chunks.iter().map(|c| c.length).sum();
        Ok(ReadStats { content_bytes: bytes, read_bytes: bytes })
    }

    /// Fills `extents` (in the order they were written) with the contents, zeroing what the image has as zeros unless
    /// `fresh` says that the memory is known to be zero.
    ///
    /// # Errors
    /// [`ImageError::Extents`] and [`ImageError::ExtentLength`] before anything is written; [`ImageError::Corrupt`],
    /// [`ImageError::Io`] and [`ImageError::Stopped`] while filling: the extents then hold a mixture and must be given up.
    pub fn fill(&self, extents: &[Extent], fresh: bool, limit: &Limit) -> Result<ReadStats, ImageError> {
        for chunk in &self.chunks {
            let index = chunk.extent as usize;
            let extent = extents
                .get(index)
                .ok_or(ImageError::Extents { expected: index + 1, found: extents.len() })?;
            let expected = chunk.offset + chunk.length;
            if expected > extent.bytes() {
                return Err(ImageError::ExtentLength { extent: index, expected, found: extent.bytes() });
            }
        }
        if !fresh {
            self.zero_gaps(extents);
        }
        for_each(self.chunks.len(), limit, |n, buffer| -> Result<_, ImageError> {
            let chunk = &self.chunks[n];
            let bytes = self.read_chunk(chunk, buffer)?;
            extents[chunk.extent as usize].copy_in(chunk.offset, bytes);
            Ok(())
        })?;
        Ok(ReadStats {
            content_bytes: extents.iter().map(Extent::bytes).sum(),
            read_bytes: self.chunks.iter().map(|c| c.length).sum(),
        })
    }

    fn zero_gaps(&self, extents: &[Extent]) {
        for (n, extent) in extents.iter().enumerate() {
            for (offset, length) in extent.chunk_ranges() {
                let stored = self.chunks.binary_search_by_key(&(n as u32, offset), |c| (c.extent, c.offset));
                if stored.is_err() {
                    extent.zero(offset, length);
                }
            }
        }
    }

    fn read_chunk<'b>(&self, chunk: &Chunk, buffer: &'b mut ChunkBuffer) -> Result<&'b [u8], ImageError> {
        let padded = chunk.length.next_multiple_of(PAGE) as usize;
        let bytes = &mut buffer.bytes()[..padded];
        self.bulk.read_exact_at(bytes, chunk.file_offset).map_err(|source| ImageError::Io {
            act: "read contents of",
            path: self.path.clone(),
            source,
        })?;
        let bytes = &bytes[..chunk.length as usize];
        if *blake3::hash(bytes).as_bytes() != chunk.hash {
            return Err(ImageError::Corrupt {
                path: self.path.clone(),
                section: "contents",
                offset: chunk.file_offset,
                what: "the hash of a chunk does not fit its bytes",
            });
        }
        Ok(bytes)
    }
}

fn decode_chunks(
    path: &Path,
    bytes: &[u8],
    table: &Section,
    contents: &Section,
) -> Result<Vec<Chunk>, ImageError> {
    let contents_end = contents.offset + contents.length;
    let mut chunks: Vec<Chunk> = Vec::with_capacity(bytes.len() / CHUNK_ENTRY_BYTES);
    for (n, entry) in bytes.chunks_exact(CHUNK_ENTRY_BYTES).enumerate() {
        let chunk = Chunk::decode(entry);
        let offset = table.offset + (n * CHUNK_ENTRY_BYTES) as u64;
        let bad = |what| Err(ImageError::Corrupt { path: path.into(), section: "chunks", offset, what });
        if chunk.length == 0 || chunk.length > CHUNK_BYTES || !chunk.offset.is_multiple_of(CHUNK_BYTES) {
            return bad("a chunk has an impossible length or offset");
        }
        let inside = chunk.file_offset >= CONTENTS_OFFSET
            && chunk.file_offset.is_multiple_of(PAGE)
            && chunk
                .file_offset
                .checked_add(chunk.length.next_multiple_of(PAGE))
                .is_some_and(|end| end <= contents_end);
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
