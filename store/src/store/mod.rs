// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store: checkpoints by name, whose chunks are kept once.
//!
//! ```text
//!  STORE/stasis-store.json     version; bytes of a chunk as a rule; with a key, what that key says of a fixed text
//!        lock                  shared by whoever adds, reads or removes, exclusive for whoever collects
//!        chunks/ab/ab...       objects by their names (64 hexadecimal digits)
//!        checkpoints/NAME      "STASISIX", the name of the object (32 bytes), its bytes' length (u64), the object: which chunks the index is
//!                              made of
//!        incoming/PID-N/       objects, and an index, that are not on the disk yet
//!        staging/WHAT-PID-N/   directories of commands at work, locked by them
//! ```
//!
//! INVARIANT: an object gets its name in `chunks` when its bytes are on the disk, and a checkpoint when the names of its objects are.
//! Chunks are removed by [`Store::collect`] only, while nobody adds or reads, and not before every index
//! was read. All directories are of somebody who is trusted, and no links.

mod add;
mod collect;
mod read;
mod staging;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use queues::words::size;
use serde::{Deserialize, Serialize};
use stasis::criu::{OpenDirectory, Trust};

use crate::cut::Grain;
use crate::error::{StoreError, failed, refused};
use crate::object::Codec;

pub use self::add::Added;
pub use self::collect::Collected;
pub use self::read::Kept;
pub use self::staging::{Staging, StagingKind};

const MARK_FILE: &str = "stasis-store.json";
const LOCK_FILE: &str = "lock";
const CHUNKS: &str = "chunks";
const CHECKPOINTS: &str = "checkpoints";
const INCOMING: &str = "incoming";
const STAGING: &str = "staging";
const DIRECTORIES: [&str; 4] = [CHUNKS, CHECKPOINTS, INCOMING, STAGING];
const VERSION: u32 = 1;
/// Bytes of a chunk as a rule, unless others are asked for.
const CHUNK_BYTES: u32 = 64 << 10;
/// What a key is asked to say something of.
const ASKED: &[u8] = b"stasis-store";
/// Longest list of the chunks of an index, bytes.
const MAX_PIECES_BYTES: u64 = 64 << 20;
/// Longest name of a checkpoint.
const MAX_NAME: usize = 128;
/// Longest mark that is read, bytes.
const MAX_MARK: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    version: u32,
    /// Bytes of a chunk as a rule.
    chunk_bytes: u32,
    /// With a key: what it says of [`ASKED`], in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Mark {
    fn of(codec: &Codec, chunk_bytes: u32) -> Self {
        let said = |key: &crate::Key| blake3::Hash::from(key.answer(ASKED)).to_hex().to_string();
        Self { version: VERSION, chunk_bytes, key: codec.key.as_ref().map(said) }
    }
}

/// A store.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    codec: Codec,
    /// Whose store and checkpoints are taken.
    trust: Trust,
    chunk_bytes: u32,
}

impl Store {
    /// Makes a store in a directory that is empty or not there, or opens the one that is there. Stores are taken from
    /// `trust` only: objects are compared with the hashes of the index, and without a key only its owner proves that the index is right.
    ///
    /// Files are cut into `chunk_bytes` as a rule, a power of two from 1 KiB to 512 KiB: smaller chunks are found again more often, and are
    /// more files. A store that is there keeps the length that it was made with.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], also when another length is given than that of the store, [`StoreError::OtherKey`],
    /// [`StoreError::Manifest`], [`StoreError::Io`].
    pub fn create(
        path: &Path,
        codec: Codec,
        trust: Trust,
        chunk_bytes: Option<u32>,
    ) -> Result<Self, StoreError> {
        let wanted = chunk_bytes.unwrap_or(CHUNK_BYTES);
        if !is_possible(wanted) {
            let what = format!("chunks of {wanted} bytes are not possible: a power of two, 1 to 512 KiB");
            return Err(StoreError::NotAStore { path: path.into(), what });
        }
        if is_unmade(path, &trust)? {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            for directory in DIRECTORIES {
                let directory = path.join(directory);
                builder.create(&directory).map_err(failed("create", &directory))?;
            }
            // Last, and complete at once, since it makes a store of the directory.
            let text = serde_json::to_vec(&Mark::of(&codec, wanted)).unwrap_or_default();
            let publish = || publish(&path.join(INCOMING), &path.join(MARK_FILE), &text);
            // The store may be made, and collected, by another process meanwhile, which removes what is in `incoming`.
            publish().or_else(|error| if path.join(MARK_FILE).exists() { Ok(false) } else { Err(error) })?;
        }
        let store = Self::open(path, codec, trust)?;
        match chunk_bytes {
            Some(wanted) if wanted != store.chunk_bytes => Err(StoreError::NotAStore {
                what: format!(
                    "its chunks have {} bytes as a rule, and {wanted} were asked for",
                    store.chunk_bytes
                ),
                path: store.path,
            }),
            _ => Ok(store),
        }
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::OtherKey`], [`StoreError::Manifest`] when it is not of `trust`, [`StoreError::Io`].
    pub fn open(path: &Path, codec: Codec, trust: Trust) -> Result<Self, StoreError> {
        let path = path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                StoreError::NotAStore { path: path.into(), what: "there is nothing".to_owned() }
            }
            _ => failed("find", path)(error),
        })?;
        let bad = |what: String| StoreError::NotAStore { path: path.clone(), what };
        let place = path.join(MARK_FILE);
        let text = match open_regular(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(bad(format!("it has no {MARK_FILE}")));
            }
            file => file.and_then(|file| read_at_most(file, MAX_MARK)).map_err(failed("read", &place))?,
        };
        for directory in std::iter::once("").chain(DIRECTORIES) {
            OpenDirectory::open(&path.join(directory), trust.clone())?;
        }
        let mark: Mark =
            serde_json::from_slice(&text).map_err(|error| bad(format!("its {MARK_FILE}: {error}")))?;
        if mark.version != VERSION {
            return Err(bad(format!("its version is {}, and {VERSION} is read", mark.version)));
        }
        if !is_possible(mark.chunk_bytes) {
            return Err(bad(format!("chunks of {} bytes are not possible", mark.chunk_bytes)));
        }
        match (&mark.key, &Mark::of(&codec, mark.chunk_bytes).key) {
            (Some(kept), Some(ours)) if kept != ours => {
                return Err(StoreError::OtherKey("The store was made with another key"));
            }
            (Some(_), None) => {
                return Err(StoreError::OtherKey("The store was made with a key: give its --key-file"));
            }
            (None, Some(_)) => {
                return Err(StoreError::OtherKey("The store was made without a key: leave --key-file out"));
            }
            _ => {}
        }
        Ok(Self { path, codec, trust, chunk_bytes: mark.chunk_bytes })
    }

    /// How checkpoints are cut that are added.
    #[must_use]
    pub fn grain(&self) -> Grain {
        Grain::Bytes(self.chunk_bytes)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a checkpoint of this name is.
    #[must_use]
    pub fn place_of(&self, name: &str) -> PathBuf {
        self.path.join(CHECKPOINTS).join(name)
    }

    fn lock(&self, how: FlockArg) -> Result<Flock<File>, StoreError> {
        let path = self.path.join(LOCK_FILE);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(&path);
        Flock::lock(file.map_err(failed("open", &path))?, how)
            .map_err(|(_, errno)| refused("lock", &path)(errno))
    }

    fn object_path(&self, name: &[u8; 32]) -> PathBuf {
        let hex = blake3::Hash::from(*name).to_hex();
        self.path.join(CHUNKS).join(&hex[..2]).join(hex.as_str())
    }

    fn no_such(&self, name: &str) -> StoreError {
        let known = match self.names() {
            Ok(names) if !names.is_empty() => names.join(", "),
            _ => "none".to_owned(),
        };
        StoreError::Missing { store: self.path.clone(), name: name.to_owned(), known }
    }
}

/// Whether chunks can have so many bytes as a rule.
fn is_possible(chunk_bytes: u32) -> bool {
    (1 << 10..=512 << 10).contains(&chunk_bytes) && chunk_bytes.is_power_of_two()
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

/// Whether a checkpoint can have this name: no path, nothing hidden, nothing that a shell would take for something else.
fn check_name(name: &str) -> Result<(), StoreError> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let is_inside = |byte: u8| is_word(byte) || b"._-".contains(&byte);
    let bytes = name.as_bytes();
    let fits = (1..=MAX_NAME).contains(&bytes.len()) && bytes.iter().all(|byte| is_inside(*byte));
    match fits && bytes.first().is_some_and(|byte| is_word(*byte)) {
        true => Ok(()),
        false => Err(StoreError::Name { name: name.to_owned() }),
    }
}

/// Makes a directory whose name begins with `prefix` and that nobody else has.
fn make_unique(parent: &Path, prefix: &str) -> Result<PathBuf, StoreError> {
    for n in 0_u64.. {
        let path = parent.join(format!("{prefix}{}-{n}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &path)(error)),
        }
    }
    unreachable!("a number is free")
}

/// Writes a file that is not there.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Gives a text that is on the disk the name `place`, unless there is one of that name: whether it has it.
fn publish(incoming: &Path, place: &Path, bytes: &[u8]) -> Result<bool, StoreError> {
    let own = make_unique(incoming, "")?;
    let pending = own.join("pending");
    let write = || write_new(&pending, bytes)?.sync_all();
    let linked = write().map_err(failed("write", &pending)).map(|()| fs::hard_link(&pending, place));
    let _ = fs::remove_dir_all(&own);
    match linked? {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        linked => linked.map_err(failed("name", place))?,
    }
    sync_directory(place.parent().unwrap_or(place))?;
    Ok(true)
}

fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("sync", directory))
}

/// Opens what is there, without waiting and through no link.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    File::options().read(true).custom_flags(flags).open(path)
}

/// The bytes of a regular file of at most so many.
fn read_at_most(file: File, most: u64) -> io::Result<Vec<u8>> {
    let status = file.metadata()?;
    if !status.is_file() || status.len() > most {
        return Err(io::Error::from(Errno::EFBIG));
    }
    let mut bytes = Vec::with_capacity(size(status.len()));
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
