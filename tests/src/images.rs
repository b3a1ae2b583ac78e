// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

/// All files of a directory and its subdirectories, except those that CRIU only writes; ascending.
///
/// # Panics
/// When a directory cannot be read.
#[must_use]
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false if name.ends_with(".log") || name.starts_with("stats-") => {}
            false => files.push(path),
        }
    }
    files.sort();
    files
}
