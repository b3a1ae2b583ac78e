// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is at the other end of a Unix socket (`SO_PEERCRED`, socket(7)).

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt};

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
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        // The kernel says 0 of a process of a pid namespace that is not to be seen from here.
        let pid = Some(credentials.pid()).filter(|pid| *pid > 0);
        Ok(Self { pid, uid: credentials.uid() })
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
            Peer { pid: Some(std::process::id().cast_signed()), uid: nix::unistd::geteuid().as_raw() }
        );
        assert!(peer.is_trusted_by(peer.uid) && Peer { uid: 0, ..peer }.is_trusted_by(4711));
        assert!(!Peer { uid: 4712, ..peer }.is_trusted_by(4711));
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
