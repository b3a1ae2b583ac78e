// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store in a directory.
//!
//! ```text
//!  STORE/stasis-store.json     what the store is
//!        lock                  shared by whoever adds or reads, exclusive for whoever collects
//!        packs/ab/ab...        by their names (32 hexadecimal digits)
//!        checkpoints/NAME      entries
//!        incoming/PID-N/       packs, and an entry, that are not on the disk yet
//!        staging/WHAT-PID-N/   directories of commands at work, locked by them
//!        chunks/ab/ab...       objects of a store of version 1, by their names (64 digits)
//! ```
//!
//! INVARIANT: a pack gets its name in `packs` when its bytes are on the disk, and an entry when the names of its packs are. All
//! directories are of somebody who is trusted, and no links.

mod adding;
mod collecting;
mod files;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use queues::words::size;
use stasis::criu::{ManifestError, OpenDirectory, Trust};

use self::adding::DirectoryAdding;
use self::collecting::{DirectoryCollecting, each_file};
use self::files::{open_regular, publish, read_at_most, replace, sync_directory};
use super::{Adding, Backend, CHECKPOINTS, Collecting, MARK_FILE, MAX_MARK, PACKS};
use crate::entry::Entry;
use crate::error::{StoreError, failed, refused};
use crate::pack::PackName;

pub(crate) use self::files::make_unique;

const LOCK_FILE: &str = "lock";
const CHUNKS: &str = "chunks";
const INCOMING: &str = "incoming";
const STAGING: &str = "staging";
const DIRECTORIES: [&str; 4] = [PACKS, CHECKPOINTS, INCOMING, STAGING];
/// Those of a store of version 1 that nobody has added to since.
const DIRECTORIES_1: [&str; 4] = [CHUNKS, CHECKPOINTS, INCOMING, STAGING];

/// A store's directory.
#[derive(Debug)]
pub(crate) struct DirectoryBackend {
    path: PathBuf,
    staging: PathBuf,
    /// Whose store and checkpoints are taken.
    trust: Trust,
}

impl DirectoryBackend {
    /// Makes a store in a directory that is empty or not there, or opens the one that is there.
    ///
    /// # Errors
    /// As for [`DirectoryBackend::open`].
    pub(crate) fn create(path: &Path, trust: Trust, mark: &[u8]) -> Result<Self, StoreError> {
        if is_unmade(path, &trust)? {
            for directory in DIRECTORIES {
                make_directories(&path.join(directory))?;
            }
            // Last, and complete at once, since it makes a store of the directory.
            let place = path.join(MARK_FILE);
            let publish = || publish(&path.join(INCOMING), &place, mark).map(drop);
            // The store may be made, and collected, by another process meanwhile, which removes what is in `incoming`.
            publish().or_else(|error| if place.exists() { Ok(()) } else { Err(error) })?;
        }
        Self::open(path, trust)
    }

    /// Opens a store's directory.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::Manifest`] when it is not of `trust`, [`StoreError::Io`].
    pub(crate) fn open(path: &Path, trust: Trust) -> Result<Self, StoreError> {
        let bad = |what: String| StoreError::NotAStore { store: path.display().to_string(), what };
        let own = path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => bad("there is nothing".to_owned()),
            _ => failed("find", path)(error),
        })?;
        if fs::symlink_metadata(own.join(MARK_FILE)).is_err() {
            return Err(bad(format!("it has no {MARK_FILE}")));
        }
        let is_first = fs::symlink_metadata(own.join(PACKS)).is_err() && own.join(CHUNKS).exists();
        let directories = if is_first { DIRECTORIES_1 } else { DIRECTORIES };
        for directory in std::iter::once("").chain(directories) {
            OpenDirectory::open(&own.join(directory), trust.clone())?;
        }
        Ok(Self { staging: own.join(STAGING), path: own, trust })
    }

    fn lock(&self, how: FlockArg) -> Result<Flock<File>, StoreError> {
        let path = self.path.join(LOCK_FILE);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(&path);
        Flock::lock(file.map_err(failed("open", &path))?, how)
            .map_err(|(_, errno)| refused("lock", &path)(errno))
    }

    fn entry_path(&self, name: &str) -> PathBuf {
        self.path.join(CHECKPOINTS).join(name)
    }

    fn pack_path(&self, pack: PackName) -> PathBuf {
        let digits = pack.to_string();
        self.path.join(PACKS).join(&digits[..2]).join(digits)
    }

    fn taken(&self, name: &str) -> StoreError {
        StoreError::Exists { store: self.called(), name: name.to_owned() }
    }
}

impl Backend for DirectoryBackend {
    fn called(&self) -> String {
        self.path.display().to_string()
    }

    fn entry_called(&self, name: &str) -> String {
        self.entry_path(name).display().to_string()
    }

    fn mark(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let place = self.path.join(MARK_FILE);
        match open_regular(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => {
                file.and_then(|file| read_at_most(file, MAX_MARK)).map(Some).map_err(failed("read", &place))
            }
        }
    }

    fn replace_mark(&self, mark: &[u8]) -> Result<(), StoreError> {
        make_directories(&self.path.join(PACKS))?;
        replace(&self.path.join(INCOMING), &self.path.join(MARK_FILE), mark)
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.path.join(CHECKPOINTS);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed("read", &directory))? {
            let entry = entry.map_err(failed("read", &directory))?;
            // It may have been removed meanwhile.
            let written = entry.metadata().and_then(|status| status.modified()).ok();
            names.extend(entry.file_name().into_string().ok().map(|name| (written, name)));
        }
        names.sort();
        Ok(names.into_iter().rev().map(|(_, name)| name).collect())
    }

    fn entry(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let directory = OpenDirectory::open(&self.path, self.trust.clone())?;
        let file = match directory.file(&format!("{CHECKPOINTS}/{name}")) {
            Err(ManifestError::File(error)) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        read_at_most(file, Entry::most()).map(Some).map_err(failed("read", &self.entry_path(name)))
    }

    fn check_free(&self, name: &str) -> Result<(), StoreError> {
        match fs::symlink_metadata(self.entry_path(name)) {
            Err(_) => Ok(()),
            Ok(_) => Err(self.taken(name)),
        }
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let place = self.entry_path(name);
        match fs::remove_file(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            removed => removed.map_err(failed("remove", &place))?,
        }
        sync_directory(&self.path.join(CHECKPOINTS))?;
        Ok(true)
    }

    fn read(&self, pack: PackName, offset: u64, bytes: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.pack_path(pack);
        let bad = |what| StoreError::Pack { pack: pack.to_string(), what };
        let file = match open_regular(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(bad("it is missing")),
            file => file.map_err(failed("open", &path))?,
        };
        // An entry may ask for more than there is, and its writer is not trusted.
        let status = file.metadata().map_err(failed("stat", &path))?;
        if !status.is_file() || status.len() < offset.saturating_add(bytes) {
            return Err(bad("it is too short"));
        }
        let mut read = vec![0; size(bytes)];
        file.read_exact_at(&mut read, offset).map_err(failed("read", &path))?;
        Ok(read)
    }

    fn packs(&self) -> Result<Vec<(PackName, u64)>, StoreError> {
        let mut packs = Vec::new();
        each_file(&self.path.join(PACKS), |name, _, bytes| {
            // What is not called like a pack is not the store's.
            packs.extend(PackName::parse(name).map(|pack| (pack, bytes)));
            Ok(())
        })?;
        Ok(packs)
    }

    fn object(&self, name: &[u8; 32], most: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let hex = blake3::Hash::from(*name).to_hex();
        let path = self.path.join(CHUNKS).join(&hex[..2]).join(hex.as_str());
        match open_regular(&path).and_then(|file| read_at_most(file, most)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            object => object.map(Some).map_err(failed("read", &path)),
        }
    }

    fn share(&self) -> Result<Option<Flock<File>>, StoreError> {
        self.lock(FlockArg::LockShared).map(Some)
    }

    fn add<'b>(&'b self, name: &str) -> Result<Box<dyn Adding + 'b>, StoreError> {
        self.check_free(name)?;
        Ok(Box::new(DirectoryAdding::begin(self, name)?))
    }

    fn collect<'b>(&'b self, _abandon: bool) -> Result<Box<dyn Collecting + 'b>, StoreError> {
        // A lock of somebody who is not there any more is not there either.
        Ok(Box::new(DirectoryCollecting::begin(self)?))
    }

    fn threads(&self) -> usize {
        1
    }

    fn is_read_back(&self) -> bool {
        true
    }

    fn staging(&self) -> &Path {
        &self.staging
    }
}

/// Makes a private directory and those above it, if they are not there.
fn make_directories(path: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create", path))
}

/// Whether a directory is not there, or is empty but for what a process has left that was killed when it made a store. Then its owners
/// are trusted.
fn is_unmade(path: &Path, trust: &Trust) -> Result<bool, StoreError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(failed("read", path))?,
    };
    let own = path.canonicalize().map_err(failed("find", path))?;
    OpenDirectory::open(&own, trust.clone())?;
    for entry in entries {
        let entry = entry.map_err(failed("read", path))?;
        let is_ours = DIRECTORIES.iter().any(|directory| entry.file_name() == *directory);
        // What makes the mark leaves its text in one of them.
        if !is_ours
            || entry.file_name() != INCOMING
                && fs::read_dir(entry.path()).is_ok_and(|mut e| e.next().is_some())
        {
            return Ok(false);
        }
        OpenDirectory::open(&entry.path(), trust.clone())?;
    }
    Ok(true)
}
