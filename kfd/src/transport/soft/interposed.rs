// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software device for a library that answers a program's system calls: the program's descriptors are the only ones
//! that stay open between calls, and no memory is mapped but by the program.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;

use super::address::Address;
use super::fork::{Fork, on_own_stack};
use super::remote::{DeviceMemory, RemoteFile};
use super::session::Channels;
use super::sessions::Sessions;
use super::start::Start;
use crate::transport::OpenError;
use crate::transport::wire::{Reply, Request, WireError};
use crate::userfault;

/// The device of one process. A forked child has a device of its own, from its first [`Interposed::open`] on; the files
/// that its parent opened answer EBADF there, as KFD's do.
#[derive(Debug)]
pub struct Interposed {
    sessions: Sessions,
}

/// An open file of the device. The descriptor that came with it is the caller's.
#[derive(Clone, Debug)]
pub struct InterposedFile(RemoteFile);

impl Interposed {
    /// The device that serves `devices` on the abstract socket `name` (without the leading zero byte). Neither
    /// connects to it nor starts it.
    #[must_use]
    pub fn new(name: &str, devices: &str) -> Self {
        let address = Address { name: name.to_owned(), devices: devices.to_owned(), start: Start::Never };
        Self { sessions: Sessions::new(address, Channels::Closed) }
    }

    /// Opens a device file; the descriptor, close-on-exec, is a memfd whose inode names the open file.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Refused`] has the driver's errno.
    pub fn open(&self, path: &Path) -> Result<(InterposedFile, OwnedFd), OpenError> {
        let request = Request::Open { path: path.to_string_lossy().into_owned() };
        let (session, reply, fds) = self.sessions.exchange("open", &request, &[])?;
        match (reply, fds.into_iter().next()) {
            (Reply::Opened { file }, Some(token)) => {
                Ok((InterposedFile(RemoteFile::new(path, file, session)), token))
            }
            _ => Err(OpenError::Wire { what: "open", source: WireError::UnexpectedReply }),
        }
    }

    /// Calls a function that forks this process, on a stack that parent and child do not share.
    ///
    /// # Errors
    /// ENOMEM if there is no room for a stack.
    pub fn fork<R>(&self, call: impl FnOnce() -> R) -> Result<R, Errno> {
        let session = self.sessions.current();
        on_own_stack(|range| session.as_ref().is_some_and(|it| it.lent.lock().has_page_of(range)), call)
    }

    /// Begins a fork of this process, in the thread that forks; none if no device was opened. Until it has ended no pages are
    /// lent nor taken back.
    #[must_use]
    pub fn begin_fork(&self) -> Option<Fork> {
        Some(Fork::new(self.sessions.current()?.lent.lock_arc()))
    }
}

#[allow(unsafe_code)] // Passes a caller's promise on.
impl InterposedFile {
    /// Issues one ioctl.
    ///
    /// # Errors
    /// As [`crate::transport::File::ioctl`].
    ///
    /// # Safety
    /// As for [`crate::transport::File::ioctl`].
    pub unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the caller's promise is that of this call.
        unsafe { self.0.ioctl(cmd, arg) }
    }

    /// The memory that `mmap` of the file would map.
    ///
    /// # Errors
    /// The errno of the driver's mmap; ENODEV if the device is gone, EBADF in a forked child.
    pub fn memory(&self, length: u64, prot: ProtFlags, offset: u64) -> Result<DeviceMemory, Errno> {
        self.0.memory(length, prot, offset)
    }

    /// Has the device notice stores to doorbells, which the cookie `offset` names and which were mapped at `range`, by
    /// themselves. Where the system allows it, the pages are protected while the device sleeps, and the first store waits
    /// until it is awake; else it sleeps for short times only.
    ///
    /// # Errors
    /// The device's errno, or that of the connection.
    pub fn expect_stores(&self, offset: u64, range: &Range<u64>) -> Result<(), Errno> {
        self.0.expect_stores(offset, range, userfault::watch(range).ok().as_ref())
    }
}
