// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs as the process itself calls them.

use std::path::Path;
use std::time::Duration;

use stasis_protocol::{Activity, Mode, State};

use super::error::CheckpointError;
use super::options::{CheckpointOptions, DEFAULT_DEADLINE, RestoreOptions};
use super::pre_copy::{PreCopyOptions, PreCopyReport, pre_copy};
use super::report::{CheckpointReport, RestoreReport};
use super::steps;
use crate::checkpoint::machine::CheckpointMachine;
use crate::runtime::Runtime;

impl Runtime {
    /// Where the process is between running and frozen. Never blocks.
    #[must_use]
    pub fn state(&self) -> State {
        CheckpointMachine::of(self.context()).state()
    }

    /// What the verb at work is doing. Never blocks.
    #[must_use]
    pub fn activity(&self) -> Activity {
        CheckpointMachine::of(self.context()).activity()
    }

    /// RUNNING → LOCKED: holds calls at the gate and stops the queues as `mode` says, within `deadline`. Calls in flight
    /// finish, later ones wait.
    ///
    /// # Errors
    /// [`CheckpointError::Gate`], [`CheckpointError::LockTimeout`], [`CheckpointError::Preempt`]; the process runs on.
    pub fn lock(&self, mode: Mode, deadline: Duration) -> Result<(), CheckpointError> {
        steps::lock(self.context(), mode, deadline).map(drop)
    }

    /// LOCKED → CHECKPOINTED: writes [`super::IMAGE_FILE`] into `directory` and closes the device. Afterwards the
    /// process holds no descriptor or mapping of the device.
    ///
    /// # Errors
    /// [`CheckpointError`]; the process is LOCKED, with everything as it was, except after [`CheckpointError::Stuck`].
    pub fn checkpoint(&self, directory: &Path) -> Result<CheckpointReport, CheckpointError> {
        self.checkpoint_with(directory, &CheckpointOptions::default())
    }

    /// The same with a deadline, or into the process's own memory.
    ///
    /// # Errors
    /// As [`Runtime::checkpoint`], and [`CheckpointError::Stopped`] by the deadline or by [`Runtime::cancel`].
    pub fn checkpoint_with(
        &self,
        directory: &Path,
        options: &CheckpointOptions,
    ) -> Result<CheckpointReport, CheckpointError> {
        steps::write_and_close(self.context(), directory, options)
    }

    /// RUNNING, and stays so: writes an image of what the buffers are now, torn where they change, into `directory`, for a
    /// checkpoint that names it as its parent: that stops the process for what has changed since, and to hash the rest. No other verb
    /// is carried out meanwhile. Threads of low priority do it; where an agent's engine copies, calls that allocate or free wait for a
    /// chunk of 2 MiB at a time.
    ///
    /// # Errors
    /// [`CheckpointError::State`] in any other state, [`CheckpointError::AtWork`], [`CheckpointError::Image`],
    /// [`CheckpointError::Device`], [`CheckpointError::Engine`], [`CheckpointError::Stopped`] by the deadline or by
    /// [`Runtime::cancel`]. The process runs, whatever happens.
    pub fn pre_copy(
        &self,
        directory: &Path,
        options: &PreCopyOptions,
    ) -> Result<PreCopyReport, CheckpointError> {
        pre_copy(self.context(), directory, options)
    }

    /// CHECKPOINTED → LOCKED: opens the device again and makes everything as it was, from where the image was written
    /// or, if it was moved, from `directory`.
    ///
    /// # Errors
    /// [`CheckpointError`]; the process stays CHECKPOINTED and the call can be tried again.
    pub fn restore(&self, directory: Option<&Path>) -> Result<RestoreReport, CheckpointError> {
        self.restore_with(&RestoreOptions {
            directory: directory.map(Path::to_path_buf),
            ..RestoreOptions::default()
        })
    }

    /// The same with a deadline and rules of admission.
    ///
    /// # Errors
    /// As [`Runtime::restore`], and [`CheckpointError::Stopped`] by the deadline or by [`Runtime::cancel`].
    pub fn restore_with(&self, options: &RestoreOptions) -> Result<RestoreReport, CheckpointError> {
        steps::restore(self.context(), options)
    }

    /// Has the verb at work in another thread give up, wherever it is; that verb returns an error, and the state is the
    /// one before it. Says whether there was one. (A checkpoint that has begun to close the device, or a restore that
    /// has filled its buffers, is as good as done and ends.)
    pub fn cancel(&self) -> bool {
        CheckpointMachine::of(self.context()).cancel()
    }

    /// LOCKED → RUNNING. Preempted queues go on at their waves' next instructions. It may take [`DEFAULT_DEADLINE`].
    ///
    /// # Errors
    /// As [`Runtime::unlock_with`].
    pub fn unlock(&self) -> Result<(), CheckpointError> {
        self.unlock_with(DEFAULT_DEADLINE)
    }

    /// The same within `deadline`, which is the longest it waits for another thread's verb and for the device to take the
    /// preempted queues back. A call that the device has begun is waited for, and [`Runtime::cancel`] does not end an
    /// unlock.
    ///
    /// # Errors
    /// [`CheckpointError::State`] in any other state; [`CheckpointError::AtWork`]; [`CheckpointError::Stalled`] when the
    /// device does not answer in time, [`CheckpointError::Device`] when a queue cannot go on. The process stays LOCKED, and
    /// the call can be tried again.
    pub fn unlock_with(&self, deadline: Duration) -> Result<(), CheckpointError> {
        steps::unlock(self.context(), deadline)
    }
}
