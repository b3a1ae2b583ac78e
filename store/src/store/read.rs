// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store has, and getting it out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::FlockArg;
use serde::Serialize;
use stasis::criu::{ManifestError, OpenDirectory};
use stasis::image::{Limit, for_each};

use super::add::{FRONT, MAGIC};
use super::{CHECKPOINTS, MAX_PIECES_BYTES, Store, check_name, open_regular, read_at_most};
use crate::Progress;
use crate::assembly::Assembly;
use crate::error::{StoreError, failed};
use crate::index::{ChunkIndex, ChunkName, MAX_CHUNK_BYTES, MAX_INDEX_BYTES};
use crate::object::{Codec, Kind, digits};

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

impl Store {
    /// The names of its checkpoints, sorted.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.path.join(CHECKPOINTS);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed("read", &directory))? {
            let entry = entry.map_err(failed("read", &directory))?;
            // What is not called like a checkpoint is not the store's.
            names.extend(
                entry.file_name().to_str().filter(|name| check_name(name).is_ok()).map(str::to_owned),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Hands out the index of each checkpoint, one at a time, and the chunks that it is made of; not of those that are removed meanwhile.
    ///
    /// # Errors
    /// As for [`Store::index`].
    pub(super) fn each_index(
        &self,
        mut take: impl FnMut(String, ChunkIndex, Vec<ChunkName>),
    ) -> Result<(), StoreError> {
        for name in self.names()? {
            match self.index(&name) {
                Err(StoreError::Missing { .. }) => {}
                index => {
                    let (index, pieces) = index?;
                    take(name, index, pieces);
                }
            }
        }
        Ok(())
    }

    /// What each of its checkpoints has, and has alone.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Index`], [`StoreError::Object`].
    pub fn list(&self) -> Result<Vec<Kept>, StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let (mut counts, mut kept) = (BTreeMap::<[u8; 32], u64>::new(), Vec::new());
        self.each_index(|_, index, _| {
            index.chunks.iter().for_each(|chunk| *counts.entry(chunk.hash).or_default() += 1);
        })?;
        self.each_index(|name, index, _| {
            let own = index.chunks.iter().filter(|chunk| counts.get(&chunk.hash) == Some(&1));
            let own_bytes = own.map(|chunk| chunk.bytes).sum();
            let (file_bytes, chunk_bytes) = (index.file_bytes(), index.chunk_bytes());
            kept.push(Kept { name, file_bytes, chunk_bytes, own_bytes });
        })?;
        Ok(kept)
    }

    /// Makes the directory of a checkpoint again.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::NotEmpty`], [`StoreError::NoRoom`], [`StoreError::Object`] when an object is damaged
    /// or missing, [`StoreError::Io`]. What is there of the directory stays for another attempt.
    pub fn fetch(&self, name: &str, directory: &Path, progress: Progress<'_>) -> Result<PathBuf, StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let assembly = Assembly::begin(directory, self.index(name)?.0)?;
        let missing = assembly.missing();
        let chunks = &assembly.index().chunks;
        let all = missing.iter().map(|n| chunks[*n].bytes).sum();
        let done = AtomicU64::new(0);
        for_each(missing.len(), 1, &Limit::none(), |n, _| {
            let chunk = &chunks[missing[n]];
            assembly.place(missing[n], &self.read(chunk)?)?;
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        })?;
        assembly.commit()
    }

    /// Reads every chunk of every checkpoint and of the indices; returns how many, and their bytes.
    ///
    /// # Errors
    /// [`StoreError::Object`] with the first that is damaged or missing, [`StoreError::Index`], [`StoreError::Io`].
    pub fn verify(&self, progress: Progress<'_>) -> Result<(u64, u64), StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let mut chunks: BTreeSet<ChunkName> = BTreeSet::new();
        self.each_index(|_, index, pieces| chunks.extend(index.chunks.into_iter().chain(pieces)))?;
        let chunks: Vec<ChunkName> = chunks.into_iter().collect();
        let all = chunks.iter().map(|chunk| chunk.bytes).sum();
        let done = AtomicU64::new(0);
        for_each(chunks.len(), 1, &Limit::none(), |n, _| {
            self.read(&chunks[n])?;
            progress(done.fetch_add(chunks[n].bytes, Ordering::Relaxed) + chunks[n].bytes, all);
            Ok::<_, StoreError>(())
        })?;
        Ok((chunks.len() as u64, all))
    }

    /// The index of a checkpoint, and the chunks that it is made of.
    ///
    /// # Errors
    /// As for [`Store::pieces`].
    pub(super) fn index(&self, name: &str) -> Result<(ChunkIndex, Vec<ChunkName>), StoreError> {
        let (pieces, mut text) = (self.pieces(name)?, Vec::new());
        for piece in &pieces {
            text.extend(self.read(piece)?);
        }
        Ok((ChunkIndex::parse(&text)?, pieces))
    }

    /// The chunks that the index of a checkpoint, of somebody who is trusted, is made of.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Manifest`], [`StoreError::Index`], [`StoreError::Object`], [`StoreError::Io`].
    pub(super) fn pieces(&self, name: &str) -> Result<Vec<ChunkName>, StoreError> {
        check_name(name)?;
        let path = self.place_of(name);
        let directory = OpenDirectory::open(&self.path, self.trust.clone())?;
        let file = match directory.file(&format!("{CHECKPOINTS}/{name}")) {
            Err(ManifestError::File(error)) if error.is_not_found() => return Err(self.no_such(name)),
            file => file?,
        };
        let most = FRONT as u64 + Codec::most(MAX_PIECES_BYTES);
        let bytes = read_at_most(file, most).map_err(failed("read", &path))?;
        let bad = |what: &str| StoreError::Index { what: format!("{}: {what}", path.display()) };
        let (front, object) = bytes.split_first_chunk::<FRONT>().ok_or_else(|| bad("it is too short"))?;
        let (magic, rest) = front.split_at(MAGIC.len());
        let Some((kept, length)) = rest.split_first_chunk::<32>().filter(|_| magic == MAGIC) else {
            return Err(bad("it does not begin like one"));
        };
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if length > MAX_PIECES_BYTES {
            return Err(bad("it is too long"));
        }
        let list = self.codec.decode_named(Kind::Index(name), kept, length, object)?;
        let pieces: Vec<ChunkName> =
            serde_json::from_slice(&list).map_err(|error| bad(&error.to_string()))?;
        let all = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.bytes));
        match all <= MAX_INDEX_BYTES && pieces.iter().all(|piece| piece.bytes <= MAX_CHUNK_BYTES) {
            true => Ok(pieces),
            false => Err(bad("it is too long")),
        }
    }

    /// The bytes of a chunk, whose object is there and right.
    ///
    /// # Errors
    /// [`StoreError::Object`], [`StoreError::Io`].
    pub(super) fn read(&self, chunk: &ChunkName) -> Result<Vec<u8>, StoreError> {
        let name = self.codec.name(&chunk.hash);
        let path = self.object_path(&name);
        let most = Codec::most(MAX_CHUNK_BYTES);
        match open_regular(&path).and_then(|file| read_at_most(file, most)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::Object { chunk: digits(&name), what: "it is missing" })
            }
            object => self.codec.decode(chunk, &object.map_err(failed("read", &path))?),
        }
    }
}
