// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint directory that is made of chunks.
//!
//! ```text
//!  DIR.partial/   0700, locked by whoever writes it; may be there from an attempt that ended
//!  DIR/           the same directory, renamed when every chunk is in its place and on the disk
//! ```
//!
//! INVARIANT: nothing is written that has not its hash, and DIR is not there before all of it is. What an earlier attempt
//! left is read and compared with the hashes before it is taken for a chunk.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};
use nix::unistd::{geteuid, syncfs};
use queues::words::size;
use stasis::image::{Limit, for_each};

use crate::Progress;
use crate::error::{StoreError, failed, refused};
use crate::index::{ChunkIndex, ChunkName, Part};

/// What the directory is called before it is complete, behind its own name.
const PARTIAL: &str = ".partial";
/// Permissions of others, which nothing here gives.
const OTHERS: u32 = 0o077;

/// A checkpoint directory that is being made.
#[derive(Debug)]
pub struct Assembly {
    directory: PathBuf,
    partial: PathBuf,
    /// Held while this is there.
    lock: Flock<File>,
    index: ChunkIndex,
    /// By the chunks' places in the list.
    places: Vec<Vec<(usize, u64)>>,
    is_there: Vec<AtomicBool>,
}

impl Assembly {
    /// Begins, or goes on with, the checkpoint that `index` describes, at `directory`, which has to be empty or not to
    /// exist. What an attempt that ended has left is looked through: `progress` hears of it.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], [`StoreError::Busy`], [`StoreError::Io`]; what was left is still there then.
    pub fn begin(directory: &Path, index: ChunkIndex, progress: Progress<'_>) -> Result<Self, StoreError> {
        let directory = absolute(directory)?;
        check_empty(&directory)?;
        let partial = with_suffix(&directory);
        let lock = own_directory(&partial)?;
        let places = index.places();
        let is_there = index.chunks.iter().map(|_| AtomicBool::new(false)).collect();
        let assembly = Self { directory, partial, lock, index, places, is_there };
        assembly.tidy()?;
        assembly.make(progress)?;
        Ok(assembly)
    }

    /// Goes on with another index, whose files may be those that are here already, under these names or others.
    ///
    /// # Errors
    /// As for [`Assembly::begin`].
    pub fn turn_to(self, index: ChunkIndex, progress: Progress<'_>) -> Result<Self, StoreError> {
        let before = Files::of(&self.index);
        let complete: Vec<bool> = self.index.files.iter().map(|file| self.is_complete(&file.parts)).collect();
        let mut moves = Vec::new();
        for (file, hashes) in index.files.iter().zip(Files::of(&index).contents) {
            let same = before.by_contents.get(&hashes).filter(|n| complete[**n] && file.bytes > 0);
            if let Some(from) = same.map(|n| &self.index.files[*n].path).filter(|from| **from != file.path) {
                moves.push((from.clone(), file.path.clone()));
            }
        }
        for directory in &index.directories {
            make_directory(&self.partial.join(directory))?;
        }
        // By names of their own first: one file's new name may be another's old one.
        for (n, (from, _)) in moves.iter().enumerate() {
            let (from, to) = (self.partial.join(from), self.partial.join(format!("moved-{n}")));
            fs::rename(&from, &to).map_err(failed("rename", &from))?;
        }
        for (n, (_, to)) in moves.iter().enumerate() {
            let (from, to) = (self.partial.join(format!("moved-{n}")), self.partial.join(to));
            fs::rename(&from, &to).map_err(failed("rename", &from))?;
        }
        let Self { directory, partial, lock, .. } = self;
        let places = index.places();
        let is_there = index.chunks.iter().map(|_| AtomicBool::new(false)).collect();
        let assembly = Self { directory, partial, lock, index, places, is_there };
        assembly.tidy()?;
        assembly.make(progress)?;
        Ok(assembly)
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> &ChunkIndex {
        &self.index
    }

    /// The chunks that are not there yet, by their places in the list.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        (0..self.is_there.len()).filter(|n| !self.is_there[*n].load(Ordering::Acquire)).collect()
    }

    /// Writes a chunk wherever it belongs.
    ///
    /// # Errors
    /// [`StoreError::Object`] when these are not its bytes, [`StoreError::Io`].
    ///
    /// # Panics
    /// When there are not as many chunks.
    pub fn place(&self, chunk: usize, bytes: &[u8]) -> Result<(), StoreError> {
        if ChunkName::of(bytes) != self.index.chunks[chunk] {
            let chunk = crate::object::digits(&self.index.chunks[chunk].hash);
            return Err(StoreError::Object { chunk, what: "its bytes have another hash" });
        }
        for &(file, offset) in &self.places[chunk] {
            let path = self.path_of(file);
            open(&path)?.write_all_at(bytes, offset).map_err(failed("write", &path))?;
        }
        self.is_there[chunk].store(true, Ordering::Release);
        Ok(())
    }

    /// Writes all of it to the disk and gives the directory its name.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::NotEmpty`]; what is there stays for another attempt.
    ///
    /// # Panics
    /// When chunks are missing.
    pub fn commit(self) -> Result<PathBuf, StoreError> {
        assert!(self.missing().is_empty(), "chunks are missing");
        syncfs(&*self.lock).map_err(refused("sync the file system of", &self.partial))?;
        let renamed = fs::rename(&self.partial, &self.directory);
        renamed.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOTEMPTY | Errno::EEXIST) => {
                StoreError::NotEmpty { directory: self.directory.clone() }
            }
            _ => failed("rename", &self.partial)(error),
        })?;
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(failed("sync", parent))?;
        Ok(self.directory)
    }

    fn path_of(&self, file: usize) -> PathBuf {
        self.partial.join(&self.index.files[file].path)
    }

    fn is_complete(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| match *part {
            Part::Zeros { .. } => true,
            Part::Chunk(chunk) => self.is_there[chunk as usize].load(Ordering::Acquire),
        })
    }

    /// Removes what the index does not have.
    fn tidy(&self) -> Result<(), StoreError> {
        let wanted: HashMap<&str, bool> = self.index.paths().collect();
        tidy(&self.partial, "", &wanted)
    }

    /// Makes directories and files, and takes what is right of files that are there.
    fn make(&self, progress: Progress<'_>) -> Result<(), StoreError> {
        for directory in &self.index.directories {
            make_directory(&self.partial.join(directory))?;
        }
        let found = Mutex::new(Vec::new());
        for (n, file) in self.index.files.iter().enumerate() {
            let path = self.path_of(n);
            let opened = open(&path)?;
            let before = opened.metadata().map_err(failed("stat", &path))?.len();
            opened.set_len(file.bytes).map_err(failed("give its length to", &path))?;
            if before > 0 {
                self.clear(n, &opened)?;
                found
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .push((n, before.min(file.bytes)));
            }
        }
        let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let length_of: HashMap<usize, u64> = found.into_iter().collect();
        // Of a chunk that is in several places all have to be right.
        let to_read: Vec<usize> = (0..self.places.len())
            .filter(|n| {
                let end = |offset: u64| offset + self.index.chunks[*n].bytes;
                self.places[*n]
                    .iter()
                    .all(|(file, offset)| length_of.get(file).is_some_and(|l| end(*offset) <= *l))
            })
            .collect();
        let all = to_read.iter().map(|n| self.index.chunks[*n].bytes).sum();
        let done = AtomicU64::new(0);
        for_each(to_read.len(), 1, &Limit::none(), |n, buffer| {
            let chunk = to_read[n];
            let name = &self.index.chunks[chunk];
            for &(file, offset) in &self.places[chunk] {
                let path = self.path_of(file);
                let buffer = buffer.bytes().map_err(failed("find memory to read", &path))?;
                let bytes = &mut buffer[..size(name.bytes)];
                open(&path)?.read_exact_at(bytes, offset).map_err(failed("read", &path))?;
                if ChunkName::of(bytes) != *name {
                    return Ok::<_, StoreError>(());
                }
            }
            self.is_there[chunk].store(true, Ordering::Release);
            progress(done.fetch_add(name.bytes, Ordering::Relaxed) + name.bytes, all);
            Ok(())
        })
    }

    /// Makes zeros of what has to be zeros in a file that was there.
    fn clear(&self, file: usize, opened: &File) -> Result<(), StoreError> {
        let path = self.path_of(file);
        let mut at = 0_i64;
        for part in &self.index.files[file].parts {
            let (bytes, is_zeros) = match *part {
                Part::Zeros { zeros } => (zeros, true),
                Part::Chunk(chunk) => (self.index.chunks[chunk as usize].bytes, false),
            };
            // The index says no more than i64::MAX for all files.
            let length = bytes.cast_signed();
            if is_zeros {
                let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(opened, how, at, length).map_err(refused("make zeros in", &path))?;
            }
            at += length;
        }
        Ok(())
    }
}

/// The contents of an index's files, by which they are found again.
struct Files {
    contents: Vec<Vec<ChunkName>>,
    by_contents: HashMap<Vec<ChunkName>, usize>,
}

impl Files {
    fn of(index: &ChunkIndex) -> Self {
        let name = |part: &Part| match *part {
            Part::Chunk(chunk) => index.chunks[chunk as usize],
            Part::Zeros { zeros } => ChunkName { hash: [0; 32], bytes: zeros },
        };
        let contents: Vec<Vec<ChunkName>> =
            index.files.iter().map(|file| file.parts.iter().map(name).collect()).collect();
        let by_contents = contents.iter().cloned().zip(0..).collect();
        Self { contents, by_contents }
    }
}

/// The path from the root on, so that its parent has a name.
fn absolute(directory: &Path) -> Result<PathBuf, StoreError> {
    let absolute = std::path::absolute(directory).map_err(failed("find", directory))?;
    match absolute.file_name() {
        Some(_) => Ok(absolute),
        None => Err(StoreError::NotEmpty { directory: directory.into() }),
    }
}

fn with_suffix(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(PARTIAL);
    name.into()
}

fn check_empty(directory: &Path) -> Result<(), StoreError> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("read", directory)(error)),
        Ok(entries) => match entries.count() {
            0 => Ok(()),
            _ => Err(StoreError::NotEmpty { directory: directory.into() }),
        },
    }
}

/// Makes a private directory, or takes one that is ours alone, and locks it.
fn own_directory(partial: &Path) -> Result<Flock<File>, StoreError> {
    if let Some(parent) = partial.parent() {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    make_directory(partial)?;
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits();
    let opened = File::options().read(true).custom_flags(flags).open(partial);
    let opened = opened.map_err(failed("open the directory", partial))?;
    let status = opened.metadata().map_err(failed("stat", partial))?;
    if status.uid() != geteuid().as_raw() || status.mode() & OTHERS != 0 {
        let source = io::Error::other(format!(
            "it belongs to user {} with permissions {:04o}: remove it",
            status.uid(),
            status.mode() & 0o7777
        ));
        return Err(failed("trust the directory", partial)(source));
    }
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => Err(StoreError::Busy { directory: partial.into() }),
        Err((_, errno)) => Err(refused("lock", partial)(errno)),
    }
}

/// Makes a private directory, if there is none.
fn make_directory(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(failed("create", path)),
    }
}

/// Opens a file to read and write; it is made if it is not there. Only this user comes here.
fn open(path: &Path) -> Result<File, StoreError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options.open(path).map_err(failed("open", path))
}

/// Removes what is not in `wanted`, or is a directory where a file is wanted, or the other way round.
fn tidy(directory: &Path, prefix: &str, wanted: &HashMap<&str, bool>) -> Result<(), StoreError> {
    for entry in fs::read_dir(directory).map_err(failed("read", directory))? {
        let entry = entry.map_err(failed("read", directory))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(failed("stat", &path))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match wanted.get(name.as_str()) {
            Some(true) if kind.is_dir() => tidy(&path, &format!("{name}/"), wanted)?,
            Some(false) if kind.is_file() => {}
            _ if kind.is_dir() => fs::remove_dir_all(&path).map_err(failed("remove", &path))?,
            _ => fs::remove_file(&path).map_err(failed("remove", &path))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
