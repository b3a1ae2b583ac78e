// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes an image: chunks in parallel past the page cache, then the tables, then the name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::Extent;
use super::format::{
    CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, ImageError, Section, SectionKind, encode_front,
};
use super::worker::{PAGE, for_each, is_zero, open_bulk};
use crate::limit::Limit;

/// What writing an image moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WriteStats {
    /// Bytes of all extents.
    pub content_bytes: u64,
    /// Bytes of them that were not zero and are in the file.
    pub stored_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

/// An image under construction; dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct ImageWriter {
    temporary: PathBuf,
    path: PathBuf,
    file: File,
    bulk: File,
    chunks: Vec<Chunk>,
    end: u64,
    content_bytes: u64,
    finished: bool,
}

impl ImageWriter {
    /// Starts an image at `path` (created when finished; mode 0600), replacing an earlier one only then.
    ///
    /// # Errors
    /// [`ImageError::Io`] when the temporary file beside it cannot be made.
    pub fn create(path: &Path) -> Result<Self, ImageError> {
        let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match std::fs::remove_file(&temporary) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ImageError::Io { act: "remove the left-over", path: temporary, source });
            }
            _ => {}
        }
        let io = |source| ImageError::Io { act: "create", path: temporary.clone(), source };
        let file = options.open(&temporary).map_err(io)?;
        let bulk = open_bulk(&temporary, OpenOptions::new().read(true).write(true)).map_err(io)?;
        Ok(Self {
            temporary,
            path: path.into(),
            file,
            bulk,
            chunks: Vec::new(),
            end: CONTENTS_OFFSET,
            content_bytes: 0,
            finished: false,
        })
    }

    /// Writes the extents' bytes; the n-th becomes extent n. All-zero chunks cost nothing.
    ///
    /// # Errors
    /// [`ImageError::Io`] when the disk is full or fails, [`ImageError::Stopped`] when `limit` is reached.
    pub fn write_contents(&mut self, extents: &[Extent], limit: &Limit) -> Result<(), ImageError> {
        let work: Vec<(u32, u64, u64)> = extents
            .iter()
            .enumerate()
            .flat_map(|(n, e)| e.chunk_ranges().map(move |(offset, length)| (n as u32, offset, length)))
            .collect();
        let end = AtomicU64::new(self.end);
        let chunks = Mutex::new(Vec::with_capacity(work.len()));
        for_each(work.len(), limit, |index, buffer| -> Result<_, ImageError> {
            let (extent, offset, length) = work[index];
            let padded = length.next_multiple_of(PAGE) as usize;
            let bytes = &mut buffer.bytes()[..padded];
            extents[extent as usize].copy_out(offset, &mut bytes[..length as usize]);
            bytes[length as usize..].fill(0);
            if is_zero(bytes) {
                return Ok(());
            }
            let hash = *blake3::hash(&bytes[..length as usize]).as_bytes();
            let file_offset = end.fetch_add(padded as u64, Ordering::Relaxed);
            self.bulk
                .write_all_at(bytes, file_offset)
                .map_err(|source| self.io("write contents to", source))?;
            let chunk = Chunk { extent, offset, length, file_offset, hash };
            chunks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(chunk);
            Ok(())
        })?;
        let mut chunks = chunks.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        chunks.sort_unstable_by_key(|c| (c.extent, c.offset));
        self.chunks = chunks;
        self.end = end.into_inner();
        self.content_bytes = extents.iter().map(Extent::bytes).sum();
        Ok(())
    }

    /// Writes tables and metadata, syncs, and gives the image its name.
    ///
    /// # Errors
    /// [`ImageError::Io`]; [`ImageError::Metadata`] when the metadata cannot be written as JSON.
    pub fn finish<M: Serialize>(mut self, metadata: &M) -> Result<WriteStats, ImageError> {
        let metadata = serde_json::to_vec(metadata)
            .map_err(|source| ImageError::Metadata { path: self.path.clone(), source })?;
        let mut table = Vec::with_capacity(self.chunks.len() * CHUNK_ENTRY_BYTES);
        for chunk in &self.chunks {
            table.extend_from_slice(&chunk.encode());
        }
        let table_hash = *blake3::hash(&table).as_bytes();
        let chunks_at = self.end;
        let meta_at = chunks_at + table.len() as u64;
        let file_bytes = meta_at + metadata.len() as u64;
        let front = encode_front(
            file_bytes,
            &[
                Section {
                    kind: SectionKind::Contents,
                    offset: CONTENTS_OFFSET,
                    length: self.end - CONTENTS_OFFSET,
                    hash: table_hash,
                },
                Section {
                    kind: SectionKind::Chunks,
                    offset: chunks_at,
                    length: table.len() as u64,
                    hash: table_hash,
                },
                Section {
                    kind: SectionKind::Metadata,
                    offset: meta_at,
                    length: metadata.len() as u64,
                    hash: *blake3::hash(&metadata).as_bytes(),
                },
            ],
        );
        let write = |bytes: &[u8], at| self.file.write_all_at(bytes, at).map_err(|e| self.io("write", e));
        write(&table, chunks_at)?;
        write(&metadata, meta_at)?;
        write(&front, 0)?;
        self.file.sync_all().map_err(|e| self.io("sync", e))?;
        std::fs::rename(&self.temporary, &self.path).map_err(|e| self.io("rename", e))?;
        self.finished = true;
        let directory = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|d| d.sync_all()).map_err(|source| ImageError::Io {
            act: "sync the directory",
            path: directory.into(),
            source,
        })?;
        let stored_bytes = self.chunks.iter().map(|c| c.length).sum();
        Ok(WriteStats { content_bytes: self.content_bytes, stored_bytes, file_bytes })
    }

    fn io(&self, act: &'static str, source: io::Error) -> ImageError {
        ImageError::Io { act, path: self.temporary.clone(), source }
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.temporary)
        {
            tracing::warn!(path = %self.temporary.display(), %error, "unfinished image not removed");
        }
    }
}
