// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commit: a script that CRIU runs while the tasks are frozen and its images whole (`post-dump`). If it fails, CRIU
//! undoes what it did and lets the tasks run on.
//!
//! INVARIANT: the manifest gets its name there and nowhere else. Where several trees are dumped together each script
//! waits at a gate for word that all are as far: whoever holds the gates, if he ends without a word, has said no.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::{ManifestError, failed};
use super::files::seal;
use super::layout::{CRIU_DIRECTORY, GATE, MANIFEST_FILE, PENDING_FILE, PREPARED};
use super::sealer::{Sealer, quoted};
use super::word::Word;
use crate::linux::regular::{Links, read_text};

/// The word at which a script commits.
const COMMIT: &str = "commit";
/// What the sealer says when it fails.
const COMMIT_LOG: &str = "commit.log";
/// Longest of that, bytes.
const MAX_LOG: u64 = 64 << 10;

/// Writes the script that makes a pending checkpoint complete: CRIU calls it at every stage, and it acts at `post-dump`,
/// when the images are whole and the tasks still frozen. The `sealer` has all files synced and lists them, with their
/// hashes, in the manifest; then that gets its name. Without one the files are synced only.
///
/// # Errors
/// [`ManifestError::Io`].
pub fn write_commit_script(directory: &Path, sealer: Option<&Sealer>) -> Result<PathBuf, ManifestError> {
    write(directory, sealer, "", SealAt::Once)
}

/// When a commit script that waits for word has the files listed and written to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealAt {
    /// When the images are whole. All that can fail comes before the word, so that trees commit together.
    Once,
    /// When the word has come: files are added to the checkpoint while the tasks are frozen.
    Word,
    /// Before the word, by whoever gives it ([`seal`]): files are added while the tasks are frozen, and trees commit together.
    Caller,
    /// When the tasks run again, by [`commit_now`]: of tasks that are not ended the script commits nothing, and they stand still
    /// no longer than CRIU needs.
    Resumed,
}

/// Completes a pending checkpoint whose tasks run on: has its files listed and written to the disk, and gives the manifest its
/// name.
///
/// # Errors
/// [`ManifestError`]; the checkpoint is pending then.
pub fn commit_now(directory: &Path) -> Result<(), ManifestError> {
    seal(directory)?;
    let (from, to) = (directory.join(PENDING_FILE), directory.join(MANIFEST_FILE));
    fs::rename(&from, &to).map_err(failed("rename", &from))?;
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("sync", directory))
}

fn write(
    directory: &Path,
    sealer: Option<&Sealer>,
    wait: &str,
    seal_at: SealAt,
) -> Result<PathBuf, ManifestError> {
    let path = directory.join(CRIU_DIRECTORY).join("commit.sh");
    let place = quoted(directory);
    // One syncfs for CRIU's many small files, which it never syncs itself.
    let seal = match sealer {
        Some(sealer) => format!("{} . 2>{CRIU_DIRECTORY}/{COMMIT_LOG}", sealer.command()),
        None => format!("sync -f {CRIU_DIRECTORY}"),
    };
    let commit = format!("mv {PENDING_FILE} {MANIFEST_FILE}\nsync .\n");
    let acts = match seal_at {
        SealAt::Once => format!("{seal}\n{wait}{commit}"),
        SealAt::Word => format!("{wait}{seal}\n{commit}"),
        SealAt::Caller => format!("{wait}{commit}"),
        SealAt::Resumed => wait.to_owned(),
    };
    let script = format!(
        "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\nset -e\ncd {place}\n{acts}"
    );
    fs::write(&path, script).map_err(failed("write", &path))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
        .map_err(failed("make executable", &path))?;
    Ok(path)
}

/// Why the commit of the checkpoint in `directory` failed, if it did and said so.
#[must_use]
pub fn commit_error(directory: &Path) -> Option<String> {
    let path = directory.join(CRIU_DIRECTORY).join(COMMIT_LOG);
    let text = read_text(&path, MAX_LOG, Links::Refuse).ok()?;
    let text = text.trim().trim_start_matches("Error: ").replace('\n', " ");
    (!text.is_empty()).then_some(text)
}

/// The gate of one tree among several that are dumped together. Dropped without a word it says no.
#[derive(Debug)]
pub struct CommitGate {
    script: PathBuf,
    word: Word,
}

impl CommitGate {
    /// Writes a commit script that waits for word before it commits.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn write(directory: &Path, sealer: Option<&Sealer>, seal_at: SealAt) -> Result<Self, ManifestError> {
        let images = directory.join(CRIU_DIRECTORY);
        let word = Word::make(images.join(GATE), images.join(PREPARED))?;
        let wait = format!("{}[ \"$word\" = {COMMIT} ]\n", word.wait());
        Ok(Self { script: write(directory, sealer, &wait, seal_at)?, word })
    }

    /// The script for CRIU.
    #[must_use]
    pub fn script(&self) -> &Path {
        &self.script
    }

    /// Whether the tree's images are whole and its tasks wait, frozen.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.word.is_awaited()
    }

    /// Gives the word: the script commits, at once or when it comes to the gate.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn commit(&self) -> Result<(), ManifestError> {
        self.word.say(COMMIT)
    }

    /// Says no: the script fails, at once or when it comes to the gate.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn refuse(&self) -> Result<(), ManifestError> {
        self.word.say("no")
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::super::directory::prepare;
    use super::*;

    fn directory(temporary: &tempfile::TempDir) -> PathBuf {
        let directory = prepare(&temporary.path().join("it's c")).unwrap();
        fs::write(directory.join(PENDING_FILE), "{}").unwrap();
        directory
    }

    /// As CRIU does when its images are complete.
    fn run(script: &Path) -> Child {
        Command::new(script).env("CRTOOLS_SCRIPT_ACTION", "post-dump").spawn().unwrap()
    }

    fn wait_prepared(gate: &CommitGate) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !gate.is_prepared() {
            assert!(Instant::now() < deadline, "the script does not come to the gate");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn script_waits_at_the_gate_and_commits_or_not_as_told() {
        for (commits, is_early) in [(true, false), (true, true), (false, false), (false, true)] {
            let temporary = tempfile::tempdir().unwrap();
            let directory = directory(&temporary);
            let gate = CommitGate::write(&directory, None, SealAt::Once).unwrap();
            let say = || if commits { gate.commit().unwrap() } else { gate.refuse().unwrap() };
            if is_early {
                say();
            }
            let mut script = run(gate.script());
            wait_prepared(&gate);
            if !is_early {
                assert!(!directory.join(MANIFEST_FILE).exists());
                say();
            }
            assert_eq!(script.wait().unwrap().success(), commits);
            assert_eq!(directory.join(MANIFEST_FILE).exists(), commits);
        }
    }

    #[test]
    fn end_of_whoever_holds_the_gate_is_a_no() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = directory(&temporary);
        let gate = CommitGate::write(&directory, None, SealAt::Once).unwrap();
        let mut script = run(gate.script());
        wait_prepared(&gate);
        drop(gate);
        assert!(!script.wait().unwrap().success());
        assert!(!directory.join(MANIFEST_FILE).exists());
    }

    #[test]
    fn sealer_that_fails_or_is_killed_commits_nothing_and_its_reason_is_kept() {
        for (act, reason) in [("echo 'Error: no disk' >&2; exit 1", "no disk"), ("kill -9 $$", "")] {
            let temporary = tempfile::tempdir().unwrap();
            let directory = directory(&temporary);
            let program = temporary.path().join("it's a sealer");
            fs::write(&program, format!("#!/bin/sh\n[ -e manifest.pending ] || exit 0\n{act}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let script = write_commit_script(&directory, Some(&Sealer::at(program))).unwrap();
            assert!(!run(&script).wait().unwrap().success());
            assert!(!directory.join(MANIFEST_FILE).exists());
            // A shell may have a word for the kill.
            let said = commit_error(&directory).unwrap_or_default();
            assert!(said.contains(reason), "{said}");
        }
    }
}
