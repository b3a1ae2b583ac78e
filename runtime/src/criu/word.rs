// SPDX-License-Identifier: MIT OR Apache-2.0
//! A word that a script of CRIU's waits for, at a FIFO that this process holds.
//!
//! INVARIANT: the script keeps no end of the FIFO for writing, so that it sees the end of this process.

use std::fs::{self, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::libc::O_NOFOLLOW;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::error::{ManifestError, failed};
use super::sealer::quoted;

/// One word. Dropped without being given, it will never come.
#[derive(Debug)]
pub struct Word {
    fifo: PathBuf,
    mark: PathBuf,
    held: OwnedFd,
}

impl Word {
    /// Makes the FIFO; `mark` is the path of the file by which the script says that it waits.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn make(fifo: PathBuf, mark: PathBuf) -> Result<Self, ManifestError> {
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| failed("make", &fifo)(e.into()))?;
        // For both, so that it opens before the script does.
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(O_NOFOLLOW);
        let held = options.open(&fifo).map_err(failed("open", &fifo))?;
        Ok(Self { held: held.into(), fifo, mark })
    }

    /// The lines of a shell script that wait for it. `$word` is what came: nothing, if this process has ended.
    #[must_use]
    pub fn wait(&self) -> String {
        let (fifo, mark) = (quoted(&self.fifo), quoted(&self.mark));
        // Opened for both first: an open for reading alone would wait for somebody who writes.
        format!("exec 3<>{fifo}\nexec 4<{fifo}\nexec 3>&-\n: >{mark}\nread -r word <&4 || :\n")
    }

    /// Whether the script waits, or has waited.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.mark.exists()
    }

    /// Gives it: the script goes on, at once or when it comes to the FIFO.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn say(&self, word: &str) -> Result<(), ManifestError> {
        let line = format!("{word}\n");
        let written = kfd::linux::retry(|| nix::unistd::write(&self.held, line.as_bytes()));
        written.map(drop).map_err(|error| failed("write to", &self.fifo)(error.into()))
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        for path in [&self.fifo, &self.mark] {
            // What stays of it means nothing to a restore.
            let _ = fs::remove_file(path);
        }
    }
}
