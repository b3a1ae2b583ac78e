// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a controller and the in-process agent thread say to each other: one JSON message a datagram, and beside it the
//! files that a controller holds for a checkpointed process.
//!
//! A controller invites the agent ([`super::contact`]), which comes to it by a SEQPACKET socket. It takes orders only
//! from its own user or root, carries out one at a time, and tells its state meanwhile. A controller that dies ends its
//! order and its lease.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stasis_protocol::lease::OnStranded;
use stasis_protocol::{Activity, Mode, State};
use thiserror::Error;

use super::admit::Admission;
use super::info::ProcessInfo;
pub use super::message::MAX_MESSAGE;
use super::pre_copy::PreCopyReport;
use super::report::{CheckpointReport, RestoreReport};
use crate::share::SessionOrder;

/// An order to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Asks for the state only.
    Status,
    /// Asks what a checkpoint would move and be refused for.
    Info,
    /// Asks for the memory that has this number, in hexadecimal, among the names of the process.
    Share {
        /// [`crate::share::SharedName::number`].
        number: String,
    },
    /// Has the order at work give up. The process goes back to what it was before it.
    Cancel,
    /// Lock, write the images into a directory, close the device. Undone by the agent itself when nobody freezes the
    /// process, see [`CheckpointOrder`].
    Checkpoint(CheckpointOrder),
    /// Copy the contents into a directory while the process runs.
    PreCopy(PreCopyOrder),
    /// Restore from `directory` (or from where the contents were written) and unlock.
    Resume {
        /// Where the images are now, if they were moved.
        directory: Option<PathBuf>,
        /// On what terms; `None`: as the process's own environment says.
        #[serde(default)]
        admission: Option<Admission>,
    },
}

/// How the contents of a process are to be copied while it runs. The order ends with its controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreCopyOrder {
    /// Absolute path of an existing directory.
    pub directory: PathBuf,
    /// How long it may take, milliseconds.
    pub deadline_ms: u64,
    /// How often they are copied at most.
    pub rounds: u32,
    /// The directory of an earlier image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PathBuf>,
}

/// How a process is to be checkpointed.
///
/// The closed gate is a lease. It ends with the controller that gave the order, or after `lease_ms`; a process that is
/// not traced by then takes its device back and runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOrder {
    /// Absolute path of an existing directory.
    pub directory: PathBuf,
    /// How long stopping the queues may take, milliseconds.
    pub deadline_ms: u64,
    /// How long the gate may stay closed without further orders, milliseconds.
    pub lease_ms: u64,
    /// How the queues are stopped.
    #[serde(default)]
    pub mode: Mode,
    /// How long writing the contents may take, milliseconds; [`super::DEFAULT_DEADLINE`] if the controller does not say.
    #[serde(default)]
    pub write_deadline_ms: Option<u64>,
    /// Keep the contents in the process's memory for CRIU to dump, instead of a file.
    #[serde(default)]
    pub self_contained: bool,
    /// The process waits out its lease even if the controller has gone.
    #[serde(default)]
    pub outlives_controller: bool,
    /// The processes that are checkpointed with it.
    #[serde(default)]
    pub session: Option<SessionOrder>,
    /// The directory of an earlier image; only what changed is written ([`super::CheckpointOptions::parent`]). Older agents write
    /// everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PathBuf>,
    /// The answer brings the render files and the image, for the controller to hold, too, until it orders to resume.
    #[serde(default)]
    pub hold_files: bool,
    /// What the process does if its device cannot come back because nobody has its render files any more.
    #[serde(default)]
    pub on_stranded: OnStranded,
    /// With [`OnStranded::Exit`]: how long it waits for help before it ends, milliseconds.
    #[serde(default = "stranded_ms")]
    pub stranded_ms: u64,
}

fn stranded_ms() -> u64 {
    30_000
}

impl CheckpointOrder {
    /// The usual order: drain within ten seconds, a lease of thirty.
    #[must_use]
    pub fn into_directory(directory: PathBuf) -> Self {
        Self {
            directory,
            deadline_ms: 10_000,
            lease_ms: 30_000,
            mode: Mode::Drain,
            write_deadline_ms: None,
            self_contained: false,
            outlives_controller: false,
            session: None,
            parent: None,
            hold_files: false,
            on_stranded: OnStranded::Wait,
            stranded_ms: stranded_ms(),
        }
    }
}

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// State after the order.
    pub state: State,
    /// What was done.
    pub done: Result<Done, String>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// Nothing was asked.
    Status {
        /// Runtimes open in the process.
        runtimes: usize,
        /// What a verb is doing.
        activity: Activity,
        /// The order at work, if one is.
        order: Option<String>,
        /// Since when, milliseconds.
        order_ms: u64,
        /// Why the last restore failed, if the gate is shut because of it.
        last_error: Option<String>,
        /// The id of the image that this process, a restored copy, came from or waits for. Older agents do not say.
        #[serde(default)]
        copy_of: Option<String>,
        /// Bytes of buffers that are still to come after a lazy restore. Older agents do not say.
        #[serde(default)]
        lazy_bytes: u64,
    },
    /// The order at work was told to give up.
    Cancelled {
        /// Whether there was one.
        was_at_work: bool,
    },
    /// A descriptor of the memory comes with the answer.
    Shared,
    /// Nothing has this number among the names.
    Unknown,
    /// The process is locked or checkpointed, or is asked by many: ask again.
    NotNow,
    /// What a checkpoint would find.
    Info(Box<ProcessInfo>),
    /// The device is closed; freeze at will.
    Checkpointed(CheckpointReport),
    /// The contents were copied; the process runs.
    PreCopied(PreCopyReport),
    /// The process runs.
    Running(RestoreReport),
}

/// Why the agent of a process could not be spoken to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// No process listens under the agent's name.
    #[error("Process {pid} has no Stasis agent: it is gone, or it has not opened a Stasis runtime")]
    NoAgent {
        /// The process.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Its agent cannot be looked for, or not invited.
    #[error(
        "The agent of process {pid} cannot be reached: that is for its own user and root, with every capability that it has"
    )]
    Denied {
        /// The process.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A process of another user listens under the name that older agents have.
    #[error(
        "Another process, of user {uid}, listens under the name of process {pid}'s agent: nothing was sent to it"
    )]
    Impostor {
        /// The process.
        pid: i32,
        /// The user of the process that listens.
        uid: u32,
    },
    /// The connection failed while an order was under way.
    #[error("The agent of process {pid} gave no answer in {} ms", waited.as_millis())]
    NoAnswer {
        /// The process.
        pid: i32,
        /// How long was waited.
        waited: Duration,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The answer is not one of this version's.
    #[error("The agent of process {pid} gave an answer of another version")]
    Answer {
        /// The process.
        pid: i32,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// The order was refused or failed; the process is in `state`, unharmed.
    #[error("The agent of process {pid} is {state} and says: {message}")]
    Refused {
        /// The process.
        pid: i32,
        /// Its state now.
        state: State,
        /// Its words.
        message: String,
    },
}
