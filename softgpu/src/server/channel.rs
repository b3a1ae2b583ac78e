// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: requests in, replies out, in the client's own words (`kfd::transport::wire`).
//!
//! Invariant: no byte that arrives can do more than earn an error reply or end the connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kfd::transport::wire::{self, Received, Reply, Request, WireError};
use rustix::io::Errno;

use super::host::{Answer, Host, error};

/// A connection and the process state behind it.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    host: Arc<Host>,
    greeted: bool,
    /// Descriptors of the last reply that did not fit beside it.
    left: Vec<OwnedFd>,
}

impl Channel {
    /// Takes a connection over.
    pub(super) fn new(socket: OwnedFd, host: Arc<Host>) -> Self {
        Self { socket, host, greeted: false, left: Vec::new() }
    }

    /// Answers until the client closes, or errs beyond repair.
    pub(super) fn run(mut self) {
        let socket = self.socket.as_fd();
        let prepared = rustix::net::sockopt::set_socket_passcred(socket, true)
            .map_err(|errno| WireError::System { call: "setsockopt(SO_PASSCRED)", errno })
            .and_then(|()| wire::prepare_socket(socket));
        if let Err(error) = prepared {
            tracing::error!(target: "server", %error, "connection not prepared");
            return;
        }
        let mut buffer = wire::receive_buffer();
        loop {
            match wire::receive::<Request>(self.socket.as_fd(), &mut buffer) {
                Ok(received) => {
                    let (answer, go_on) = self.answer(received);
                    if !self.send(answer) || !go_on {
                        return;
                    }
                }
                Err(WireError::Closed) => return,
                // The datagram was consumed whole; the client is still in step.
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

    /// The answer, and whether the connection goes on after it.
    fn answer(&mut self, received: Received<Request>) -> (Answer, bool) {
        let Received { message, fds, credentials } = received;
        // The kernel fills these in; without them anyone could speak for the client.
        let same_process = credentials.is_some_and(|sender| sender.pid == self.host.client());
        match message {
            Request::Hello { protocol, devices } => {
                let (answer, greeted) = self.host.hello(protocol, &devices);
                self.greeted = greeted;
                (answer, greeted)
            }
            _ if !self.greeted => (error(Errno::PROTO, "the first request must be Hello"), false),
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
        WireError::TooLarge { .. } | WireError::TooManyFds { .. } => Errno::MSGSIZE,
        WireError::LostFds => Errno::MFILE,
        WireError::System { errno, .. } => *errno,
        _ => Errno::BADMSG,
    }
}
