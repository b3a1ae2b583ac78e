// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of commands at work: a checkpoint on its way into a store, or out of it.
//!
//! INVARIANT: whoever works in one has it locked. One that nobody has locked is removed by a collection, but not a checkpoint that was
//! to be added and is complete: the store does not have it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use stasis::criu::{MANIFEST_FILE, OpenDirectory, Trust};

use super::Store;
use crate::assembly::make_directory;
use crate::backend::directory::make_unique;
use crate::error::{StoreError, failed, refused};

/// Where commands have their directories, in a store that is one.
const STAGING: &str = "staging";
/// How the name of the directory of those begins that work for buckets.
const OF_BUCKETS: &str = "stasis-staging-";
/// The checkpoint's directory in that of a command.
const CHECKPOINT: &str = "checkpoint";
const IN: &str = "in-";
const OUT: &str = "out-";

/// What a staging directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingKind {
    /// A checkpoint that is to be added.
    In,
    /// One that was fetched.
    Out,
}

/// A directory of a command at work. It is removed with this, unless it is kept.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    lock: Option<Flock<File>>,
}

impl Store {
    /// Makes a directory for a command, which nobody else uses.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn stage(&self, kind: StagingKind) -> Result<Staging, StoreError> {
        // A collection may come between the next two acts.
        let _lock = self.backend.share()?;
        let prefix = if kind == StagingKind::In { IN } else { OUT };
        loop {
            let path = make_unique(self.backend.staging(), prefix)?;
            let Ok(opened) = File::open(&path) else { continue };
            // A collection that is not kept away has it locked while it removes it.
            let lock = Flock::lock(opened, FlockArg::LockExclusive);
            let lock = lock.map_err(|(_, errno)| refused("lock", &path)(errno))?;
            let own = lock.metadata().map_err(failed("stat", &path))?.ino();
            if fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == own) {
                return Ok(Staging { lock: Some(lock), path });
            }
        }
    }
}

impl Staging {
    /// Takes the directory that another process had, whose checkpoint is at `checkpoint`.
    ///
    /// # Errors
    /// [`StoreError::Busy`], [`StoreError::NotPartial`], [`StoreError::Io`].
    pub fn adopt(checkpoint: &Path) -> Result<Self, StoreError> {
        let path = checkpoint.parent().unwrap_or(checkpoint).to_owned();
        // It will be removed.
        let is_ours = checkpoint.ends_with(CHECKPOINT)
            && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OUT))
            && path.parent().is_some_and(|above| above.file_name().is_some_and(is_staging));
        if !is_ours {
            let what = "it is no directory of a command at work".to_owned();
            return Err(StoreError::NotPartial { directory: path, what });
        }
        let opened = File::open(&path).map_err(failed("open", &path))?;
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { path, lock: Some(lock) }),
            Err(_) => Err(StoreError::Busy { directory: path }),
        }
    }

    /// Where the checkpoint's directory is to be.
    #[must_use]
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join(CHECKPOINT)
    }

    /// Leaves the directory where it is.
    pub fn keep(mut self) {
        self.lock = None;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a staging directory stays until it is collected");
        }
    }
}

/// Whether a directory has this name in which commands at work have theirs: that of a store, or of buckets.
fn is_staging(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == STAGING || name.starts_with(OF_BUCKETS)
}

/// Where commands have their directories that work for buckets: that of STASIS_STAGING, or one of this user in /var/tmp.
///
/// # Errors
/// [`StoreError::Manifest`] when it is somebody else's, [`StoreError::Io`].
pub(super) fn of_buckets() -> Result<PathBuf, StoreError> {
    let own = format!("{OF_BUCKETS}{}", geteuid());
    let above = env::var_os("STASIS_STAGING").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let path = above.join(own);
    make_directory(&path)?;
    // Not through a link, and of nobody else.
    OpenDirectory::open(&path, Trust::of_caller())?;
    Ok(path)
}

/// The directories of commands in `staging` that have ended, locked, so that nobody begins to work there.
///
/// # Errors
/// [`StoreError::Io`].
pub(crate) fn abandoned(staging: &Path) -> Result<Vec<(PathBuf, Flock<File>)>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(staging).map_err(failed("read", staging))? {
        let entry = entry.map_err(failed("read", staging))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(lock) = lock_abandoned(&path)
        {
            found.push((path, lock));
        }
    }
    Ok(found)
}

/// Locks a staging directory, if nobody works in it, and nobody misses what is in it.
fn lock_abandoned(path: &Path) -> Option<Flock<File>> {
    let lock = Flock::lock(File::open(path).ok()?, FlockArg::LockExclusiveNonblock).ok()?;
    let is_in = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(IN));
    (!(is_in && has_manifest(&path.join(CHECKPOINT)))).then_some(lock)
}

/// Whether a checkpoint is complete, of one tree or of several.
fn has_manifest(directory: &Path) -> bool {
    // What cannot be looked at may be there.
    let has = |directory: &Path| directory.join(MANIFEST_FILE).try_exists().unwrap_or(true);
    let mut trees = match fs::read_dir(directory) {
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
        Ok(entries) => entries,
    };
    has(directory) || trees.any(|tree| tree.map_or(true, |tree| has(&tree.path())))
}
