// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store has, and getting it out.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::{Store, check_name};
use crate::Progress;
use crate::assembly::Assembly;
use crate::entry::{Entry, parse_places};
use crate::error::StoreError;
use crate::index::{ChunkIndex, MAX_CHUNK_BYTES};
use crate::object::{Codec, digits};
use crate::pack::{Location, Placed, Span, spans};

/// How often a checkpoint is looked for again whose packs are gone.
const MOVES: usize = 8;
/// How often an object is read that was not read right, where others carry it here.
const READS: usize = 3;

/// A checkpoint of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Bytes of its chunks, each once.
    pub chunk_bytes: u64,
    /// Bytes of those that no other checkpoint of the store has.
    pub own_bytes: u64,
}

/// A checkpoint, and where everything is that belongs to it.
#[derive(Debug)]
pub(super) struct Opened {
    /// The bytes of its entry.
    pub(super) bytes: Vec<u8>,
    pub(super) entry: Entry,
    pub(super) index: ChunkIndex,
    /// Where the objects of the index's chunks are, in the order of its list.
    pub(super) locations: Vec<Location>,
}

impl Opened {
    /// The chunks of the index, and where their objects are.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Placed> {
        let pairs = self.index.chunks.iter().zip(&self.locations);
        pairs.map(|(chunk, location)| Placed { chunk: *chunk, location: *location })
    }

    /// These, and the pieces of the texts.
    pub(super) fn all(&self) -> impl Iterator<Item = Placed> {
        self.chunks().chain(self.entry.pieces().copied())
    }
}

impl Store {
    /// The names of its checkpoints, sorted; of a bucket, those that are being added, too.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Remote`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.newest_names()?;
        names.sort();
        Ok(names)
    }

    /// The same, the newest first.
    pub(super) fn newest_names(&self) -> Result<Vec<String>, StoreError> {
        // What is not called like a checkpoint is not the store's.
        Ok(self.backend.names()?.into_iter().filter(|name| check_name(name).is_ok()).collect())
    }

    /// Hands out each checkpoint, one at a time, the newest first; not those that are removed meanwhile.
    ///
    /// # Errors
    /// As for [`Store::opened`].
    pub(super) fn each(
        &self,
        mut take: impl FnMut(String, Opened) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for name in self.newest_names()? {
            match self.opened(&name) {
                Err(StoreError::Missing { .. }) => {}
                opened => take(name, opened?)?,
            }
        }
        Ok(())
    }

    /// What each of its checkpoints has, and has alone.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Remote`], [`StoreError::Index`], [`StoreError::Object`].
    pub fn list(&self) -> Result<Vec<Kept>, StoreError> {
        let _lock = self.backend.share()?;
        let (mut counts, mut kept) = (BTreeMap::<[u8; 32], u64>::new(), Vec::new());
        self.each(|_, opened| {
            opened.index.chunks.iter().for_each(|chunk| *counts.entry(chunk.hash).or_default() += 1);
            Ok(())
        })?;
        self.each(|name, opened| {
            let own = opened.index.chunks.iter().filter(|chunk| counts.get(&chunk.hash) == Some(&1));
            let own_bytes = own.map(|chunk| chunk.bytes).sum();
            let (file_bytes, chunk_bytes) = (opened.index.file_bytes(), opened.index.chunk_bytes());
            kept.push(Kept { name, file_bytes, chunk_bytes, own_bytes });
            Ok(())
        })?;
        kept.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(kept)
    }

    /// Makes the directory of a checkpoint again.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::NotEmpty`], [`StoreError::NoRoom`], [`StoreError::Object`] or [`StoreError::Pack`] when
    /// something is damaged or missing, [`StoreError::Unproven`] of a bucket without a key, [`StoreError::Io`], [`StoreError::Remote`].
    /// What is there of the directory stays for another attempt.
    pub fn fetch(&self, name: &str, directory: &Path, progress: Progress<'_>) -> Result<PathBuf, StoreError> {
        if !self.is_proven {
            return Err(StoreError::Unproven { store: self.place() });
        }
        let _lock = self.backend.share()?;
        let opened = self.opened(name)?;
        let assembly = Assembly::begin(directory, opened.index.clone())?;
        let wanted = assembly.missing();
        let all = wanted.iter().map(|n| assembly.index().chunks[*n].bytes).sum();
        let done = AtomicU64::new(0);
        let read = |opened: &Opened| {
            let missing = assembly.missing();
            let chunks: Vec<Placed> = opened.chunks().collect();
            let placed: Vec<Placed> = missing.iter().map(|n| chunks[*n]).collect();
            self.read_all(&placed, |n, bytes| {
                assembly.place(missing[n], &bytes)?;
                let bytes = placed[n].chunk.bytes;
                progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
                Ok(())
            })
        };
        // Another checkpoint may have the name by now.
        let moved = |before: &Opened| {
            let now = self.opened(name)?;
            Ok((now.bytes != before.bytes && now.index == before.index).then_some(now))
        };
        while_moved(opened, read, moved)?;
        assembly.commit()
    }

    /// Reads every chunk of every checkpoint and of the indices; returns how many, and their bytes.
    ///
    /// # Errors
    /// [`StoreError::Object`] or [`StoreError::Pack`] with the first that is damaged or missing, [`StoreError::Index`],
    /// [`StoreError::Io`], [`StoreError::Remote`].
    pub fn verify(&self, progress: Progress<'_>) -> Result<(u64, u64), StoreError> {
        let _lock = self.backend.share()?;
        let bytes_of = |placed: &[Placed]| placed.iter().map(|placed| placed.chunk.bytes).sum::<u64>();
        let read = |placed: &Vec<Placed>| {
            let (all, done) = (bytes_of(placed), AtomicU64::new(0));
            self.read_all(placed, |n, _| {
                let bytes = placed[n].chunk.bytes;
                progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, all);
                Ok(())
            })
        };
        let moved = |before: &Vec<Placed>| {
            let now = self.all_placed()?;
            Ok((now != *before).then_some(now))
        };
        let (placed, ()) = while_moved(self.all_placed()?, read, moved)?;
        Ok((placed.len() as u64, bytes_of(&placed)))
    }

    /// All that checkpoints need, each once.
    fn all_placed(&self) -> Result<Vec<Placed>, StoreError> {
        let mut seen = HashSet::new();
        let mut placed: Vec<Placed> = Vec::new();
        self.each(|_, opened| {
            placed.extend(opened.all().filter(|placed| seen.insert((placed.chunk, placed.location))));
            Ok(())
        })?;
        Ok(placed)
    }

    /// A checkpoint.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Name`], [`StoreError::Manifest`], [`StoreError::Index`], [`StoreError::Object`],
    /// [`StoreError::Pack`], [`StoreError::Io`], [`StoreError::Remote`].
    pub(super) fn opened(&self, name: &str) -> Result<Opened, StoreError> {
        check_name(name)?;
        let entry = || self.backend.entry(name)?.ok_or_else(|| self.no_such(name));
        let moved = |before: &Vec<u8>| {
            let now = entry()?;
            Ok((now != *before).then_some(now))
        };
        let (bytes, (entry, index, locations)) =
            while_moved(entry()?, |bytes| self.open_entry(name, bytes), moved)?;
        Ok(Opened { bytes, entry, index, locations })
    }

    fn open_entry(&self, name: &str, bytes: &[u8]) -> Result<(Entry, ChunkIndex, Vec<Location>), StoreError> {
        let entry = Entry::parse(name, &self.codec, bytes)?;
        let index = ChunkIndex::parse(&self.text(&entry.index)?)?;
        let locations = match &entry.places {
            None => vec![Location::File; index.chunks.len()],
            Some(places) => parse_places(&self.text(places)?, index.chunks.len())?,
        };
        Ok((entry, index, locations))
    }

    /// The text that is made of these pieces.
    fn text(&self, pieces: &[Placed]) -> Result<Vec<u8>, StoreError> {
        let texts: Vec<OnceLock<Vec<u8>>> = pieces.iter().map(|_| OnceLock::new()).collect();
        self.read_all(pieces, |n, bytes| {
            // Each is handed out once.
            let _ = texts[n].set(bytes);
            Ok(())
        })?;
        Ok(texts.into_iter().filter_map(OnceLock::into_inner).collect::<Vec<_>>().concat())
    }

    /// Reads chunks, and hands out the number of each and its bytes, in any order and from several threads.
    ///
    /// # Errors
    /// Those of `take`; [`StoreError::Object`], [`StoreError::Pack`], [`StoreError::Io`], [`StoreError::Remote`].
    pub(super) fn read_all(
        &self,
        placed: &[Placed],
        take: impl Fn(usize, Vec<u8>) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        self.read_objects(placed, |n, bytes, _| take(n, bytes))
    }

    /// The same, with the object of each, too.
    ///
    /// # Errors
    /// As for [`Store::read_all`].
    pub(super) fn read_objects(
        &self,
        placed: &[Placed],
        take: impl Fn(usize, Vec<u8>, &[u8]) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        let spans = spans(placed.iter().map(|placed| placed.location));
        for_each(spans.len(), self.backend.threads(), &Limit::none(), |n, _| match &spans[n] {
            Span::File(item) => {
                let object = self.object_in_file(&placed[*item])?;
                take(*item, self.codec.decode(&placed[*item].chunk, &object)?, &object)
            }
            Span::Pack { pack, offset, bytes, items } => {
                let mut read = self.backend.read(*pack, *offset, *bytes)?;
                for (item, from, length) in items {
                    let chunk = &placed[*item].chunk;
                    let mut reads = 1;
                    let bytes = loop {
                        match self.codec.decode(chunk, &read[*from..from + length]) {
                            // What a directory has does not get better.
                            Err(StoreError::Object { .. })
                                if !self.backend.is_read_back() && reads < READS =>
                            {
                                read = self.backend.read(*pack, *offset, *bytes)?;
                                reads += 1;
                            }
                            decoded => break decoded?,
                        }
                    };
                    take(*item, bytes, &read[*from..from + length])?;
                }
                Ok(())
            }
        })
    }

    /// An object of a store of version 1.
    fn object_in_file(&self, placed: &Placed) -> Result<Vec<u8>, StoreError> {
        let name = self.codec.name(&placed.chunk.hash);
        let object = self.backend.object(&name, Codec::most(MAX_CHUNK_BYTES))?;
        object.ok_or_else(|| StoreError::Object { chunk: digits(&name), what: "it is missing" })
    }
}

/// Does what reads packs by what was `seen` of entries; returns that, and what came of it. When a pack is missing, a collection may have moved
/// objects: `look` says what is to be seen now, if that is another attempt's worth.
///
/// # Errors
/// Those of both.
fn while_moved<S, T>(
    mut seen: S,
    act: impl Fn(&S) -> Result<T, StoreError>,
    look: impl Fn(&S) -> Result<Option<S>, StoreError>,
) -> Result<(S, T), StoreError> {
    for _ in 1..MOVES {
        match act(&seen) {
            Err(error @ StoreError::Pack { .. }) => seen = look(&seen)?.ok_or(error)?,
            done => return Ok((seen, done?)),
        }
    }
    let done = act(&seen)?;
    Ok((seen, done))
}
