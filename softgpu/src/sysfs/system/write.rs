// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a tree into a directory.
//!
//! INVARIANT: nothing outside of the directory is written, and nothing that was there is replaced: the directory is
//! empty at first, and every file, link and directory is made anew.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::entries::{Entries, Entry};

/// Why the files of the machine are not there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteTreeError {
    /// The directory cannot be read.
    #[error("Cannot list {path}, which must be an existing, empty directory")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something is in the directory.
    #[error("{path} is not empty, {found:?} is in it; name an empty directory")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One entry of it.
        found: std::ffi::OsString,
    },
    /// An entry cannot be made.
    #[error("Cannot make {path}; remove the directory that it is for and write the tree anew")]
    Entry {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Permissions of a file of sysfs that is only read, and of a device that anybody may open.
const READ_ONLY: u32 = 0o444;
const DEVICE: u32 = 0o666;
const SEARCHABLE: u32 = 0o755;

/// Writes all entries.
pub(super) fn write(entries: &Entries, directory: &Path) -> Result<(), WriteTreeError> {
    demand_empty(directory)?;
    let mut made = BTreeSet::from([""]);
    for (path, entry) in entries.iter() {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        make_directories(directory, parent, &mut made)?;
        let at = directory.join(path);
        let done = match entry {
            Entry::Directory => make_directories(directory, path, &mut made).map(|()| Ok(()))?,
            Entry::Link(text) => symlink(text, &at),
            Entry::File(contents) => create(&at, READ_ONLY, contents),
            Entry::Device => create(&at, DEVICE, &[]),
        };
        done.map_err(|source| WriteTreeError::Entry { path: at, source })?;
    }
    Ok(())
}

fn demand_empty(directory: &Path) -> Result<(), WriteTreeError> {
    let failed = |source| WriteTreeError::Directory { path: directory.to_owned(), source };
    match fs::read_dir(directory).map_err(failed)?.next() {
        None => Ok(()),
        Some(found) => {
            let found = found.map_err(failed)?.file_name();
            Err(WriteTreeError::NotEmpty { path: directory.to_owned(), found })
        }
    }
}

/// Makes `path` and the directories above it that are not made yet.
fn make_directories<'p>(
    directory: &Path,
    path: &'p str,
    made: &mut BTreeSet<&'p str>,
) -> Result<(), WriteTreeError> {
    if !made.insert(path) {
        return Ok(());
    }
    make_directories(directory, path.rsplit_once('/').map_or("", |(parent, _)| parent), made)?;
    let at = directory.join(path);
    let result = DirBuilder::new().mode(SEARCHABLE).create(&at);
    result.map_err(|source| WriteTreeError::Entry { path: at, source })
}

fn create(path: &Path, mode: u32, contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if contents.is_empty() { Ok(()) } else { file.write_all(contents) }
}
