// SPDX-License-Identifier: MIT OR Apache-2.0
//! DMABufs that were sent and not yet received: they lie in a socket's queue, where no placeholder can replace them.
//!
//! The queues are looked at without taking anything out (`MSG_PEEK`, from `SO_PEEK_OFF` on): who waits for a message
//! gets it as if nobody had looked.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use kfd::linux::{MAX_MESSAGE_FDS, peek_offset, receive_message, set_peek_offset};
use nix::sys::socket::{AddressFamily, MsgFlags, SockaddrLike, SockaddrStorage, getsockname};

use super::descriptors::{Descriptor, is_dmabuf, sockets};
use crate::context::device::identify;
use crate::context::registry::state::DmabufId;

/// Bytes looked at at a time.
const PIECE: usize = 16 << 10;

/// A DMABuf in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// The socket that is to receive it.
    pub socket: RawFd,
    /// Which memory.
    pub dmabuf: DmabufId,
}

/// The first DMABuf that waits in a queue of each of the process's Unix sockets.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub(crate) fn in_flight() -> std::io::Result<Vec<InFlight>> {
    let look = |socket: Descriptor| {
        let name = getsockname::<SockaddrStorage>(socket.number);
        let is_unix = name.is_ok_and(|name| name.family() == Some(AddressFamily::Unix));
        let dmabuf = if is_unix { first_in(socket.borrow())? } else { return None };
        Some(InFlight { socket: socket.number, dmabuf })
    };
    Ok(sockets()?.into_iter().filter_map(look).collect())
}

fn first_in(socket: BorrowedFd<'_>) -> Option<DmabufId> {
    // None if it cannot be told where to peek from.
    let before = peek_offset(socket).ok()?;
    set_peek_offset(socket, 0).ok()?;
    let mut bytes = vec![0; PIECE];
    let found = loop {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // A listening socket, the end of a connection, or of the queue.
        let Ok(received) = receive_message(socket, &mut bytes, MAX_MESSAGE_FDS, flags) else { break None };
        let dmabuf = received.fds.iter().find_map(|file| dmabuf_of(file.as_fd()));
        if dmabuf.is_some() || received.bytes == 0 {
            break dmabuf;
        }
    };
    let _ = set_peek_offset(socket, before);
    found
}

fn dmabuf_of(file: BorrowedFd<'_>) -> Option<DmabufId> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    if name.to_str().is_some_and(is_dmabuf) { identify(file).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use kfd::linux::send_message;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn send(on: impl AsFd, bytes: &[u8], file: &OwnedFd) {
        send_message(on.as_fd(), bytes, &[file.as_fd()], MsgFlags::empty()).unwrap();
    }

    fn on(socket: &impl AsRawFd) -> Vec<DmabufId> {
        let found = in_flight().unwrap();
        found.iter().filter(|f| f.socket == socket.as_raw_fd()).map(|f| f.dmabuf).collect()
    }

    #[test]
    fn dmabuf_behind_other_messages_is_found_and_nothing_is_taken() {
        let memory = memfd_create("softgpu:gtt:7", MFdFlags::MFD_CLOEXEC).unwrap();
        let other = memfd_create("harmless", MFdFlags::MFD_CLOEXEC).unwrap();
        let id = identify(&memory).unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"first ").unwrap();
        send(&theirs, b"second ", &other);
        assert_eq!(on(&ours), []);
        send(&theirs, b"third", &memory);
        assert_eq!(on(&ours), [id]);
        assert_eq!(on(&ours), [id], "it is still there");
        let mut text = [0; 18];
        ours.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"first second third");
        assert_eq!(on(&ours), []);
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(b"one").unwrap();
        send(&theirs, b"two", &memory);
        assert_eq!(on(&ours), [id]);
        let mut bytes = [0; 8];
        assert_eq!(ours.recv(&mut bytes).unwrap(), 3);
        assert_eq!(ours.recv(&mut bytes).unwrap(), 3);
        assert_eq!(on(&ours), []);
    }
}
