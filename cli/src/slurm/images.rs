// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkpoints of one start of a job.
//!
//! INVARIANT: an image counts once its manifest was committed ([`stasis::criu::MANIFEST_FILE`]), which is the last step of a
//! checkpoint: one that was killed at any moment before leaves a directory that is passed over.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use stasis::criu::MANIFEST_FILE;

const PREFIX: &str = "image-";
/// Images of a start that are kept: the newest, and one for the case that it is damaged.
const KEPT: usize = 2;

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub number: u64,
    pub directory: PathBuf,
}

impl Image {
    /// Those in the directory of a start, the newest first.
    ///
    /// # Errors
    /// What the directory cannot be read for: that is not the same as none.
    pub fn of(epoch: &Path) -> io::Result<Vec<Self>> {
        let mut complete = Vec::new();
        for number in numbers(epoch)? {
            let directory = place(epoch, number);
            match fs::symlink_metadata(directory.join(MANIFEST_FILE)) {
                Ok(manifest) if manifest.is_file() => complete.push(Self { number, directory }),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(complete)
    }

    /// The files of its processes with a runtime; of one that was made under `stasis run` there are none.
    pub fn runtimes(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let is_runtime = |name: &str| name.starts_with("runtime-") && name.ends_with(".img");
        let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_runtime));
        named.map(|entry| entry.path()).collect()
    }

    /// Where the next one goes.
    ///
    /// # Errors
    /// As [`Image::of`].
    pub fn next(epoch: &Path) -> io::Result<PathBuf> {
        Ok(place(epoch, numbers(epoch)?.first().copied().unwrap_or(0) + 1))
    }
}

/// Removes all but the newest images of a start, and what checkpoints have left that did not come about. What cannot be removed is
/// tried again after the next checkpoint.
pub fn tidy(epoch: &Path) {
    let (Ok(complete), Ok(numbers)) = (Image::of(epoch), numbers(epoch)) else { return };
    let kept: Vec<u64> = complete.iter().take(KEPT).map(|image| image.number).collect();
    for number in numbers.into_iter().filter(|number| !kept.contains(number)) {
        let _ = fs::remove_dir_all(place(epoch, number));
    }
}

fn place(epoch: &Path, number: u64) -> PathBuf {
    epoch.join(format!("{PREFIX}{number}"))
}

/// Of all directories, the newest first.
fn numbers(epoch: &Path) -> io::Result<Vec<u64>> {
    numbered(epoch, PREFIX)
}

/// The numbers behind this prefix in the names in a directory, the highest first.
pub fn numbered(directory: &Path, prefix: &str) -> io::Result<Vec<u64>> {
    let number = |name: &str| name.strip_prefix(prefix)?.parse::<u64>().ok();
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        numbers.extend(entry?.file_name().to_str().and_then(number));
    }
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_images_count_and_two_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let epoch = directory.path();
        assert_eq!(
            (Image::of(epoch).unwrap(), Image::next(epoch).unwrap()),
            (Vec::new(), epoch.join("image-1"))
        );
        for number in [1, 2, 9, 10] {
            fs::create_dir(place(epoch, number)).unwrap();
            if number != 9 {
                fs::write(place(epoch, number).join(MANIFEST_FILE), "").unwrap();
            }
        }
        fs::create_dir(place(epoch, 11)).unwrap();
        let complete = || Image::of(epoch).unwrap().iter().map(|image| image.number).collect::<Vec<_>>();
        assert_eq!(complete(), [10, 2, 1]);
        assert_eq!(Image::next(epoch).unwrap(), epoch.join("image-12"));
        tidy(epoch);
        assert_eq!(numbers(epoch).unwrap(), [10, 2]);
        assert!(Image::of(&epoch.join("nowhere")).is_err());
    }
}
