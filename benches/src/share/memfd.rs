// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of a shared buffer: a memfd, mapped, touched and sent by nobody but the kernel; and the same touch for buffers.
//!
//! INVARIANT: a fresh memfd has no pages, and a fresh mapping no page table; the first touch of each page costs a fault.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Result, ensure};
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::unistd::ftruncate;
use stasis::Buffer;

const PAGE: usize = 4096;
/// Most descriptors in a message of [`send`].
pub const MOST: usize = 128;

/// A memfd of so many bytes.
pub fn create(bytes: usize) -> Result<OwnedFd> {
    let file = memfd_create(c"stasis-bench", MFdFlags::MFD_CLOEXEC)?;
    ftruncate(&file, bytes.try_into()?)?;
    Ok(file)
}

/// A memfd in this process's memory.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    /// Maps all of it.
    pub fn new(file: impl AsFd, bytes: usize) -> Result<Self> {
        Ok(Self(MmapOptions::new().len(bytes).map_raw(file.as_fd().as_raw_fd())?))
    }

    /// Writes a byte into each page.
    pub fn touch(&mut self) {
        // SAFETY: the owner keeps so many bytes mapped, and gives out no reference to them.
        unsafe { touch(self.0.as_mut_ptr(), self.0.len()) }
    }
}

/// # Safety
/// So many bytes from there on are mapped, and nobody has references to them.
unsafe fn touch(start: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(PAGE) {
        // SAFETY: within the mapping.
        unsafe { start.add(at).write_volatile(1) }
    }
}

/// Writes a byte into each page of a buffer that the CPU sees.
pub fn touch_buffer(buffer: &Buffer) -> Result<()> {
    let guard = buffer.host()?;
    // CAST: 64 MiB at most.
    // SAFETY: the guard keeps the memory mapped; nobody has references into it.
    unsafe { touch(guard.as_ptr(), buffer.len() as usize) }
    Ok(())
}

/// Sends descriptors with a byte.
pub fn send(socket: impl AsFd, files: &[OwnedFd]) -> Result<()> {
    ensure!(files.len() <= MOST, "{} descriptors do not fit", files.len());
    let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let socket = socket.as_fd().as_raw_fd();
    sendmsg::<()>(socket, &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives what [`send`] has sent.
pub fn receive(socket: impl AsFd) -> Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([RawFd; MOST]);
    let socket = socket.as_fd().as_raw_fd();
    let received = recvmsg::<()>(socket, &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let rights = |message| match message {
        ControlMessageOwned::ScmRights(rights) => Some(rights),
        _ => None,
    };
    // SAFETY: the kernel has made these descriptors for the message, and nothing else knows of them.
    let owned = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    let files = received.cmsgs()?.filter_map(rights).flatten().map(owned).collect();
    ensure!(received.bytes == 1, "the other process has gone");
    Ok(files)
}
