// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process checkpoints itself: one call that returns twice, like fork, in the original and in every restored copy.
//!
//! INVARIANT: when the call returns, with a result or an error, the process is RUNNING, except after
//! [`SelfCheckpointError::Back`]: then its device did not come back, the gate stays shut with the contents kept, and
//! `Runtime::restore` can be tried again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stasis_protocol::{Mode, State};
use thiserror::Error;

use super::error::CheckpointError;
use super::options::{CheckpointOptions, RestoreOptions};
use super::report::{CheckpointReport, RestoreReport};
use super::steps;
use crate::criu::{
    Answer, CRIU_DIRECTORY, CriuOptions, Executable, LAYOUT, Manifest, ManifestError, NO_PLUGINS, NotFound,
    Program, RpcError, Sealer, commit_error, dump_self, image_names, prepare, retract, write_commit_script,
};
use crate::runtime::Runtime;

/// TIMEOUT: how long a restored copy looks for its contents, or waits for a controller that knows where they are now.
const FOUND: Duration = Duration::from_secs(10);
/// How long it sleeps between looks.
const LOOK: Duration = Duration::from_millis(10);

/// How a process checkpoints itself.
#[derive(Clone, Debug)]
pub struct SelfCheckpoint {
    /// How the queues are stopped.
    pub mode: Mode,
    /// How long that may take.
    pub lock_deadline: Duration,
    /// How the contents are saved.
    pub checkpoint: CheckpointOptions,
    /// What CRIU is told.
    pub criu: CriuOptions,
    /// How long CRIU may take.
    pub dump_deadline: Duration,
    /// Whether this process runs on; otherwise the call returns in restored copies only.
    pub leave_running: bool,
}

impl Default for SelfCheckpoint {
    fn default() -> Self {
        Self {
            mode: Mode::Drain,
            lock_deadline: Duration::from_secs(10),
            checkpoint: CheckpointOptions::default(),
            criu: CriuOptions::default(),
            dump_deadline: Duration::from_secs(600),
            leave_running: true,
        }
    }
}

/// In which life the call returned.
#[derive(Clone, Debug)]
pub enum Life {
    /// In the process that called; its checkpoint is complete.
    Original(CheckpointReport),
    /// In a restored copy.
    Restored(RestoreReport),
}

/// The process was not checkpointed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SelfCheckpointError {
    /// There is no CRIU; nothing was done.
    #[error(transparent)]
    Criu(#[from] NotFound),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] ManifestError),
    /// A file beside the images could not be written.
    #[error("Cannot write {}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The runtime could not let go of its device; the process runs on.
    #[error("The process was not checkpointed and runs on")]
    Checkpoint(#[source] Box<CheckpointError>),
    /// CRIU did not dump; the process runs on.
    #[error("The process was not dumped and runs on")]
    Dump(#[source] RpcError),
    /// The device did not come back. The contents are kept; `Runtime::restore` and `Runtime::unlock` can be tried again.
    #[error("The device did not come back{}; the gate stays shut, try Runtime::restore again", match dumped {
        Some(error) => format!(" after a failed dump ({error})"),
        None => String::new(),
    })]
    Back {
        /// Why the dump failed, if it did.
        dumped: Option<Box<RpcError>>,
        /// Why the device did not come back.
        #[source]
        source: Box<CheckpointError>,
    },
}

impl Runtime {
    /// Checkpoints this process into `directory`, which must be empty or not exist: what `stasis checkpoint` does from
    /// outside, through a CRIU of the process's own. `stasis restore` brings a copy back.
    ///
    /// The files are listed and hashed by the `stasis` command, as found beside this program, on PATH or in
    /// STASIS_PROGRAM. Without it the checkpoint is complete, but a restore cannot tell whether CRIU's images are as
    /// they were written, and warns of that.
    ///
    /// # Errors
    /// [`SelfCheckpointError`].
    pub fn checkpoint_to(
        &self,
        directory: &Path,
        options: &SelfCheckpoint,
    ) -> Result<Life, SelfCheckpointError> {
        let program = Program::find()?;
        let sealer = Sealer::find();
        if sealer.is_none() {
            tracing::warn!(target: "checkpoint", "no stasis command is found: CRIU's images will not be hashed");
        }
        let directory = prepare(directory)?;
        let saved = self.lock(options.mode, options.lock_deadline).and_then(|()| {
            self.checkpoint_with(&directory, &options.checkpoint).inspect_err(|_| self.unlock_again())
        });
        let report = saved.map_err(|error| SelfCheckpointError::Checkpoint(Box::new(error)))?;
        let config = write_beside(&directory, (&program, sealer.as_ref()), options, &report);
        let dumped = config.map(|config| {
            let images = directory.join(CRIU_DIRECTORY);
            let (criu, deadline) = (&options.criu, options.dump_deadline);
            let dumped = dump_self(&program, &images, &config, criu, options.leave_running, deadline);
            dumped.map_err(|error| error.because_of(commit_error(&directory)))
        });
        match dumped {
            Ok(Ok(Answer::Restored)) => self
                .resume_here()
                .map(Life::Restored)
                .map_err(|source| SelfCheckpointError::Back { dumped: None, source }),
            Ok(Ok(Answer::Dumped)) => match self.resume_here() {
                Ok(_) => Ok(Life::Original(report)),
                Err(source) => Err(SelfCheckpointError::Back { dumped: None, source }),
            },
            Ok(Err(error)) => {
                // CRIU may fail after the commit; a process that has gone on must not be restored from before that.
                let retracted = retract(&directory);
                match self.resume_here() {
                    Ok(_) => {
                        retracted?;
                        Err(SelfCheckpointError::Dump(error))
                    }
                    Err(source) => Err(SelfCheckpointError::Back { dumped: Some(Box::new(error)), source }),
                }
            }
            Err(error) => match self.resume_here() {
                Ok(_) => Err(error),
                Err(source) => Err(SelfCheckpointError::Back { dumped: None, source }),
            },
        }
    }

    /// LOCKED → RUNNING after a failure that left the state at that.
    fn unlock_again(&self) {
        if self.state() == State::Locked
            && let Err(error) = self.unlock()
        {
            tracing::error!(target: "checkpoint", %error, "a failed checkpoint left the gate shut");
        }
    }

    /// CHECKPOINTED → RUNNING, by this thread or, in a copy whose contents were moved, by a controller through the
    /// agent.
    fn resume_here(&self) -> Result<RestoreReport, Box<CheckpointError>> {
        let deadline = Instant::now() + FOUND;
        loop {
            match steps::resume(self.context(), &RestoreOptions::default()) {
                Err(CheckpointError::Image(_)) if Instant::now() < deadline => std::thread::sleep(LOOK),
                report => return report.map_err(Box::new),
            }
        }
    }
}

/// Writes what lies beside CRIU's images: the pending manifest, the script that commits it, and the configuration that
/// tells CRIU of that script; returns the last one's path.
fn write_beside(
    directory: &Path,
    (program, sealer): (&Program, Option<&Sealer>),
    options: &SelfCheckpoint,
    report: &CheckpointReport,
) -> Result<PathBuf, SelfCheckpointError> {
    let manifest = Manifest {
        layout: LAYOUT,
        pid: nix::unistd::getpid().as_raw(),
        command: std::env::args().collect(),
        executable: Executable::of(std::process::id().cast_signed()).ok(),
        criu: program.version().to_owned(),
        options: options.criu.clone(),
        images: image_names(directory)?,
        members: Vec::new(),
        foreign: None,
        report: report.clone(),
        files: Vec::new(),
    };
    manifest.write_pending(directory)?;
    let script = write_commit_script(directory, sealer)?;
    let images = directory.join(CRIU_DIRECTORY);
    let file = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SelfCheckpointError::File { path, source }
    };
    // Plugins of other devices are not ours to run.
    let plugins = images.join(NO_PLUGINS);
    fs::create_dir(&plugins).map_err(file(&plugins))?;
    let config = images.join("criu.conf");
    let quote = |path: &Path| format!("\"{}\"", path.display().to_string().replace('"', "\\\""));
    let text = format!("action-script {}\nlibdir {}\n", quote(&script), quote(&plugins));
    fs::write(&config, text).map_err(file(&config))?;
    Ok(config)
}
