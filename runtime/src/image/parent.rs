// SPDX-License-Identifier: MIT OR Apache-2.0
//! An earlier image, whose contents a new one need not write again: they are found by their hashes, and stay in the files that
//! they are in, which get second names beside the new image.
//!
//! INVARIANT: a chunk of the parent is one chunk of the new image at most, as its bytes are in a file once.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;
use queues::words::count;

use super::Image;
use super::format::{Chunk, EarlierFile, ImageError, MAX_EARLIER, is_name};

/// Bytes of a front's hash that a name shows.
const NAMED_BYTES: usize = 8;

/// A file of the parent.
#[derive(Debug)]
struct Candidate {
    file: File,
    bytes: u64,
    front: [u8; 32],
    /// Where errors say that it is.
    path: PathBuf,
}

/// The hash of bytes, and how many they are.
type Bytes = ([u8; 32], u64);

/// Where contents are: the candidate's number from 1, and the offset in its file.
type Place = (u32, u64);

/// The contents of an earlier image.
#[derive(Debug)]
pub(super) struct Parent {
    /// The new image.
    path: PathBuf,
    candidates: Vec<Candidate>,
    known: Mutex<HashMap<Bytes, Vec<Place>>>,
}

impl Parent {
    /// What `image` has for the new image at `path`, which is written into `file`.
    pub(super) fn of(image: &Image, path: &Path, file: &File) -> Result<Self, ImageError> {
        let device = |file: &File, path: &Path| match file.metadata() {
            Ok(status) => Ok(status.dev()),
            Err(source) => Err(ImageError::Io { act: "stat", path: path.into(), source }),
        };
        let here = device(file, path)?;
        // Those with most of the contents: of many files, each with little, little would be gained.
        let mut used: Vec<(usize, u64)> = image.bytes_by_file().into_iter().enumerate().collect();
        used.retain(|(_, bytes)| *bytes > 0);
        used.sort_by_key(|(number, bytes)| (std::cmp::Reverse(*bytes), *number));
        used.truncate(MAX_EARLIER);
        let mut candidates = Vec::with_capacity(used.len());
        for (number, place) in image.places().iter().enumerate() {
            if !used.iter().any(|(wanted, _)| *wanted == number) {
                continue;
            }
            let (bytes, front, from) = (place.bytes, place.front, place.path.clone());
            if device(place.file(), &from)? != here {
                return Err(ImageError::Elsewhere { path: path.into(), parent: from });
            }
            let duplicate = place.file().try_clone();
            let act = "duplicate the descriptor of";
            let file = duplicate.map_err(|source| ImageError::Io { act, path: from.clone(), source })?;
            candidates.push((number, Candidate { file, bytes, front, path: from }));
        }
        let number_of = |chunk: &Chunk| {
            candidates.iter().position(|(number, _)| *number == chunk.file as usize).map(|at| count(at + 1))
        };
        let mut known: HashMap<Bytes, Vec<Place>> = HashMap::with_capacity(image.chunks().len());
        for chunk in image.chunks() {
            if let Some(number) = number_of(chunk) {
                known.entry((chunk.hash, chunk.length)).or_default().push((number, chunk.file_offset));
            }
        }
        let candidates = candidates.into_iter().map(|(_, candidate)| candidate).collect();
        Ok(Self { path: path.into(), candidates, known: Mutex::new(known) })
    }

    /// Where bytes with this hash are, for one chunk.
    pub(super) fn take(&self, hash: &[u8; 32], length: u64) -> Option<Place> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&(*hash, length))?.pop()
    }

    /// Gives the files that chunks are in second names beside the new image, and has the chunks count those only.
    pub(super) fn link(&self, chunks: &mut [Chunk]) -> Result<Linked, ImageError> {
        let mut linked = Linked::default();
        let mut numbers = vec![0; self.candidates.len() + 1];
        for chunk in chunks.iter().filter(|chunk| chunk.file > 0) {
            numbers[chunk.file as usize] = 1;
        }
        let mut next = 0;
        for (candidate, number) in self.candidates.iter().zip(&mut numbers[1..]) {
            if *number > 0 {
                next += 1;
                *number = next;
                linked.add(candidate, &self.path)?;
            }
        }
        for chunk in chunks {
            chunk.file = numbers[chunk.file as usize];
        }
        Ok(linked)
    }
}

/// Files with second names, which go again unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) names: Vec<EarlierFile>,
    files: Vec<File>,
    paths: Vec<PathBuf>,
}

impl Linked {
    fn add(&mut self, candidate: &Candidate, image: &Path) -> Result<(), ImageError> {
        let Candidate { file, bytes, front, path: from } = candidate;
        let io = |act, path: &Path| {
            let path = path.to_path_buf();
            move |source| ImageError::Io { act, path, source }
        };
        let hash: String = front.iter().take(NAMED_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let own = image.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // A name of the caller's that no earlier file can have: the hash alone tells one from another.
        let name = Some(format!("{own}.{hash}")).filter(|name| is_name(name)).unwrap_or(hash);
        let to = image.with_file_name(&name);
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = || linkat(AT_FDCWD, opened.as_str(), AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW);
        let made = match link() {
            // What an earlier attempt has left, whatever it is.
            Err(Errno::EEXIST) => {
                std::fs::remove_file(&to).map_err(io("remove the left-over", &to))?;
                link()
            }
            made => made,
        };
        match made {
            Ok(()) => self.paths.push(to),
            Err(Errno::EXDEV) => {
                return Err(ImageError::Elsewhere { path: image.into(), parent: from.clone() });
            }
            Err(errno) => return Err(io("give a second name to", from)(errno.into())),
        }
        self.files.push(file.try_clone().map_err(io("duplicate the descriptor of", from))?);
        self.names.push(EarlierFile { name, bytes: *bytes, front: *front });
        Ok(())
    }

    /// The files, whose names stay.
    pub(super) fn keep(mut self) -> Vec<File> {
        self.paths.clear();
        std::mem::take(&mut self.files)
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        for path in &self.paths {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "a second name was not removed");
            }
        }
    }
}
