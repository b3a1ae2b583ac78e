// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collecting what no checkpoint of a directory has.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::adding::Incoming;
use super::files::{directories, replace, sync_directory};
use super::{Backend, CHECKPOINTS, CHUNKS, Collecting, DirectoryBackend, INCOMING};
use crate::backend::Swept;
use crate::error::{StoreError, failed};
use crate::pack::PackName;

/// A collection; nobody adds or reads meanwhile.
pub(super) struct DirectoryCollecting<'b> {
    backend: &'b DirectoryBackend,
    incoming: Incoming,
    _lock: Flock<File>,
}

impl<'b> DirectoryCollecting<'b> {
    pub(super) fn begin(backend: &'b DirectoryBackend) -> Result<Self, StoreError> {
        let lock = backend.lock(FlockArg::LockExclusive)?;
        Ok(Self { backend, incoming: Incoming::make(&backend.path)?, _lock: lock })
    }
}

impl Collecting for DirectoryCollecting<'_> {
    fn confirm(&self) -> Result<(), StoreError> {
        // The lock is held.
        Ok(())
    }

    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        self.incoming.write(pack, bytes)
    }

    fn replace(&self, name: &str, _from: &[u8], to: &[u8]) -> Result<bool, StoreError> {
        self.incoming.move_in(self.backend)?;
        // Nobody removes it meanwhile.
        replace(&self.backend.path.join(INCOMING), &self.backend.entry_path(name), to)?;
        Ok(true)
    }

    fn remove(&mut self, packs: &[PackName]) -> Result<(), StoreError> {
        // A checkpoint that is gone does not come back when the power fails.
        sync_directory(&self.backend.path.join(CHECKPOINTS))?;
        for pack in packs {
            let path = self.backend.pack_path(*pack);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    fn sweep(self: Box<Self>, wanted: &HashSet<[u8; 32]>) -> Result<Swept, StoreError> {
        let Self { backend, incoming, _lock } = *self;
        // Before what others have left is removed.
        drop(incoming);
        let mut swept = Swept::default();
        each_file(&backend.path.join(CHUNKS), |name, path, bytes| {
            let Ok(name) = blake3::Hash::from_hex(name) else { return Ok(()) };
            if wanted.contains(name.as_bytes()) {
                swept.left += 1;
                swept.left_bytes += bytes;
                return Ok(());
            }
            fs::remove_file(path).map_err(failed("remove", path))?;
            swept.remove(1, bytes);
            Ok(())
        })?;
        // Nobody adds now.
        for left in directories(&backend.path.join(INCOMING))? {
            swept.remove_directory(&left)?;
        }
        swept.remove_abandoned(backend.staging())?;
        Ok(swept)
    }
}

/// Hands out the regular files in the directories of one: name, path, length.
pub(super) fn each_file(
    path: &Path,
    mut take: impl FnMut(&str, &Path, u64) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for shelf in directories(path)? {
        for entry in fs::read_dir(&shelf).map_err(failed("read", &shelf))? {
            let entry = entry.map_err(failed("read", &shelf))?;
            let path = entry.path();
            let status = entry.metadata().map_err(failed("stat", &path))?;
            if let Some(name) = entry.file_name().to_str().filter(|_| status.is_file()) {
                take(name, &path, status.len())?;
            }
        }
    }
    Ok(())
}
