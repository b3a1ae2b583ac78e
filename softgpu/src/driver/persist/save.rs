// SPDX-License-Identifier: MIT OR Apache-2.0
//! Saving a process.

use nix::errno::Errno;

use super::ProcessState;
use crate::driver::process::KfdProcess;
use crate::persist::{Memory, PersistError};

impl KfdProcess {
    /// Everything of a paused process, and the memory that it names: one descriptor of each.
    ///
    /// # Errors
    /// [`PersistError::NotPaused`], [`PersistError::System`].
    pub fn save(&self) -> Result<(ProcessState, Vec<Memory>), PersistError> {
        Err(PersistError::System(Errno::ENOSYS))
    }

    /// How many waves the save areas of the queues hold.
    pub fn saved_waves(&self) -> u64 {
        0
    }
}
