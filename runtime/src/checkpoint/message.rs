// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages with open files beside them (`SCM_RIGHTS`, unix(7)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kfd::linux::{receive_message, retry, send_message};
use nix::Result;
use nix::errno::Errno;
use nix::sys::socket::MsgFlags;

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Most files beside one message: one render node a GPU, and the image.
pub(super) const MAX_FILES: usize = 64;

/// Sends a message, with duplicates of `files` beside it.
///
/// # Errors
/// As sendmsg(2); `EINVAL` for too many files.
pub(super) fn send(socket: &OwnedFd, text: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
    if files.len() > MAX_FILES {
        return Err(Errno::EINVAL);
    }
    retry(|| send_message(socket.as_fd(), text, files, MsgFlags::MSG_NOSIGNAL)).map(drop)
}

/// The length of the next message, 0 at the end, and the files beside it: all or, where this process has no descriptors left, none.
///
/// # Errors
/// As recvmsg(2).
pub(super) fn receive(socket: &OwnedFd, text: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut received = retry(|| receive_message(socket.as_fd(), text, MAX_FILES, MsgFlags::empty()))?;
    if received.flags.contains(MsgFlags::MSG_CTRUNC) {
        tracing::warn!(target: "checkpoint", "files beside a message were dropped: no descriptors are left (ulimit -n)");
        received.fds.clear();
    }
    Ok((received.bytes, received.fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    #[test]
    fn message_arrives_with_its_files_in_order_and_without() {
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (one, other) = pair().unwrap();
        let file = |name| memfd_create(name, MFdFlags::MFD_CLOEXEC).unwrap();
        let files: Vec<_> = ["a", "b"].into_iter().map(file).collect();
        let inode = |file: &OwnedFd| nix::sys::stat::fstat(file).unwrap().st_ino;
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&one, b"with", &borrowed).unwrap();
        send(&one, b"none", &[]).unwrap();
        drop(one);
        let mut text = [0; 8];
        let (length, found) = receive(&other, &mut text).unwrap();
        assert_eq!((&text[..length], found.len()), (&b"with"[..], 2));
        assert!(found.iter().zip(&files).all(|(found, file)| inode(found) == inode(file)));
        let (length, found) = receive(&other, &mut text).unwrap();
        assert_eq!((&text[..length], found.len()), (&b"none"[..], 0));
        assert_eq!(receive(&other, &mut text).unwrap().0, 0);
        let many: Vec<_> = (0..=MAX_FILES).map(|_| files[0].as_fd()).collect();
        assert_eq!(send(&other, b"many", &many), Err(Errno::EINVAL));
    }
}
