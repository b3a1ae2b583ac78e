// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adding a checkpoint to a directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::syncfs;

use super::files::{make_unique, publish, write_new};
use super::{Adding, DirectoryBackend, INCOMING, PACKS};
use crate::assembly::make_directory;
use crate::error::{StoreError, failed, refused};
use crate::pack::PackName;

/// A checkpoint that is being added; collections wait for it.
pub(super) struct DirectoryAdding<'b> {
    backend: &'b DirectoryBackend,
    name: String,
    incoming: Incoming,
    _lock: Flock<File>,
}

impl<'b> DirectoryAdding<'b> {
    pub(super) fn begin(backend: &'b DirectoryBackend, name: &str) -> Result<Self, StoreError> {
        let lock = backend.lock(FlockArg::LockShared)?;
        Ok(Self { backend, name: name.to_owned(), incoming: Incoming::make(&backend.path)?, _lock: lock })
    }
}

impl Adding for DirectoryAdding<'_> {
    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        self.incoming.write(pack, bytes)
    }

    fn commit(self: Box<Self>, entry: &[u8]) -> Result<(), StoreError> {
        self.incoming.move_in(self.backend)?;
        // A name that somebody has given meanwhile is not taken away, as a rename would.
        match publish(&self.backend.path.join(INCOMING), &self.backend.entry_path(&self.name), entry)? {
            true => Ok(()),
            false => Err(self.backend.taken(&self.name)),
        }
    }
}

/// A directory for packs that are not on the disk yet; it is removed with this.
pub(super) struct Incoming {
    path: PathBuf,
    packs: Mutex<BTreeSet<PackName>>,
}

impl Incoming {
    pub(super) fn make(store: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: make_unique(&store.join(INCOMING), "")?, packs: Mutex::default() })
    }

    pub(super) fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        let place = self.path.join(pack.to_string());
        write_new(&place, bytes).map_err(failed("write", &place))?;
        // A panic in between leaves the set as before, or with this.
        self.packs.lock().unwrap_or_else(PoisonError::into_inner).insert(pack);
        Ok(())
    }

    /// Writes the packs to the disk and gives them their names, which are on the disk then.
    pub(super) fn move_in(&self, backend: &DirectoryBackend) -> Result<(), StoreError> {
        let packs = std::mem::take(&mut *self.packs.lock().unwrap_or_else(PoisonError::into_inner));
        if packs.is_empty() {
            return Ok(());
        }
        let opened = File::open(&self.path).map_err(failed("open", &self.path))?;
        let sync = || syncfs(&opened).map_err(refused("sync the file system of", &self.path));
        sync()?;
        let mut shelves = BTreeSet::new();
        for pack in packs {
            let to = backend.pack_path(pack);
            let shelf = to.parent().unwrap_or(Path::new(PACKS)).to_owned();
            if !shelves.contains(&shelf) {
                make_directory(&shelf)?;
                shelves.insert(shelf);
            }
            let from = self.path.join(pack.to_string());
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
