// SPDX-License-Identifier: MIT OR Apache-2.0
//! The script by which CRIU says that restored tasks are complete and stopped, and waits for word that they may go on.
//!
//! INVARIANT: if the command that waits at the other end is gone, the script never ends by itself: the guard of the restore ends
//! CRIU, the script and the tasks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use stasis::criu::Word;
use tempfile::TempDir;

/// The script and its word, in a directory of their own.
#[derive(Debug)]
pub struct Thaw {
    directory: TempDir,
    word: Word,
}

impl Thaw {
    /// Writes them.
    ///
    /// # Errors
    /// The system's answer.
    pub fn write() -> Result<Self> {
        let directory =
            TempDir::with_prefix("stasis-restore-").context("Cannot make a directory for CRIU's script")?;
        let word = Word::make(directory.path().join("word"), directory.path().join("ready"))?;
        let thaw = Self { directory, word };
        let script = thaw.script();
        let failed = |what| format!("Cannot {what} {}", script.display());
        let text = format!(
            "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = pre-resume ] || exit 0\n{}[ -z \"$word\" ] || exit 0\nexec sleep 1000\n",
            thaw.word.wait()
        );
        fs::write(&script, text).with_context(|| failed("write"))?;
        let executable = fs::set_permissions(&script, fs::Permissions::from_mode(0o700));
        executable.with_context(|| failed("make executable"))?;
        Ok(thaw)
    }

    /// Where the script is, for CRIU.
    pub fn script(&self) -> PathBuf {
        self.directory.path().join("thaw.sh")
    }

    /// Whether the tasks are complete and stopped.
    pub fn is_ready(&self) -> bool {
        self.word.is_awaited()
    }

    /// Lets the script end: the tasks go on, or are gone.
    ///
    /// # Errors
    /// The system's answer.
    pub fn go(&self) -> Result<()> {
        self.word.say("go").context("Cannot tell CRIU that the tasks may go on")
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    fn start(thaw: &Thaw, action: &str) -> Child {
        Command::new(thaw.script()).env("CRTOOLS_SCRIPT_ACTION", action).spawn().unwrap()
    }

    fn wait_ready(thaw: &Thaw) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !thaw.is_ready() {
            assert!(Instant::now() < deadline, "the script does not come to the FIFO");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn script_waits_where_tasks_are_complete_and_ends_at_the_word() {
        let thaw = Thaw::write().unwrap();
        assert!(start(&thaw, "post-restore").wait().unwrap().success());
        assert!(!thaw.is_ready());
        let mut script = start(&thaw, "pre-resume");
        wait_ready(&thaw);
        assert!(script.try_wait().unwrap().is_none());
        thaw.go().unwrap();
        assert!(script.wait().unwrap().success());
    }

    #[test]
    fn script_whose_command_is_gone_goes_on_waiting() {
        let Thaw { directory, word } = Thaw::write().unwrap();
        let thaw = Thaw { directory, word };
        let mut script = start(&thaw, "pre-resume");
        wait_ready(&thaw);
        let Thaw { directory: _kept, word } = thaw;
        drop(word);
        std::thread::sleep(Duration::from_millis(100));
        assert!(script.try_wait().unwrap().is_none());
        script.kill().unwrap();
        script.wait().unwrap();
    }
}
