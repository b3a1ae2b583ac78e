// SPDX-License-Identifier: MIT OR Apache-2.0
//! The KFD driver of one client process: answers every ioctl and mmap as the modelled kernel ([`KernelModel`]) does,
//! and those ioctls of the render node that a compute process needs.
//!
//! INVARIANT: state belongs to the client process and not to its open files: it lives until the process ends, whatever
//! files the process closes (`amdkfd/kfd_process.c`). This module knows no sockets and no waves. It reaches the device
//! through [`Hardware`](crate::hardware::Hardware), and the client's memory and descriptors through the two traits
//! below.
//!
//! Lock order: `State` (handles, mappings, queues), then `EventState`, then the streams of SMI_EVENTS. Interrupts take only
//! the last two, so that the driver may stop hardware synchronously while it holds the first.

mod bo;
mod buffers;
mod criu;
mod cu_mask;
mod device;
mod dmabuf;
mod doorbells;
mod drm;
mod event_lock;
mod event_state;
mod events;
mod evict;
mod files;
mod handlers;
mod interrupts;
mod kernel;
pub mod ledger;
mod mapping;
mod memfd;
mod memory;
mod mmap;
mod notifier;
mod persist;
mod process;
mod queue_buffers;
mod queue_control;
mod queue_table;
mod queues;
mod shared;
mod smi;
mod svm;
mod typed;
mod vm;
mod wait;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;

use nix::errno::Errno;

pub use files::OpenFile;
pub use kernel::{KernelModel, KernelModelError};
pub use kfd::transport::wire::FdPlace;
pub use ledger::{Ledger, LedgerError, LedgerSlot};
pub(crate) use memfd::sealed_bytes;
pub use mmap::Mapped;
pub use persist::ProcessState;
pub use process::{Canceller, GpuSettings, KfdProcess, MemoryPolicy, ObjectCounts, ProcessOptions, Runtime};

/// The CPU's page size, which is also the GPU's smallest.
pub(crate) const PAGE: u64 = 4096;

/// First address above user memory (x86-64, four-level tables), the limit of `access_ok`.
const USER_LIMIT: u64 = 0x7fff_ffff_f000;

/// Who issues an ioctl (`amdkfd/kfd_chardev.c`: `kfd_ioctl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whether the caller is the process that opened the file; others get `EBADF`.
    pub same_process: bool,
    /// Whether the caller has `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN` in the initial user namespace.
    pub checkpoint_restore: bool,
}

impl Default for Caller {
    fn default() -> Self {
        Self { same_process: true, checkpoint_restore: false }
    }
}

/// The client's memory, for the pointers embedded in ioctl arguments.
pub trait UserMemory {
    /// Copies from the client.
    ///
    /// # Errors
    /// `EFAULT` when any byte of it cannot be read.
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno>;

    /// Copies to the client.
    ///
    /// # Errors
    /// `EFAULT` when any byte of it cannot be written.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Who issues the ioctl: unless overridden, the owner without capabilities.
    fn caller(&self) -> Caller {
        Caller::default()
    }
}

/// Some pages of a client, for a USERPTR allocation or a range of shared virtual memory.
#[derive(Debug)]
pub enum UserPages {
    /// In a memfd, which is sealed against shrinking, from offset 0.
    New {
        /// The memfd.
        fd: OwnedFd,
        /// How many bytes.
        bytes: u64,
        /// Whether the client itself may write them.
        writable: bool,
    },
    /// Where the range of shared virtual memory at their addresses has them; or nowhere, but the client has mapped them.
    Unchanged {
        /// How many bytes.
        bytes: u64,
    },
    /// Where another USERPTR allocation has them.
    Of {
        /// Its handle.
        handle: u64,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// File descriptors that travel with an ioctl.
pub trait FdTable {
    /// The descriptor that the client named at `place`; none if it was not open.
    fn take_in(&self, place: FdPlace) -> Option<OwnedFd>;

    /// The client's pages for a USERPTR allocation, from the page of `mmap_offset` on, or of a range of shared virtual
    /// memory; none if it has none there.
    fn pages(&self) -> Vec<UserPages>;

    /// Installs a descriptor in the client if the ioctl succeeds; its number goes to `place`.
    fn give_out(&self, place: FdPlace, fd: OwnedFd);
}

/// Whether the range lies in user addresses (`access_ok`). Whether pages are mapped there does not matter.
fn access_ok(address: u64, bytes: u64) -> bool {
    address.checked_add(bytes).is_some_and(|end| end <= USER_LIMIT)
}

/// Rounds up to whole pages; `None` when the result does not fit.
fn page_align(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

/// What a handler gets besides its argument struct.
struct Call<'a> {
    memory: &'a dyn UserMemory,
    fds: &'a dyn FdTable,
}

impl Call<'_> {
    /// Reads `count` little-endian u32 from the client.
    ///
    /// # Errors
    /// `EFAULT`, and `ENOMEM` for more than the kernel would allocate (4 MiB).
    fn read_u32s(&self, address: u64, count: u32) -> Result<Vec<u32>, Errno> {
        if count > 1 << 20 {
            return Err(Errno::ENOMEM);
        }
        let mut words = vec![0u32; count as usize];
        self.memory.read(address, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }
}
