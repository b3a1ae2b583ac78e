// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of the protocol, the activities of a verb, and the ways to stop queues.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a process with respect to checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum State {
    /// Calls pass.
    Running = 0,
    /// Calls wait at the gate; the queues are drained; the device is still open.
    Locked = 1,
    /// The contents are in an image and the device is closed.
    Checkpointed = 2,
}

impl State {
    pub(crate) fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Self::Running,
            1 => Self::Locked,
            _ => Self::Checkpointed,
        }
    }
}

/// What the verb in progress is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Activity {
    /// No verb is in progress.
    #[default]
    Idle = 0,
    /// Waits for calls in flight and for the queues.
    Locking = 1,
    /// Writes the buffers' bytes.
    Writing = 2,
    /// Frees all objects in the driver and closes the device.
    Closing = 3,
    /// Reads the image's tables and opens the device.
    Opening = 4,
    /// Makes buffers, events and queues.
    Rebuilding = 5,
    /// Reads the buffers' bytes.
    Filling = 6,
    /// Copies the buffers' bytes while the process runs.
    Copying = 7,
}

impl Activity {
    pub(crate) fn from_raw(raw: u8) -> Self {
        use Activity::{Closing, Copying, Filling, Idle, Locking, Opening, Rebuilding, Writing};
        let all = [Idle, Locking, Writing, Closing, Opening, Rebuilding, Filling, Copying];
        all.get(usize::from(raw)).copied().unwrap_or(Idle)
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Locking => "stopping the queues",
            Self::Writing => "writing the buffers",
            Self::Closing => "closing the device",
            Self::Opening => "opening the device",
            Self::Rebuilding => "rebuilding buffers, events and queues",
            Self::Filling => "filling the buffers",
            Self::Copying => "copying the buffers beside the running process",
        })
    }
}

/// How a lock stops the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The queues execute all packets that they have. Works on every chip and kernel; a kernel that does not end makes
    /// the lock time out.
    #[default]
    Drain,
    /// Their waves stop at the next instruction and are saved (CWSR). Needs a driver that can restore queues, and
    /// CAP_CHECKPOINT_RESTORE.
    Preempt,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Locked => "locked",
            Self::Checkpointed => "checkpointed",
        })
    }
}
