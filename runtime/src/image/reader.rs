// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads an untrusted image: structure and metadata at once, contents chunk by chunk against their hashes.
//!
//! INVARIANT: every byte of the file is covered by a hash or must be zero, and nothing is allocated before the file was
//! found long enough to hold what it is for.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;
use queues::words::{count, size};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stasis_protocol::Limit;

use super::engine::{ContentEngine, Piece};
use super::extent::is_same_engine;
use super::format::{
    CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, EARLIER_ENTRY_BYTES, EarlierFile, HEADER_BYTES, ImageError,
    SECTION_BYTES, Section, decode_front, front_bytes,
};
use super::host::{HostRange, PIECE_BYTES};
use super::place::{Place, bulk, regular};
use super::table::{decode_chunks, place};
use super::worker::{ChunkBuffer, PAGE, TRANSFER_THREADS, for_each};
use super::{CHUNK_BYTES, Extent, ImageWriter, WriteStats};
use crate::linux::pages::HugePages;

/// Flags, and what has no meaning in the header.
const RESERVED: [Range<usize>; 2] = [12..16, 28..32];
/// What has no meaning in a row of the section table.
const RESERVED_IN_ROW: [Range<usize>; 2] = [4..8, 56..64];

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
    /// Its own file, and those of earlier images that it has contents in.
    places: Vec<Place>,
    earlier: Vec<EarlierFile>,
    chunks: Vec<Chunk>,
    /// The chunks' indices in the order of the files.
    placed: Vec<u32>,
    metadata: Vec<u8>,
    metadata_offset: u64,
    /// For what is filled from it.
    huge: HugePages,
}

impl Image {
    /// Opens and checks an image; its contents are checked by [`Image::verify`] or while they are read. It has to be a
    /// regular file of this process's user or of root.
    ///
    /// # Errors
    /// Every way an image can be wrong has its [`ImageError`], naming section and offset.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let us = geteuid().as_raw();
        Self::open_owned(path, |owner| owner == 0 || owner == us)
    }

    /// Opens and checks an image whoever owns it: for a tool that only looks at it.
    ///
    /// # Errors
    /// As [`Image::open`], without [`ImageError::Owner`].
    pub fn inspect(path: &Path) -> Result<Self, ImageError> {
        Self::open_owned(path, |_| true)
    }

    /// Checks the image that `file` is; `label` is what errors call it. Whoever has the descriptor answers for its
    /// owner. It has no contents in files of earlier images.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn of_file(file: File, label: &Path) -> Result<Self, ImageError> {
        let none = |_, _: &EarlierFile| Err(std::io::ErrorKind::NotFound.into());
        Self::of_files(file, label, none)
    }

    /// As [`Image::of_file`]; `open` opens the n-th file of earlier images, counted from 0.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn of_files(
        file: File,
        label: &Path,
        open: impl Fn(usize, &EarlierFile) -> std::io::Result<File>,
    ) -> Result<Self, ImageError> {
        Self::checked(file, label, |_, _| Ok(()), open)
    }

    fn open_owned(path: &Path, trusted: impl Fn(u32) -> bool) -> Result<Self, ImageError> {
        // A FIFO would otherwise be waited for.
        let flags =
            OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let trust = |path: &Path, owner| match trusted(owner) {
            true => Ok(()),
            false => Err(ImageError::Owner { path: path.into(), owner, us: geteuid().as_raw() }),
        };
        let beside = |_, earlier: &EarlierFile| {
            open(&path.with_file_name(&earlier.name), flags, Mode::empty())
                .map(File::from)
                .map_err(Into::into)
        };
        match open(path, flags, Mode::empty()) {
            Ok(file) => Self::checked(file.into(), path, trust, beside),
            Err(Errno::ELOOP) => Err(ImageError::NotAFile { path: path.into(), found: "a symbolic link" }),
            // What open says of a socket.
            Err(Errno::ENXIO) => Err(ImageError::NotAFile { path: path.into(), found: "a socket" }),
            Err(source) => Err(ImageError::Io { act: "open", path: path.into(), source: source.into() }),
        }
    }

    fn checked(
        file: File,
        path: &Path,
        trust: impl Fn(&Path, u32) -> Result<(), ImageError>,
        open: impl Fn(usize, &EarlierFile) -> std::io::Result<File>,
    ) -> Result<Self, ImageError> {
        let io = |act| move |source| ImageError::Io { act, path: path.into(), source };
        let corrupt =
            |section, offset, what| ImageError::Corrupt { path: path.into(), section, offset, what };
        let file_bytes = regular(&file, path, &trust)?;
        let mut front = vec![0; size(CONTENTS_OFFSET.min(file_bytes))];
        file.read_exact_at(&mut front, 0).map_err(io("read"))?;
        let tables = front_bytes(&front);
        let [contents, table, metadata, earlier] = decode_front(path, &front[..tables], file_bytes)?;
        let rest = tables..front.len();
        let rows = (HEADER_BYTES..tables).step_by(SECTION_BYTES);
        let in_rows =
            rows.flat_map(|row| RESERVED_IN_ROW.map(|reserved| row + reserved.start..row + reserved.end));
        for reserved in RESERVED.into_iter().chain(in_rows).chain(std::iter::once(rest)) {
            if let Some(at) = first_nonzero(&front[reserved.clone()]) {
                let offset = (reserved.start + at) as u64;
                return Err(corrupt("header", offset, "a byte that has no meaning is not zero"));
            }
        }
        let read = |section: &Section| -> Result<_, ImageError> {
            let mut bytes = Vec::new();
            let reserved = bytes.try_reserve_exact(size(section.length));
            reserved.map_err(|_| io("find memory to read")(std::io::ErrorKind::OutOfMemory.into()))?;
            bytes.resize(size(section.length), 0);
            file.read_exact_at(&mut bytes, section.offset).map_err(io("read"))?;
            Ok((*blake3::hash(&bytes).as_bytes() == section.hash).then_some(bytes))
        };
        let listed = match earlier.length {
            0 => Vec::new(),
            _ => {
                read(&earlier)?.ok_or_else(|| corrupt("earlier", earlier.offset, "its hash does not fit"))?
            }
        };
        let (mut files, mut places) = (Vec::new(), Vec::new());
        // Of its own file only the contents are chunks'.
        let mut ends = vec![contents.offset + contents.length];
        for (n, entry) in listed.chunks_exact(EARLIER_ENTRY_BYTES).enumerate() {
            let offset = earlier.offset + (n * EARLIER_ENTRY_BYTES) as u64;
            let named = EarlierFile::decode(entry)
                .ok_or_else(|| corrupt("earlier", offset, "an earlier file has no proper name"))?;
            places.push(Place::of_earlier(path, &named, |named| open(n, named), &trust)?);
            ends.push(named.bytes);
            files.push(named);
        }
        // Every chunk has a page of contents: that bounds the table, and what is made of it, by the files' lengths.
        let pages = |end: &u64| end.saturating_sub(CONTENTS_OFFSET) / PAGE;
        if ends.iter().map(pages).fold(0, u64::saturating_add) < table.length / CHUNK_ENTRY_BYTES as u64 {
            return Err(corrupt("chunks", table.offset, "there are more chunks than pages of contents"));
        }
        let chunk_bytes = read(&table)?
            .ok_or_else(|| corrupt("chunks", table.offset, "the hash of the chunk table does not fit"))?;
        if contents.hash != table.hash {
            return Err(corrupt("contents", contents.offset, "its hash is not the chunk table's"));
        }
        let metadata_bytes =
            read(&metadata)?.ok_or_else(|| corrupt("metadata", metadata.offset, "its hash does not fit"))?;
        let chunks = decode_chunks(path, &chunk_bytes, &table, &ends)?;
        let placed = place(path, &chunks, &table, &contents)?;
        // Last: a table is not read past the page cache.
        let front = *blake3::hash(&front).as_bytes();
        places.insert(0, Place { path: path.into(), bytes: file_bytes, front, bulk: bulk(file, path)? });
        Ok(Self {
            places,
            earlier: files,
            chunks,
            placed,
            metadata: metadata_bytes,
            metadata_offset: metadata.offset,
            huge: HugePages::default(),
        })
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.own().bytes
    }

    /// The files of earlier images that it has contents in, in the order in which chunks count them from 1.
    #[must_use]
    pub fn earlier(&self) -> &[EarlierFile] {
        &self.earlier
    }

    /// Contents in each file, bytes: its own first, then those of [`Image::earlier`].
    #[must_use]
    pub fn bytes_by_file(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.places.len()];
        for chunk in &self.chunks {
            bytes[chunk.file as usize] += chunk.length;
        }
        bytes
    }

    /// Its files by number: its own, then those of [`Image::earlier`].
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    fn own(&self) -> &Place {
        // INVARIANT: `checked` puts it there.
        &self.places[0]
    }

    fn of(&self, chunk: &Chunk) -> &Place {
        // `decode_chunks` has checked the number.
        &self.places[chunk.file as usize]
    }

    /// Threads for each core that keep its files busy.
    fn threads(&self) -> usize {
        self.places.iter().map(|place| place.bulk.threads()).max().unwrap_or(1)
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
            .map_err(|source| ImageError::Metadata { path: self.own().path.clone(), source })
    }

    /// Byte offset of the metadata in the file.
    #[must_use]
    pub fn metadata_offset(&self) -> u64 {
        self.metadata_offset
    }

    /// Writes an image of the same contents and metadata that is whole by itself. Every hash is checked.
    ///
    /// # Errors
    /// As [`Image::verify`] and [`super::ImageWriter::create`].
    pub fn copy_to(&self, path: &Path, limit: &Limit) -> Result<WriteStats, ImageError> {
        Ok(ImageWriter::copy(path, self, limit)?.stats)
    }

    pub(super) fn metadata_bytes(&self) -> &[u8] {
        &self.metadata
    }

    /// Gives out all contents on all cores: chunks whose hashes fit, one behind the other in whole pages, and where each is
    /// among them.
    pub(super) fn each_run(
        &self,
        limit: &Limit,
        take: impl Fn(&[u8], &[(&Chunk, u64)]) -> Result<(), ImageError> + Sync,
    ) -> Result<(), ImageError> {
        let runs = self.runs(|_| None);
        for_each(runs.len(), self.threads(), limit, |n, buffer| {
            let run = runs[n].clone();
            let chunks: Vec<&Chunk> = run.clone().map(|n| &self.chunks[self.placed[n] as usize]).collect();
            let Some(start) = chunks.first().map(|chunk| chunk.file_offset) else { return Ok(()) };
            self.read_run(run, buffer, |_, _| ())?;
            let end = chunks.last().map_or(start, |chunk| chunk.file_end());
            let placed: Vec<_> = chunks.iter().map(|chunk| (*chunk, chunk.file_offset - start)).collect();
            let bytes = buffer.bytes().map_err(|error| self.unbuffered(error))?;
            take(&bytes[..size(end - start)], &placed)
        })
    }

    /// Reads all contents and checks every hash.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] naming the first bad chunk found, [`ImageError::Io`].
    pub fn verify(&self) -> Result<ReadStats, ImageError> {
        self.each_run(&Limit::none(), |_, _| Ok(()))?;
        let bytes = self.chunks.iter().map(|c| c.length).sum();
        Ok(ReadStats { content_bytes: bytes, read_bytes: bytes })
    }

    /// Fills `extents` (in the order they were written) with the contents, zeroing what the image has as zeros unless
    /// `fresh` says that the memory is known to be zero.
    ///
    /// # Errors
    /// [`ImageError::Extents`] and [`ImageError::ExtentLength`] before anything is written; [`ImageError::Corrupt`],
    /// [`ImageError::Io`], [`ImageError::Engine`] and [`ImageError::Stopped`] while filling: the extents then hold a
    /// mixture, bytes among them whose hash does not fit, and must be given up.
    pub fn fill(&self, extents: &[Extent<'_>], fresh: bool, limit: &Limit) -> Result<ReadStats, ImageError> {
        if !fresh {
            self.check(extents.len(), |index| Some(extents[index].bytes()))?;
            self.zero_gaps(extents, limit)?;
        }
        let extents: Vec<_> = extents.iter().copied().map(Some).collect();
        self.fill_some(&extents, limit)
    }

    /// Fills fresh (zeroed) memory with the contents of some extents, and leaves the others out: those that are `None`.
    ///
    /// # Errors
    /// As for [`Image::fill`].
    pub fn fill_some(&self, extents: &[Option<Extent<'_>>], limit: &Limit) -> Result<ReadStats, ImageError> {
        self.check(extents.len(), |index| extents[index].as_ref().map(Extent::bytes))?;
        let is_wanted = |chunk: &Chunk| extents[chunk.extent as usize].is_some();
        let engine_of = |chunk: &Chunk| extents[chunk.extent as usize].as_ref().and_then(Extent::engine);
        let mut runs = self.runs(engine_of);
        runs.retain(|run| run.clone().any(|n| is_wanted(&self.chunks[self.placed[n] as usize])));
        let by_engine = extents.iter().flatten().any(|extent| extent.engine().is_some());
        let threads = if by_engine { TRANSFER_THREADS } else { self.threads() };
        for_each(runs.len(), threads, limit, |n, buffer| {
            let run = runs[n].clone();
            match engine_of(&self.chunks[self.placed[run.start] as usize]) {
                Some(engine) => self.fill_by(engine, run, extents, buffer),
                None => self.fill_run(run, extents, buffer),
            }
        })?;
        Ok(ReadStats {
            content_bytes: extents.iter().flatten().map(Extent::bytes).sum(),
            read_bytes: self.chunks.iter().filter(|chunk| is_wanted(chunk)).map(|c| c.length).sum(),
        })
    }

    /// The chunk that begins at `offset` of an extent, if it is not all zeros: its place in [`Image::chunks`].
    #[must_use]
    pub fn chunk_at(&self, extent: u32, offset: u64) -> Option<usize> {
        self.chunks.binary_search_by_key(&(extent, offset), |chunk| (chunk.extent, chunk.offset)).ok()
    }

    /// Its files: its own first.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.places.iter().map(|place| place.file().as_fd())
    }

    /// Reads a chunk through `buffer`, and gives its bytes out if they are right.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`], [`ImageError::Io`]; nothing was given out then.
    ///
    /// # Panics
    /// When there are not as many chunks.
    pub fn read_chunk(
        &self,
        index: usize,
        buffer: &mut ChunkBuffer,
        give: impl FnOnce(&[u8]),
    ) -> Result<(), ImageError> {
        let chunk = &self.chunks[index];
        let bytes = buffer.bytes().map_err(|error| self.unbuffered(error))?;
        let padded = &mut bytes[..size(chunk.file_end() - chunk.file_offset)];
        let read = self.of(chunk).bulk.read(padded, chunk.file_offset);
        read.map_err(|source| self.unread(chunk, source))?;
        give(self.right(chunk, padded)?);
        Ok(())
    }

    /// The bytes of a chunk and the padding behind it, without that, if both are right.
    fn right<'b>(&self, chunk: &Chunk, padded: &'b [u8]) -> Result<&'b [u8], ImageError> {
        let (bytes, padding) = padded.split_at(size(chunk.length));
        self.compare(chunk, blake3::Hasher::new().update(bytes))?;
        match first_nonzero(padding) {
            None => Ok(bytes),
            Some(at) => {
                let offset = chunk.file_offset + chunk.length + at as u64;
                Err(self.corrupt(chunk, offset, "a byte behind a chunk is not zero"))
            }
        }
    }

    /// Whether every chunk has one of `count` extents, and those whose bytes `of` tells are long enough.
    pub(crate) fn check(&self, count: usize, of: impl Fn(usize) -> Option<u64>) -> Result<(), ImageError> {
        for chunk in &self.chunks {
            let extent = chunk.extent as usize;
            if extent >= count {
                return Err(ImageError::Extents { expected: extent + 1, found: count });
            }
            let expected = chunk.offset + chunk.length;
            if let Some(found) = of(extent).filter(|bytes| expected > *bytes) {
                return Err(ImageError::ExtentLength { extent, expected, found });
            }
        }
        Ok(())
    }

    /// Ranges of `placed` that follow each other in the file and are read at once: a chunk, or many small ones that one
    /// engine moves, or none.
    fn runs<'e>(&self, engine_of: impl Fn(&Chunk) -> Option<&'e dyn ContentEngine>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let (mut bytes, mut engine, mut end) = (0, None, (0, 0));
        for (n, chunk) in self.placed.iter().map(|&index| &self.chunks[index as usize]).enumerate() {
            let padded = chunk.length.next_multiple_of(PAGE);
            let before = std::mem::replace(&mut engine, engine_of(chunk));
            let follows = end == (chunk.file, chunk.file_offset);
            end = (chunk.file, chunk.file_end());
            match runs.last_mut() {
                Some(run) if follows && bytes + padded <= CHUNK_BYTES && is_same_engine(before, engine) => {
                    run.end = n + 1;
                    bytes += padded;
                }
                _ => {
                    runs.push(n..n + 1);
                    bytes = padded;
                }
            }
        }
        runs
    }

    fn zero_gaps(&self, extents: &[Extent<'_>], limit: &Limit) -> Result<(), ImageError> {
        let mut gaps = Vec::new();
        for (n, extent) in extents.iter().enumerate() {
            for (offset, length) in extent.chunk_ranges() {
                let stored = self.chunk_at(count(n), offset).map_or(0, |index| self.chunks[index].length);
                if stored < length {
                    gaps.push((extent, offset + stored, length - stored));
                }
            }
        }
        for_each(gaps.len(), 1, limit, |n, _| {
            let (extent, offset, length) = gaps[n];
            match extent {
                Extent::Host(range) | Extent::Aperture(range) => range.zero(offset, length),
                Extent::Agent(range) => {
                    let buffer = range.engine.take()?;
                    buffer.range().zero(0, length);
                    let piece = Piece { va: range.va + offset, bytes: length, at: 0 };
                    range.engine.store(&buffer, &[piece])?;
                }
            }
            Ok(())
        })
    }

    fn fill_run(
        &self,
        run: Range<usize>,
        extents: &[Option<Extent<'_>>],
        buffer: &mut ChunkBuffer,
    ) -> Result<(), ImageError> {
        let bulk = &self.of(&self.chunks[self.placed[run.start] as usize]).bulk;
        let apart = bulk.in_memory() || run.len() == 1;
        let mut left = run;
        while apart && !left.is_empty() {
            let chunk = &self.chunks[self.placed[left.start] as usize];
            let extent = &extents[chunk.extent as usize];
            let is_filled = match extent {
                Some(Extent::Host(range)) => self.fill_in_place(chunk, range, buffer)?,
                // Nothing that is filled by an engine is in this run.
                Some(Extent::Aperture(_) | Extent::Agent(_)) => false,
                None => true,
            };
            if !is_filled {
                break;
            }
            left.start += 1;
        }
        if left.is_empty() {
            return Ok(());
        }
        self.read_run(left, buffer, |chunk, bytes| {
            if let Some(Extent::Host(range) | Extent::Aperture(range)) = &extents[chunk.extent as usize] {
                range.copy_in(chunk.offset, bytes);
            }
        })
    }

    /// Reads a run, whose bytes an engine then moves from a buffer of its own.
    fn fill_by(
        &self,
        engine: &dyn ContentEngine,
        run: Range<usize>,
        extents: &[Option<Extent<'_>>],
        buffer: &mut ChunkBuffer,
    ) -> Result<(), ImageError> {
        let staged = engine.take()?;
        let (mut pieces, mut at) = (Vec::with_capacity(run.len()), 0);
        self.read_run(run, buffer, |chunk, bytes| {
            if let Some(Extent::Agent(range)) = &extents[chunk.extent as usize] {
                staged.range().copy_in(at, bytes);
                pieces.push(Piece { va: range.va + chunk.offset, bytes: chunk.length, at });
                at += chunk.length.next_multiple_of(PAGE);
            }
        })?;
        Ok(engine.store(&staged, &pieces)?)
    }

    /// Reads a chunk to where it belongs and hashes it there; false if it has to go another way: the memory is not
    /// aligned, or is a device's that no transfer reaches.
    fn fill_in_place(
        &self,
        chunk: &Chunk,
        extent: &HostRange,
        buffer: &mut ChunkBuffer,
    ) -> Result<bool, ImageError> {
        if !extent.is_aligned(chunk.offset, chunk.length, PAGE) {
            return Ok(false);
        }
        extent.populate(chunk.offset, chunk.length, &self.huge);
        let bulk = &self.of(chunk).bulk;
        // A copy is hashed while it is in the cache; a disk wants large transfers.
        let step = if bulk.in_memory() { PIECE_BYTES as u64 } else { CHUNK_BYTES };
        let mut hasher = blake3::Hasher::new();
        for at in (0..chunk.length).step_by(size(step)) {
            let (to, bytes) = (chunk.offset + at, step.min(chunk.length - at));
            let (from, length) = (chunk.file_offset + at, size(bytes));
            match extent.read_from(bulk.source(from, length), from, to, length) {
                Ok(()) => buffer.hash(&mut hasher, extent, to, bytes).map_err(|e| self.unbuffered(e))?,
                Err(error) if matches!(error.raw_os_error(), Some(nix::libc::EFAULT | nix::libc::EINVAL)) => {
                    return Ok(false);
                }
                Err(source) => return Err(self.unread(chunk, source)),
            }
        }
        self.compare(chunk, &hasher)?;
        Ok(true)
    }

    /// Reads a run through `buffer` and gives out each chunk whose bytes are right.
    fn read_run(
        &self,
        run: Range<usize>,
        buffer: &mut ChunkBuffer,
        mut take: impl FnMut(&Chunk, &[u8]),
    ) -> Result<(), ImageError> {
        let chunk_at = |n: usize| &self.chunks[self.placed[n] as usize];
        let first = chunk_at(run.start);
        let start = first.file_offset;
        let bytes = buffer.bytes().map_err(|error| self.unbuffered(error))?;
        let bytes = &mut bytes[..size(chunk_at(run.end - 1).file_end() - start)];
        self.of(first).bulk.read(bytes, start).map_err(|source| self.unread(first, source))?;
        for chunk in run.map(chunk_at) {
            let padded = &bytes[size(chunk.file_offset - start)..size(chunk.file_end() - start)];
            take(chunk, self.right(chunk, padded)?);
        }
        Ok(())
    }

    fn compare(&self, chunk: &Chunk, hasher: &blake3::Hasher) -> Result<(), ImageError> {
        if *hasher.finalize().as_bytes() == chunk.hash {
            return Ok(());
        }
        Err(self.corrupt(chunk, chunk.file_offset, "the hash of a chunk does not fit its bytes"))
    }

    fn corrupt(&self, chunk: &Chunk, offset: u64, what: &'static str) -> ImageError {
        ImageError::Corrupt { path: self.of(chunk).path.clone(), section: "contents", offset, what }
    }

    fn unbuffered(&self, source: std::io::Error) -> ImageError {
        ImageError::Io { act: "find memory to read", path: self.own().path.clone(), source }
    }

    fn unread(&self, chunk: &Chunk, source: std::io::Error) -> ImageError {
        ImageError::Io { act: "read contents of", path: self.of(chunk).path.clone(), source }
    }
}

/// Where in less than a page the first byte is that is not zero.
fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    const ZEROS: [u8; size(PAGE)] = [0; size(PAGE)];
    if ZEROS.starts_with(bytes) { None } else { bytes.iter().position(|byte| *byte != 0) }
}
