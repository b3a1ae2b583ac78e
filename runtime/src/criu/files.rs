// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a checkpoint: what the manifest lists of them, and whether they still are what was written.
//!
//! INVARIANT: what CRIU could read of its directory is listed, with its hash, or the checkpoint is refused. Not listed
//! are its logs and statistics, which it only writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::thread;

use nix::sys::stat::SFlag;
use serde::Serialize;

use super::directory::{ListedFile, Manifest};
use super::error::{Difference, Differences, ManifestError};
use super::hash::{Wanted, hash_all};
use super::layout::{
    CRIU_DIRECTORY, FOREIGN_LAYOUT, GATE, MANIFEST_FILE, PENDING_FILE, PREPARED, SEALED_LAYOUT,
};
use super::opened::{Entry, OpenDirectory, Trust, called};
use crate::image::is_earlier_name;

/// How much of an image of ours is hashed again, and of files of earlier images that it has contents in: its front has the hashes of its tables, and those the hashes of the
/// rest.
const FRONT: u64 = 4096;
/// The directory that CRIU is told to take plugins from: an empty one.
pub const NO_PLUGINS: &str = "no-plugins";
/// The link by which CRIU finds the pages of an earlier dump.
const PARENT: &str = "parent";

/// What was hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckedFiles {
    /// Files that are listed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether their hashes were compared.
    pub hashed: bool,
}

/// Files by their names in the manifest, with their lengths.
type Found = BTreeMap<String, u64>;

/// Whether CRIU only writes it, or it comes and goes while CRIU is at work.
fn is_passing(name: &str) -> bool {
    name.ends_with(".log") || name.starts_with("stats-") || name == PREPARED
}

/// The files in CRIU's directory. Nothing else may be there: CRIU opens what it finds by name, links and FIFOs, too.
fn find_criu(directory: &OpenDirectory, found: &mut Found) -> Result<(), ManifestError> {
    let images = directory.enter(CRIU_DIRECTORY)?;
    for Entry { name, kind, bytes } in images.list()? {
        let strange = |found| ManifestError::Strange { path: images.path().join(&name), found };
        match kind {
            SFlag::S_IFREG if is_passing(&name) => {}
            SFlag::S_IFREG if name == PARENT => return Err(strange("a file")),
            SFlag::S_IFREG => drop(found.insert(format!("{CRIU_DIRECTORY}/{name}"), bytes)),
            SFlag::S_IFDIR if name == NO_PLUGINS => {
                let plugins = images.enter(&name)?;
                if let Some(Entry { name, kind, .. }) = plugins.list()?.into_iter().next() {
                    let (path, found) = (plugins.path().join(name), called(kind));
                    return Err(ManifestError::Strange { path, found });
                }
            }
            // What a controller that was killed has left; nobody opens it.
            SFlag::S_IFIFO if name == GATE => {}
            kind => return Err(strange(called(kind))),
        }
    }
    Ok(())
}

/// The files of a directory with images of ours.
fn find_own(directory: &OpenDirectory, prefix: &str, found: &mut Found) -> Result<(), ManifestError> {
    for Entry { name, kind, bytes } in directory.list()? {
        if kind == SFlag::S_IFREG && ![MANIFEST_FILE, PENDING_FILE].contains(&name.as_str()) {
            found.insert(format!("{prefix}{name}"), bytes);
        }
    }
    Ok(())
}

impl Manifest {
    /// Whether it lists the files.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.layout >= SEALED_LAYOUT
    }

    /// The bytes of all files that it lists.
    #[must_use]
    pub fn listed_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    fn find_files(&self, directory: &OpenDirectory) -> Result<Found, ManifestError> {
        let mut found = Found::new();
        find_own(directory, "", &mut found)?;
        for member in &self.members {
            let name = &member.directory;
            find_own(&directory.enter(name)?, &format!("{name}/"), &mut found)?;
        }
        find_criu(directory, &mut found)?;
        Ok(found)
    }

    /// How much of a file is hashed.
    fn hashed_bytes(&self, path: &str, bytes: u64) -> u64 {
        let is_front = self.image_names().any(|name| name == path) || self.is_earlier(path);
        if is_front { bytes.min(FRONT) } else { bytes }
    }

    /// Whether it is a file of an earlier image, which one of these images has contents in.
    fn is_earlier(&self, path: &str) -> bool {
        self.image_names().any(|image| is_earlier_name(&image, path))
    }

    fn wanted(&self, directory: &Path, path: &str, bytes: u64) -> Wanted {
        Wanted { path: directory.join(path), bytes: self.hashed_bytes(path, bytes) }
    }

    /// Makes sure that the files in the manifest's directory are those that it lists, byte for byte if `hashes`, and
    /// that there is nothing else that CRIU could take for its own. Of the images of ours only the fronts are read:
    /// [`crate::image::Image::verify`] reads the rest. `progress` hears of bytes that were read.
    ///
    /// A manifest that lists no files is of an earlier version: then only what cannot be an image is refused.
    ///
    /// # Errors
    /// [`ManifestError::Differs`] with each file that is not as it was; [`ManifestError::Strange`],
    /// [`ManifestError::File`], [`ManifestError::Owner`], [`ManifestError::Writable`], [`ManifestError::Io`].
    pub fn check_files(
        &self,
        directory: &OpenDirectory,
        hashes: bool,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<CheckedFiles, ManifestError> {
        let found = self.find_files(directory)?;
        if !self.is_sealed() {
            return Ok(CheckedFiles::default());
        }
        let differences = self.compare(&found);
        let differs = |differences: Vec<(&str, Difference)>| {
            let named = differences.into_iter().map(|(name, difference)| (name.into(), difference));
            let differences = Differences(named.collect());
            ManifestError::Differs { directory: directory.path().into(), differences }
        };
        if !differences.is_empty() {
            return Err(differs(differences));
        }
        if hashes {
            let wanted = self.files.iter().map(|file| self.wanted(directory.path(), &file.path, file.bytes));
            let wanted: Vec<_> = wanted.collect();
            let open = |n: usize| -> Result<File, ManifestError> { directory.file(&self.files[n].path) };
            let hashed = hash_all(&wanted, open, progress)?;
            let mut other = Vec::new();
            for (file, hash) in self.files.iter().zip(hashed) {
                let (expected, found) = (file.blake3.clone(), hash.to_hex().to_string());
                if expected != found && !self.is_listed_whole(directory, file)? {
                    other.push((file.path.as_str(), Difference::Hash { expected, found }));
                }
            }
            if !other.is_empty() {
                return Err(differs(other));
            }
        }
        Ok(CheckedFiles { files: self.files.len() as u64, bytes: self.listed_bytes(), hashed: hashes })
    }

    /// Whether the list has the hash of a whole earlier file, as one has it that was made by a `stasis` which knew of none.
    fn is_listed_whole(&self, directory: &OpenDirectory, file: &ListedFile) -> Result<bool, ManifestError> {
        if !self.is_earlier(&file.path) {
            return Ok(false);
        }
        let whole = Wanted { path: directory.path().join(&file.path), bytes: file.bytes };
        let hashed = hash_all(&[whole], |_| directory.file(&file.path), &|_| ())?;
        Ok(hashed.first().is_some_and(|hash| hash.to_hex().as_str() == file.blake3))
    }

    /// What is missing, was added, or has another length.
    fn compare<'a>(&'a self, found: &'a Found) -> Vec<(&'a str, Difference)> {
        let mut differences = Vec::new();
        for file in &self.files {
            match found.get(&file.path) {
                None => differences.push((file.path.as_str(), Difference::Missing)),
                Some(&bytes) if bytes != file.bytes => {
                    let difference = Difference::Length { expected: file.bytes, found: bytes };
                    differences.push((file.path.as_str(), difference));
                }
                Some(_) => {}
            }
        }
        let listed: BTreeSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        // Whatever else a user keeps there is his own.
        let added = found.keys().filter(|path| path.ends_with(".img") && !listed.contains(path.as_str()));
        differences.extend(added.map(|path| (path.as_str(), Difference::Added)));
        differences
    }
}

/// Completes the pending manifest of a checkpoint whose images are whole: has every file written to the disk, hashes
/// them meanwhile, and lists them. The manifest stays pending.
///
/// # Errors
/// [`ManifestError`].
pub fn seal(directory: &Path) -> Result<CheckedFiles, ManifestError> {
    let directory = OpenDirectory::open(directory, Trust::Anyone)?;
    let mut manifest = Manifest::read_pending(&directory)?;
    let images = directory.enter(CRIU_DIRECTORY)?;
    let found: Vec<(String, u64)> = manifest.find_files(&directory)?.into_iter().collect();
    let wanted: Vec<_> =
        found.iter().map(|(path, bytes)| manifest.wanted(directory.path(), path, *bytes)).collect();
    let (synced, hashed) = thread::scope(|scope| {
        // The disk's work and the processor's, at the same time: the process stands still for the longer of the two.
        let syncing = thread::Builder::new().spawn_scoped(scope, || images.sync());
        let hashed = hash_all(&wanted, |n| directory.file(&found[n].0), &|_| ());
        let synced = match syncing {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => images.sync(),
        };
        (synced, hashed)
    });
    synced?;
    let listed = found.into_iter().zip(hashed?);
    let listed = listed.map(|((path, bytes), hash)| ListedFile { path, bytes, blake3: hash.to_string() });
    manifest.layout = if manifest.foreign.is_some() { FOREIGN_LAYOUT } else { SEALED_LAYOUT };
    manifest.files = listed.collect();
    manifest.rewrite_pending(directory.path())?;
    Ok(CheckedFiles { files: manifest.files.len() as u64, bytes: manifest.listed_bytes(), hashed: true })
}

#[cfg(test)]
mod tests;
