// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of a directory with several checkpoints, which were taken together: which trees there are.
//!
//! INVARIANT: it says nothing about whether they are complete: each tree has a manifest for that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::directory::{ManifestError, TREE_LAYOUT};

/// Its name.
pub const SESSION_FILE: &str = "session.json";

/// Which trees a directory has checkpoints of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionIndex {
    /// Version of the directory's layout.
    pub layout: u32,
    /// The session's name, as in the images.
    pub id: String,
    /// The root of each tree; its checkpoint is in the directory of that name.
    pub trees: Vec<i32>,
}

impl SessionIndex {
    /// Writes it into a directory.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn write(&self, directory: &Path) -> Result<(), ManifestError> {
        let path = directory.join(SESSION_FILE);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.map_err(|source| ManifestError::Io { act: "write", path, source })
    }

    /// Reads that of a directory, if it has one.
    ///
    /// # Errors
    /// [`ManifestError::Io`], [`ManifestError::Parse`], [`ManifestError::Layout`].
    pub fn read(directory: &Path) -> Result<Option<Self>, ManifestError> {
        let path = directory.join(SESSION_FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ManifestError::Io { act: "read", path, source }),
            Ok(text) => text,
        };
        let index: Self = serde_json::from_slice(&text)
            .map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        match index.layout {
            found if found > TREE_LAYOUT => Err(ManifestError::Layout { path, found }),
            _ => Ok(Some(index)),
        }
    }

    /// The directory of each tree's checkpoint, in that of the session.
    #[must_use]
    pub fn directories(&self, session: &Path) -> Vec<PathBuf> {
        self.trees.iter().map(|pid| session.join(pid.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_read_as_it_was_written_and_newer_ones_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(SessionIndex::read(directory.path()).unwrap(), None);
        let index = SessionIndex { layout: TREE_LAYOUT, id: "x".into(), trees: vec![7, 9] };
        index.write(directory.path()).unwrap();
        assert_eq!(SessionIndex::read(directory.path()).unwrap(), Some(index.clone()));
        assert_eq!(index.directories(Path::new("/c")), [Path::new("/c/7"), Path::new("/c/9")]);
        SessionIndex { layout: TREE_LAYOUT + 1, ..index }.write(directory.path()).unwrap();
        assert!(matches!(SessionIndex::read(directory.path()), Err(ManifestError::Layout { .. })));
    }
}
