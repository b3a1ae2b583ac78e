// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be done for a process whose render files are gone: its checkpoint, or CRIU, has all of it but the device.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::context::error::OpenError;
use crate::criu::Manifest;

/// A process whose device cannot come back in its life: the driver takes no render files but those that are gone.
#[derive(Debug, Error)]
#[error("The process is stranded: its render files are gone ({lost}); {rescue}")]
pub struct Stranded {
    /// How they were lost.
    pub lost: String,
    /// What can be done.
    pub rescue: Rescue,
    /// What the driver says of others.
    #[source]
    pub source: OpenError,
}

/// How a stranded process is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rescue {
    /// A complete checkpoint of it exists.
    Restore {
        /// Where.
        directory: PathBuf,
    },
    /// Only its buffers are saved: the rest of it has to be dumped while it lives.
    Dump {
        /// Where.
        directory: PathBuf,
    },
}

impl Rescue {
    /// Looks what there is of a checkpoint that a process wrote into `directory`: its own, or its place in that of a
    /// tree.
    #[must_use]
    pub fn of(directory: &Path) -> Self {
        if Manifest::read(directory).is_ok() {
            return Self::Restore { directory: directory.to_owned() };
        }
        let tree = directory.parent().filter(|tree| {
            let members = Manifest::read(tree).map_or(Vec::new(), |manifest| manifest.members);
            members.iter().any(|member| tree.join(&member.directory) == directory)
        });
        match tree {
            Some(tree) => Self::Restore { directory: tree.to_owned() },
            None => Self::Dump { directory: directory.to_owned() },
        }
    }

    /// Whether the process may end without a loss.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Restore { .. })
    }
}

impl fmt::Display for Rescue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = std::process::id();
        match self {
            Self::Restore { directory } => {
                let directory = directory.display();
                write!(f, "its image in {directory} is whole: end it and `stasis restore {directory}`")
            }
            Self::Dump { directory } => write!(
                f,
                "its buffers are in {}, but no checkpoint there is complete: it can still be frozen with `criu dump -t {pid}`, \
                 and a copy restored with `criu restore` takes a device",
                directory.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_a_complete_checkpoint_must_not_end() {
        let directory = tempfile::tempdir().unwrap();
        let rescue = Rescue::of(directory.path());
        assert!(!rescue.is_complete() && rescue.to_string().contains("criu dump -t"), "{rescue}");
    }
}
