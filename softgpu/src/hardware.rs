// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam between the driver and the hardware: what the driver asks of a GPU, and what a GPU interrupts with.
//!
//! The driver validates everything before it calls [`Hardware`]; the hardware trusts no *memory* it reads through
//! those addresses. Calls never hold a driver lock that an [`Interrupts`] callback needs.

use std::os::fd::{BorrowedFd, OwnedFd};

use queues::aql::ExceptionCode;
use rustix::io::Errno;

/// What a GPU page-table entry allows beside reading (KFD ALLOC flags; read is always allowed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAccess {
    /// `KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE`.
    pub write: bool,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE`.
    pub execute: bool,
}

/// One mapping the driver enters into a GPU's page tables.
#[derive(Debug)]
pub struct GpuMapping<'a> {
    /// First GPU virtual address, 4 KiB aligned.
    pub va: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub bytes: u64,
    /// Permissions.
    pub access: PageAccess,
    /// The memory behind it.
    pub backing: BorrowedFd<'a>,
    /// Byte offset of the mapping in `backing`.
    pub offset: u64,
}

/// `KFD_IOC_QUEUE_TYPE_*`, narrowed to what a pipe can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// PM4 compute.
    Compute,
    /// AQL compute.
    Aql,
    /// System DMA.
    Sdma,
}

/// A queue as the hardware scheduler is told of it (the MQD's user-visible part).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwQueue {
    /// Process-wide queue id.
    pub id: u32,
    /// Packet language of the ring.
    pub kind: QueueKind,
    /// GPU VA of the ring.
    pub ring_va: u64,
    /// Ring length in bytes, a power of two.
    pub ring_bytes: u64,
    /// GPU VA of the read pointer the hardware publishes (u64; for AQL in packets).
    pub read_ptr_va: u64,
    /// GPU VA of the write pointer (u64; for AQL in packets).
    pub write_ptr_va: u64,
    /// Byte offset of the doorbell in the process's slice of this GPU.
    pub doorbell_offset: u32,
    /// GPU VA of the context save area.
    pub cwsr_va: u64,
    /// `ctx_save_restore_size`: bytes of one XCC's area.
    pub cwsr_bytes: u32,
    /// Control stack bytes.
    pub control_stack_bytes: u32,
    /// KFD priority 0..=15.
    pub priority: u32,
}

/// What stopping a queue leaves in its save area (`GET_QUEUE_WAVE_STATE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedWaves {
    /// Offset of the used part of the control stack from the area's start, bytes.
    pub control_stack_offset: u32,
    /// Used control stack bytes.
    pub control_stack_bytes: u32,
    /// End of the used wave area, offset from the area's start, bytes.
    pub wave_state_offset: u32,
    /// Used wave area bytes.
    pub wave_state_bytes: u32,
}

/// Memory fault as KFD reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault {
    /// Faulting address (the event carries its page).
    pub address: u64,
    /// No mapping there.
    pub not_present: bool,
    /// Mapped, but written without WRITABLE.
    pub read_only: bool,
    /// Mapped, but fetched without EXECUTABLE.
    pub no_execute: bool,
}

/// The GPUs of one client process, as its driver sees them. `gpu` counts GPU nodes from 0.
pub trait Hardware: Send + Sync {
    /// Enters a mapping into the GPU's page tables.
    ///
    /// # Errors
    /// `EINVAL` when the range overlaps another mapping or cannot be had, `ENOMEM` when the host is out of memory.
    fn map(&self, gpu: usize, mapping: &GpuMapping<'_>) -> Result<(), Errno>;

    /// Removes a mapping; returns once no wave can touch it any more.
    fn unmap(&self, gpu: usize, va: u64, bytes: u64);

    /// Puts a queue on the hardware (new, updated, or again after `stop_queue`).
    ///
    /// # Errors
    /// `EIO` when its memory is not mapped.
    fn start_queue(&self, gpu: usize, queue: &HwQueue) -> Result<(), Errno>;

    /// Takes a queue off the hardware and waits until it is off. Its state is kept for a later `start_queue`.
    fn stop_queue(&self, gpu: usize, id: u32) -> SavedWaves;

    /// Forgets a queue; whatever it was running is abandoned. Waits until it is off.
    fn destroy_queue(&self, gpu: usize, id: u32);

    /// The doorbell slice of this process on a GPU (8192 B, one u64 a slot) and the page holding its parked word.
    ///
    /// # Errors
    /// `ENOMEM` when it cannot be made.
    fn doorbells(&self, gpu: usize) -> Result<(OwnedFd, OwnedFd), Errno>;

    /// GPU clock counter in ticks of [`CLOCK_HZ`].
    fn clock(&self) -> u64;
}

/// Frequency of the GPU clock counter, Hz (gfx11: 100 MHz, `gpu_counter_freq`).
pub const CLOCK_HZ: u64 = 100_000_000;

/// Interrupts a GPU raises; the driver turns them into events (`kfd_events.c`).
pub trait Interrupts: Send + Sync {
    /// End-of-pipe interrupt with this context id; the mailbox slot was written before.
    fn end_of_pipe(&self, event_id: u32);

    /// VM fault on a GPU. The hardware has halted the waves of the queue that caused it.
    fn memory_fault(&self, gpu: usize, fault: MemoryFault);

    /// A queue raised an exception and halted.
    fn queue_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode);
}
