// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest: the last file written into a checkpoint directory, and the proof that the rest is complete.
//!
//! CRIU runs the commit while the tasks are frozen and its images complete (`post-dump`), so there is no moment at
//! which the process is gone and the checkpoint not yet whole.
//!
//! ```text
//!  one runtime, the root's     a tree with others         several trees in one session
//!  DIR/manifest.json           DIR/manifest.json          DIR/session.json
//!      criu/                       criu/                      session/
//!      runtime-0.img               stasis-PID/...img          PID/manifest.json, criu/, ... as on the left, each
//!                                  session/
//! ```
//!
//! `session` has the files by which processes that were checkpointed together find each other, in the checkpoint and in
//! the restore.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ManifestError;
use super::executable::Executable;
use super::hashed_json;
use super::layout::{CRIU_DIRECTORY, FIRST_PID, FOREIGN_LAYOUT, MANIFEST_FILE, MAX_BYTES, PENDING_FILE};
use super::opened::{OpenDirectory, Trust};
use super::options::CriuOptions;
use crate::checkpoint::{CheckpointReport, TermsSecret};
use crate::image::IMAGE_FILE;

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its name, or that of its directory and its own, with a slash between them.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of it, in hexadecimal digits; of an image of ours, of its first 4096 bytes.
    pub blake3: String,
}

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
    /// The image files of the root's runtime, if it is the only one of the tree.
    pub images: Vec<String>,
    /// The processes of the tree that have a runtime, if the root is not the only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<TreeMember>,
    /// The file that says what device the processes have, of programs that know nothing of checkpoints; from layout 4 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<String>,
    /// What was moved.
    pub report: CheckpointReport,
    /// The files that belong to it, from layout 3 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ListedFile>,
}

/// A process of a tree that has a runtime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeMember {
    /// The process, under the pid it gets back.
    pub pid: i32,
    /// The directory of its image in the checkpoint's: a plain name.
    pub directory: String,
    /// Its program file.
    #[serde(default)]
    pub executable: Option<Executable>,
    /// What was moved.
    pub report: CheckpointReport,
}

impl Manifest {
    /// Writes the manifest under its pending name; the script of [`super::write_commit_script`] makes it count.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn write_pending(&self, directory: &Path) -> Result<(), ManifestError> {
        self.write_as_pending(directory, true)
    }

    /// Writes it again, unless the checkpoint was withdrawn meanwhile: then there is no file of that name any more.
    pub(super) fn rewrite_pending(&self, directory: &Path) -> Result<(), ManifestError> {
        self.write_as_pending(directory, false)
    }

    fn write_as_pending(&self, directory: &Path, create: bool) -> Result<(), ManifestError> {
        let path = directory.join(PENDING_FILE);
        let io = |act| {
            let path = path.clone();
            move |source| ManifestError::Io { act, path, source }
        };
        let text = match self.is_sealed() {
            true => hashed_json::encode(self),
            false => serde_json::to_vec_pretty(self),
        };
        let text = text.map_err(|source| ManifestError::Parse { path: path.clone(), source })?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(create)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("create"))?;
        file.write_all(&text).map_err(io("write"))?;
        file.sync_all().map_err(io("sync"))
    }

    /// Reads and checks the manifest of a complete checkpoint, whoever it belongs to.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(directory: &Path) -> Result<Self, ManifestError> {
        Self::read_in(&OpenDirectory::open(directory, Trust::Anyone)?)
    }

    /// Reads and checks the manifest of a complete checkpoint.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read_in(directory: &OpenDirectory) -> Result<Self, ManifestError> {
        Self::read_as(MANIFEST_FILE, directory)
    }

    /// Reads that of a checkpoint that is not complete yet.
    pub(super) fn read_pending(directory: &OpenDirectory) -> Result<Self, ManifestError> {
        Self::read_as(PENDING_FILE, directory)
    }

    fn read_as(name: &str, directory: &OpenDirectory) -> Result<Self, ManifestError> {
        let incomplete = || ManifestError::Incomplete { directory: directory.path().into() };
        let text = directory.read(name, MAX_BYTES)?.ok_or_else(incomplete)?;
        Self::parse(&text, &directory.path().join(name))
    }

    /// Takes the text of a manifest apart; `path` is what errors call it.
    ///
    /// # Errors
    /// [`ManifestError::Parse`], [`ManifestError::Layout`], [`ManifestError::Damaged`], and a name or number that no
    /// manifest has.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|source| ManifestError::Parse { path: path.into(), source })?;
        if manifest.layout > FOREIGN_LAYOUT {
            return Err(ManifestError::Layout { path: path.into(), found: manifest.layout });
        }
        // Files are listed from that layout on only: a number that was changed is found, too.
        if manifest.is_sealed() != hashed_json::fits(text)
            || manifest.is_sealed() == manifest.files.is_empty()
        {
            return Err(ManifestError::Damaged { path: path.into() });
        }
        if manifest.foreign.is_some() != (manifest.layout == FOREIGN_LAYOUT) && manifest.is_sealed() {
            return Err(ManifestError::Damaged { path: path.into() });
        }
        manifest.check_names(path)?;
        Ok(manifest)
    }

    /// Whether all names stay in the directory, and nothing is there twice.
    fn check_names(&self, path: &Path) -> Result<(), ManifestError> {
        let is_plain = |n: &str| Path::new(n).file_name().is_some_and(|f| f == n) && !n.contains('\0');
        let directories = || self.members.iter().map(|member| member.directory.as_str());
        let images = || self.images.iter().map(String::as_str);
        let files = || self.files.iter().map(|file| file.path.as_str());
        let foreign = self.foreign.iter().map(String::as_str);
        let parts =
            images().chain(directories()).chain(foreign).chain(files().flat_map(|file| file.splitn(2, '/')));
        if let Some(name) = parts.into_iter().find(|name| !is_plain(name)) {
            return Err(ManifestError::ImageName { path: path.into(), name: name.to_owned() });
        }
        let pids: Vec<i32> = self.members.iter().map(|member| member.pid).collect();
        if let Some(&pid) = pids.iter().chain([&self.pid]).find(|pid| **pid < FIRST_PID) {
            return Err(ManifestError::Pid { path: path.into(), pid });
        }
        let numbers: Vec<String> = pids.iter().map(i32::to_string).collect();
        let twice = first_twice(images())
            .or_else(|| first_twice(directories()))
            .or_else(|| first_twice(files()))
            .or_else(|| first_twice(numbers.iter().map(String::as_str)));
        match twice {
            Some(name) => Err(ManifestError::Twice { path: path.into(), name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// The processes that have a runtime, each with the directory of its image, in the checkpoint's `directory`.
    #[must_use]
    pub fn runtimes(&self, directory: &Path) -> Vec<(i32, PathBuf)> {
        if self.foreign.is_some() {
            return Vec::new();
        }
        if self.members.is_empty() {
            return vec![(self.pid, directory.to_owned())];
        }
        self.members.iter().map(|member| (member.pid, directory.join(&member.directory))).collect()
    }

    /// What only a process with a runtime and this manifest know; older checkpoints have nothing of the kind.
    #[must_use]
    pub fn secret_of(&self, pid: i32) -> Option<&TermsSecret> {
        match self.members.iter().find(|member| member.pid == pid) {
            Some(member) => member.report.secret.as_ref(),
            None => self.report.secret.as_ref().filter(|_| self.pid == pid),
        }
    }

    /// All image files of ours, as they are called in the checkpoint's directory.
    pub fn image_names(&self) -> impl Iterator<Item = String> {
        let members = self.members.iter().map(|member| format!("{}/{IMAGE_FILE}", member.directory));
        self.images.iter().cloned().chain(members)
    }
}

/// A name that is there twice.
fn first_twice<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
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
    remove(directory.join(MANIFEST_FILE))
}

/// Takes back what is not committed yet: the commit script then fails, and CRIU lets the tasks run on. A commit that
/// came first stays.
///
/// # Errors
/// [`ManifestError::Io`].
pub fn withdraw(directory: &Path) -> Result<(), ManifestError> {
    remove(directory.join(PENDING_FILE))
}

/// Removes a file; one that is not there is removed.
fn remove(path: PathBuf) -> Result<(), ManifestError> {
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
    let directory = prepare_empty(directory)?;
    make_private(&directory.join(CRIU_DIRECTORY))?;
    Ok(directory)
}

/// The same without a place for CRIU's images: for a directory of several checkpoints.
///
/// # Errors
/// [`ManifestError::Io`], [`ManifestError::NotEmpty`].
pub fn prepare_empty(directory: &Path) -> Result<PathBuf, ManifestError> {
    use std::os::unix::fs::DirBuilderExt;
    let io = |act| move |source| ManifestError::Io { act, path: directory.into(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io("create"))?;
    if fs::read_dir(directory).map_err(io("read"))?.next().is_some() {
        return Err(ManifestError::NotEmpty { directory: directory.into() });
    }
    directory.canonicalize().map_err(io("resolve"))
}

/// Makes a private directory (0700) in that of a checkpoint.
///
/// # Errors
/// [`ManifestError::Io`].
pub fn make_private(directory: &Path) -> Result<(), ManifestError> {
    use std::os::unix::fs::DirBuilderExt;
    let io = |source| ManifestError::Io { act: "create", path: directory.into(), source };
    fs::DirBuilder::new().mode(0o700).create(directory).map_err(io)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::criu::write_commit_script;

    /// As CRIU does when its images are complete.
    fn commit(directory: &Path) -> Result<(), ()> {
        let script = write_commit_script(directory, None).unwrap();
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

    pub fn manifest() -> Manifest {
        Manifest {
            layout: crate::criu::LAYOUT,
            pid: 7,
            command: vec!["heat".into()],
            executable: None,
            criu: "4.2".into(),
            options: CriuOptions::default(),
            images: vec!["runtime-0.img".into()],
            members: Vec::new(),
            foreign: None,
            report: CheckpointReport::default(),
            files: Vec::new(),
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
    fn withdrawn_checkpoint_is_not_committed_and_a_committed_one_not_withdrawn() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = prepare(&temporary.path().join("c")).unwrap();
        manifest().write_pending(&directory).unwrap();
        withdraw(&directory).unwrap();
        assert!(commit(&directory).is_err());
        manifest().write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        withdraw(&directory).unwrap();
        assert_eq!(Manifest::read(&directory).unwrap().pid, 7);
    }

    #[test]
    fn newer_layout_and_traversal_are_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = prepare(&temporary.path().join("c")).unwrap();
        Manifest { layout: FOREIGN_LAYOUT + 1, ..manifest() }.write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::Layout { .. })));
        Manifest { images: vec!["../x".into()], ..manifest() }.write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::ImageName { .. })));
        Manifest { members: vec![member("..")], ..manifest() }.write_pending(&directory).unwrap();
        commit(&directory).unwrap();
        assert!(matches!(Manifest::read(&directory), Err(ManifestError::ImageName { .. })));
    }

    fn member(directory: &str) -> TreeMember {
        let report = CheckpointReport::default();
        TreeMember { pid: 8, directory: directory.into(), executable: None, report }
    }

    #[test]
    fn tree_tells_where_each_runtime_has_its_image_and_one_runtime_is_written_as_ever() {
        let alone = manifest();
        let directory = Path::new("/c");
        assert_eq!(alone.runtimes(directory), [(7, PathBuf::from("/c"))]);
        assert_eq!(alone.image_names().collect::<Vec<_>>(), ["runtime-0.img"]);
        assert!(!serde_json::to_string(&alone).unwrap().contains("members"));
        let tree = Manifest { images: Vec::new(), members: vec![member("stasis-8")], ..manifest() };
        assert_eq!(tree.runtimes(directory), [(8, PathBuf::from("/c/stasis-8"))]);
        assert_eq!(tree.image_names().collect::<Vec<_>>(), ["stasis-8/runtime-0.img"]);
    }

    #[test]
    fn prepare_refuses_a_used_directory() {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("precious"), "").unwrap();
        assert!(matches!(prepare(temporary.path()), Err(ManifestError::NotEmpty { .. })));
    }
}
