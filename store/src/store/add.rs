// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adding a checkpoint.
//!
//! INVARIANT: whoever is told that a checkpoint was added can remove its directory: each of its objects was written, or read and found
//! right, and is on the disk.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::FlockArg;
use nix::unistd::syncfs;
use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::{CHUNKS, INCOMING, Store, check_name, make_unique, publish, write_new};
use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::error::{StoreError, failed, refused};
use crate::index::{ChunkIndex, ChunkName};
use crate::object::Kind;

/// The first bytes of a checkpoint's file.
pub(super) const MAGIC: &[u8; 8] = b"STASISIX";
/// Bytes before its object.
pub(super) const FRONT: usize = 8 + 32 + 8;

/// What adding a checkpoint has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Added {
    /// Bytes of the checkpoint's files.
    pub file_bytes: u64,
    /// Its chunks, each once.
    pub chunks: u64,
    /// Bytes of those.
    pub chunk_bytes: u64,
    /// Those that the store did not have, or had damaged.
    pub new_chunks: u64,
    /// Bytes of their objects, and of the index.
    pub new_bytes: u64,
}

impl Store {
    /// Makes sure that a checkpoint of this name could be added.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`].
    pub fn check_free(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        match fs::symlink_metadata(self.place_of(name)) {
            Err(_) => Ok(()),
            Ok(_) => Err(self.taken(name)),
        }
    }

    fn taken(&self, name: &str) -> StoreError {
        StoreError::Exists { store: self.path.clone(), name: name.to_owned() }
    }

    /// Adds a checkpoint. Of a chunk that the store has, its object is read and compared with the hash; one that is damaged is
    /// written again.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`], [`StoreError::Changed`] when a file is not as it was written,
    /// [`StoreError::TooLarge`], [`StoreError::Io`]. Chunks that were written stay until they are collected.
    pub fn add(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        progress: Progress<'_>,
    ) -> Result<Added, StoreError> {
        self.check_free(name)?;
        let _lock = self.lock(FlockArg::LockShared)?;
        let index = checkpoint.index();
        let incoming = Incoming::make(&self.path)?;
        let (done, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = Mutex::new(Vec::new());
        let all = index.chunk_bytes();
        for_each(index.chunks.len(), 1, &Limit::none(), |n, _| {
            let chunk = &index.chunks[n];
            if !self.has(chunk) {
                let object = self.codec.encode(Kind::Chunk, chunk, &checkpoint.read(n)?);
                let name = self.codec.name(&chunk.hash);
                let place = incoming.path.join(blake3::Hash::from(name).to_hex().as_str());
                write_new(&place, &object).map_err(failed("write", &place))?;
                // A panic in between leaves the list as before, or with this.
                made.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                written.fetch_add(object.len() as u64, Ordering::Relaxed);
            }
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        })?;
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        incoming.move_in(self, &made)?;
        let index_bytes = self.commit(name, index)?;
        Ok(Added {
            file_bytes: index.file_bytes(),
            chunks: index.chunks.len() as u64,
            chunk_bytes: all,
            new_chunks: made.len() as u64,
            new_bytes: written.into_inner() + index_bytes,
        })
    }

    /// Whether the object of a chunk is there, and right.
    fn has(&self, chunk: &ChunkName) -> bool {
        let path = self.object_path(&self.codec.name(&chunk.hash));
        // Most are not there: it is not worth an error.
        fs::symlink_metadata(&path).is_ok_and(|status| status.is_file())
            && self
                .read(chunk)
                .inspect_err(|error| tracing::warn!(%error, "a chunk is written again"))
                .is_ok()
    }

    /// Gives an index its name; returns the bytes of its file.
    fn commit(&self, name: &str, index: &ChunkIndex) -> Result<u64, StoreError> {
        let text = index.encode()?;
        let (kind, chunk) = (Kind::Index(name), ChunkName::of(&text));
        let object = self.codec.encode(kind, &chunk, &text);
        let named = self.codec.name_of(kind, &chunk.hash);
        let bytes = [MAGIC, &named[..], &chunk.bytes.to_le_bytes(), &object].concat();
        // A name that somebody has given meanwhile is not taken away, as a rename would.
        match publish(&self.path.join(INCOMING), &self.place_of(name), &bytes)? {
            true => Ok(bytes.len() as u64),
            false => Err(self.taken(name)),
        }
    }
}

/// A directory for objects that are not on the disk yet; it is removed with this.
struct Incoming {
    path: PathBuf,
}

impl Incoming {
    fn make(store: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: make_unique(&store.join(INCOMING), "")? })
    }

    /// Writes the objects to the disk and gives them their names, which are on the disk then, as are those that somebody else has
    /// just given.
    fn move_in(&self, store: &Store, names: &[[u8; 32]]) -> Result<(), StoreError> {
        let opened = File::open(&self.path).map_err(failed("open", &self.path))?;
        let sync = || syncfs(&opened).map_err(refused("sync the file system of", &self.path));
        if !names.is_empty() {
            sync()?;
        }
        let mut shelves = BTreeSet::new();
        for name in names {
            let to = store.object_path(name);
            let shelf = to.parent().unwrap_or(Path::new(CHUNKS)).to_owned();
            if !shelves.contains(&shelf) {
                match DirBuilder::new().mode(0o700).create(&shelf) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(failed("create", &shelf)(error));
                    }
                    _ => drop(shelves.insert(shelf)),
                }
            }
            let from = self.path.join(blake3::Hash::from(*name).to_hex().as_str());
            fs::rename(&from, &to).map_err(failed("rename", &from))?;
        }
        sync()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "what was not added stays until it is collected");
        }
    }
}
