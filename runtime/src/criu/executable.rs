// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program file of a frozen process: its code is not in the images, so the restored process runs what lies there
//! then.
//!
//! CRIU compares sizes; a program rebuilt to the same size would be resumed in the middle of other code.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::linux::regular::{Links, RegularError, open};

/// A program file as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// Where it lies.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of it, in hexadecimal digits.
    pub blake3: String,
    /// Which file it was, and when that last changed. Older manifests have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
}

/// A file as it was at some time: any change of its bytes, and any other file in its place, has another one. Only who sets the
/// system's clock can make two alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Device of its file system.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// When it last changed (`st_ctime`), nanoseconds since 1970.
    pub changed_ns: i128,
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        let changed_ns = i128::from(file.ctime()) * 1_000_000_000 + i128::from(file.ctime_nsec());
        Self { device: file.dev(), inode: file.ino(), changed_ns }
    }
}

/// The program file is not the one the process ran.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecutableError {
    /// It cannot be read.
    #[error("Cannot read the program {}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// There is no program.
    #[error(transparent)]
    File(#[from] RegularError),
    /// It is another one, by its length.
    #[error(
        "The program {} was rebuilt or replaced since the checkpoint: it had {had_bytes} bytes, now {bytes} bytes; put the \
         old one back",
        path.display()
    )]
    Length {
        /// Which one.
        path: PathBuf,
        /// Its length then.
        had_bytes: u64,
        /// Its length now.
        bytes: u64,
    },
    /// It is another one of the same length.
    #[error(
        "The program {} was rebuilt or replaced since the checkpoint: its {bytes} bytes had the hash {had}, now {found}; \
         put the old one back",
        path.display()
    )]
    Changed {
        /// Which one.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Its hash then.
        had: String,
        /// Its hash now.
        found: String,
    },
}

impl Executable {
    /// The program of a process.
    ///
    /// # Errors
    /// [`ExecutableError::Io`].
    pub fn of(pid: i32) -> Result<Self, ExecutableError> {
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        let path =
            std::fs::read_link(&link).map_err(|source| ExecutableError::Io { path: link.clone(), source })?;
        // Through the link: the file that runs, even if another has taken its name.
        Self::read(&link, path)
    }

    fn read(file: &Path, path: PathBuf) -> Result<Self, ExecutableError> {
        let opened = open(file, Links::Follow)?;
        let io = |source| ExecutableError::Io { path: path.clone(), source };
        let before = opened.metadata().map_err(io)?;
        let mut hasher = blake3::Hasher::new();
        // No further than it was when it was opened: it could grow without end.
        hasher.update_reader((&opened).take(before.len())).map_err(io)?;
        let (bytes, blake3) = (hasher.count(), hasher.finalize().to_hex().to_string());
        // The bytes are this stamp's if nothing has changed while they were read.
        let stamp = Stamp::of(&opened.metadata().map_err(io)?);
        let stamp = (stamp == Stamp::of(&before)).then_some(stamp);
        Ok(Self { path, bytes, blake3, stamp })
    }

    /// Makes sure that the same program lies there now: the same file, unchanged, or one with the same bytes, which are read then.
    ///
    /// # Errors
    /// [`ExecutableError`].
    pub fn check(&self) -> Result<(), ExecutableError> {
        let path = || self.path.clone();
        let opened = open(&self.path, Links::Follow)?;
        let found = opened.metadata().map_err(|source| ExecutableError::Io { path: path(), source })?;
        if found.len() != self.bytes {
            return Err(ExecutableError::Length { path: path(), had_bytes: self.bytes, bytes: found.len() });
        }
        if self.stamp == Some(Stamp::of(&found)) {
            return Ok(());
        }
        let now = Self::read(&self.path, path())?;
        if (now.bytes, &now.blake3) == (self.bytes, &self.blake3) {
            return Ok(());
        }
        let short = |hash: &str| hash.chars().take(16).collect();
        Err(ExecutableError::Changed {
            path: path(),
            bytes: self.bytes,
            had: short(&self.blake3),
            found: short(&now.blake3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_of_the_same_size_is_still_another() {
        let own = Executable::of(std::process::id().cast_signed()).unwrap();
        own.check().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, b"one").unwrap();
        let had = Executable::read(&path, path.clone()).unwrap();
        std::fs::write(&path, b"two").unwrap();
        assert!(matches!(had.check(), Err(ExecutableError::Changed { bytes: 3, .. })));
        std::fs::write(&path, b"four").unwrap();
        assert!(matches!(had.check(), Err(ExecutableError::Length { had_bytes: 3, bytes: 4, .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(had.check(), Err(ExecutableError::File(error)) if error.is_not_found()));
    }

    #[test]
    fn unchanged_file_is_not_read_and_one_in_its_place_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, b"one").unwrap();
        let had = Executable::read(&path, path.clone()).unwrap();
        // A hash that would not fit if it was looked at.
        let unread = Executable { blake3: "0".repeat(64), ..had.clone() };
        unread.check().unwrap();
        // The same bytes in another file, and in the same one at another time.
        std::fs::copy(&path, directory.path().join("copy")).unwrap();
        std::fs::rename(directory.path().join("copy"), &path).unwrap();
        had.check().unwrap();
        assert!(matches!(unread.check(), Err(ExecutableError::Changed { .. })));
        let had = Executable::read(&path, path.clone()).unwrap();
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, b"two").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert!(matches!(had.check(), Err(ExecutableError::Changed { .. })));
        // A manifest of before has no stamp.
        let older: Executable = serde_json::from_str(
            &serde_json::json!({ "path": path, "bytes": 3, "blake3": "00" }).to_string(),
        )
        .unwrap();
        assert!(matches!(older.check(), Err(ExecutableError::Changed { .. })));
    }

    #[test]
    fn what_is_no_file_in_its_place_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, b"one").unwrap();
        let had = Executable::read(&path, path.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let error = had.check().unwrap_err();
        assert!(error.to_string().contains("a device, not a regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let error = had.check().unwrap_err();
        assert!(error.to_string().contains("a directory"), "{error}");
    }
}
