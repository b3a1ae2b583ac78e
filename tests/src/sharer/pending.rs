// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders whose answer is not waited for at once: a worker that waits for another.
//!
//! INVARIANT: each has a reply socket of its own, so that no other answer is taken for its.

use std::os::unix::net::UnixDatagram;

use super::language::{Answer, Ask, Order, receive, send};
use super::{PATIENCE, Sharers};

/// An order that a worker has, and may not have done yet.
#[derive(Debug)]
pub struct Pending {
    socket: UnixDatagram,
}

impl Sharers {
    /// Has a worker do something that others may have to do something for.
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
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)).expect("a look") > 0
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
