// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program file of a frozen process: its code is not in the images, so the restored process runs what lies there then.
//!
//! CRIU compares sizes; a program rebuilt to the same size would be resumed in the middle of other code.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

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
    /// It is another one.
    #[error(
        "The program {} was rebuilt or replaced since the checkpoint: it had {had_bytes} bytes and hash {had}, now {bytes} \
         bytes and {found}; put the old one back",
        path.display()
    )]
    Changed {
        /// Which one.
        path: PathBuf,
        /// Its length then.
        had_bytes: u64,
        /// Its hash then.
        had: String,
        /// Its length now.
        bytes: u64,
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
        let hashed = File::open(file).and_then(|file| {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&file)?;
            Ok((hasher.count(), hasher.finalize().to_hex().to_string()))
        });
        match hashed {
            Ok((bytes, blake3)) => Ok(Self { path, bytes, blake3 }),
            Err(source) => Err(ExecutableError::Io { path, source }),
        }
    }

    /// Makes sure that the same program lies there now.
    ///
    /// # Errors
    /// [`ExecutableError`].
    pub fn check(&self) -> Result<(), ExecutableError> {
        let now = Self::read(&self.path, self.path.clone())?;
        if now == *self {
            return Ok(());
        }
        let short = |hash: &str| hash.chars().take(16).collect();
        Err(ExecutableError::Changed {
            path: self.path.clone(),
            had_bytes: self.bytes,
            had: short(&self.blake3),
            bytes: now.bytes,
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
        assert!(matches!(had.check(), Err(ExecutableError::Changed { had_bytes: 3, bytes: 3, .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(had.check(), Err(ExecutableError::Io { .. })));
    }
}
