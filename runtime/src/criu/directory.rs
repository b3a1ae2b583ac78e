// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest: the last file written into a checkpoint directory, and the proof that the rest is complete.
//!
//! CRIU runs the commit while the tasks are frozen and its images complete (`post-dump`), so there is no moment at
//! which the process is gone and the checkpoint not yet whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CriuOptions, Executable};
use crate::checkpoint::CheckpointReport;

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
    /// Its program file; older checkpoints do not say.
    #[serde(default)]
    pub executable: Option<Executable>,
    /// The CRIU that dumped it.
    pub criu: String,
    /// What CRIU was told of it, and must be told again.
    #[serde(flatten)]
    pub options: CriuOptions,
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
    /// Writes the manifest under its pending name; the script of [`write_commit_script`] makes it count.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn write_pending(&self, directory: &Path) -> Result<(), ManifestError> {
        let path = directory.join(PENDING_FILE);
        let io = |act| {
            let path = path.clone();
            move |source| ManifestError::Io { act, path, source }
        };
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(io("create"))?;
        file.write_all(&text).map_err(io("write"))?;
        file.sync_all().map_err(io("sync"))
    }

    /// Reads and checks the manifest of a complete checkpoint.
    ///
    /// # Errors
    /// [`ManifestError`].
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

/// Writes the script that makes a pending checkpoint complete: CRIU calls it at every stage, and it acts at `post-dump`,
/// when the images are whole and the tasks still frozen. Everything is synced, then the manifest gets its name.
///
/// # Errors
/// [`ManifestError::Io`].
pub fn write_commit_script(directory: &Path) -> Result<PathBuf, ManifestError> {
    let path = directory.join(CRIU_DIRECTORY).join("commit.sh");
    let io = |act| {
        let path = path.clone();
        move |source| ManifestError::Io { act, path, source }
    };
    let quoted = format!("'{}'", directory.display().to_string().replace('\'', r"'\''"));
    // One syncfs for CRIU's many small files, which it never syncs itself.
    let script = format!(
        "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\nset -e\ncd {quoted}\n\
         sync -f {CRIU_DIRECTORY}\nmv {PENDING_FILE} {MANIFEST_FILE}\nsync .\n"
    );
    fs::write(&path, script).map_err(io("write"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(io("make executable"))?;
    Ok(path)
}

/// The runtimes' images in a checkpoint directory, sorted.
///
/// # Errors
/// [`ManifestError::Io`].
pub fn image_names(directory: &Path) -> Result<Vec<String>, ManifestError> {
    let io = |source| ManifestError::Io { act: "read", path: directory.into(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".img") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Takes a commit back: CRIU failed after all, and the process has gone on.
///
/// # Errors
/// [`ManifestError::Io`].
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
///
/// # Errors
/// [`ManifestError::Io`], [`ManifestError::NotEmpty`].
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

    /// As CRIU does when its images are complete.
    fn commit(directory: &Path) -> Result<(), ()> {
        let script = write_commit_script(directory).unwrap();
        let run = |stage| {
            std::process::Command::new(&script)
                .env("CRTOOLS_SCRIPT_ACTION", stage)
                .status()
                .unwrap()
                .success()
        };
        assert!(run("pre-dump"));
        if run("post-dump") { Ok(()) } else { Err(()) }
    }

    fn manifest() -> Manifest {
        Manifest {
            layout: LAYOUT,
            pid: 7,
            command: vec!["heat".into()],
            executable: None,
            criu: "4.2".into(),
            options: CriuOptions::default(),
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
