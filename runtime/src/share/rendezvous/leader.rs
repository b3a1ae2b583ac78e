// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that leads a meeting: sockets around a [`Hall`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{SocketFlags, accept_with};

use super::hall::{Hall, Reply, Seat};
use super::wire;
use crate::linux::credentials::Peer;
use crate::share::meeting::publish;

/// A meeting that this process leads. It ends when all members have what they want, or with this.
#[derive(Debug)]
pub(crate) struct Leader {
    ended: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Leader {
    /// Leads a meeting from now on. `lock` says to others that there is a leader.
    ///
    /// # Errors
    /// When the thread cannot be had.
    pub(super) fn start(
        lock: File,
        listener: OwnedFd,
        members: &[String],
        record: PathBuf,
        socket: PathBuf,
    ) -> io::Result<Self> {
        let ended = eventfd(0, EventfdFlags::CLOEXEC)?;
        let until = ended.try_clone()?;
        let hall = Hall::new(members);
        let lead = move || {
            Room { hall, record, connections: BTreeMap::new() }.run(&listener, &until);
            // Nobody new from here on; whoever comes leads the next meeting once the lock is free.
            let _ = fs::remove_file(socket);
            drop((listener, lock));
        };
        let thread = std::thread::Builder::new().name("stasis-meeting".into()).spawn(lead)?;
        Ok(Self { ended, thread: Some(thread) })
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // It fails only at 2^64 - 2 unread wake-ups, when it is readable in any case.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Room {
    hall: Hall<Arc<OwnedFd>>,
    record: PathBuf,
    connections: BTreeMap<Seat, OwnedFd>,
}

impl Room {
    fn run(mut self, listener: &OwnedFd, until: &OwnedFd) {
        let mut next = 0;
        while !(self.hall.is_over() && self.connections.is_empty()) {
            let seats: Vec<Seat> = self.connections.keys().copied().collect();
            let mut fds = vec![PollFd::new(until, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            fds.extend(self.connections.values().map(|socket| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                return;
            }
            for (seat, _) in seats.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                self.listen_to(*seat);
            }
            if ready[1]
                && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
            {
                let own = rustix::process::geteuid().as_raw();
                if Peer::of(&socket).is_ok_and(|peer| peer.is_trusted_by(own) || peer.uid == own) {
                    self.connections.insert(next, socket);
                    next += 1;
                }
            }
        }
    }

    fn listen_to(&mut self, seat: Seat) {
        let Some(socket) = self.connections.get(&seat) else { return };
        let before = self.hall.gone().len();
        let replies = match wire::receive(socket) {
            Ok(Some((ask, file))) => self.hall.hear(seat, ask, file.map(Arc::new)),
            // Ended, or speaks another language.
            Ok(None) | Err(_) => {
                self.connections.remove(&seat);
                self.hall.left(seat)
            }
        };
        if self.hall.gone().len() != before {
            // Before it hears that it may go on.
            self.write_record();
        }
        self.send(replies);
    }

    fn send(&mut self, replies: Vec<Reply<Arc<OwnedFd>>>) {
        let mut replies = std::collections::VecDeque::from(replies);
        while let Some(Reply { seat, answer, file }) = replies.pop_front() {
            let Some(socket) = self.connections.get(&seat) else { continue };
            let file = file.as_ref().map(|file| file.as_fd());
            if wire::send(socket, &answer, file).is_err() {
                self.connections.remove(&seat);
                replies.extend(self.hall.left(seat));
            }
        }
    }

    fn write_record(&self) {
        let text = serde_json::to_vec(self.hall.gone()).unwrap_or_default();
        if let Err(error) = publish(&self.record, &text) {
            tracing::warn!(target: "checkpoint", %error, "later members will not know who has gone on");
        }
    }
}
