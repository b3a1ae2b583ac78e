// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of a shared buffer: a memfd, mapped, touched and sent by nobody but the kernel; and the same touch for buffers.
//!
//! INVARIANT: a fresh memfd has no pages, and a fresh mapping no page table; the first touch of each page costs a fault.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use stasis::Buffer;

const PAGE: usize = 4096;
/// Most descriptors in a message of [`send`].
pub const MOST: usize = 128;

/// A memfd of so many bytes.
pub fn create(bytes: usize) -> Result<OwnedFd> {
    let file = memfd_create(c"stasis-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// A memfd in this process's memory.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps all of it.
    pub fn new(file: impl AsFd, bytes: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) }?;
        Ok(Self { start: NonNull::new(start.cast()).context("memory at 0")?, bytes })
    }

    /// Writes a byte into each page.
    pub fn touch(&mut self) {
        // SAFETY: our mapping, borrowed uniquely.
        unsafe { touch(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and no borrow is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
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
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&files)), "{} descriptors do not fit", files.len());
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send`] has sent.
pub fn receive(socket: impl AsFd) -> Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    ensure!(received.bytes == 1, "the other process has gone");
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    };
    Ok(control.drain().filter_map(rights).flatten().collect())
}
