// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adding a checkpoint.
//!
//! INVARIANT: whoever is told that a checkpoint was added can remove its directory: each of its objects was written, or is there already,
//! and there for good. In a directory what is there already was read, and found right.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use queues::words::size;
use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::{Mark, Store, VERSION, check_name};
use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::cut::{Cut, Grain, segment};
use crate::entry::{Entry, encode_places};
use crate::error::StoreError;
use crate::index::ChunkName;
use crate::object::Kind;
use crate::pack::{Location, PackName, PackWriter, Placed, batches};

/// Of so many chunks of the newest checkpoints an addition knows where they are, which takes a quarter of a GiB of memory.
const MAX_KNOWN: usize = 1 << 21;

/// Packs that are written at a time, at most.
const LANES: usize = 16;

/// What adding a checkpoint has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Added {
    /// Bytes of the checkpoint's files.
    pub file_bytes: u64,
    /// Its chunks, each once.
    pub chunks: u64,
    /// Bytes of those.
    pub chunk_bytes: u64,
    /// Those that the newest checkpoints of the store did not have, or had damaged, and those of its index.
    pub new_chunks: u64,
    /// Bytes of their objects, and of the entry.
    pub new_bytes: u64,
}

/// Where the objects of chunks are.
pub(super) type Known = HashMap<ChunkName, Location>;

impl Store {
    /// Makes sure that a checkpoint of this name could be added.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`], [`StoreError::Adding`], [`StoreError::Io`], [`StoreError::Remote`].
    pub fn check_free(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        self.backend.check_free(name)
    }

    /// Adds a checkpoint. Of a chunk that a directory has, its object is read and compared with the hash; one that is damaged is
    /// written again.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`], [`StoreError::Changed`] when a file is not as it was written,
    /// [`StoreError::TooLarge`], [`StoreError::Adding`], [`StoreError::Collecting`], [`StoreError::Superseded`],
    /// [`StoreError::Io`], [`StoreError::Remote`]. Packs that were written stay until they are collected.
    pub fn add(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        progress: Progress<'_>,
    ) -> Result<Added, StoreError> {
        self.check_free(name)?;
        let adding = self.backend.add(name)?;
        if self.version < VERSION {
            // Whoever knows version 1 only is to know that it does not know this.
            self.backend.replace_mark(&Mark::of(&self.codec, self.chunk_bytes).text())?;
        }
        let index = checkpoint.index();
        let mut known = self.known()?;
        let write = |pack, bytes: &[u8]| adding.write(pack, bytes);
        let mut writer = Writer::new(self, &write);
        let read = |n: usize| checkpoint.read(n);
        self.forget_damaged(&mut known, &index.chunks);
        let locations = writer.write(&index.chunks, &mut known, &read, progress)?;
        let mut write_text = |text: &[u8]| {
            let text = IndexText::cut(text, self.grain());
            self.forget_damaged(&mut known, &text.pieces);
            writer.write_text(&text, &mut known)
        };
        let index_pieces = write_text(checkpoint.text())?;
        let places = write_text(&encode_places(&locations)?)?;
        let entry = Entry { index: index_pieces, places: Some(places) }.encode(name, &self.codec, None)?;
        let (new_chunks, new_bytes) = (writer.new_chunks, writer.new_bytes + entry.len() as u64);
        adding.commit(&entry)?;
        Ok(Added {
            file_bytes: index.file_bytes(),
            chunks: index.chunks.len() as u64,
            chunk_bytes: index.chunk_bytes(),
            new_chunks,
            new_bytes,
        })
    }

    /// Where the chunks of the newest checkpoints are.
    fn known(&self) -> Result<Known, StoreError> {
        let mut known = Known::new();
        for name in self.newest_names()? {
            // One that cannot be read has nothing to offer; whoever fetches it will be told.
            let opened = match self.opened(&name) {
                Ok(opened) => opened,
                Err(error @ StoreError::Remote { .. }) => return Err(error),
                Err(StoreError::Missing { .. }) => continue,
                Err(error) => {
                    tracing::warn!(name, %error, "the chunks of a checkpoint are not used again");
                    continue;
                }
            };
            // Objects that are files are not in packs.
            let packed = opened.all().filter(|placed| placed.location != Location::File);
            for placed in packed {
                known.entry(placed.chunk).or_insert(placed.location);
            }
            if known.len() >= MAX_KNOWN {
                break;
            }
        }
        if !self.backend.is_read_back() {
            // Somebody, or a rule of the bucket, may have removed packs.
            let packs: HashMap<PackName, u64> = self.backend.packs()?.into_iter().collect();
            known.retain(|_, location| match *location {
                Location::File => true,
                Location::Pack { pack, offset, bytes } => {
                    packs.get(&pack).is_some_and(|length| u64::from(offset) + u64::from(bytes) <= *length)
                }
            });
        }
        Ok(known)
    }

    /// Forgets where chunks are whose objects are not right, if nobody else looks after them.
    fn forget_damaged(&self, known: &mut Known, chunks: &[ChunkName]) {
        if !self.backend.is_read_back() {
            return;
        }
        let placed = |chunk: &ChunkName| {
            known.get(chunk).map(|location| Placed { chunk: *chunk, location: *location })
        };
        let placed: Vec<Placed> = chunks.iter().filter_map(placed).collect();
        let right = Mutex::new(BTreeSet::new());
        let read = self.read_all(&placed, |n, _| {
            // A panic in between leaves the set as before, or with this.
            right.lock().unwrap_or_else(PoisonError::into_inner).insert(placed[n].chunk);
            Ok(())
        });
        let Err(error) = read else { return };
        tracing::warn!(%error, "chunks are written again");
        // One by one, what was not read: the first that is damaged has stopped all.
        let right = right.into_inner().unwrap_or_else(PoisonError::into_inner);
        for placed in placed.iter().filter(|placed| !right.contains(&placed.chunk)) {
            if self.read_all(std::slice::from_ref(placed), |_, _| Ok(())).is_err() {
                known.remove(&placed.chunk);
            }
        }
    }
}

/// Writes a pack.
type WritePack<'w> = dyn Fn(PackName, &[u8]) -> Result<(), StoreError> + Sync + 'w;

/// Writes chunks that nobody has into packs.
pub(super) struct Writer<'w> {
    store: &'w Store,
    write_pack: &'w WritePack<'w>,
    new_chunks: u64,
    new_bytes: u64,
}

impl<'w> Writer<'w> {
    /// One whose packs are written so.
    pub(super) fn new(store: &'w Store, write_pack: &'w WritePack<'w>) -> Self {
        Self { store, write_pack, new_chunks: 0, new_bytes: 0 }
    }

    /// Writes the chunks that are not `known`, which they are then; returns where each is.
    fn write(
        &mut self,
        chunks: &[ChunkName],
        known: &mut Known,
        read: &(dyn Fn(usize) -> Result<Vec<u8>, StoreError> + Sync),
        progress: Progress<'_>,
    ) -> Result<Vec<Location>, StoreError> {
        let all = chunks.iter().map(|chunk| chunk.bytes).sum();
        let mut seen = BTreeSet::new();
        let is_new = |n: &usize| !known.contains_key(&chunks[*n]) && seen.insert(chunks[*n]);
        let new: Vec<usize> = (0..chunks.len()).filter(is_new).collect();
        let new_bytes: u64 = new.iter().map(|n| chunks[*n].bytes).sum();
        let done = AtomicU64::new(all - new_bytes);
        let batches = batches(new.iter().map(|n| chunks[*n].bytes));
        let (written, placed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let codec = &self.store.codec;
        let write = |(from, to): (usize, usize)| {
            let (mut pack, mut places) = (PackWriter::new()?, Vec::with_capacity(to - from));
            for n in &new[from..to] {
                let chunk = &chunks[*n];
                let object = codec.encode(Kind::Chunk, chunk, &read(*n)?);
                written.fetch_add(object.len() as u64, Ordering::Relaxed);
                places.push((*chunk, pack.push(&object)));
                progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            }
            let (name, bytes) = pack.finish();
            (self.write_pack)(name, &bytes)?;
            // A panic in between leaves the list as before, or with these.
            placed.lock().unwrap_or_else(PoisonError::into_inner).extend(places);
            Ok::<_, StoreError>(())
        };
        // Each lane has a pack in memory.
        let lanes = LANES.min(batches.len());
        for_each(lanes, self.store.backend.threads(), &Limit::none(), |lane, _| {
            batches.iter().skip(lane).step_by(lanes).try_for_each(|batch| write(*batch))
        })?;
        self.new_chunks += new.len() as u64;
        self.new_bytes += written.into_inner();
        known.extend(placed.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(chunks.iter().map(|chunk| known[chunk]).collect())
    }

    /// Writes the pieces of a text that are not `known`; returns where each is.
    pub(super) fn write_text(
        &mut self,
        text: &IndexText<'_>,
        known: &mut Known,
    ) -> Result<Vec<Placed>, StoreError> {
        let read = |n: usize| Ok(text.piece(n).to_vec());
        let locations = self.write(&text.pieces, known, &read, &|_, _| ())?;
        let placed = text.pieces.iter().zip(locations);
        Ok(placed.map(|(chunk, location)| Placed { chunk: *chunk, location }).collect())
    }
}

/// A text of a checkpoint, which is kept in chunks like everything else: those of two checkpoints that have much in common do, too.
pub(super) struct IndexText<'t> {
    bytes: &'t [u8],
    pub(super) pieces: Vec<ChunkName>,
    /// Where each begins.
    offsets: Vec<usize>,
}

impl<'t> IndexText<'t> {
    pub(super) fn cut(bytes: &'t [u8], grain: Grain) -> Self {
        let cuts = segment(0, bytes, grain);
        // A text has no zeros.
        let piece = |cut: &Cut| ChunkName { hash: cut.hash.unwrap_or_default(), bytes: cut.bytes };
        let offsets = cuts.iter().map(|cut| size(cut.offset)).collect();
        Self { pieces: cuts.iter().map(piece).collect(), offsets, bytes }
    }

    pub(super) fn piece(&self, n: usize) -> &'t [u8] {
        &self.bytes[self.offsets[n]..][..size(self.pieces[n].bytes)]
    }
}
