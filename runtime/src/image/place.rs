// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that an image's chunks are in: its own, and those of earlier images.
//!
//! INVARIANT: a file of an earlier image has the length and the front that the image says, or is refused by its name.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use queues::words::size;

use super::format::{CONTENTS_OFFSET, EarlierFile, ImageError};
use super::worker::Bulk;

/// A file that chunks are in.
#[derive(Debug)]
pub(super) struct Place {
    /// Where errors say that it is.
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// BLAKE3 of its first 4096 bytes.
    pub(super) front: [u8; 32],
    pub(super) bulk: Bulk,
}

impl Place {
    /// A file of an earlier image, opened and found to be the one that `image` was made with.
    pub(super) fn of_earlier(
        image: &Path,
        named: &EarlierFile,
        open: impl Fn(&EarlierFile) -> std::io::Result<File>,
        trust: impl Fn(&Path, u32) -> Result<(), ImageError>,
    ) -> Result<Self, ImageError> {
        let path = image.with_file_name(&named.name);
        let missing = |source| ImageError::Earlier { path: image.into(), earlier: path.clone(), source };
        let other = |what| ImageError::OtherEarlier { path: image.into(), earlier: path.clone(), what };
        let file = open(named).map_err(missing)?;
        if regular(&file, &path, trust)? != named.bytes {
            return Err(other("it has another length"));
        }
        if named.bytes < CONTENTS_OFFSET || front_of(&file).map_err(missing)? != named.front {
            return Err(other("it has another front"));
        }
        let bulk = bulk(file, &path)?;
        Ok(Self { path, bytes: named.bytes, front: named.front, bulk })
    }

    pub(super) fn file(&self) -> &File {
        self.bulk.file()
    }
}

/// The hash by which the file of an image is known.
fn front_of(file: &File) -> std::io::Result<[u8; 32]> {
    let mut front = [0; size(CONTENTS_OFFSET)];
    file.read_exact_at(&mut front, 0)?;
    Ok(*blake3::hash(&front).as_bytes())
}

/// The length of a file that has to be a regular one, of an owner who is trusted.
pub(super) fn regular(
    file: &File,
    path: &Path,
    trust: impl Fn(&Path, u32) -> Result<(), ImageError>,
) -> Result<u64, ImageError> {
    let status =
        file.metadata().map_err(|source| ImageError::Io { act: "stat", path: path.into(), source })?;
    let found = match status.file_type() {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a directory"),
        kind if kind.is_fifo() => Some("a FIFO"),
        _ => Some("a device or socket"),
    };
    if let Some(found) = found {
        return Err(ImageError::NotAFile { path: path.into(), found });
    }
    trust(path, status.uid())?;
    Ok(status.len())
}

/// The file's contents, past the page cache but for what is there already.
pub(super) fn bulk(file: File, path: &Path) -> Result<Bulk, ImageError> {
    let act = "go past the page cache with";
    Bulk::to_read(file).map_err(|source| ImageError::Io { act, path: path.into(), source })
}
