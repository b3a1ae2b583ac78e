// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where topology text comes from: a directory of the kernel, memory, or another source with the same files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

/// Reads files and directories below the topology's root.
pub trait SysfsSource {
    /// The text of a file such as `nodes/0/properties` or `generation_id`.
    ///
    /// # Errors
    /// The kernel's error; EPERM for an agent that this process may not use.
    fn read(&self, path: &str) -> io::Result<String>;

    /// The names in a directory such as `nodes`, in any order.
    ///
    /// # Errors
    /// The kernel's error.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// All files at once, of a source for which each read is a round trip; `None` of any other.
    ///
    /// # Errors
    /// As [`SysfsSource::read`].
    fn whole(&self) -> io::Result<Option<MemorySource>> {
        Ok(None)
    }
}

/// Files in memory.
///
/// INVARIANT: a directory exists when a file lies in it, or when it was added as such. Paths are relative, without leading slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySource {
    files: BTreeMap<String, String>,
    directories: BTreeSet<String>,
}

impl MemorySource {
    /// Adds a file, or replaces its text.
    pub fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.files.insert(path.into(), text.into());
    }

    /// Adds a directory in which there need not be a file.
    pub fn add_directory(&mut self, path: impl Into<String>) {
        self.directories.insert(path.into());
    }

    /// The text of a file.
    ///
    /// # Errors
    /// `ENOENT`, and `EISDIR` for a directory.
    pub fn file(&self, path: &str) -> Result<&str, Errno> {
        match self.files.get(path) {
            Some(text) => Ok(text),
            None if self.names(path).is_ok() => Err(Errno::EISDIR),
            None => Err(Errno::ENOENT),
        }
    }

    /// Names in a directory, sorted; the empty path is the root.
    ///
    /// # Errors
    /// `ENOENT`, and `ENOTDIR` for a file.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Errno> {
        let path = path.trim_end_matches('/');
        if self.files.contains_key(path) {
            return Err(Errno::ENOTDIR);
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let files = self.files.range(prefix.clone()..).map(|(file, _)| file);
        let directories = self.directories.range(prefix.clone()..);
        let below = |path: &String| path.starts_with(&prefix);
        let inside = files.take_while(|file| below(file)).chain(directories.take_while(|path| below(path)));
        let inside = inside.filter_map(|inside| inside[prefix.len()..].split('/').next());
        let names: BTreeSet<&str> = inside.collect();
        if names.is_empty() && !self.directories.contains(path) {
            return Err(Errno::ENOENT);
        }
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    /// Every file's path and text, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The directories that were added, by path.
    pub fn directories(&self) -> impl Iterator<Item = &str> {
        self.directories.iter().map(String::as_str)
    }
}

impl SysfsSource for MemorySource {
    fn read(&self, path: &str) -> io::Result<String> {
        self.file(path).map(str::to_owned).map_err(io::Error::from)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.names(path).map_err(io::Error::from)
    }
}

/// A directory in a file system, usually `/sys/class/kfd/kfd/topology`.
#[derive(Clone, Debug)]
pub struct DirSource {
    root: PathBuf,
}

impl DirSource {
    /// The directory `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn locate(&self, path: &str) -> io::Result<PathBuf> {
        let relative = Path::new(path);
        // A path that leaves the root is a mistake of the caller, never a topology file.
        if relative.components().all(|part| matches!(part, Component::Normal(_))) {
            Ok(self.root.join(relative))
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

impl SysfsSource for DirSource {
    fn read(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(self.locate(path)?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.locate(path)?)? {
            // KFD makes no names that are not UTF-8.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}
