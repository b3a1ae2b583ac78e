// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software device for a library that answers a program's system calls: the program's descriptors are the only ones
//! that stay open between calls, and no memory is mapped but by the program.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;
use nix::sys::stat::fstat;

use super::address::Address;
use super::fork::{Fork, on_own_stack};
use super::remote::{DeviceMemory, RemoteFile};
use super::session::Channels;
use super::sessions::Sessions;
use super::start::Start;
use super::userptr;
use crate::transport::OpenError;
use crate::transport::gate::Gate;
use crate::transport::wire::{Reply, Request, WireError};

/// The device of one process. A forked child has a device of its own, from its first [`Interposed::open`] on; the files
/// that its parent opened answer EBADF there, as KFD's do.
#[derive(Debug)]
pub struct Interposed {
    sessions: Sessions,
}

/// An open file of the device. The descriptor that came with it is the caller's.
#[derive(Clone, Debug)]
pub struct InterposedFile {
    remote: RemoteFile,
    /// Device and inode of the descriptor when the file was opened.
    identity: (u64, u64),
    /// How often this process had been restored then.
    generation: u32,
}

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
        // Without a session nobody has closed a gate: the device says itself that it is busy.
        let known = self.sessions.current();
        let _inside = known.as_ref().and_then(|session| session.enter());
        let (session, reply, fds) = self.sessions.exchange("open", &request, &[])?;
        let mut fds = fds.into_iter();
        let (Reply::Opened { file }, Some(token), Some(gate)) = (reply, fds.next(), fds.next()) else {
            return Err(OpenError::Wire { what: "open", source: WireError::UnexpectedReply });
        };
        let failed =
            |call| move |errno| OpenError::Wire { what: "open", source: WireError::System { call, errno } };
        session.set_gate(&gate).map_err(failed("mapping the gate"))?;
        let status = fstat(&token).map_err(failed("fstat"))?;
        let file = InterposedFile {
            identity: (status.st_dev, status.st_ino),
            generation: session.gate().map_or(0, Gate::generation),
            remote: RemoteFile::new(path, file, session),
        };
        Ok((file, token))
    }

    /// Calls a function that forks this process, on a stack that parent and child do not share.
    ///
    /// # Errors
    /// ENOMEM if there is no room for a stack.
    pub fn fork<R>(&self, call: impl FnOnce() -> R) -> Result<R, Errno> {
        let session = self.sessions.current();
        on_own_stack(|range| session.as_ref().is_some_and(|it| it.lent.lock().has_page_of(range)), call)
    }

    /// Whether pages of a range may be lent to a device of this process. Takes no lock and leaves errno alone.
    #[must_use]
    pub fn may_have_lent(range: &Range<usize>) -> bool {
        userptr::has_page_of(range)
    }

    /// Does `call`, which unmaps a range of whole pages or maps something else there. If it has `succeeded`, the objects
    /// that have lent pages there are taken from the GPUs, and shared virtual memory ends there: accesses fault, as on a machine
    /// whose driver finds no pages.
    pub fn unmap<R>(
        &self,
        range: &Range<usize>,
        call: impl FnOnce() -> R,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> R {
        let Some(session) = self.sessions.current().filter(|session| session.is_ours()) else {
            return call();
        };
        let _inside = session.enter();
        // During the call, so that nobody lends a page there which is then taken for one that is gone.
        let mut lent = session.lent.lock();
        let result = call();
        if succeeded(&result) {
            session.tell_gone(&lent.forget(range));
        }
        result
    }

    /// Takes lent pages of a range back, and from the GPUs what has them, before they are moved to other addresses.
    ///
    /// # Errors
    /// The errno of a failing call; some pages stay shared with the device then.
    pub fn withdraw(&self, range: &Range<usize>) -> Result<(), Errno> {
        let Some(session) = self.sessions.current().filter(|session| session.is_ours()) else {
            return Ok(());
        };
        let _inside = session.enter();
        let mut lent = session.lent.lock();
        let forgotten = lent.forget(range);
        // First, so that no store of a GPU comes behind the copy.
        session.tell_gone(&forgotten);
        forgotten.take_back()
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
    /// Whether a descriptor that shows this device and inode names the file. After a restore descriptors show others than when
    /// they were opened.
    #[must_use]
    pub fn is(&self, device: u64, inode: u64) -> bool {
        let gate = self.remote.session().gate();
        match gate.filter(|gate| gate.generation() != self.generation) {
            None => self.identity == (device, inode),
            Some(gate) => gate.number_of(device, inode) == Some(self.remote.number()),
        }
    }

    /// Issues one ioctl.
    ///
    /// # Errors
    /// As [`crate::transport::File::ioctl`].
    ///
    /// # Safety
    /// As for [`crate::transport::File::ioctl`].
    pub unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the caller's promise is that of this call.
        unsafe { self.remote.ioctl(cmd, arg) }
    }

    /// The memory that `mmap` of the file would map.
    ///
    /// # Errors
    /// The errno of the driver's mmap; ENODEV if the device is gone, EBADF in a forked child.
    pub fn memory(&self, length: u64, prot: ProtFlags, offset: u64) -> Result<DeviceMemory, Errno> {
        self.remote.memory(length, prot, offset)
    }

    /// Has the device notice stores to doorbells, which the cookie `offset` names and which were mapped at `range`, by
    /// themselves. Where the system allows it, the pages are protected while the device sleeps, and the first store waits
    /// until it is awake; else it sleeps for short times only.
    ///
    /// # Errors
    /// The device's errno, or that of the connection.
    pub fn expect_stores(&self, offset: u64, range: &Range<u64>) -> Result<(), Errno> {
        self.remote.expect_stores(offset, range)
    }
}
