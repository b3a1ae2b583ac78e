// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store: checkpoints by name, whose chunks are kept once.
//!
//! ```text
//!  STORE/stasis-store.json     version; with a key, what that key says of a fixed text
//!        lock                  shared by whoever adds or reads, exclusive for whoever collects
//!        chunks/ab/ab...       objects by their names (64 hexadecimal digits)
//!        checkpoints/NAME      "STASISIX", the index's name (32 bytes), its length (u64), its object
//!        incoming/PID-N/       objects that are not on the disk yet
//! ```
//!
//! INVARIANT: an object gets its name in `chunks` when its bytes are on the disk, and a checkpoint when its objects have
//! theirs. Chunks are removed by [`Store::collect`] only, while nobody adds or reads, and not before every index
//! was read.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::syncfs;
use queues::words::size;
use serde::{Deserialize, Serialize};
use stasis::criu::{OpenDirectory, Trust};
use stasis::image::{Limit, for_each};

use crate::Progress;
use crate::assembly::Assembly;
use crate::checkpoint::Checkpoint;
use crate::error::{StoreError, failed, refused};
use crate::index::{ChunkIndex, ChunkName, MAX_CHUNK_BYTES, MAX_INDEX_BYTES};
use crate::object::{Codec, digits};

const MARK_FILE: &str = "stasis-store.json";
const LOCK_FILE: &str = "lock";
const CHUNKS: &str = "chunks";
const CHECKPOINTS: &str = "checkpoints";
const INCOMING: &str = "incoming";
const VERSION: u32 = 1;
/// The first bytes of a checkpoint's file.
const MAGIC: &[u8; 8] = b"STASISIX";
/// Bytes before its object.
const FRONT: usize = 8 + 32 + 8;
/// What a key is asked to say something of.
const ASKED: &[u8] = b"stasis-store";
/// Longest name of a checkpoint.
const MAX_NAME: usize = 128;
/// Longest mark that is read, bytes.
const MAX_MARK: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    version: u32,
    /// With a key: what it says of [`ASKED`], in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// What adding a checkpoint has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Added {
    /// Bytes of the checkpoint's files.
    pub file_bytes: u64,
    /// Its chunks, each once, and their bytes.
    pub chunks: u64,
    /// Bytes of those.
    pub chunk_bytes: u64,
    /// Those that the store did not have.
    pub new_chunks: u64,
    /// Bytes of their objects, and of the index.
    pub new_bytes: u64,
}

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

/// What was collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Objects that no checkpoint has, and what additions that ended have left.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Objects that stay.
    pub left: u64,
    /// Their bytes.
    pub left_bytes: u64,
}

/// A store.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    codec: Codec,
    /// Whose checkpoints are taken.
    trust: Trust,
}

impl Store {
    /// Makes a store in a directory that is empty or not there, or opens the one that is there. Checkpoints are taken from
    /// `trust` only: an object has the hash that the index says, and the index has none but its owner.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::OtherKey`], [`StoreError::Io`].
    pub fn create(path: &Path, codec: Codec, trust: Trust) -> Result<Self, StoreError> {
        let mark = path.join(MARK_FILE);
        let is_new = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed("read", path)(error)),
        };
        if is_new {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            for directory in [CHUNKS, CHECKPOINTS, INCOMING] {
                let directory = path.join(directory);
                builder.create(&directory).map_err(failed("create", &directory))?;
            }
            let key =
                codec.key.as_ref().map(|key| blake3::Hash::from(key.answer(ASKED)).to_hex().to_string());
            let text = serde_json::to_vec(&Mark { version: VERSION, key }).unwrap_or_default();
            // Last, since it makes a store of the directory; whoever was first has made it.
            write_new(&mark, &text).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(failed("write", &mark)(error)),
            })?;
        }
        Self::open(path, codec, trust)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::OtherKey`], [`StoreError::Io`].
    pub fn open(path: &Path, codec: Codec, trust: Trust) -> Result<Self, StoreError> {
        let bad = |what: String| StoreError::NotAStore { path: path.into(), what };
        let place = path.join(MARK_FILE);
        let text = match open_regular(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(bad(format!("it has no {MARK_FILE}")));
            }
            file => file.and_then(|file| read_at_most(file, MAX_MARK)).map_err(failed("read", &place))?,
        };
        let mark: Mark =
            serde_json::from_slice(&text).map_err(|error| bad(format!("its {MARK_FILE}: {error}")))?;
        if mark.version != VERSION {
            return Err(bad(format!("its version is {}, and {VERSION} is read", mark.version)));
        }
        let key = codec.key.as_ref().map(|key| blake3::Hash::from(key.answer(ASKED)).to_hex().to_string());
        match (&mark.key, &key) {
            (Some(kept), Some(ours)) if kept != ours => {
                return Err(StoreError::OtherKey("The store was made with another key"));
            }
            (Some(_), None) => {
                return Err(StoreError::OtherKey("The store was made with a key: give the key file"));
            }
            (None, Some(_)) => {
                return Err(StoreError::OtherKey("The store was made without a key: give none"));
            }
            _ => {}
        }
        let path = path.canonicalize().map_err(failed("find", path))?;
        Ok(Self { path, codec, trust })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its checkpoints, sorted.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.path.join(CHECKPOINTS);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed("read", &directory))? {
            let entry = entry.map_err(failed("read", &directory))?;
            // What an addition that ended has left begins with a point.
            names.extend(
                entry.file_name().to_str().filter(|name| check_name(name).is_ok()).map(str::to_owned),
            );
        }
        names.sort();
        Ok(names)
    }

    /// What each of its checkpoints has, and has alone.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Index`], [`StoreError::Object`].
    pub fn list(&self) -> Result<Vec<Kept>, StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let (mut counts, mut indices) = (BTreeMap::<[u8; 32], u64>::new(), Vec::new());
        for name in self.names()? {
            let index = self.index(&name)?;
            index.chunks.iter().for_each(|chunk| *counts.entry(chunk.hash).or_default() += 1);
            indices.push((name, index));
        }
        let kept = |(name, index): (String, ChunkIndex)| {
            let own = index.chunks.iter().filter(|chunk| counts.get(&chunk.hash) == Some(&1));
            Kept {
                name,
                file_bytes: index.file_bytes(),
                chunk_bytes: index.chunk_bytes(),
                own_bytes: own.map(|chunk| chunk.bytes).sum(),
            }
        };
        Ok(indices.into_iter().map(kept).collect())
    }

    /// Makes sure that a checkpoint of this name could be added.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`].
    pub fn check_free(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        match fs::symlink_metadata(self.place_of(name)) {
            Err(_) => Ok(()),
            Ok(_) => Err(StoreError::Exists { store: self.path.clone(), name: name.to_owned() }),
        }
    }

    /// Adds a checkpoint. Chunks that the store has are not read.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::Exists`], [`StoreError::Changed`] when a file is not as it was written,
    /// [`StoreError::Io`]. Chunks that were written stay until they are collected.
    pub fn add(
        &self,
        name: &str,
        checkpoint: &Checkpoint,
        progress: Progress<'_>,
    ) -> Result<Added, StoreError> {
        self.check_free(name)?;
        let lock = self.lock(FlockArg::LockShared)?;
        let index = checkpoint.index();
        let mut wanted = Vec::new();
        for (n, chunk) in index.chunks.iter().enumerate() {
            if !self.has(&self.codec.name(&chunk.hash))? {
                wanted.push(n);
            }
        }
        let incoming = Incoming::make(&self.path)?;
        let all: u64 = wanted.iter().map(|n| index.chunks[*n].bytes).sum();
        let (done, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = Mutex::new(Vec::with_capacity(wanted.len()));
        for_each(wanted.len(), 1, &Limit::none(), |n, _| {
            let chunk = &index.chunks[wanted[n]];
            let object = self.codec.encode(chunk, &checkpoint.read(wanted[n])?);
            let name = self.codec.name(&chunk.hash);
            let place = incoming.path.join(blake3::Hash::from(name).to_hex().as_str());
            write_new(&place, &object).map_err(failed("write", &place))?;
            made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name);
            written.fetch_add(object.len() as u64, Ordering::Relaxed);
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        })?;
        let made = made.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        incoming.move_in(self, &made)?;
        let index_bytes = self.commit(name, index)?;
        drop(lock);
        Ok(Added {
            file_bytes: index.file_bytes(),
            chunks: index.chunks.len() as u64,
            chunk_bytes: index.chunk_bytes(),
            new_chunks: wanted.len() as u64,
            new_bytes: written.into_inner() + index_bytes,
        })
    }

    /// Makes the directory of a checkpoint again.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::NotEmpty`], [`StoreError::Object`] when an object is damaged or missing,
    /// [`StoreError::Io`]. What is there of the directory stays for another attempt.
    pub fn fetch(&self, name: &str, directory: &Path, progress: Progress<'_>) -> Result<PathBuf, StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let assembly = Assembly::begin(directory, self.index(name)?, &|_, _| ())?;
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

    /// Reads every chunk of every checkpoint; returns how many, and their bytes.
    ///
    /// # Errors
    /// [`StoreError::Object`] with the first that is damaged or missing, [`StoreError::Index`], [`StoreError::Io`].
    pub fn verify(&self, progress: Progress<'_>) -> Result<(u64, u64), StoreError> {
        let _lock = self.lock(FlockArg::LockShared)?;
        let mut chunks = BTreeSet::new();
        for name in self.names()? {
            chunks.extend(self.index(&name)?.chunks);
        }
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

    /// Takes a checkpoint out. Its chunks stay until they are collected.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        let place = self.place_of(name);
        match fs::remove_file(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.no_such(name)),
            removed => removed.map_err(failed("remove", &place)),
        }
    }

    /// Removes what no checkpoint has. It waits for those who add or read.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Object`] when a checkpoint cannot be read, whose chunks are not known then:
    /// nothing was removed. [`StoreError::Io`].
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let _lock = self.lock(FlockArg::LockExclusive)?;
        let mut wanted = HashSet::new();
        for name in self.names()? {
            wanted.extend(self.index(&name)?.chunks.iter().map(|chunk| self.codec.name(&chunk.hash)));
        }
        let mut collected = Collected::default();
        let chunks = self.path.join(CHUNKS);
        for shelf in fs::read_dir(&chunks).map_err(failed("read", &chunks))? {
            let shelf = shelf.map_err(failed("read", &chunks))?.path();
            for entry in fs::read_dir(&shelf).map_err(failed("read", &shelf))? {
                let entry = entry.map_err(failed("read", &shelf))?;
                let path = entry.path();
                let bytes = entry.metadata().map_err(failed("stat", &path))?.len();
                let name = entry.file_name().to_str().and_then(|name| blake3::Hash::from_hex(name).ok());
                // What is not called like an object is not the store's.
                let Some(name) = name else { continue };
                if wanted.contains(name.as_bytes()) {
                    collected.left += 1;
                    collected.left_bytes += bytes;
                    continue;
                }
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                collected.removed += 1;
                collected.removed_bytes += bytes;
            }
        }
        self.clear_incoming(&mut collected)?;
        Ok(collected)
    }

    /// Removes what additions that ended have left: nobody adds now.
    fn clear_incoming(&self, collected: &mut Collected) -> Result<(), StoreError> {
        let incoming = self.path.join(INCOMING);
        for entry in fs::read_dir(&incoming).map_err(failed("read", &incoming))? {
            let left = entry.map_err(failed("read", &incoming))?.path();
            for object in fs::read_dir(&left).map_err(failed("read", &left))? {
                collected.removed += 1;
                collected.removed_bytes += object.and_then(|o| o.metadata()).map_or(0, |status| status.len());
            }
            fs::remove_dir_all(&left).map_err(failed("remove", &left))?;
        }
        let checkpoints = self.path.join(CHECKPOINTS);
        for entry in fs::read_dir(&checkpoints).map_err(failed("read", &checkpoints))? {
            let entry = entry.map_err(failed("read", &checkpoints))?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn lock(&self, how: FlockArg) -> Result<Flock<File>, StoreError> {
        let path = self.path.join(LOCK_FILE);
        let file =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("open", &path))?;
        Flock::lock(file, how).map_err(|(_, errno)| refused("lock", &path)(errno))
    }

    fn place_of(&self, name: &str) -> PathBuf {
        self.path.join(CHECKPOINTS).join(name)
    }

    fn object_path(&self, name: &[u8; 32]) -> PathBuf {
        let hex = blake3::Hash::from(*name).to_hex();
        self.path.join(CHUNKS).join(&hex[..2]).join(hex.as_str())
    }

    fn has(&self, name: &[u8; 32]) -> Result<bool, StoreError> {
        let path = self.object_path(name);
        path.try_exists().map_err(failed("look for", &path))
    }

    fn no_such(&self, name: &str) -> StoreError {
        let known = match self.names() {
            Ok(names) if !names.is_empty() => names.join(", "),
            _ => "none".to_owned(),
        };
        StoreError::Missing { store: self.path.clone(), name: name.to_owned(), known }
    }

    fn index(&self, name: &str) -> Result<ChunkIndex, StoreError> {
        check_name(name)?;
        let path = self.place_of(name);
        if fs::symlink_metadata(&path).is_err() {
            return Err(self.no_such(name));
        }
        let file =
            OpenDirectory::open(&self.path, self.trust.clone())?.file(&format!("{CHECKPOINTS}/{name}"))?;
        let most = FRONT as u64 + Codec::most(MAX_INDEX_BYTES);
        let bytes = read_at_most(file, most).map_err(failed("read", &path))?;
        let bad = |what: &str| StoreError::Index { what: format!("{}: {what}", path.display()) };
        let (front, object) = bytes.split_first_chunk::<FRONT>().ok_or_else(|| bad("it is too short"))?;
        let (magic, rest) = front.split_at(MAGIC.len());
        let Some((kept, length)) = rest.split_first_chunk::<32>().filter(|_| magic == MAGIC) else {
            return Err(bad("it does not begin like one"));
        };
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if length > MAX_INDEX_BYTES {
            return Err(bad("it is too long"));
        }
        let text = self.codec.decode_named(kept, length, object)?;
        ChunkIndex::parse(&text)
    }

    fn read(&self, chunk: &ChunkName) -> Result<Vec<u8>, StoreError> {
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

    /// Gives an index its name; returns the bytes of its file.
    fn commit(&self, name: &str, index: &ChunkIndex) -> Result<u64, StoreError> {
        let text = index.encode()?;
        let chunk = ChunkName::of(&text);
        let object = self.codec.encode(&chunk, &text);
        let bytes = [MAGIC, &self.codec.name(&chunk.hash)[..], &chunk.bytes.to_le_bytes(), &object].concat();
        let place = self.place_of(name);
        let pending = self.path.join(CHECKPOINTS).join(format!(".{name}-{}", std::process::id()));
        let write = || {
            let mut options = File::options();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&pending)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(failed("write", &pending))?;
        // A name that somebody has given meanwhile is not taken away, as a rename would.
        let linked = fs::hard_link(&pending, &place);
        fs::remove_file(&pending).map_err(failed("remove", &pending))?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Exists { store: self.path.clone(), name: name.to_owned() });
            }
            linked => linked.map_err(failed("name", &place))?,
        }
        let directory = self.path.join(CHECKPOINTS);
        let synced = File::open(&directory).and_then(|directory| directory.sync_all());
        synced.map_err(failed("sync", &directory))?;
        Ok(bytes.len() as u64)
    }
}

/// A directory for objects that are not on the disk yet; it is removed with this.
struct Incoming {
    path: PathBuf,
}

impl Incoming {
    fn make(store: &Path) -> Result<Self, StoreError> {
        let (incoming, own) = (store.join(INCOMING), std::process::id());
        for n in 0.. {
            let path = incoming.join(format!("{own}-{n}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &path)(error)),
            }
        }
        unreachable!("a number is free")
    }

    /// Writes the objects to the disk and gives them their names.
    fn move_in(&self, store: &Store, names: &[[u8; 32]]) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        let opened = File::open(&self.path).map_err(failed("open", &self.path))?;
        syncfs(&opened).map_err(refused("sync the file system of", &self.path))?;
        let mut shelves = BTreeSet::new();
        for name in names {
            let to = store.object_path(name);
            if let Some(shelf) = to.parent().filter(|shelf| !shelves.contains(*shelf)) {
                match DirBuilder::new().mode(0o700).create(shelf) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(failed("create", shelf)(error));
                    }
                    _ => drop(shelves.insert(shelf.to_owned())),
                }
            }
            let from = self.path.join(blake3::Hash::from(*name).to_hex().as_str());
            fs::rename(&from, &to).map_err(failed("rename", &from))?;
        }
        // The names before that of the checkpoint.
        syncfs(&opened).map_err(refused("sync the file system of", &self.path))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "what was not added stays until it is collected");
        }
    }
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

/// Writes a file that is not there.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
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
