// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process at the other end of a connection.
//!
//! INVARIANT: a [`Peer`] is a process, not a number: its pidfd names it even when the number is reused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::sys;

/// The process that connected.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its number.
    pub(super) pid: Pid,
    /// Its effective user when it connected.
    pub(super) uid: u32,
    /// The process itself.
    pub(super) pidfd: OwnedFd,
}

impl Peer {
    /// Asks the socket (`SO_PEERCRED`, `SO_PEERPIDFD`).
    ///
    /// # Errors
    /// What the socket says; `ESRCH` when the process is gone already.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let credentials = rustix::net::sockopt::socket_peercred(socket)?;
        let pidfd = match sys::peer_pidfd(socket) {
            // Before Linux 6.5 only the number is known; a reused one is another process of the same user at worst.
            Err(Errno::NOPROTOOPT) => pidfd_open(credentials.pid, PidfdFlags::empty())?,
            other => other?,
        };
        Ok(Self { pid: credentials.pid, uid: credentials.uid.as_raw(), pidfd })
    }

    /// Whether the process has ended.
    pub(super) fn is_gone(&self) -> bool {
        is_readable(self.pidfd.as_fd())
    }
}

/// Whether a descriptor is readable right now; a pidfd is when its process has ended.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
}

/// Sleeps until the process of this pidfd has ended.
pub(super) fn wait_gone(pidfd: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    while !matches!(poll(&mut fds, None), Ok(ready) if ready > 0) {}
}
