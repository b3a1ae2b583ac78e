// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file of the software device, with the descriptor that identifies it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, ProtFlags, madvise};

use super::remote::{DeviceMemory, RemoteFile};
use super::session::Session;
use crate::transport::doorbell::ParkedPage;
use crate::transport::{DoorbellSlice, File, map_fixed};

/// An open file.
#[derive(Debug)]
pub(super) struct SoftFile {
    path: PathBuf,
    remote: RemoteFile,
    token: OwnedFd,
}

impl SoftFile {
    pub fn new(path: &Path, number: u64, token: OwnedFd, session: Arc<Session>) -> Self {
        Self { path: path.to_owned(), remote: RemoteFile::new(path, number, session), token }
    }

    /// Maps memory of the device at `at`.
    ///
    /// # Safety
    /// As for [`map_fixed`].
    unsafe fn map(
        &self,
        at: *mut u8,
        len: usize,
        prot: ProtFlags,
        offset: u64,
    ) -> Result<DeviceMemory, Errno> {
        let memory = self.remote.memory(len as u64, prot, offset)?;
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        unsafe { map_fixed(memory.fd.as_fd(), at, len, prot, memory.offset)? };
        Ok(memory)
    }
}

impl File for SoftFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.token.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the caller's promise is that of this call.
        unsafe { self.remote.ioctl(cmd, arg) }
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        unsafe { self.map(at, len, prot, offset) }.map(drop)
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno> {
        DoorbellSlice::check(at, len)?;
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        let memory = unsafe { self.map(at, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, offset)? };
        let start = NonNull::new(at).ok_or(Errno::EINVAL)?.cast();
        // KFD marks doorbells VM_DONTCOPY: a forked child must not ring its parent's queues.
        // SAFETY: the range was mapped just now, and the advice changes nothing for this process.
        unsafe { madvise(start, len, MmapAdvise::MADV_DONTFORK)? };
        let parked = memory.parked.as_ref().ok_or(Errno::EPROTO).and_then(ParkedPage::map)?;
        // SAFETY: the range was mapped writable above, and the caller keeps it so while a doorbell is rung.
        unsafe { DoorbellSlice::new(at, len, Some(parked)) }
    }
}
