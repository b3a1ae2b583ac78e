// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest: the last file written into a checkpoint directory, and the proof that the rest is complete.
//!
//! CRIU runs the commit while the tasks are frozen and its images complete (`post-dump`), so there is no moment at
//! which the process is gone and the checkpoint not yet whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stasis::checkpoint::CheckpointReport;
use thiserror::Error;

/// Name of the manifest in a checkpoint directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name before the commit.
const PENDING_FILE: &str = "manifest.pending";
/// Sub-directory with CRIU's images.
pub const CRIU_DIRECTORY: &str = "criu";
/// Version of the directory's layout.
pub const LAYOUT: u32 = 1;

/// What a checkpoint directory holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the directory's layout.
    pub layout: u32,
    /// The process, under the pid it gets back.
    pub pid: i32,
    /// Its command line.
    pub command: Vec<String>,
    /// The CRIU that dumped it.
    pub criu: String,
    /// It belonged to a terminal's session (`--shell-job`).
    pub shell_job: bool,
    /// The runtimes' image files, in the order of the process's runtimes.
    pub images: Vec<String>,
    /// What was moved.
    pub report: CheckpointReport,
}

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
    #[error("{} has layout {found}, this program knows up to {LAYOUT}: use a newer stasis", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u32,
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
}

impl Manifest {
    /// Writes the manifest under its pending name; [`commit`] makes it count.
    pub fn write_pending(&self, directory: &Path) -> Result<(), ManifestError> {
        let path = directory.join(PENDING_FILE);
        let io = |act| {
            let path = path.clone();
            move |source| ManifestError::Io { act, path, source }
        };
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        fs::write(&path, text).map_err(io("write"))?;
        File::open(&path).and_then(|f| f.sync_all()).map_err(io("sync"))
    }

    /// Reads and checks the manifest of a complete checkpoint.
    pub fn read(directory: &Path) -> Result<Self, ManifestError> {
        let path = directory.join(MANIFEST_FILE);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(ManifestError::Incomplete { directory: directory.into() });
            }
            Err(source) => return Err(ManifestError::Io { act: "read", path, source }),
            Ok(text) => text,
        };
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        if manifest.layout > LAYOUT {
            return Err(ManifestError::Layout { path, found: manifest.layout });
        }
        let plain = |n: &String| Path::new(n).file_name().is_some_and(|f| f == n.as_str());
        if let Some(name) = manifest.images.iter().find(|n| !plain(n)) {
            return Err(ManifestError::ImageName { path, name: name.clone() });
        }
        Ok(manifest)
    }
}

/// Makes a pending checkpoint complete: everything synced, then the manifest gets its name.
pub fn commit(directory: &Path) -> Result<(), ManifestError> {
    let io = |act, path: PathBuf| move |source| ManifestError::Io { act, path, source };
    let images = directory.join(CRIU_DIRECTORY);
    let handle = File::open(&images).map_err(io("open", images.clone()))?;
    // One syncfs for CRIU's many small files, which it never syncs itself.
    rustix::fs::syncfs(&handle).map_err(|e| io("sync", images)(e.into()))?;
    let (from, to) = (directory.join(PENDING_FILE), directory.join(MANIFEST_FILE));
    fs::rename(&from, &to).map_err(io("rename", from))?;
    File::open(directory).and_then(|d| d.sync_all()).map_err(io("sync", directory.into()))
}

/// Takes a commit back: CRIU failed after all, and the process has gone on.
pub fn retract(directory: &Path) -> Result<(), ManifestError> {
    let path = directory.join(MANIFEST_FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ManifestError::Io { act: "remove", path, source })
        }
        _ => Ok(()),
    }
}

/// Makes an empty private directory for a checkpoint (0700), or takes an empty one.
pub fn prepare(directory: &Path) -> Result<PathBuf, ManifestError> {
    use std::os::unix::fs::DirBuilderExt;
    let io = |act| move |source| ManifestError::Io { act, path: directory.into(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io("create"))?;
    if fs::read_dir(directory).map_err(io("read"))?.next().is_some() {
        return Err(ManifestError::NotEmpty { directory: directory.into() });
    }
    let directory = directory.canonicalize().map_err(io("resolve"))?;
    let images = directory.join(CRIU_DIRECTORY);
    fs::DirBuilder::new().mode(0o700).create(&images).map_err(io("create"))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            layout: LAYOUT,
            pid: 7,
            command: vec!["heat".into()],
            criu: "4.2".into(),
            shell_job: false,
            images: vec!["runtime-0.img".into()],
            report: CheckpointReport::default(),
        }
    }

    #[test]
    fn pending_checkpoint_is_incomplete_until_committed() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = prepare(&temporary.path().join("c")).unwrap();
        manifest().write_pending(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::Incomplete { .. })));
        commit(&directory).unwrap();
        assert_eq!(Manifest::read(&directory).unwrap().pid, 7);
    }

    #[test]
    fn retracted_checkpoint_is_incomplete_again() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = prepare(&temporary.path().join("c")).unwrap();
        retract(&directory).unwrap();
        manifest().write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        retract(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::Incomplete { .. })));
    }

    #[test]
    fn newer_layout_and_traversal_are_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = prepare(&temporary.path().join("c")).unwrap();
        Manifest { layout: LAYOUT + 1, ..manifest() }.write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::Layout { .. })));
        Manifest { images: vec!["../x".into()], ..manifest() }.write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::ImageName { .. })));
    }

    #[test]
    fn prepare_refuses_a_used_directory() {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("precious"), "").unwrap();
        assert!(matches!(prepare(temporary.path()), Err(ManifestError::NotEmpty { .. })));
    }
}
