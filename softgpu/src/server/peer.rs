// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process at the other end of a connection.
//!
//! INVARIANT: a [`Peer`] is a process, not a number: its pidfd names it even when the number is reused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use kfd::linux::{pidfd_open, poll};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, geteuid};

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
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        // A process of a PID namespace that cannot be seen from here has the number 0.
        if credentials.pid() <= 0 {
            return Err(Errno::ESRCH);
        }
        let pid = Pid::from_raw(credentials.pid());
        let pidfd = match getsockopt(&socket, sockopt::PeerPidfd) {
            // Before Linux 6.5 only the number is known; a reused one is another process of the same user at worst.
            Err(Errno::ENOPROTOOPT) => pidfd_open(pid)?,
            other => other?,
        };
        Ok(Self { pid, uid: credentials.uid(), pidfd })
    }

    /// A process by its number.
    ///
    /// # Errors
    /// `ESRCH` when there is none.
    pub(super) fn of_process(pid: Pid) -> Result<Self, Errno> {
        let pidfd = pidfd_open(pid)?;
        let status = std::fs::metadata(format!("/proc/{pid}")).map_err(|_| Errno::ESRCH)?;
        Ok(Self { pid, uid: status.uid(), pidfd })
    }

    /// Whether the process has ended.
    pub(super) fn is_gone(&self) -> bool {
        is_readable(self.pidfd.as_fd())
    }
}

/// Whether the process at the other end of a socket may give orders: it is of this user, or root's. The CRIU that dumps a container is
/// in a pid namespace that cannot be seen from here.
pub(super) fn may_order(socket: BorrowedFd<'_>) -> bool {
    let user = getsockopt(&socket, sockopt::PeerCredentials).map(|credentials| credentials.uid());
    user.is_ok_and(|user| user == geteuid().as_raw() || user == 0)
}

/// Whether a descriptor is readable right now; a pidfd is when its process has ended.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    matches!(poll(&mut fds, Some(Duration::ZERO)), Ok(ready) if ready > 0)
}

/// Sleeps until the process of this pidfd has ended.
pub(super) fn wait_gone(pidfd: BorrowedFd<'_>) {
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    while !matches!(poll(&mut fds, None), Ok(ready) if ready > 0) {}
}
