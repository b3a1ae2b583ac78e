// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a context's checkpoints: the state machine of `stasis-protocol` and what is beside it.
//!
//! INVARIANT: what may happen when is decided by that state machine, where it is model-checked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use stasis_protocol::{Activity, State, StateMachine};

use super::keeper::KeeperError;
use super::known::KnownContents;
use super::report::RestoreReport;
use super::snapshot::Snapshot;
use crate::context::{Context, Layer};

/// The checkpoint side of a runtime.
#[derive(Debug, Default)]
pub(crate) struct CheckpointMachine {
    pub(super) machine: StateMachine<Box<Snapshot>, RestoreReport>,
    /// The id of the image that this process came from, if it is a restored copy.
    copy_of: Mutex<Option<String>>,
    /// An unlock failed half way: queues may run although the state is LOCKED.
    undrained: AtomicBool,
    /// What the buffers are known to hold.
    pub(super) known: KnownContents,
}

impl Layer for CheckpointMachine {
    fn new(_: usize) -> Self {
        CheckpointMachine::default()
    }
}

impl CheckpointMachine {
    /// The one of this context.
    pub fn of(context: &Context) -> Arc<Self> {
        context.layer()
    }

    /// Where the runtime is. Never blocks.
    pub fn state(&self) -> State {
        self.machine.state()
    }

    /// What the verb at work is doing. Never blocks.
    pub fn activity(&self) -> Activity {
        self.machine.activity()
    }

    /// Says what the verb at work is doing from now on.
    pub(super) fn now(&self, activity: Activity) {
        self.machine.now(activity);
    }

    /// Whether queues may run although the state is LOCKED.
    pub(super) fn is_undrained(&self) -> bool {
        self.undrained.load(Ordering::Relaxed)
    }

    /// Says so.
    pub(super) fn set_undrained(&self, undrained: bool) {
        self.undrained.store(undrained, Ordering::Relaxed);
    }

    /// The id of the image that this process came from, if it is a restored copy. Never blocks for long.
    pub fn copy_of(&self) -> Option<String> {
        self.copy_of.lock().clone()
    }

    /// Says so from now on; what was said before.
    pub(super) fn set_copy_of(&self, image: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.copy_of.lock(), image)
    }

    /// Has the verb at work, if there is one, give up; says whether there was.
    pub fn cancel(&self) -> bool {
        self.machine.cancel()
    }

    /// Duplicates of the files that this process needs to come back, if it is CHECKPOINTED.
    ///
    /// # Errors
    /// [`KeeperError`]: its keepers do not give them.
    pub fn lend(&self) -> Result<Vec<OwnedFd>, KeeperError> {
        self.machine.snapshot(|snapshot| snapshot.kept.lend()).unwrap_or_else(|| Ok(Vec::new()))
    }
}
