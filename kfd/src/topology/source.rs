// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where topology text comes from: a directory of the kernel, or another source with the same files.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Reads files and directories below the topology's root.
pub trait SysfsSource {
    /// The text of a file such as `nodes/0/properties` or `generation_id`.
    ///
    /// # Errors
    /// The kernel's error; EPERM for an agent that this process may not use.
    fn read(&self, path: &str) -> io::Result<String>;

    /// The texts of several files, in the order of `paths`, each as [`SysfsSource::read`] answers. The list may end
    /// after a failure. A source for which each read is a round trip reads many files in one.
    fn read_each(&self, paths: &[String]) -> Vec<io::Result<String>> {
        paths.iter().map(|path| self.read(path)).collect()
    }

    /// The names in a directory such as `nodes`, in any order.
    ///
    /// # Errors
    /// The kernel's error.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
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
