// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program file of a frozen process: its code is not in the images, so the restored process runs what lies there
//! then.
//!
//! CRIU compares sizes; a program rebuilt to the same size would be resumed in the middle of other code.

use std::io::{self, Read};
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
        let length = opened.metadata().map_err(io)?.len();
        let mut hasher = blake3::Hasher::new();
        // No further than it was when it was opened: it could grow without end.
        hasher.update_reader(opened.take(length)).map_err(io)?;
        let (bytes, blake3) = (hasher.count(), hasher.finalize().to_hex().to_string());
        Ok(Self { path, bytes, blake3 })
    }

    /// Makes sure that the same program lies there now.
    ///
    /// # Errors
    /// [`ExecutableError`].
    pub fn check(&self) -> Result<(), ExecutableError> {
        let path = || self.path.clone();
        let opened = open(&self.path, Links::Follow)?;
        let length = opened.metadata().map_err(|source| ExecutableError::Io { path: path(), source })?.len();
        if length != self.bytes {
            return Err(ExecutableError::Length { path: path(), had_bytes: self.bytes, bytes: length });
        }
        let now = Self::read(&self.path, path())?;
        if now == *self {
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
