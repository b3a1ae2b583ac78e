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
use queues::words::size;
use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::{CHUNKS, INCOMING, MAX_PIECES_BYTES, Store, check_name, make_unique, publish, write_new};
use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::cut::{Cut, Grain, segment};
use crate::error::{StoreError, failed, refused};
use crate::index::ChunkName;
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
        let text = IndexText::cut(checkpoint.text(), self.grain());
        let incoming = Incoming::make(&self.path)?;
        let (done, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = Mutex::new(BTreeSet::new());
        let all = index.chunk_bytes();
        let add = |chunk: &ChunkName, read: &dyn Fn() -> Result<Vec<u8>, StoreError>| {
            if !self.has(chunk) {
                let object = self.codec.encode(Kind::Chunk, chunk, &read()?);
                let name = self.codec.name(&chunk.hash);
                // A panic in between leaves the set as before, or with this.
                if made.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
                    let place = incoming.path.join(blake3::Hash::from(name).to_hex().as_str());
                    write_new(&place, &object).map_err(failed("write", &place))?;
                    written.fetch_add(object.len() as u64, Ordering::Relaxed);
                }
            }
            Ok::<_, StoreError>(())
        };
        for_each(index.chunks.len(), 1, &Limit::none(), |n, _| {
            let chunk = &index.chunks[n];
            add(chunk, &|| checkpoint.read(n))?;
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        })?;
        for (n, piece) in text.pieces.iter().enumerate() {
            add(piece, &|| Ok(text.piece(n).to_vec()))?;
        }
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        incoming.move_in(self, &made)?;
        let new_bytes = written.into_inner() + self.commit(name, &text)?;
        Ok(Added {
            file_bytes: index.file_bytes(),
            chunks: index.chunks.len() as u64,
            chunk_bytes: all,
            new_chunks: made.len() as u64,
            new_bytes,
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
    fn commit(&self, name: &str, text: &IndexText<'_>) -> Result<u64, StoreError> {
        let list = serde_json::to_vec(&text.pieces)
            .map_err(|error| StoreError::Index { what: error.to_string() })?;
        if list.len() as u64 > MAX_PIECES_BYTES {
            return Err(StoreError::TooLarge { bytes: 0, index: text.bytes.len() as u64 });
        }
        let (kind, chunk) = (Kind::Index(name), ChunkName::of(&list));
        let object = self.codec.encode(kind, &chunk, &list);
        let named = self.codec.name_of(kind, &chunk.hash);
        let bytes = [MAGIC, &named[..], &chunk.bytes.to_le_bytes(), &object].concat();
        // A name that somebody has given meanwhile is not taken away, as a rename would.
        match publish(&self.path.join(INCOMING), &self.place_of(name), &bytes)? {
            true => Ok(bytes.len() as u64),
            false => Err(self.taken(name)),
        }
    }
}

/// The text of an index, which is kept in chunks like everything else: those of two checkpoints that have much in common do, too.
struct IndexText<'t> {
    bytes: &'t [u8],
    pieces: Vec<ChunkName>,
    /// Where each begins.
    offsets: Vec<usize>,
}

impl<'t> IndexText<'t> {
    fn cut(bytes: &'t [u8], grain: Grain) -> Self {
        let cuts = segment(0, bytes, grain);
        // A text has no zeros.
        let piece = |cut: &Cut| ChunkName { hash: cut.hash.unwrap_or_default(), bytes: cut.bytes };
        let offsets = cuts.iter().map(|cut| size(cut.offset)).collect();
        Self { pieces: cuts.iter().map(piece).collect(), offsets, bytes }
    }

    fn piece(&self, n: usize) -> &'t [u8] {
        &self.bytes[self.offsets[n]..][..size(self.pieces[n].bytes)]
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
    fn move_in(&self, store: &Store, names: &BTreeSet<[u8; 32]>) -> Result<(), StoreError> {
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
