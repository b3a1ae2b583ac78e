// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of a directory with several checkpoints, which were taken together: which trees there are.
//!
//! INVARIANT: it says nothing about whether they are complete: each tree has a manifest for that.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ManifestError;
use super::hashed_json;
use super::layout::{FIRST_PID, MAX_BYTES, SEALED_LAYOUT};
use super::opened::OpenDirectory;

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
        let text = hashed_json::encode(self)
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
    /// [`ManifestError`].
    pub fn read_in(directory: &OpenDirectory) -> Result<Option<Self>, ManifestError> {
        let Some(text) = directory.read(SESSION_FILE, MAX_BYTES)? else { return Ok(None) };
        Self::parse(&text, &directory.path().join(SESSION_FILE)).map(Some)
    }

    /// Takes the text of an index apart; `path` is what errors call it.
    ///
    /// # Errors
    /// [`ManifestError::Parse`], [`ManifestError::Layout`], [`ManifestError::Damaged`], [`ManifestError::Pid`],
    /// [`ManifestError::Twice`].
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ManifestError> {
        let index: Self = serde_json::from_slice(text)
            .map_err(|source| ManifestError::Parse { path: path.into(), source })?;
        if index.layout > SEALED_LAYOUT {
            return Err(ManifestError::Layout { path: path.into(), found: index.layout });
        }
        // An index without a hash is of an earlier layout; one bit makes 2 of 3.
        let is_hashed = index.layout == SEALED_LAYOUT;
        if is_hashed != hashed_json::fits(text) || is_hashed != hashed_json::ends_with_one(text) {
            return Err(ManifestError::Damaged { path: path.into() });
        }
        if let Some(&pid) = index.trees.iter().find(|pid| **pid < FIRST_PID) {
            return Err(ManifestError::Pid { path: path.into(), pid });
        }
        let mut seen = BTreeSet::new();
        if let Some(pid) = index.trees.iter().find(|pid| !seen.insert(**pid)) {
            return Err(ManifestError::Twice { path: path.into(), name: pid.to_string() });
        }
        Ok(index)
    }

    /// The directory of each tree's checkpoint, in that of the session.
    #[must_use]
    pub fn directories(&self, session: &Path) -> Vec<PathBuf> {
        self.trees.iter().map(|pid| session.join(pid.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::opened::Trust;
    use super::*;

    #[test]
    fn index_is_read_as_it_was_written_and_newer_ones_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let opened = OpenDirectory::open(directory.path(), Trust::Anyone).unwrap();
        assert_eq!(SessionIndex::read_in(&opened).unwrap(), None);
        let index = SessionIndex { layout: SEALED_LAYOUT, id: "x".into(), trees: vec![7, 9] };
        index.write(directory.path()).unwrap();
        assert_eq!(SessionIndex::read_in(&opened).unwrap(), Some(index.clone()));
        assert_eq!(index.directories(Path::new("/c")), [Path::new("/c/7"), Path::new("/c/9")]);
        SessionIndex { layout: SEALED_LAYOUT + 1, ..index }.write(directory.path()).unwrap();
        assert!(matches!(SessionIndex::read_in(&opened), Err(ManifestError::Layout { .. })));
    }

    #[test]
    fn index_of_the_layout_without_a_hash_is_read() {
        let text = br#"{"layout": 2, "id": "x", "trees": [7, 9]}"#;
        assert_eq!(SessionIndex::parse(text, Path::new("session.json")).unwrap().trees, [7, 9]);
    }

    #[test]
    fn damaged_and_impossible_indices_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SESSION_FILE);
        SessionIndex { layout: SEALED_LAYOUT, id: "x".into(), trees: vec![7, 9] }
            .write(directory.path())
            .unwrap();
        let text = std::fs::read(&path).unwrap();
        for bit in 0..text.len() * 8 {
            let mut other = text.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let error = SessionIndex::parse(&other, &path).unwrap_err();
            assert!(error.to_string().contains(SESSION_FILE), "bit {bit}: {error}");
        }
        for trees in [vec![0], vec![1], vec![-7], vec![7, 7]] {
            let index = SessionIndex { layout: SEALED_LAYOUT, id: "x".into(), trees };
            let text = hashed_json::encode(&index).unwrap();
            let error = SessionIndex::parse(&text, &path).unwrap_err();
            assert!(matches!(error, ManifestError::Pid { .. } | ManifestError::Twice { .. }), "{error}");
        }
    }
}
