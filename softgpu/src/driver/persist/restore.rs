// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restoring a process.

use std::sync::Arc;

use nix::errno::Errno;

use super::ProcessState;
use crate::driver::process::{KfdProcess, ProcessOptions};
use crate::persist::{Memories, PersistError};

impl KfdProcess {
    /// A process as it was saved, paused, on hardware that was made of the same memories and has nothing of it yet. The
    /// kernel is the one that the process knew, whatever the options say.
    ///
    /// # Errors
    /// [`PersistError`].
    pub fn restore(
        _options: ProcessOptions,
        _state: &ProcessState,
        _memories: &Memories,
    ) -> Result<Arc<Self>, PersistError> {
        Err(PersistError::System(Errno::ENOSYS))
    }
}
