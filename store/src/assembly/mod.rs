// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint directory that is made of chunks.
//!
//! ```text
//!  DIR.partial/   0700, with the file .stasis-partial, locked by whoever writes it; may be there from an attempt that ended
//!  DIR/           the same directory, renamed when every chunk is in its place and on the disk
//! ```
//!
//! INVARIANT: nothing is written that has not its hash, and DIR is not there before all of it is. What an earlier attempt
//! left is read and compared with the hashes before it is taken for a chunk.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};
use nix::sys::statvfs::statvfs;
use nix::unistd::{geteuid, syncfs};
use queues::words::size;
use stasis::image::{Limit, for_each};

use crate::error::{StoreError, failed, refused};
use crate::index::{ChunkIndex, ChunkName, Part, Span};

/// What the directory is called before it is complete, behind its own name.
const PARTIAL: &str = ".partial";
/// How names begin that are ours, and that no checkpoint has.
pub(crate) const OWN: &str = ".stasis-";
/// The file by which such a directory is known to be one.
const MARK: &str = ".stasis-partial";
/// Permissions of others, which nothing here gives.
const OTHERS: u32 = 0o077;

/// A checkpoint directory that is being made.
#[derive(Debug)]
pub struct Assembly {
    place: Place,
    index: ChunkIndex,
    /// By the chunks' places in the list.
    places: Vec<Vec<(usize, u64)>>,
    is_there: Vec<AtomicBool>,
}

/// Where a checkpoint's directory is to be.
#[derive(Debug)]
pub(crate) struct Place {
    directory: PathBuf,
    partial: PathBuf,
    /// Held while this is there.
    lock: Flock<File>,
}

impl Place {
    /// Takes `directory`, which has to be empty or not to exist, for a checkpoint, and the directory beside it for what is not complete.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], [`StoreError::Busy`], [`StoreError::NotPartial`], [`StoreError::Io`].
    pub(crate) fn take(directory: &Path) -> Result<Self, StoreError> {
        let directory = absolute(directory)?;
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).map_err(failed("create", parent))?;
        }
        check_empty(&directory)?;
        let partial = with_suffix(&directory);
        Ok(Self { lock: own_directory(&partial)?, directory, partial })
    }
}

impl Assembly {
    /// Begins, or goes on with, the checkpoint that `index` describes, at `directory`, which has to be empty or not to
    /// exist. What an attempt that ended has left is looked through.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], [`StoreError::Busy`], [`StoreError::NotPartial`], [`StoreError::NoRoom`], [`StoreError::Io`]; what
    /// was left is still there then.
    pub fn begin(directory: &Path, index: ChunkIndex) -> Result<Self, StoreError> {
        Self::begin_at(Place::take(directory)?, index)
    }

    /// The same at a place that was taken before.
    pub(crate) fn begin_at(place: Place, index: ChunkIndex) -> Result<Self, StoreError> {
        let assembly = Self::at(place, index);
        assembly.tidy()?;
        assembly.make(&HashSet::new())?;
        Ok(assembly)
    }

    fn at(place: Place, index: ChunkIndex) -> Self {
        let places = index.places();
        let is_there = index.chunks.iter().map(|_| AtomicBool::new(false)).collect();
        Self { place, index, places, is_there }
    }

    /// Goes on with another index, whose files may be those that are here already, under these names or others: a file that is whole is
    /// not read again.
    ///
    /// # Errors
    /// As for [`Assembly::begin`].
    pub fn turn_to(self, index: ChunkIndex) -> Result<Self, StoreError> {
        let mut whole = self.whole_files();
        let (mut moves, mut kept) = (Vec::new(), HashSet::new());
        for (file, contents) in index.files.iter().zip(contents_of(&index)) {
            // One file, one new name: another one with the same contents is made anew.
            if let Some(from) = whole.remove(&contents) {
                kept.insert(file.path.clone());
                if from != file.path {
                    moves.push((from, file.path.clone()));
                }
            }
        }
        let partial = &self.place.partial;
        for directory in &index.directories {
            make_directory(&partial.join(directory))?;
        }
        // By names of their own first: one file's new name may be another's old one.
        let rename = |from: &str, to: &str| {
            let (from, to) = (partial.join(from), partial.join(to));
            fs::rename(&from, &to).map_err(failed("rename", &from))
        };
        let between = |n: usize| format!("{OWN}moved-{n}");
        moves.iter().enumerate().try_for_each(|(n, (from, _))| rename(from, &between(n)))?;
        moves.iter().enumerate().try_for_each(|(n, (_, to))| rename(&between(n), to))?;
        let assembly = Self::at(self.place, index);
        assembly.tidy()?;
        assembly.make(&kept)?;
        Ok(assembly)
    }

    /// The files all of whose chunks are there, by their contents.
    fn whole_files(&self) -> HashMap<Vec<ChunkName>, String> {
        let files = self.index.files.iter().zip(contents_of(&self.index));
        let whole = files.filter(|(file, _)| file.bytes > 0 && self.is_complete(&file.parts));
        whole.map(|(file, contents)| (contents, file.path.clone())).collect()
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
        let Place { directory, partial, lock } = &self.place;
        syncfs(&**lock).map_err(refused("sync the file system of", partial))?;
        let renamed = fs::rename(partial, directory);
        renamed.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOTEMPTY | Errno::EEXIST) => StoreError::NotEmpty { directory: directory.clone() },
            _ => failed("rename", partial)(error),
        })?;
        // From here on it is there. Whoever has another copy keeps it unless this one's name is on the disk.
        if let Err(error) = fs::remove_file(directory.join(MARK)) {
            tracing::warn!(%error, path = %directory.display(), "the mark of what is not complete stays");
        }
        let parent = directory.parent().unwrap_or(Path::new("/"));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(failed("write the new name to the disk in", parent))?;
        Ok(self.place.directory)
    }

    fn path_of(&self, file: usize) -> PathBuf {
        self.place.partial.join(&self.index.files[file].path)
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
        let wanted = wanted.into_iter().chain([(MARK, false)]).collect();
        tidy(&self.place.partial, "", &wanted)
    }

    /// Makes directories and files, and takes what is right of files that are there. Those of `kept` are known to be whole.
    fn make(&self, kept: &HashSet<String>) -> Result<(), StoreError> {
        self.check_room()?;
        for directory in &self.index.directories {
            make_directory(&self.place.partial.join(directory))?;
        }
        // How much there was of each file.
        let mut before = Vec::with_capacity(self.index.files.len());
        for (n, file) in self.index.files.iter().enumerate() {
            let path = self.path_of(n);
            let opened = open(&path)?;
            let length = opened.metadata().map_err(failed("stat", &path))?.len();
            opened.set_len(file.bytes).map_err(failed("give its length to", &path))?;
            if length > 0 && !kept.contains(&file.path) {
                self.clear(n, &opened)?;
            }
            before.push(length.min(file.bytes));
        }
        let is_kept: Vec<bool> = self.index.files.iter().map(|file| kept.contains(&file.path)).collect();
        let mut to_read = Vec::new();
        for (n, places) in self.places.iter().enumerate() {
            let end = |offset: u64| offset + self.index.chunks[n].bytes;
            if places.iter().all(|(file, _)| is_kept[*file]) {
                self.is_there[n].store(true, Ordering::Release);
            } else if places.iter().all(|(file, offset)| end(*offset) <= before[*file]) {
                // Of a chunk that is in several places all have to be right.
                to_read.push(n);
            }
        }
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
            Ok(())
        })
    }

    /// Whether what is not there yet has room.
    fn check_room(&self) -> Result<(), StoreError> {
        let partial = &self.place.partial;
        let status = statvfs(partial).map_err(refused("stat the file system of", partial))?;
        let free = status.blocks_available().saturating_mul(status.fragment_size());
        let there = bytes_below(partial);
        match self.index.written_bytes().saturating_sub(there) {
            wanted if wanted > free => Err(StoreError::NoRoom { directory: partial.clone(), wanted, free }),
            _ => Ok(()),
        }
    }

    /// Makes zeros of what has to be zeros in a file that was there.
    fn clear(&self, file: usize, opened: &File) -> Result<(), StoreError> {
        let path = self.path_of(file);
        let zeros = self.index.spans(&self.index.files[file]);
        for Span { offset, bytes, .. } in zeros.filter(|span| matches!(span.part, Part::Zeros { .. })) {
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // The index says no more than i64::MAX for all files.
            match fallocate(opened, how, offset.cast_signed(), bytes.cast_signed()) {
                // Not every file system can.
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => write_zeros(opened, offset, bytes),
                made => made.map_err(Into::into),
            }
            .map_err(failed("make zeros in", &path))?;
        }
        Ok(())
    }
}

/// The contents of an index's files, by which they are found again.
fn contents_of(index: &ChunkIndex) -> impl Iterator<Item = Vec<ChunkName>> {
    let name = |part: &Part| match *part {
        Part::Chunk(chunk) => index.chunks[chunk as usize],
        Part::Zeros { zeros } => ChunkName { hash: [0; 32], bytes: zeros },
    };
    index.files.iter().map(move |file| file.parts.iter().map(name).collect())
}

/// Bytes that the files below a directory have on the disk, as far as can be seen.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(status) if status.is_dir() => bytes_below(&entry.path()),
        status => status.map_or(0, |status| status.blocks() * 512),
    });
    bytes.sum()
}

fn write_zeros(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 16];
    let pieces = (0..bytes).step_by(zeros.len());
    pieces.into_iter().try_for_each(|at| {
        let piece = size(bytes - at).min(zeros.len());
        file.write_all_at(&zeros[..piece], from + at)
    })
}

/// The path from the root on, so that its parent has a name, and nothing behind its own.
fn absolute(directory: &Path) -> Result<PathBuf, StoreError> {
    let absolute = std::path::absolute(directory).map_err(failed("find", directory))?;
    let absolute: PathBuf = absolute.components().collect();
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

/// Makes sure that a directory can get this name by a rename.
fn check_empty(directory: &Path) -> Result<(), StoreError> {
    let status = match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        status => status.map_err(failed("stat", directory))?,
    };
    let above = directory.parent().unwrap_or(directory);
    let device = fs::metadata(above).map_err(failed("stat", above))?.dev();
    let is_replaceable = status.is_dir() && status.dev() == device;
    if !is_replaceable || fs::read_dir(directory).map_err(failed("read", directory))?.count() > 0 {
        return Err(StoreError::NotEmpty { directory: directory.into() });
    }
    Ok(())
}

/// Makes a private directory, or takes one that an attempt has left, and locks it.
fn own_directory(partial: &Path) -> Result<Flock<File>, StoreError> {
    let strange = |what| StoreError::NotPartial { directory: partial.into(), what };
    make_directory(partial)?;
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits();
    let opened = File::options().read(true).custom_flags(flags).open(partial);
    let opened = opened.map_err(|error| strange(error.to_string()))?;
    let status = opened.metadata().map_err(failed("stat", partial))?;
    if status.uid() != geteuid().as_raw() || status.mode() & OTHERS != 0 {
        let permissions = status.mode() & 0o7777;
        return Err(strange(format!(
            "it belongs to user {} with permissions {permissions:04o}",
            status.uid()
        )));
    }
    let lock = match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, Errno::EWOULDBLOCK)) => return Err(StoreError::Busy { directory: partial.into() }),
        Err((_, errno)) => return Err(refused("lock", partial)(errno)),
    };
    // What is in it will be removed if it does not belong to the checkpoint.
    let mark = partial.join(MARK);
    let is_empty = fs::read_dir(partial).map_err(failed("read", partial))?.next().is_none();
    if !is_empty && fs::symlink_metadata(&mark).is_err() {
        return Err(strange("it is not empty, and has no file ".to_owned() + MARK));
    }
    open(&mark)?;
    Ok(lock)
}

/// Makes a private directory, if there is none.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
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
