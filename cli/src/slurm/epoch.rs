// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which start of a job this is. Each start has a directory of its own, an epoch, and writes nowhere else.
//!
//! INVARIANT: directories of epochs are made by one `mkdir` each and their numbers grow, so that two starts never have the same.
//! A start that finds a higher one is superseded: its node was thought lost, and the job goes on elsewhere. It ends its program,
//! and what it wrote since is never read: the newer start has chosen its image already.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::images::{Image, numbered};

const PREFIX: &str = "epoch-";
/// The file of an epoch that names the start that made it, and has what a restore of its images needs.
const CLAIM: &str = "claim.json";

/// What a start leaves for those after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// The node.
    pub node: String,
    /// Of `stasis slurm-run`, there.
    pub pid: u32,
    /// The inodes of the pipes that are the program's standard output and error.
    pub pipes: [u64; 2],
    /// How many starts up to this one could restore no image, one after another.
    pub failed: u32,
}

/// All starts of a job.
#[derive(Clone, Debug)]
pub struct Epochs {
    directory: PathBuf,
}

/// One start of a job.
#[derive(Clone, Debug)]
pub struct Epoch {
    pub number: u64,
    pub directory: PathBuf,
}

impl Epochs {
    /// Those of the job in this directory, which is made.
    pub fn open(directory: &Path) -> Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("Cannot make {}, the directory of this job", directory.display()))?;
        let directory =
            directory.canonicalize().with_context(|| format!("Cannot resolve {}", directory.display()))?;
        // A user who can write there can remove checkpoints, or end the job by a newer epoch.
        for place in directory.ancestors().take(2) {
            let found = fs::metadata(place).with_context(|| format!("Cannot look at {}", place.display()))?;
            let (us, is_sticky) = (nix::unistd::geteuid().as_raw(), found.mode() & 0o1000 != 0);
            ensure!(
                [us, 0].contains(&found.uid())
                    && (found.mode() & 0o022 == 0 || is_sticky && place != directory),
                "{} belongs to user {} with mode {:o}: it has to be one that only user {us} can write (--state)",
                place.display(),
                found.uid(),
                found.mode() & 0o7777
            );
        }
        Ok(Self { directory })
    }

    /// Begins a new one.
    pub fn begin(&self) -> Result<Epoch> {
        loop {
            let number = self.numbers()?.first().copied().unwrap_or(0) + 1;
            let epoch = self.epoch(number);
            match fs::DirBuilder::new().mode(0o700).create(&epoch.directory) {
                Ok(()) => return Ok(epoch),
                // Another start was faster.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("Cannot make {}", epoch.directory.display()));
                }
            }
        }
    }

    /// Those before `epoch`, the newest first.
    pub fn before(&self, epoch: &Epoch) -> Result<Vec<Epoch>> {
        let mut numbers = self.numbers()?;
        numbers.retain(|number| *number < epoch.number);
        Ok(numbers.into_iter().map(|number| self.epoch(number)).collect())
    }

    /// Whether the job was started again after `epoch`, or has ended elsewhere and removed it. What cannot be read is not known to
    /// be so.
    pub fn is_superseded(&self, epoch: &Epoch) -> bool {
        let gone = |error: io::Error| error.kind() == ErrorKind::NotFound;
        fs::symlink_metadata(&epoch.directory).is_err_and(gone)
            || self.numbers().is_ok_and(|numbers| numbers.iter().any(|number| *number > epoch.number))
    }

    /// Removes all of the job's. A start that looks for images meanwhile finds all of them or none.
    pub fn remove(&self) -> io::Result<()> {
        let ended = self.beside("ended");
        fs::rename(&self.directory, &ended)?;
        fs::remove_dir_all(ended)
    }

    /// Removes the starts that `epoch` does not need: it has images of its own, or needs the newest before it that has some. What
    /// cannot be removed is tried again after the next checkpoint.
    pub fn tidy(&self, epoch: &Epoch) {
        let (Ok(before), Ok(own)) = (self.before(epoch), epoch.images()) else { return };
        let has_images = |earlier: &Epoch| earlier.images().is_ok_and(|images| !images.is_empty());
        let first = match own.len() {
            0 => return,
            // The newest may be damaged.
            1 => before.iter().position(has_images).map_or(0, |needed| needed + 1),
            _ => 0,
        };
        for earlier in before.iter().skip(first) {
            let _ = fs::remove_dir_all(&earlier.directory);
        }
    }

    /// Puts aside what an earlier job of the same number has left; where.
    pub fn put_aside(&self) -> Result<Option<PathBuf>> {
        if self.numbers()?.is_empty() {
            return Ok(None);
        }
        let aside = self.beside("before");
        fs::rename(&self.directory, &aside)
            .and_then(|()| fs::DirBuilder::new().mode(0o700).create(&self.directory))
            .with_context(|| format!("Cannot put {} aside", self.directory.display()))?;
        Ok(Some(aside))
    }

    /// A new name for the directory.
    fn beside(&self, what: &str) -> PathBuf {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut name = self.directory.clone().into_os_string();
        name.push(format!(".{what}-{}-{}", now.map_or(0, |now| now.as_millis()), std::process::id()));
        name.into()
    }

    fn epoch(&self, number: u64) -> Epoch {
        Epoch { number, directory: self.directory.join(format!("{PREFIX}{number}")) }
    }

    /// The highest first.
    fn numbers(&self) -> Result<Vec<u64>> {
        numbered(&self.directory, PREFIX).with_context(|| format!("Cannot read {}", self.directory.display()))
    }
}

impl Epoch {
    /// Writes its claim, all or nothing.
    pub fn note(&self, claim: &Claim) -> Result<()> {
        let (place, new) = (self.directory.join(CLAIM), self.directory.join(format!("{CLAIM}.new")));
        let write = || -> io::Result<()> {
            fs::write(&new, serde_json::to_vec(claim)?)?;
            fs::File::open(&new)?.sync_all()?;
            fs::rename(&new, &place)?;
            fs::File::open(&self.directory)?.sync_all()
        };
        write().with_context(|| format!("Cannot write {}", place.display()))
    }

    /// Its claim.
    pub fn claim(&self) -> Result<Claim> {
        let place = self.directory.join(CLAIM);
        let text = fs::read(&place).with_context(|| format!("Cannot read {}", place.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", place.display()))
    }

    /// Its images that are complete, the newest first.
    pub fn images(&self) -> Result<Vec<Image>> {
        Image::of(&self.directory)
            .with_context(|| format!("Cannot look for images in {}", self.directory.display()))
    }

    /// The place of its next image.
    pub fn next_image(&self) -> Result<PathBuf> {
        Image::next(&self.directory)
            .with_context(|| format!("Cannot look for images in {}", self.directory.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn starts_at_the_same_time_have_epochs_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(&directory.path().join("job")).unwrap();
        let numbers: BTreeSet<u64> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..16).map(|_| scope.spawn(|| epochs.begin().unwrap().number)).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert_eq!(numbers, (1..=16).collect());
        let last = epochs.epoch(16);
        assert!(!epochs.is_superseded(&last) && epochs.is_superseded(&epochs.epoch(15)));
        let before: Vec<u64> =
            epochs.before(&epochs.epoch(4)).unwrap().iter().map(|epoch| epoch.number).collect();
        assert_eq!(before, [3, 2, 1]);
    }

    #[test]
    fn claim_is_what_was_noted() {
        let directory = tempfile::tempdir().unwrap();
        let epoch = Epochs::open(directory.path()).unwrap().begin().unwrap();
        assert!(epoch.claim().is_err());
        let claim = Claim { node: "node1".to_owned(), pid: 17, pipes: [3, 4], failed: 1 };
        epoch.note(&claim).unwrap();
        assert_eq!(epoch.claim().unwrap(), claim);
        epoch.note(&Claim { failed: 2, ..claim.clone() }).unwrap();
        assert_eq!(epoch.claim().unwrap().failed, 2);
        fs::write(epoch.directory.join(CLAIM), "{").unwrap();
        assert!(epoch.claim().is_err());
    }

    #[test]
    fn starts_that_are_not_needed_are_removed_and_one_whose_directory_is_gone_is_superseded() {
        let directory = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(&directory.path().join("job")).unwrap();
        let made: Vec<Epoch> = (0..4).map(|_| epochs.begin().unwrap()).collect();
        let image = |epoch: &Epoch, number: u32| {
            let image = epoch.directory.join(format!("image-{number}"));
            fs::create_dir(&image).unwrap();
            fs::write(image.join(stasis::criu::MANIFEST_FILE), "").unwrap();
        };
        let are_there = || made.iter().map(|epoch| epoch.directory.exists()).collect::<Vec<_>>();
        [0, 1].iter().for_each(|&epoch| image(&made[epoch], 1));
        epochs.tidy(&made[3]);
        assert_eq!(are_there(), [true; 4]);
        image(&made[3], 1);
        epochs.tidy(&made[3]);
        // The third has none; the second is for the case that the newest is damaged.
        assert_eq!(are_there(), [false, true, true, true]);
        image(&made[3], 2);
        epochs.tidy(&made[3]);
        assert_eq!(are_there(), [false, false, false, true]);
        assert!(!epochs.is_superseded(&made[3]));
        let aside = epochs.put_aside().unwrap().unwrap();
        assert!(aside.join("epoch-4/image-2").exists() && epochs.is_superseded(&made[3]));
        assert_eq!((epochs.put_aside().unwrap(), epochs.begin().unwrap().number), (None, 1));
        epochs.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "what was put aside");
    }

    #[test]
    fn directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        Epochs::open(&job).unwrap();
        for (place, mode) in [(job.as_path(), 0o770), (job.as_path(), 0o1777), (directory.path(), 0o777)] {
            let before = fs::metadata(place).unwrap().permissions();
            fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            assert!(Epochs::open(&job).unwrap_err().to_string().contains("only user"), "{mode:o}");
            fs::set_permissions(place, before).unwrap();
        }
        Epochs::open(&job).unwrap();
    }

    #[test]
    fn other_names_are_no_epochs() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["epoch-", "epoch-x", "epoch--1", "epoch-99999999999999999999", "other"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!(Epochs::open(directory.path()).unwrap().begin().unwrap().number, 1);
    }
}
