// SPDX-License-Identifier: MIT OR Apache-2.0
//! A participant of a rendezvous.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use stasis_protocol::Limit;

use super::error::RendezvousError;
use super::wire::{self, Answer, Ask, CLAIMS};
use crate::context::registry::state::DmabufId;
use crate::linux::process::Process;

/// How often a member that waits looks whether it still may.
const LOOK: Duration = Duration::from_millis(20);

/// A connection to the coordinator.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
}

/// Memory that was asked for.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is this process's to make, and to put.
    Make,
    /// It is there.
    Found(OwnedFd),
}

impl Client {
    pub(super) fn join(socket: OwnedFd, name: &str) -> Result<Self, RendezvousError> {
        let pid = nix::unistd::getpid().as_raw();
        let client = Self { socket };
        let process = Process::of(pid).unwrap_or(Process { pid, started: 0 });
        client.expect_granted(&Ask::Join { name: name.to_owned(), process }, None)?;
        Ok(client)
    }

    /// Which of these this process is to make.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn claim(&self, wanted: &[DmabufId]) -> Result<Vec<bool>, RendezvousError> {
        let mut make = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(CLAIMS) {
            match self.ask(&Ask::Claim(part.to_vec()), None)? {
                (Answer::Make(answers), _) if answers.len() == part.len() => make.extend(answers),
                other => return Err(unexpected(other.0)),
            }
        }
        Ok(make)
    }

    /// Gives the others memory that this process was to make, filled.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn put(&self, dmabuf: DmabufId, file: BorrowedFd<'_>) -> Result<(), RendezvousError> {
        self.expect_granted(&Ask::Put(dmabuf), Some(file))
    }

    /// Waits for memory that another is to make, no longer than `patience`.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn fetch(
        &self,
        dmabuf: DmabufId,
        patience: Duration,
        limit: &Limit,
    ) -> Result<Claim, RendezvousError> {
        self.send(&Ask::Fetch(dmabuf), None)?;
        let patience = Limit::within(patience);
        loop {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            if matches!(poll(&mut fds, Some(LOOK)), Ok(n) if n > 0) {
                break;
            }
            limit.check().and_then(|()| patience.check()).map_err(|stopped| RendezvousError::Late {
                dmabuf,
                waited: patience.elapsed(),
                stopped,
            })?;
        }
        match self.receive()? {
            (Answer::Found, Some(file)) => Ok(Claim::Found(file)),
            (Answer::Make(_), _) => Ok(Claim::Make),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Has all that it wants: from here on the others count on it.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn done(self) -> Result<(), RendezvousError> {
        self.expect_granted(&Ask::Done, None)
    }

    fn expect_granted(&self, ask: &Ask, file: Option<BorrowedFd<'_>>) -> Result<(), RendezvousError> {
        match self.ask(ask, file)? {
            (Answer::Granted, _) => Ok(()),
            (other, _) => Err(unexpected(other)),
        }
    }

    fn ask(
        &self,
        ask: &Ask,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Answer, Option<OwnedFd>), RendezvousError> {
        self.send(ask, file)?;
        self.receive()
    }

    fn send(&self, ask: &Ask, file: Option<BorrowedFd<'_>>) -> Result<(), RendezvousError> {
        wire::send(self.socket.as_fd(), ask, file).map_err(|_| RendezvousError::CoordinatorGone)
    }

    fn receive(&self) -> Result<(Answer, Option<OwnedFd>), RendezvousError> {
        match wire::receive(self.socket.as_fd()) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(RendezvousError::CoordinatorGone),
            Err(error) if error.raw_os_error().is_some() => Err(RendezvousError::CoordinatorGone),
            Err(_) => Err(RendezvousError::Answer),
        }
    }
}

fn unexpected(answer: Answer) -> RendezvousError {
    match answer {
        Answer::Refused(reason) => RendezvousError::Refused { reason },
        _ => RendezvousError::Answer,
    }
}
