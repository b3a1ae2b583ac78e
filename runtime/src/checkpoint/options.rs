// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a verb may be told beyond its name.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::admit::Admission;
use crate::share::SessionOrder;

/// TIMEOUT: how long a checkpoint, a restore or an unlock may take if nothing else is said. Contents of tens of gigabytes are written
/// in that time, and a process whose disk or driver hangs does not stand still for ever.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(600);

/// How a checkpoint is taken.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// How long it may take; then it is given up, and the process is LOCKED as before. [`DEFAULT_DEADLINE`] by default;
    /// `Duration::MAX` is no deadline.
    pub deadline: Duration,
    /// Keep the contents in the process's own memory instead of a file, for CRIU to dump with the rest: slower, but
    /// CRIU's images alone are the whole checkpoint.
    pub self_contained: bool,
    /// The processes it shares memory with, which are checkpointed at the same time. `None`: no other process
    /// may hold this process's memory.
    pub session: Option<SessionOrder>,
    /// The directory of an earlier image, of this process or of another, on the same file system. What it has stays where it is: only
    /// what changed is written ([`crate::image::ImageWriter::create_upon`]). The new image does not need the directory
    /// afterwards.
    pub parent: Option<PathBuf>,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { deadline: DEFAULT_DEADLINE, self_contained: false, session: None, parent: None }
    }
}

/// How the labelled buffers of a process are saved ([`crate::Runtime::save`]).
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// How long kernels that were submitted may take to complete; ten seconds by default.
    pub lock_deadline: Duration,
    /// How long the buffers may take to be written; [`DEFAULT_DEADLINE`] by default, `Duration::MAX` is no deadline.
    pub deadline: Duration,
    /// The directory of an earlier image, as in [`CheckpointOptions::parent`].
    pub parent: Option<PathBuf>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { lock_deadline: Duration::from_secs(10), deadline: DEFAULT_DEADLINE, parent: None }
    }
}

/// How a process is restored.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Where the image is now, if it was moved.
    pub directory: Option<PathBuf>,
    /// How long it may take; then it is given up, and the process is CHECKPOINTED as before. [`DEFAULT_DEADLINE`] by
    /// default; `Duration::MAX` is no deadline.
    pub deadline: Duration,
    /// Which differences between the agents then and now are borne, and which agent takes which one's place. `None`: as
    /// the controller of a restore said beforehand ([`super::TermsOffer`]), else as the environment of this process
    /// does.
    pub admission: Option<Admission>,
    /// The render files and the image that this process gave its controller to hold
    /// ([`super::CheckpointOrder::hold_files`]); used if none of its own keepers has them any more.
    pub files: Arc<[OwnedFd]>,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self { directory: None, deadline: DEFAULT_DEADLINE, admission: None, files: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_deadlines_are_finite() {
        assert_eq!(CheckpointOptions::default().deadline, DEFAULT_DEADLINE);
        assert_eq!(RestoreOptions::default().deadline, DEFAULT_DEADLINE);
        assert_eq!(SaveOptions::default().deadline, DEFAULT_DEADLINE);
        assert!(DEFAULT_DEADLINE <= Duration::from_secs(3600));
    }
}
