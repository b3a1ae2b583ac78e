// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a checkpoint directory cannot be used.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use stasis_protocol::Stopped;
use thiserror::Error;

use super::layout::{FOREIGN_LAYOUT, MANIFEST_FILE};
use crate::image::ImageError;
use crate::linux::regular::RegularError;

/// Most differences that an error spells out.
const SHOWN: usize = 8;

/// Why a checkpoint directory cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// A file operation failed.
    #[error("Cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] RegularError),
    /// An image of a runtime is not as it was written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no manifest.
    #[error(
        "{} is not a complete checkpoint: it has no {MANIFEST_FILE}, which is written last; take it again",
        directory.display()
    )]
    Incomplete {
        /// The directory.
        directory: PathBuf,
    },
    /// The manifest does not parse.
    #[error("{} is not a manifest of this version", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// The layout is newer.
    #[error("{} has layout {found}, this program knows up to {FOREIGN_LAYOUT}: use a newer stasis", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u32,
    },
    /// The file was changed since it was written.
    #[error("{} is damaged: the hash at its end is not that of its text; use another copy of the checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The directory is in use.
    #[error("{} is not empty: name a directory that is empty or does not exist", directory.display())]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
    },
    /// An image name would lead out of the directory.
    #[error("{} names the image {name:?}, which is not a plain file name: the manifest was tampered with", path.display())]
    ImageName {
        /// The manifest.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A name or number is there twice.
    #[error("{} has {name:?} twice: the manifest was tampered with", path.display())]
    Twice {
        /// The manifest.
        path: PathBuf,
        /// What is there twice.
        name: String,
    },
    /// A pid that no restored process can have.
    #[error("{} has the pid {pid}, which no restored process can have: the manifest was tampered with", path.display())]
    Pid {
        /// The manifest.
        path: PathBuf,
        /// The pid.
        pid: i32,
    },
    /// Files are not those that were written.
    #[error("The checkpoint in {} is not what was written: {differences}", directory.display())]
    Differs {
        /// The directory.
        directory: PathBuf,
        /// Each of them.
        differences: Differences,
    },
    /// Something that is neither a file nor expected lies among CRIU's images.
    #[error("{} is {found}, which has no place among CRIU's images: remove it, or use another copy", path.display())]
    Strange {
        /// The name.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Somebody else could have made it up.
    #[error(
        "{} belongs to user {owner}, who is none of {}: a restored process does what its images say. Make it yours \
         (chown -R) if you trust them, or tell restore so (--trust-owner)", path.display(), list(trusted)
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who is trusted.
        trusted: Vec<u32>,
    },
    /// Somebody else can change it.
    #[error(
        "{} can be written by others (mode {mode:03o}): a restored process does what its images say. Take that right \
         away (chmod -R go-w) if you trust them, or tell restore so (--trust-owner)", path.display()
    )]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The work was stopped.
    #[error("The files of the checkpoint were not all read: {0}")]
    Stopped(#[from] Stopped),
}

/// The error of an act on a file, from the system's answer.
pub(super) fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ManifestError + use<> {
    let path = path.to_owned();
    move |source| ManifestError::Io { act, path, source }
}

fn list(users: &[u32]) -> String {
    users.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Difference {
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// It is shorter or longer.
    #[error("has {found} bytes, not {expected}")]
    Length {
        /// Bytes that were written.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Its bytes are others.
    #[error("has other bytes: BLAKE3 {}…, not {}…", short(found), short(expected))]
    Hash {
        /// The hash of what was written.
        expected: String,
        /// That of what is there.
        found: String,
    },
    /// It was not written with the others, and CRIU might read it.
    #[error("was added later")]
    Added,
}

fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}

/// Files that are not those of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences(pub Vec<(PathBuf, Difference)>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (path, difference)) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if n == 0 { "" } else { "; " };
            write!(f, "{separator}{} {difference}", path.display())?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
