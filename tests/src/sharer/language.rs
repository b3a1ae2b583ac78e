// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a `share-worker` can be told, and what it answers: one JSON datagram each, a descriptor beside it where one is
//! passed on.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest datagram, bytes.
const LONGEST: usize = 64 << 10;

/// An order, with the socket that wants the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Where the answer goes; none is given without.
    pub reply: Option<PathBuf>,
    /// What to do.
    pub ask: Ask,
}

/// Who touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// The CPU.
    Cpu,
    /// The runtime's copies.
    Device,
}

/// What to do. Buffers and descriptors go by names of the worker's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A buffer of an agent's memory, or of system memory.
    Alloc { buffer: String, bytes: u64, agent: Option<usize> },
    /// A DMABuf of a buffer.
    Export { buffer: String, fd: String },
    /// Another descriptor of the same.
    Dup { fd: String, to: String },
    /// Ends a descriptor.
    Close { fd: String },
    /// Sends a descriptor to another worker's socket, which gives it the same name.
    Send { fd: String, to: PathBuf },
    /// Takes the descriptor beside this.
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
    /// Receives such a message; what comes has these names.
    Receive { over: String, agent: usize, names: Vec<String> },
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
    /// Waits until a signal is below a value; a file says that it has begun to.
    Await { signal: String, below: i64, begun: PathBuf },
    /// Has agent 0 write bytes, and then complete a signal.
    Produce { buffer: String, offset: u64, bytes: Vec<u8>, signal: String },
    /// Has agents read bytes once a signal is completed; a file says that the packet that waits for it is submitted.
    Consume { buffer: String, offset: u64, bytes: usize, signal: String, begun: PathBuf },
    /// Starts a child, which has this socket, and these descriptors by inheritance.
    Spawn { socket: PathBuf, inherit: Vec<String> },
    /// Leads a session of its own from now on, as the root of a tree has to.
    Lead,
    /// Listens to nothing until a file exists.
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

/// What became of it.
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one");
    }
    let to = SocketAddrUnix::new(to)?;
    rustix::io::retry_on_intr(|| {
        sendmsg_addr(&from, &to, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a message.
///
/// # Errors
/// As recvmsg(2).
pub fn receive<T: DeserializeOwned>(on: impl AsFd) -> io::Result<(T, Option<OwnedFd>)> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&on, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((serde_json::from_slice(&text[..received.bytes])?, rights))
}
