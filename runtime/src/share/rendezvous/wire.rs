// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a rendezvous: one JSON message a datagram, at most one descriptor beside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kfd::linux::{receive_message, retry, send_message};
use nix::sys::socket::MsgFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::context::registry::state::DmabufId;
use crate::linux::process::Process;

/// Longest message, bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Most pieces of memory in one message.
pub(super) const CLAIMS: usize = 512;

/// From a member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Under its name; how it is told from a later process with its pid.
    Join { name: String, process: Process },
    /// Which of these is it to make?
    Claim(Vec<DmabufId>),
    /// It has made this, and filled it.
    Put(DmabufId),
    /// It wants this, when it is there.
    Fetch(DmabufId),
    /// It has all that it wants.
    Done,
}

/// From the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Yes.
    Granted,
    /// No.
    Refused(String),
    /// For each that was claimed: whether it is the member's to make.
    Make(Vec<bool>),
    /// Here it is.
    Found,
}

/// Sends a message.
///
/// # Errors
/// As sendmsg(2).
pub(super) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    retry(|| send_message(socket.as_fd(), &text, file.as_slice(), MsgFlags::MSG_NOSIGNAL))?;
    Ok(())
}

/// Receives a message; `None` when the other end has closed.
///
/// # Errors
/// As recvmsg(2); what is no message of this protocol.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut text = vec![0; MAX_MESSAGE];
    let mut received = retry(|| receive_message(socket.as_fd(), &mut text, 1, MsgFlags::empty()))?;
    let file = received.fds.pop();
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, file)))
}
