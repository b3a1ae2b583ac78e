// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the workers that write an image put chunks: what is known or in the parent's files is left out, the rest is copied, hashed and
//! written, many small parts at a time.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{FallocateFlags, fallocate};
use queues::words::{count, size};

use super::engine::{EngineBuffer, EngineError, Piece};
use super::extent::is_same_engine;
use super::format::Chunk;
use super::host::{HostRange, Mapping};
use super::known::KnownChunk;
use super::parent::Parent;
use super::worker::{Bulk, ChunkBuffer, PAGE, copy_and_hash};
use super::{CHUNK_BYTES, Extent};

/// Space taken at a time on a disk: blocks that are there already are written at full speed by all threads.
const AHEAD_BYTES: u64 = 256 << 20;
/// Below this, taking space ahead costs more than it saves.
const AHEAD_FROM: u64 = 8 << 20;

/// A part of an extent that becomes at most one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    extent: u32,
    offset: u64,
    length: u64,
}

impl Part {
    /// Its bytes in a file.
    pub(super) fn padded(&self) -> u64 {
        self.length.next_multiple_of(PAGE)
    }
}

/// What is written at once: a chunk, or the chunks of many small extents that one engine moves, or none.
pub(super) fn runs(extents: &[Extent<'_>]) -> Vec<Vec<Part>> {
    let mut runs: Vec<Vec<Part>> = Vec::new();
    let mut bytes = CHUNK_BYTES;
    let mut engine = None;
    for (n, extent) in extents.iter().enumerate() {
        if !is_same_engine(engine, extent.engine()) {
            engine = extent.engine();
            bytes = CHUNK_BYTES;
        }
        for (offset, length) in extent.chunk_ranges() {
            // The format has 32 bits for an extent, and so few have the buffers of a process.
            let part = Part { extent: count(n), offset, length };
            bytes += part.padded();
            match runs.last_mut() {
                Some(run) if bytes <= CHUNK_BYTES => run.push(part),
                _ => {
                    runs.push(vec![part]);
                    bytes = part.padded();
                }
            }
        }
    }
    runs
}

/// Why a run was not written.
pub(super) enum Failure {
    Io(io::Error),
    Engine(EngineError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// A part and where the process reads its bytes.
type Readable<'p> = (&'p Part, HostRange);

/// Where the workers put runs.
pub(super) struct Sink<'a> {
    extents: &'a [Extent<'a>],
    bulk: &'a Bulk,
    parent: Option<&'a Parent>,
    /// What the chunks of each extent are known to be.
    known: &'a [Vec<KnownChunk>],
    unread_bytes: AtomicU64,
    mapping: Option<Mapping>,
    /// Where the next chunk goes without a mapping.
    end: AtomicU64,
    /// Where `end` gets to if nothing is zero.
    most: u64,
    /// How far there is space.
    taken: Mutex<u64>,
}

impl<'a> Sink<'a> {
    /// Puts the extents' bytes into a file, or into its mapping, at `places`, of which all are used if nothing is zero, known or the parent's.
    pub(super) fn new(
        extents: &'a [Extent<'a>],
        bulk: &'a Bulk,
        parent: Option<&'a Parent>,
        known: &'a [Vec<KnownChunk>],
        mapping: Option<Mapping>,
        places: Range<u64>,
    ) -> Self {
        let taken = if places.end < AHEAD_FROM || bulk.in_memory() { u64::MAX } else { 0 };
        let (end, taken) = (AtomicU64::new(places.start), Mutex::new(taken));
        let unread_bytes = AtomicU64::new(0);
        Self { extents, bulk, parent, known, unread_bytes, mapping, end, most: places.end, taken }
    }

    /// Where the contents end so far.
    pub(super) fn end(&self) -> u64 {
        self.mapping.as_ref().map_or_else(|| self.end.load(Ordering::Relaxed), Mapping::end)
    }

    /// Bytes of parts that were known.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// Writes what of a run is neither known nor zero nor the parent's, and says where all of it is that is not zero.
    pub(super) fn write(&self, run: &[Part], buffer: &mut ChunkBuffer) -> Result<Vec<Chunk>, Failure> {
        let (run, mut known) = self.known_parts(run);
        if !run.is_empty() {
            known.extend(self.read_and_write(&run, buffer)?);
        }
        Ok(known)
    }

    /// The parts that have to be read, and the chunks of those that need not.
    fn known_parts(&self, run: &[Part]) -> (Vec<Part>, Vec<Chunk>) {
        let (mut unknown, mut chunks) = (Vec::with_capacity(run.len()), Vec::new());
        for &part in run {
            let Part { extent, offset, length } = part;
            let known =
                self.known.get(extent as usize).and_then(|known| known.get(size(offset / CHUNK_BYTES)));
            let kept = match known {
                Some(KnownChunk::Zero) => Some(None),
                Some(KnownChunk::Hash(hash)) => {
                    let place = self.parent.and_then(|parent| parent.take(hash, length));
                    place.map(|(file, file_offset)| {
                        Some(Chunk { extent, offset, length, file, file_offset, hash: *hash })
                    })
                }
                Some(KnownChunk::Unknown) | None => None,
            };
            match kept {
                Some(chunk) => {
                    chunks.extend(chunk);
                    self.unread_bytes.fetch_add(length, Ordering::Relaxed);
                }
                None => unknown.push(part),
            }
        }
        (unknown, chunks)
    }

    fn read_and_write(&self, run: &[Part], buffer: &mut ChunkBuffer) -> Result<Vec<Chunk>, Failure> {
        let (parts, _held) = self.readable(run)?;
        let is_stored = |(part, range): &Readable<'_>| !range.is_zero(0, part.length);
        let stored: Vec<Readable<'_>> = parts.into_iter().filter(is_stored).collect();
        let bytes: u64 = stored.iter().map(|(part, _)| part.padded()).sum();
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if let Some(parent) = self.parent {
            return Ok(self.write_changed(parent, &stored, buffer)?);
        }
        let place = match &self.mapping {
            None => self.end.fetch_add(bytes, Ordering::Relaxed),
            Some(mapping) => match mapping.take(size(bytes)) {
                (place, Ok(into)) => return Ok(self.fill(&stored, place, into)),
                // A kernel that does not know the advice.
                (place, Err(error)) if error.raw_os_error() == Some(nix::libc::EINVAL) => place,
                (_, Err(error)) => return Err(error.into()),
            },
        };
        let into = &mut buffer.bytes()?[..size(bytes)];
        let chunks = self.fill(&stored, place, into);
        self.take_space(place + bytes);
        self.bulk.write(into, place)?;
        Ok(chunks)
    }

    /// Writes the parts that the parent has not.
    fn write_changed(
        &self,
        parent: &Parent,
        parts: &[Readable<'_>],
        buffer: &mut ChunkBuffer,
    ) -> io::Result<Vec<Chunk>> {
        let buffer = buffer.bytes()?;
        let (mut chunks, mut changed) = (Vec::with_capacity(parts.len()), 0);
        for (part, range) in parts {
            let &&Part { extent, offset, length } = part;
            let (bytes, padding) = buffer[changed..changed + size(part.padded())].split_at_mut(size(length));
            let hash = copy_and_hash(range, bytes);
            let (file, file_offset) = match parent.take(&hash, length) {
                Some(place) => place,
                None => {
                    padding.fill(0);
                    let at = changed as u64;
                    changed += size(part.padded());
                    (0, at)
                }
            };
            chunks.push(Chunk { extent, offset, length, file, file_offset, hash });
        }
        if changed > 0 {
            let place = self.end.fetch_add(changed as u64, Ordering::Relaxed);
            chunks.iter_mut().filter(|chunk| chunk.file == 0).for_each(|chunk| chunk.file_offset += place);
            self.take_space(place + changed as u64);
            self.bulk.write(&buffer[..changed], place)?;
        }
        Ok(chunks)
    }

    /// The parts of a run, with their bytes where the process reads them; and the buffer that they are in, if an engine had
    /// to move them there.
    fn readable<'p>(
        &self,
        run: &'p [Part],
    ) -> Result<(Vec<Readable<'p>>, Option<EngineBuffer<'a>>), EngineError> {
        let mut held = None;
        if let Some(engine) = run.first().and_then(|part| self.extents[part.extent as usize].engine()) {
            let buffer = engine.take()?;
            engine.fetch(&buffer, &self.pieces(run))?;
            held = Some(buffer);
        }
        let mut at = 0;
        let parts = run.iter().map(|part| {
            let place = at;
            at += part.padded();
            let range = match (&self.extents[part.extent as usize], &held) {
                (Extent::Host(range) | Extent::Aperture(range), _) => range.part(part.offset, part.length),
                (Extent::Agent(_), buffer) => buffer
                    .as_ref()
                    .expect("INVARIANT: one engine moves all parts of a run")
                    .range()
                    .part(place, part.length),
            };
            (part, range)
        });
        Ok((parts.collect(), held))
    }

    /// Where the parts of a run lie in an agent's memory, and where they go in a buffer.
    fn pieces(&self, run: &[Part]) -> Vec<Piece> {
        let mut at = 0;
        let piece = |part: &Part| {
            let place = at;
            at += part.padded();
            match &self.extents[part.extent as usize] {
                Extent::Agent(range) => {
                    Some(Piece { va: range.va + part.offset, bytes: part.length, at: place })
                }
                Extent::Host(_) | Extent::Aperture(_) => None,
            }
        };
        run.iter().filter_map(piece).collect()
    }

    /// Copies the parts to `into`, which is what the file has from `place` on.
    fn fill(&self, parts: &[Readable<'_>], place: u64, mut into: &mut [u8]) -> Vec<Chunk> {
        let mut file_offset = place;
        let mut chunks = Vec::with_capacity(parts.len());
        for (part, range) in parts {
            let (bytes, rest) = into.split_at_mut(size(part.padded()));
            let (bytes, padding) = bytes.split_at_mut(size(part.length));
            let hash = copy_and_hash(range, bytes);
            padding.fill(0);
            let &&Part { extent, offset, length } = part;
            chunks.push(Chunk { extent, offset, length, file: 0, file_offset, hash });
            file_offset += part.padded();
            into = rest;
        }
        chunks
    }

    /// Sees to it that there is space up to `end`. Only advice: a file system without it, or without room for so much
    /// at once, is asked again by the write itself.
    fn take_space(&self, end: u64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken < end {
            let bytes = AHEAD_BYTES.min(self.most - *taken);
            // CAST: no file is longer than i64 says.
            let (from, length) = (*taken as i64, bytes as i64);
            if fallocate(self.bulk.file(), FallocateFlags::empty(), from, length).is_err() {
                *taken = u64::MAX;
                return;
            }
            *taken += bytes;
        }
    }
}
