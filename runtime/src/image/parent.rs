// SPDX-License-Identifier: MIT OR Apache-2.0
//! An earlier image, whose contents a new one need not write again: they are found by their hashes, and stay in the files that
//! they are in, which get second names beside the new image.
//!
//! INVARIANT: a chunk of the parent is one chunk of the new image at most, as its bytes are in a file once. A name that was there before
//! is never removed or given to another file, before the new image has its own name.

use std::cmp::Reverse;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;
use queues::words::count;

use super::Image;
use super::format::{Chunk, EarlierFile, ImageError, MAX_EARLIER, is_name};

/// Digits of a front's hash that a name shows.
const NAMED_DIGITS: usize = 16;
/// An earlier file is used for its contents, and kept whole: for less than this part of it they are written again.
const USED_PART: u64 = 4;

/// Where contents are, for one chunk of the new image.
#[derive(Debug)]
struct Known {
    hash: [u8; 32],
    length: u64,
    /// The number of the linked file, from 1.
    file: u32,
    offset: u64,
    is_taken: AtomicBool,
}

/// The contents of an earlier image.
#[derive(Debug)]
pub(super) struct Parent {
    linked: Linked,
    /// Sorted by hash and length.
    known: Vec<Known>,
}

impl Parent {
    /// What `image` has for the new image at `path`, in no more than so many files, which have second names from now on.
    pub(super) fn of(image: &Image, path: &Path, most: usize) -> Result<Self, ImageError> {
        let mut used: Vec<(usize, u64)> = image.bytes_by_file().into_iter().enumerate().collect();
        let is_worth =
            |number: usize, bytes: u64| bytes > 0 && bytes >= image.places()[number].bytes / USED_PART;
        used.retain(|(number, bytes)| is_worth(*number, *bytes));
        // Those with most of the contents: of many files, each with little, little would be gained.
        used.sort_by_key(|(number, bytes)| (Reverse(*bytes), *number));
        used.truncate(most.min(MAX_EARLIER));
        let (mut linked, mut failed) = (Linked::default(), None);
        // By the number of the parent's file.
        let mut numbers = vec![0; image.places().len()];
        for (number, _) in &used {
            match linked.add(image, *number, path) {
                Ok(()) => numbers[*number] = count(linked.names.len()),
                // Its contents are written again.
                Err(error) => {
                    tracing::debug!(%error, "an earlier file is not used");
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed.filter(|_| linked.names.is_empty()) {
            return Err(error);
        }
        let is_linked = |chunk: &&Chunk| numbers[chunk.file as usize] > 0;
        let found = image.chunks().iter().filter(is_linked);
        let mut known = Vec::new();
        known.try_reserve_exact(found.clone().count()).map_err(|_| ImageError::Io {
            act: "find memory for the contents of",
            path: image.places()[0].path.clone(),
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        known.extend(found.map(|chunk| Known {
            hash: chunk.hash,
            length: chunk.length,
            file: numbers[chunk.file as usize],
            offset: chunk.file_offset,
            is_taken: AtomicBool::new(false),
        }));
        known.sort_unstable_by_key(|known| (known.hash, known.length));
        Ok(Self { linked, known })
    }

    /// The file and offset where bytes with this hash are, for one chunk.
    pub(super) fn take(&self, hash: &[u8; 32], length: u64) -> Option<(u32, u64)> {
        let is_less = |known: &Known| (&known.hash, known.length) < (hash, length);
        let first = self.known.partition_point(is_less);
        let same =
            self.known[first..].iter().take_while(|known| (&known.hash, known.length) == (hash, length));
        let mut free = same.filter(|known| !known.is_taken.swap(true, Ordering::Relaxed));
        free.next().map(|known| (known.file, known.offset))
    }

    /// The files that chunks are in, which count those only from now on; the others lose their second names.
    pub(super) fn into_used(mut self, chunks: &mut [Chunk]) -> Linked {
        let mut numbers = vec![0; self.linked.names.len() + 1];
        for chunk in chunks.iter() {
            numbers[chunk.file as usize] = 1;
        }
        let mut next = 0;
        for number in numbers.iter_mut().skip(1).filter(|number| **number > 0) {
            next += 1;
            *number = next;
        }
        for chunk in chunks.iter_mut().filter(|chunk| chunk.file > 0) {
            chunk.file = numbers[chunk.file as usize];
        }
        self.linked.retain(|at| numbers[at + 1] > 0);
        self.linked
    }
}

/// Files with second names, which those that are new lose again unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) names: Vec<EarlierFile>,
    files: Vec<File>,
    /// The names that were made for it.
    made: Vec<Option<PathBuf>>,
}

impl Linked {
    /// Gives the parent's n-th file a second name beside the new image, if it has none there.
    fn add(&mut self, parent: &Image, number: usize, image: &Path) -> Result<(), ImageError> {
        let place = &parent.places()[number];
        let io = |act| move |source| ImageError::Io { act, path: place.path.clone(), source };
        let own = image.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file = place.file().try_clone().map_err(io("duplicate the descriptor of"))?;
        let status = file.metadata().map_err(io("stat"))?;
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        // The first name that is free, or is this file's: what else has one is somebody's.
        let digits = blake3::Hash::from(place.front).to_hex();
        for at in (0..digits.len()).step_by(NAMED_DIGITS) {
            let hash = digits[at..at + NAMED_DIGITS].to_owned();
            // Of a name of the caller's that no earlier file can have, the hash alone is left.
            let name = Some(format!("{own}.{hash}")).filter(|name| is_name(name)).unwrap_or(hash);
            let to = image.with_file_name(&name);
            let made = match linkat(AT_FDCWD, opened.as_str(), AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW) {
                Ok(()) => Some(to),
                Err(Errno::EEXIST) => {
                    let there = std::fs::symlink_metadata(&to).map_err(io("look for a second name of"))?;
                    if (there.dev(), there.ino()) != (status.dev(), status.ino()) {
                        continue;
                    }
                    None
                }
                Err(Errno::EXDEV) => {
                    return Err(ImageError::Elsewhere { path: image.into(), parent: place.path.clone() });
                }
                Err(errno) => return Err(io("give a second name to")(errno.into())),
            };
            self.made.push(made);
            self.files.push(file);
            self.names.push(EarlierFile { name, bytes: place.bytes, front: place.front });
            return Ok(());
        }
        Err(io("give a second name to")(Errno::EEXIST.into()))
    }

    /// Leaves files out, by position.
    fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        let all = std::mem::take(self);
        let mut left = Self::default();
        for (at, ((name, file), made)) in all.into_parts().enumerate() {
            let to = if is_kept(at) { &mut *self } else { &mut left };
            to.names.push(name);
            to.files.push(file);
            to.made.push(made);
        }
    }

    fn into_parts(mut self) -> impl Iterator<Item = ((EarlierFile, File), Option<PathBuf>)> {
        let (names, files) = (std::mem::take(&mut self.names), std::mem::take(&mut self.files));
        names.into_iter().zip(files).zip(std::mem::take(&mut self.made))
    }

    /// The files, whose names stay.
    pub(super) fn keep(mut self) -> Vec<File> {
        self.made.clear();
        std::mem::take(&mut self.files)
    }

    /// Other second names beside `image`: of one that was there before.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub(super) fn others(&self, image: &Path) -> Result<Vec<PathBuf>, ImageError> {
        let Some(own) = image.file_name().and_then(|name| name.to_str()) else { return Ok(Vec::new()) };
        let directory = image.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let io = |source| ImageError::Io { act: "list the directory", path: directory.into(), source };
        let mut others = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let found = entry.file_name();
            let name = found.to_str().filter(|name| is_earlier_name(own, name));
            if name.is_some_and(|name| !self.names.iter().any(|kept| kept.name == name)) {
                others.push(entry.path());
            }
        }
        Ok(others)
    }
}

/// Whether this is the name of an earlier file beside the image that is called `own`.
pub(crate) fn is_earlier_name(own: &str, name: &str) -> bool {
    let is_hash =
        |hash: &str| hash.len() == NAMED_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.strip_prefix(own).and_then(|rest| rest.strip_prefix('.')).is_some_and(is_hash)
}

impl Drop for Linked {
    fn drop(&mut self) {
        for path in self.made.iter().flatten() {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "a second name was not removed");
            }
        }
    }
}
