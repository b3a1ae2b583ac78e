// SPDX-License-Identifier: MIT OR Apache-2.0
//! The orders and answers of a `share-worker`: one JSON datagram each, with a descriptor beside it where one is passed.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use kfd::linux::{receive_message, retry};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest datagram, bytes.
const LONGEST: usize = 64 << 10;

/// An order, with the socket for the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The socket for the answer; without it the worker does not answer.
    pub reply: Option<PathBuf>,
    /// What to do.
    pub ask: Ask,
}

/// What accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// The CPU.
    Cpu,
    /// The runtime's copies.
    Device,
}

/// What to do. Buffers and descriptors have names in the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A buffer of an agent's memory, or of system memory.
    Alloc { buffer: String, bytes: u64, agent: Option<usize> },
    /// A DMABuf of a buffer.
    Export { buffer: String, fd: String },
    /// A duplicate of a descriptor.
    Dup { fd: String, to: String },
    /// Ends a descriptor.
    Close { fd: String },
    /// Sends a descriptor to another worker's socket, which gives it the same name.
    Send { fd: String, to: PathBuf },
    /// Takes the descriptor beside this message.
    Take { fd: String },
    /// A buffer of a DMABuf.
    Import { fd: String, buffer: String, agent: usize },
    /// Ends a buffer.
    Free { buffer: String },
    /// Writes bytes.
    Write { buffer: String, offset: u64, bytes: Vec<u8>, by: By },
    /// Reads bytes.
    Read { buffer: String, offset: u64, bytes: usize, by: By },
    /// Says what descriptors it has.
    Descriptors,
    /// A memfd, as another driver's memory: sealed so that its length stays, or not.
    Memfd { fd: String, bytes: u64, is_sealed: bool },
    /// A connected pair of stream sockets.
    Pair { one: String, other: String },
    /// Sends buffers, then signals, by the runtime's own messages over a connected socket.
    Pass { over: String, buffers: Vec<String>, signals: Vec<String> },
    /// Receives such a message; the received objects get these names.
    Receive { over: String, agent: usize, names: Vec<String> },
    /// The name of a buffer or of a signal, for other processes to ask for.
    Name { object: String },
    /// A buffer, asked for by its name.
    ImportNamed { name: Vec<u8>, buffer: String, agent: usize, limit_ms: u64 },
    /// A signal, asked for by its name.
    ImportNamedSignal { name: Vec<u8>, signal: String },
    /// Sends bytes over a connected socket.
    Speak { over: String, bytes: Vec<u8> },
    /// A signal, for this process alone or for others too.
    Signal { signal: String, value: i64, is_shared: bool },
    /// A DMABuf of a signal.
    ExportSignal { signal: String, fd: String },
    /// The signal of a DMABuf.
    ImportSignal { fd: String, signal: String },
    /// Ends a signal.
    DropSignal { signal: String },
    /// Sets a signal's value.
    Store { signal: String, value: i64 },
    /// Says a signal's value.
    Load { signal: String },
    /// Waits until a signal is below a value. A file says that the wait has begun.
    Await { signal: String, below: i64, begun: PathBuf },
    /// Has agent 0 write bytes, and then complete a signal.
    Produce { buffer: String, offset: u64, bytes: Vec<u8>, signal: String },
    /// Has agents read bytes once a signal is completed; a file says that the packet that waits for it is submitted.
    Consume { buffer: String, offset: u64, bytes: usize, signal: String, begun: PathBuf },
    /// Starts a child, which has this socket, and these descriptors by inheritance.
    Spawn { socket: PathBuf, inherit: Vec<String> },
    /// Leads a session of its own from now on, as the root of a tree has to.
    Lead,
    /// Reads no order until a file exists.
    Deaf { until: PathBuf },
    /// Ends.
    Exit,
}

/// A descriptor as its process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its number.
    pub number: i32,
    /// The inode behind it.
    pub inode: u64,
    /// Whether exec closes it.
    pub is_cloexec: bool,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Bytes read.
    Bytes(Vec<u8>),
    /// A signal's value.
    Value(i64),
    /// A child's pid.
    Pid(i32),
    /// Descriptors by name.
    Descriptors(BTreeMap<String, Seen>),
    /// It failed.
    Failed(String),
}

/// Sends a message to a socket by its path.
///
/// # Errors
/// As sendmsg(2).
pub fn send<T: Serialize>(
    from: impl AsFd,
    to: &Path,
    message: &T,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let rights: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&rights)];
    let control = if rights.is_empty() { &[] } else { &control[..] };
    let (from, to) = (from.as_fd().as_raw_fd(), UnixAddr::new(to)?);
    retry(|| sendmsg(from, &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, Some(&to)))?;
    Ok(())
}

/// Receives a message.
///
/// # Errors
/// As recvmsg(2).
pub fn receive<T: DeserializeOwned>(on: impl AsFd) -> io::Result<(T, Option<OwnedFd>)> {
    let mut text = vec![0; LONGEST];
    let mut received = retry(|| receive_message(on.as_fd(), &mut text, 1, MsgFlags::empty()))?;
    Ok((serde_json::from_slice(&text[..received.bytes])?, received.fds.pop()))
}
