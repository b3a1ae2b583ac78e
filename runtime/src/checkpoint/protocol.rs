// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a controller and the in-process agent thread say to each other: one JSON message a datagram.
//!
//! The agent listens on an abstract SEQPACKET socket named after its pid, takes orders only from its own user or
//! root, carries out one at a time, and tells its state meanwhile. A controller that dies ends its order and its lease.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::credentials::Peer;
use super::{Activity, Admission, Mode, ProcessInfo, State};
use crate::image::{ReadStats, WriteStats};
use crate::share::SessionOrder;

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 64 << 10;

/// An order to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Asks for the state only.
    Status,
    /// Asks what a checkpoint would move and be refused for.
    Info,
    /// Has the order at work give up. The process goes back to what it was before it.
    Cancel,
    /// Lock, write the images into a directory, close the device. Undone by the agent itself when nobody freezes the
    /// process, see [`CheckpointOrder`].
    Checkpoint(CheckpointOrder),
    /// Restore from `directory` (or from where the contents were written) and unlock.
    Resume {
        /// Where the images are now, if they were moved.
        directory: Option<PathBuf>,
        /// On what terms; `None`: as the process's own environment says.
        #[serde(default)]
        admission: Option<Admission>,
    },
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
    /// How long writing the contents may take, milliseconds.
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
        }
    }
}

/// What a checkpoint moved and how long its phases took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// Time to close the gate and stop the queues, milliseconds.
    pub lock_ms: f64,
    /// Time to write the contents, milliseconds.
    pub write_ms: f64,
    /// Time to take down and close the device and to audit, milliseconds.
    pub close_ms: f64,
    /// Buffers' bytes.
    pub content_bytes: u64,
    /// Bytes stored (zeros cost nothing).
    pub stored_bytes: u64,
    /// Length of the image files.
    pub image_bytes: u64,
}

impl CheckpointReport {
    pub(super) fn add_written(&mut self, stats: WriteStats) {
        self.content_bytes += stats.content_bytes;
        self.stored_bytes += stats.stored_bytes;
        self.image_bytes += stats.file_bytes;
    }
}

/// What a restore moved and how long its phases took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// Time to reopen the device and admit its agents, milliseconds.
    pub open_ms: f64,
    /// Time to recreate buffers, events and queues, milliseconds.
    pub rebuild_ms: f64,
    /// Time to read the contents back, milliseconds.
    pub fill_ms: f64,
    /// Buffers' bytes.
    pub content_bytes: u64,
    /// Bytes read from the images.
    pub read_bytes: u64,
}

impl RestoreReport {
    pub(super) fn add_read(&mut self, stats: ReadStats) {
        self.content_bytes += stats.content_bytes;
        self.read_bytes += stats.read_bytes;
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
    },
    /// The order at work was told to give up.
    Cancelled {
        /// Whether there was one.
        was_at_work: bool,
    },
    /// What a checkpoint would find.
    Info(Box<ProcessInfo>),
    /// The device is closed; freeze at will.
    Checkpointed(CheckpointReport),
    /// The process runs.
    Running(RestoreReport),
}

/// Why the agent of a process could not be spoken to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nobody listens.
    #[error("Process {pid} has no Stasis agent: it is gone, or it has not opened a Stasis runtime")]
    NoAgent {
        /// The process.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens under the process's name.
    #[error(
        "The agent socket of process {pid} is held by a process of user {uid}, which is neither root nor the process's \
         own: nothing was sent to it"
    )]
    Impostor {
        /// The process.
        pid: i32,
        /// Who listens.
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

/// Name of a process's agent socket in the abstract namespace; `pid` is what the process itself takes for its pid.
#[must_use]
pub fn socket_name(pid: i32) -> Vec<u8> {
    format!("stasis-agent.{pid}").into_bytes()
}

/// Gives the agent of `pid` an order and waits for the answer; the connection is closed on both sides afterwards.
///
/// # Errors
/// [`CallError`]; [`CallError::Refused`] carries the agent's own words.
pub fn call(pid: i32, request: &Request, timeout: Duration) -> Result<(State, Done), CallError> {
    let no_agent = |source: rustix::io::Errno| CallError::NoAgent { pid, source: source.into() };
    let address = SocketAddrUnix::new_abstract_name(&socket_name(pid)).map_err(no_agent)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(no_agent)?;
    connect(&socket, &address).map_err(no_agent)?;
    // Anybody can take a name in the abstract namespace.
    let owner = std::fs::metadata(format!("/proc/{pid}"))
        .map_or_else(|_| rustix::process::geteuid().as_raw(), |metadata| metadata.uid());
    match Peer::of(&socket) {
        Ok(peer) if peer.is_trusted_by(owner) => {}
        Ok(peer) => return Err(CallError::Impostor { pid, uid: peer.uid }),
        Err(source) => return Err(CallError::NoAgent { pid, source }),
    }
    let asked = Instant::now();
    let no_answer = |source: io::Error| CallError::NoAnswer { pid, waited: asked.elapsed(), source };
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(timeout))
        .map_err(|e| no_answer(e.into()))?;
    let order = serde_json::to_vec(request).map_err(|source| CallError::Answer { pid, source })?;
    send(&socket, &order, SendFlags::NOSIGNAL).map_err(|e| no_answer(e.into()))?;
    let mut answer = vec![0; MAX_MESSAGE];
    let (length, _) = rustix::io::retry_on_intr(|| recv(&socket, &mut answer[..], RecvFlags::empty()))
        .map_err(|e| no_answer(e.into()))?;
    if length == 0 {
        return Err(no_answer(io::ErrorKind::UnexpectedEof.into()));
    }
    // The agent closes its end after the answer; CRIU must find neither half.
    let mut rest = [0u8; 1];
    let _ = rustix::io::retry_on_intr(|| recv(&socket, &mut rest[..], RecvFlags::empty()));
    let reply: Reply =
        serde_json::from_slice(&answer[..length]).map_err(|source| CallError::Answer { pid, source })?;
    match reply.done {
        Ok(done) => Ok((reply.state, done)),
        Err(message) => Err(CallError::Refused { pid, state: reply.state, message }),
    }
}
