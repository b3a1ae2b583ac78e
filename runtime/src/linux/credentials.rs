// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is at the other end of a Unix socket (`SO_PEERCRED`, socket(7)).
//!
//! `rustix` has this too, but its pid cannot be 0, which is what the kernel says of a process of a pid namespace that
//! is not to be seen from here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The other end, as it was when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `None` if it is not to be seen from here.
    pub pid: Option<i32>,
    /// Its effective user id.
    pub uid: u32,
}

impl Peer {
    /// Asks the kernel. Async-signal-safe.
    ///
    /// # Errors
    /// As getsockopt(2): the descriptor is no connected or listening Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into a local of that size.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: (credentials.pid > 0).then_some(credentials.pid), uid: credentials.uid })
    }

    /// Whether it may give or take orders of a process of user `owner`.
    #[must_use]
    pub fn is_trusted_by(&self, owner: u32) -> bool {
        self.uid == 0 || self.uid == owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn own_socket_pair_is_ours() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(
            peer,
            Peer { pid: Some(std::process::id().cast_signed()), uid: rustix::process::geteuid().as_raw() }
        );
        assert!(peer.is_trusted_by(peer.uid) && Peer { uid: 0, ..peer }.is_trusted_by(4711));
        assert!(!Peer { uid: 4712, ..peer }.is_trusted_by(4711));
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
