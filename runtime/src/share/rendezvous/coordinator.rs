// SPDX-License-Identifier: MIT OR Apache-2.0
//! The coordinator of a rendezvous: a thread that serves sockets from a [`Registrations`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use kfd::linux;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::registrations::{ParticipantId, Registrations, Reply};
use super::wire;
use crate::linux::credentials::Peer;
use crate::share::barrier::publish;

/// A running coordinator. It ends when all participants have what they asked for, or when this is dropped.
#[derive(Debug)]
pub(crate) struct Coordinator {
    ended: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Starts the thread. The lock on `lock` shows other processes that there is a coordinator.
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
        let ended = OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        let until = ended.try_clone()?;
        let registrations = Registrations::new(members);
        let lead = move || {
            Server { registrations, record, connections: BTreeMap::new() }.run(&listener, &until);
            // No new participant is taken from here on; the next process starts a coordinator once the lock is free.
            let _ = fs::remove_file(socket);
            drop((listener, lock));
        };
        let thread = std::thread::Builder::new().name("stasis-coord".into()).spawn(lead)?;
        Ok(Self { ended, thread: Some(thread) })
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // It fails only at 2^64 - 2 unread wake-ups, when it is readable in any case.
        let _ = nix::unistd::write(&self.ended, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    registrations: Registrations<Arc<OwnedFd>>,
    record: PathBuf,
    connections: BTreeMap<ParticipantId, OwnedFd>,
}

impl Server {
    fn run(mut self, listener: &OwnedFd, until: &OwnedFd) {
        let mut next = 0;
        while !(self.registrations.is_over() && self.connections.is_empty()) {
            let participants: Vec<ParticipantId> = self.connections.keys().copied().collect();
            let wait_for = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = vec![wait_for(until.as_fd()), wait_for(listener.as_fd())];
            fds.extend(self.connections.values().map(|socket| wait_for(socket.as_fd())));
            match linux::poll(&mut fds, None) {
                Err(Errno::EINTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            drop(fds);
            if ready[0] {
                return;
            }
            for (participant, _) in participants.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                self.receive_from(*participant);
            }
            if ready[1]
                && let Ok(socket) = linux::accept(listener)
            {
                let own = nix::unistd::geteuid().as_raw();
                if Peer::of(&socket).is_ok_and(|peer| peer.is_trusted_by(own) || peer.uid == own) {
                    self.connections.insert(next, socket);
                    next += 1;
                }
            }
        }
    }

    fn receive_from(&mut self, participant: ParticipantId) {
        let Some(socket) = self.connections.get(&participant) else { return };
        let before = self.registrations.finished().len();
        let replies = match wire::receive(socket) {
            Ok(Some((ask, file))) => self.registrations.handle(participant, ask, file.map(Arc::new)),
            // Ended, or speaks another language.
            Ok(None) | Err(_) => {
                self.connections.remove(&participant);
                self.registrations.disconnected(participant)
            }
        };
        if self.registrations.finished().len() != before {
            // Before it hears that it may go on.
            self.write_record();
        }
        self.send(replies);
    }

    fn send(&mut self, replies: Vec<Reply<Arc<OwnedFd>>>) {
        let mut replies = std::collections::VecDeque::from(replies);
        while let Some(Reply { participant, answer, file }) = replies.pop_front() {
            let Some(socket) = self.connections.get(&participant) else { continue };
            let file = file.as_ref().map(|file| file.as_fd());
            if wire::send(socket, &answer, file).is_err() {
                self.connections.remove(&participant);
                replies.extend(self.registrations.disconnected(participant));
            }
        }
    }

    fn write_record(&self) {
        let text = serde_json::to_vec(self.registrations.finished()).unwrap_or_default();
        if let Err(error) = publish(&self.record, &text) {
            tracing::warn!(target: "checkpoint", %error, "later participants will not know which ones have finished");
        }
    }
}
