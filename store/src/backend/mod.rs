// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a store keeps its packs and entries: a directory, or a bucket of S3.
//!
//! INVARIANT: an entry gets its name when all packs that were written for it are there for good. While somebody adds, nobody decides
//! what is collected, and the other way round.

pub(crate) mod bucket;
pub(crate) mod directory;

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;

use nix::fcntl::Flock;

use crate::error::{StoreError, failed};
use crate::pack::PackName;
use crate::store::abandoned;

/// Name of the file, or object, that says what a store is.
pub(crate) const MARK_FILE: &str = "stasis-store.json";
/// What entries are below.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// What packs are below.
pub(crate) const PACKS: &str = "packs";
/// Longest mark that is read, bytes.
pub(crate) const MAX_MARK: u64 = 4096;

/// What was removed of files that belong to no pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) removed: u64,
    pub(crate) removed_bytes: u64,
    pub(crate) left: u64,
    pub(crate) left_bytes: u64,
}

impl Swept {
    fn remove(&mut self, files: u64, bytes: u64) {
        self.removed += files;
        self.removed_bytes += bytes;
    }

    /// Removes a directory, and notes what was in it.
    fn remove_directory(&mut self, path: &Path) -> Result<(), StoreError> {
        let (files, bytes) = count(path);
        fs::remove_dir_all(path).map_err(failed("remove", path))?;
        self.remove(files, bytes);
        Ok(())
    }

    /// Removes what commands which ended have left in `staging`.
    fn remove_abandoned(&mut self, staging: &Path) -> Result<(), StoreError> {
        abandoned(staging)?.iter().try_for_each(|(left, _lock)| self.remove_directory(left))
    }
}

/// How many files there are below a directory, and how long they are, as far as can be seen.
fn count(directory: &Path) -> (u64, u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.fold((0, 0), |(files, bytes), entry| match entry.metadata() {
        Ok(status) if status.is_dir() => {
            let (more, longer) = count(&entry.path());
            (files + more, bytes + longer)
        }
        status => (files + 1, bytes + status.map_or(0, |status| status.len())),
    })
}

/// Where a store is.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// What users call it.
    fn called(&self) -> String;

    /// Where the entry of a checkpoint is, as users would call it.
    fn entry_called(&self, name: &str) -> String;

    /// The text that says what the store is, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Remote`].
    fn mark(&self) -> Result<Option<Vec<u8>>, StoreError>;

    /// Replaces what the store says that it is.
    ///
    /// # Errors
    /// As for [`Backend::mark`].
    fn replace_mark(&self, mark: &[u8]) -> Result<(), StoreError>;

    /// The names of checkpoints, and of those that are being added where this is seen; the newest first.
    ///
    /// # Errors
    /// As for [`Backend::mark`].
    fn names(&self) -> Result<Vec<String>, StoreError>;

    /// The entry of a checkpoint that is complete.
    ///
    /// # Errors
    /// As for [`Backend::mark`]; [`StoreError::Manifest`] when it is of somebody who is not trusted.
    fn entry(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Makes sure that a name is free.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Adding`]; as for [`Backend::mark`].
    fn check_free(&self, name: &str) -> Result<(), StoreError>;

    /// Removes the entry of a checkpoint; whether there was one.
    ///
    /// # Errors
    /// As for [`Backend::mark`]; [`StoreError::Adding`].
    fn remove(&self, name: &str) -> Result<bool, StoreError>;

    /// A part of a pack.
    ///
    /// # Errors
    /// As for [`Backend::mark`]; [`StoreError::Pack`] when it is not there, or shorter.
    fn read(&self, pack: PackName, offset: u64, bytes: u64) -> Result<Vec<u8>, StoreError>;

    /// All packs that are there, and their lengths.
    ///
    /// # Errors
    /// As for [`Backend::mark`].
    fn packs(&self) -> Result<Vec<(PackName, u64)>, StoreError>;

    /// An object that has a file of its own, of at most `most` bytes.
    ///
    /// # Errors
    /// As for [`Backend::mark`].
    fn object(&self, name: &[u8; 32], most: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps collections away from whoever reads, as long as what is returned is there, if anything has to be held for that.
    ///
    /// # Errors
    /// As for [`Backend::mark`].
    fn share(&self) -> Result<Option<Flock<File>>, StoreError>;

    /// Begins to add a checkpoint.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Adding`], [`StoreError::Collecting`], [`StoreError::Unconditional`]; as for [`Backend::mark`].
    fn add<'b>(&'b self, name: &str) -> Result<Box<dyn Adding + 'b>, StoreError>;

    /// Begins to collect. Additions and collections of others are waited for; with `abandon` those that are not over fail instead, if
    /// their processes are there at all.
    ///
    /// # Errors
    /// [`StoreError::Adding`], [`StoreError::Collecting`]; as for [`Backend::mark`].
    fn collect<'b>(&'b self, abandon: bool) -> Result<Box<dyn Collecting + 'b>, StoreError>;

    /// For how many reads or writes at a time each core has a thread.
    fn threads(&self) -> usize;

    /// Whether what is there already is read before somebody relies on it, since nobody else looks after it.
    fn is_read_back(&self) -> bool;

    /// Where commands at work have their directories.
    fn staging(&self) -> &Path;
}

/// A checkpoint that is being added. It is given up with this.
pub(crate) trait Adding: Sync {
    /// Writes a pack.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Remote`].
    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError>;

    /// Has all packs stay, and gives the entry its name.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Remote`], [`StoreError::Exists`], [`StoreError::Superseded`].
    fn commit(self: Box<Self>, entry: &[u8]) -> Result<(), StoreError>;
}

/// A collection. Others may add again when this is gone.
pub(crate) trait Collecting: Sync {
    /// Makes sure that nobody has taken this for dead so far.
    ///
    /// # Errors
    /// [`StoreError::Superseded`], [`StoreError::Io`], [`StoreError::Remote`].
    fn confirm(&self) -> Result<(), StoreError>;

    /// Writes a pack.
    ///
    /// # Errors
    /// As for [`Collecting::confirm`].
    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError>;

    /// Has all packs stay that were written, and replaces the entry of a checkpoint, unless it is not `from` any more, which was read before
    /// this was confirmed; whether it was replaced.
    ///
    /// # Errors
    /// As for [`Collecting::confirm`].
    fn replace(&self, name: &str, from: &[u8], to: &[u8]) -> Result<bool, StoreError>;

    /// Removes these packs, which no entry has. Nothing is decided after this.
    ///
    /// # Errors
    /// As for [`Collecting::confirm`]; [`StoreError::Superseded`].
    fn remove(&mut self, packs: &[PackName]) -> Result<(), StoreError>;

    /// Removes what commands which ended have left, and objects that have files of their own and are not in `wanted`.
    ///
    /// # Errors
    /// As for [`Collecting::confirm`].
    fn sweep(self: Box<Self>, wanted: &HashSet<[u8; 32]>) -> Result<Swept, StoreError>;
}
