// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: requests in, replies out, in the messages of `kfd::transport::wire`.
//!
//! INVARIANT: malformed input has no other effect than an error reply or the end of the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kfd::transport::wire::{self, ReceiveBuffer, Received, Reply, Request, WireError};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{setsockopt, sockopt};

use super::broker::refuse;
use super::host::{Answer, Host, error};

/// A connection and the process state behind it.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    host: Arc<Host>,
    greeted: bool,
    /// Taken here before a request is begun, or by a client that withdraws it (see [`wire`]).
    claim: OwnedFd,
    /// Descriptors of the last reply that did not fit beside it.
    left: Vec<OwnedFd>,
}

impl Channel {
    /// Takes a connection over. `None` if no file descriptor is left for the claim; the client is
    /// told so.
    pub(super) fn new(socket: OwnedFd, host: Arc<Host>) -> Option<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        match EventFd::from_value_and_flags(1, flags) {
            Ok(claim) => Some(Self { socket, host, greeted: false, claim: claim.into(), left: Vec::new() }),
            Err(errno) => {
                refuse(&socket, errno, "no open file is left for a connection; raise the limit (ulimit -n)");
                None
            }
        }
    }

    /// Answers requests until the client closes the connection or makes an error that ends it.
    pub(super) fn run(mut self) {
        let socket = self.socket.as_fd();
        let prepared = setsockopt(&socket, sockopt::PassCred, &true)
            .map_err(|errno| WireError::System { call: "setsockopt(SO_PASSCRED)", errno })
            .and_then(|()| wire::prepare_socket(socket));
        if let Err(error) = prepared {
            tracing::error!(target: "server", %error, "connection not prepared");
            return;
        }
        let mut buffer = ReceiveBuffer::looking();
        loop {
            match wire::receive::<Request>(self.socket.as_fd(), &mut buffer) {
                Ok(received) => {
                    if !self.take_claim() {
                        tracing::debug!(target: "server", "a request was withdrawn");
                        continue;
                    }
                    let (answer, go_on) = self.answer(received);
                    if !self.send(answer) || !go_on {
                        return;
                    }
                    self.return_claim();
                }
                Err(WireError::Closed) => return,
                // The datagram was consumed whole, so the next one begins with a new request.
                Err(lost @ WireError::LostFds) => {
                    if !self.send(error(errno_of(&lost), lost.to_string())) {
                        return;
                    }
                }
                Err(wrong) => {
                    tracing::warn!(target: "server", error = %wrong, "connection ended");
                    self.send(error(errno_of(&wrong), wrong.to_string()));
                    return;
                }
            }
        }
    }

    /// Whether the request that has come is still wanted; from now on it cannot be withdrawn.
    fn take_claim(&self) -> bool {
        nix::unistd::read(&self.claim, &mut [0; 8]).is_ok()
    }

    /// After the reply: a client that takes the claim and finds no reply must know that nothing was done.
    fn return_claim(&self) {
        if let Err(errno) = nix::unistd::write(&self.claim, &1u64.to_ne_bytes()) {
            tracing::warn!(target: "server", %errno, "the client has spoilt its claim");
        }
    }

    /// The answer, and whether the connection stays open after it.
    fn answer(&mut self, received: Received<Request>) -> (Answer, bool) {
        let Received { message, fds, credentials } = received;
        // The kernel fills in these credentials; without them another process could send requests for the client.
        let same_process = credentials.is_some_and(|sender| sender.pid() == self.host.client().as_raw());
        match message {
            Request::Hello { protocol, devices } => {
                let (mut answer, greeted) = self.host.hello(protocol, &devices);
                self.greeted = greeted;
                if greeted {
                    match self.claim.try_clone() {
                        Ok(claim) => answer.fds.push(claim),
                        // Without them it waits for every reply.
                        Err(error) => tracing::warn!(target: "server", %error, "a client gets no claim"),
                    }
                }
                (answer, greeted)
            }
            _ if !self.greeted => (error(Errno::EPROTO, "the first request must be Hello"), false),
            Request::MoreFds if same_process && !self.left.is_empty() => {
                let fds = std::mem::take(&mut self.left);
                (Answer { reply: Reply::Fds, fds }, true)
            }
            request => (self.host.answer(request, fds, same_process), true),
        }
    }

    /// Whether the reply went out, or at least another one in its place.
    fn send(&mut self, answer: Answer) -> bool {
        let Answer { reply, mut fds } = answer;
        // Also forgets what was left of the reply before: the client did not ask for it.
        self.left = fds.split_off(fds.len().min(wire::MAX_FDS));
        match wire::send(self.socket.as_fd(), &reply, &wire::borrow_all(&fds)) {
            Ok(()) => true,
            Err(
                wrong @ (WireError::TooLarge { .. } | WireError::TooManyFds { .. } | WireError::Codec { .. }),
            ) => {
                let substitute = error(errno_of(&wrong), wrong.to_string());
                wire::send(self.socket.as_fd(), &substitute.reply, &[]).is_ok()
            }
            Err(error) => {
                tracing::debug!(target: "server", %error, "reply not delivered");
                false
            }
        }
    }
}

fn errno_of(error: &WireError) -> Errno {
    match error {
        WireError::TooLarge { .. } | WireError::TooManyFds { .. } => Errno::EMSGSIZE,
        WireError::LostFds => Errno::EMFILE,
        WireError::System { errno, .. } => *errno,
        _ => Errno::EBADMSG,
    }
}
