// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memfd behind a buffer object, and the meaning of its name and inode.
//!
//! INVARIANT: every memfd that is sent to a client is sealed against shrinking, so that an access through a mapping
//! cannot raise SIGBUS on either side; only [`out_of_reach`] is there to raise it, and this side never maps that. The inode
//! identifies the buffer: a DMABuf is a duplicate of the same file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use kfd::linux;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::stat::{Mode, fstat};

use crate::names;

/// What identifies a file while a descriptor of it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// That of a memory of the client's, which may have a file in common with others: no file has device 0 and this
    /// number.
    pub(super) fn of_client(number: u64) -> Self {
        Self { device: 0, inode: number }
    }

    /// The number of a memory of the client's.
    pub(super) fn client_number(self) -> Option<u64> {
        (self.device == 0).then_some(self.inode)
    }
}

/// Creates a zero-filled memfd of `bytes`, sealed in size, with a name that begins with `name` and is its own.
///
/// # Errors
/// `ENOMEM` when there is no memory of this size. Also `EMFILE` and `ENFILE`, which KFD does not answer, since there a
/// buffer needs no descriptor: `ENOMEM` would be misleading for them.
pub(super) fn create(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    names::unique(name).and_then(|name| linux::memfd(&name, bytes, seals)).map_err(|errno| match errno {
        Errno::EMFILE | Errno::ENFILE => errno,
        _ => Errno::ENOMEM,
    })
}

/// A file that can be mapped and has no byte: every access through a mapping raises SIGBUS.
///
/// # Errors
/// As [`create`].
pub(super) fn out_of_reach() -> Result<OwnedFd, Errno> {
    create("softgpu:out-of-reach", 0)
}

/// The identity of an open file.
///
/// # Errors
/// The errno of `fstat`.
pub(super) fn identity(fd: BorrowedFd<'_>) -> Result<Identity, Errno> {
    let stat = fstat(fd)?;
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// Bytes of a memfd that cannot shrink; `None` for every other file.
pub(crate) fn sealed_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let seals = linux::seals(fd).ok()?;
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        return None;
    }
    u64::try_from(fstat(fd).ok()?.st_size).ok()
}

/// Whether the file is a memfd that is sealed against writing, now or for future mappings.
pub(super) fn is_write_sealed(fd: BorrowedFd<'_>) -> bool {
    linux::seals(fd)
        .is_ok_and(|seals| seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE))
}

/// Whether the descriptor cannot write.
pub(super) fn is_read_only(fd: BorrowedFd<'_>) -> bool {
    let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDONLY)
}

/// Another descriptor of the same file, close-on-exec.
///
/// # Errors
/// `EMFILE`.
pub(super) fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    linux::duplicate(fd)
}

/// A descriptor of the same file that can be written, and counts as one ([`linux::has_writer`]).
///
/// # Errors
/// The errno of opening `/proc/self/fd`.
pub(super) fn reopen_writable(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    reopen(fd, OFlag::O_RDWR)
}

/// A descriptor of the same file that cannot be mapped for writing.
///
/// # Errors
/// The errno of opening `/proc/self/fd`.
pub(super) fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    reopen(fd, OFlag::O_RDONLY)
}

fn reopen(fd: BorrowedFd<'_>, mode: OFlag) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path.as_str(), mode | OFlag::O_CLOEXEC, Mode::empty())
}
