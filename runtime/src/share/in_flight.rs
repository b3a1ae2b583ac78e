// SPDX-License-Identifier: MIT OR Apache-2.0
//! DMABufs that were sent and not yet received: they lie in a socket's queue, where no placeholder can replace them.
//!
//! The queues are looked at without taking anything out (`MSG_PEEK`, from `SO_PEEK_OFF` on): who waits for a message
//! gets it as if nobody had looked.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};

use super::descriptors::{Descriptor, is_dmabuf, sockets};
use crate::context::device::identify;
use crate::context::registry::state::DmabufId;

/// Most descriptors in one message (`SCM_MAX_FD`).
const MOST: usize = 253;
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
        let is_unix =
            sockopt::socket_domain(socket.borrow()).is_ok_and(|domain| domain == AddressFamily::UNIX);
        let dmabuf = if is_unix { first_in(socket.borrow())? } else { return None };
        Some(InFlight { socket: socket.number, dmabuf })
    };
    Ok(sockets()?.into_iter().filter_map(look).collect())
}

/// Where the socket peeks from; none if it cannot be told to.
fn peek_offset(socket: BorrowedFd<'_>) -> Option<i32> {
    let mut offset = -1i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into a local of that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw mut offset).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(offset)
}

fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> bool {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of a local of that size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            length,
        )
    };
    result == 0
}

fn first_in(socket: BorrowedFd<'_>) -> Option<DmabufId> {
    let before = peek_offset(socket)?;
    if !set_peek_offset(socket, 0) {
        return None;
    }
    let mut bytes = vec![0; PIECE];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let found = loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        // A listening socket, the end of a connection, or of the queue.
        let Ok(received) = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) else {
            break None;
        };
        let dmabuf = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.find_map(|file| dmabuf_of(file.as_fd())),
            _ => None,
        });
        if dmabuf.is_some() || received.bytes == 0 {
            break dmabuf;
        }
    };
    set_peek_offset(socket, before);
    found
}

fn dmabuf_of(file: BorrowedFd<'_>) -> Option<DmabufId> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    if name.to_str().is_some_and(is_dmabuf) { identify(file).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn send(on: impl AsFd, bytes: &[u8], file: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(on, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    fn on(socket: &impl AsRawFd) -> Vec<DmabufId> {
        let found = in_flight().unwrap();
        found.iter().filter(|f| f.socket == socket.as_raw_fd()).map(|f| f.dmabuf).collect()
    }

    #[test]
    fn dmabuf_behind_other_messages_is_found_and_nothing_is_taken() {
        let memory = memfd_create("softgpu:gtt:7", MemfdFlags::CLOEXEC).unwrap();
        let other = memfd_create("harmless", MemfdFlags::CLOEXEC).unwrap();
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
