// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages with open files beside them (`SCM_RIGHTS`, unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Most files beside one message: one render node a GPU, and the image.
pub(super) const MAX_FILES: usize = 64;

/// Sends a message, with duplicates of `files` beside it.
///
/// # Errors
/// As sendmsg(2); `EINVAL` for too many files.
pub(super) fn send(socket: &OwnedFd, text: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let is_taken = files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files));
    if files.len() > MAX_FILES || !is_taken {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// The length of the next message, 0 at the end, and the files beside it.
///
/// # Errors
/// As recvmsg(2).
pub(super) fn receive(socket: &OwnedFd, text: &mut [u8], flags: RecvFlags) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(text)];
        match recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    Ok((received.bytes, files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn message_arrives_with_its_files_in_order_and_without() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = pair().unwrap();
        let file = |name| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let files: Vec<_> = ["a", "b"].into_iter().map(file).collect();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&one, b"with", &borrowed).unwrap();
        send(&one, b"none", &[]).unwrap();
        drop(one);
        let mut text = [0; 8];
        let (length, found) = receive(&other, &mut text, RecvFlags::empty()).unwrap();
        assert_eq!((&text[..length], found.len()), (&b"with"[..], 2));
        assert!(found.iter().zip(&files).all(|(found, file)| inode(found) == inode(file)));
        let (length, found) = receive(&other, &mut text, RecvFlags::empty()).unwrap();
        assert_eq!((&text[..length], found.len()), (&b"none"[..], 0));
        assert_eq!(receive(&other, &mut text, RecvFlags::empty()).unwrap().0, 0);
        let many: Vec<_> = (0..=MAX_FILES).map(|_| files[0].as_fd()).collect();
        assert_eq!(send(&other, b"many", &many), Err(Errno::INVAL));
    }
}
