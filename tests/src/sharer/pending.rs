// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders whose answer is not waited for at once: a worker that waits for another.
//!
//! INVARIANT: each order has its own reply socket, so no other answer is taken for its answer.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::language::{Answer, Ask, Order, receive, send};
use super::{PATIENCE, Sharers};

/// An order that a worker has, and may not have done yet.
#[derive(Debug)]
pub struct Pending {
    socket: UnixDatagram,
}

impl Sharers {
    /// Gives a worker an order whose end may need orders to other workers.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn tell(&self, name: &str, ask: Ask) -> Pending {
        let number = self.pendings.get();
        self.pendings.set(number + 1);
        let reply = self.path(&format!("pending-{number}.sock"));
        let socket = UnixDatagram::bind(&reply).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let order = Order { reply: Some(reply), ask };
        let sent = send(&socket, &self.socket_of(name), &order, None);
        sent.unwrap_or_else(|error| panic!("{name} does not listen ({error}): {}", self.log()));
        Pending { socket }
    }
}

impl Pending {
    /// Whether the answer is there.
    ///
    /// # Panics
    /// When the socket cannot be looked at.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut socket, PollTimeout::ZERO).expect("a look") > 0
    }

    /// The answer.
    ///
    /// # Panics
    /// When none comes, or the order failed.
    #[must_use]
    pub fn answer(self) -> Answer {
        match receive(&self.socket) {
            Ok((Answer::Failed(why), _)) => panic!("{why}"),
            Ok((answer, _)) => answer,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}
