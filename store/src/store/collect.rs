// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking checkpoints out, and what nobody needs any more.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use nix::fcntl::FlockArg;
use serde::Serialize;

use super::staging::is_abandoned;
use super::{CHECKPOINTS, CHUNKS, INCOMING, STAGING, Store, check_name, sync_directory};
use crate::error::{StoreError, failed};

/// What was collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Objects that no checkpoint has, and files that commands which ended have left.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Objects that stay.
    pub left: u64,
    /// Their bytes.
    pub left_bytes: u64,
}

impl Collected {
    fn remove(&mut self, files: u64, bytes: u64) {
        self.removed += files;
        self.removed_bytes += bytes;
    }
}

impl Store {
    /// Takes a checkpoint out. Its chunks stay until they are collected.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        let _lock = self.lock(FlockArg::LockShared)?;
        let place = self.place_of(name);
        match fs::remove_file(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.no_such(name)),
            removed => removed.map_err(failed("remove", &place))?,
        }
        sync_directory(&self.path.join(CHECKPOINTS))
    }

    /// Removes what no checkpoint has. It waits for those who add or read.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Object`] when a checkpoint cannot be read, whose chunks are not known then:
    /// nothing was removed. [`StoreError::Io`].
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let _lock = self.lock(FlockArg::LockExclusive)?;
        let mut wanted = HashSet::new();
        self.each_index(|_, index, pieces| {
            let chunks = index.chunks.into_iter().chain(pieces);
            wanted.extend(chunks.map(|chunk| self.codec.name(&chunk.hash)));
        })?;
        // A checkpoint that is gone does not come back when the power fails.
        sync_directory(&self.path.join(CHECKPOINTS))?;
        let mut collected = Collected::default();
        for shelf in directories(&self.path.join(CHUNKS))? {
            for entry in fs::read_dir(&shelf).map_err(failed("read", &shelf))? {
                let entry = entry.map_err(failed("read", &shelf))?;
                let path = entry.path();
                let status = entry.metadata().map_err(failed("stat", &path))?;
                let name = entry.file_name().to_str().and_then(|name| blake3::Hash::from_hex(name).ok());
                // What is not called like an object is not the store's.
                let Some(name) = name.filter(|_| status.is_file()) else { continue };
                if wanted.contains(name.as_bytes()) {
                    collected.left += 1;
                    collected.left_bytes += status.len();
                    continue;
                }
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                collected.remove(1, status.len());
            }
        }
        // Nobody adds now.
        let staged = directories(&self.path.join(STAGING))?.into_iter().filter(|path| is_abandoned(path));
        for left in directories(&self.path.join(INCOMING))?.into_iter().chain(staged) {
            let (files, bytes) = count(&left);
            fs::remove_dir_all(&left).map_err(failed("remove", &left))?;
            collected.remove(files, bytes);
        }
        Ok(collected)
    }
}

/// The directories in one, without links to others.
fn directories(path: &Path) -> Result<Vec<std::path::PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("read", path))? {
        let entry = entry.map_err(failed("read", path))?;
        if entry.file_type().map_err(failed("stat", &entry.path()))?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
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
