// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between the driver and the hardware: what the driver asks of a GPU, and the interrupts that a GPU raises.
//!
//! The driver validates everything before it calls [`Hardware`]; the hardware trusts no *memory* it reads through
//! those addresses. Calls never hold a driver lock that an [`Interrupts`] callback needs.

use std::os::fd::{BorrowedFd, OwnedFd};

use kfd::userfault::WatchedPages;
use nix::errno::Errno;
use queues::aql::ExceptionCode;
use serde::{Deserialize, Serialize};

/// What a GPU page-table entry allows (KFD ALLOC flags, `AMDGPU_VM_PAGE_*` of GEM_VA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAccess {
    /// `AMDGPU_VM_PAGE_READABLE`; KFD's own mappings can always be read.
    pub read: bool,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE`, `AMDGPU_VM_PAGE_WRITEABLE`.
    pub write: bool,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE`, `AMDGPU_VM_PAGE_EXECUTABLE`.
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
pub enum HwQueueKind {
    /// PM4 compute.
    Compute,
    /// AQL compute.
    Aql,
    /// System DMA.
    Sdma,
}

/// A queue as the driver describes it to the hardware (the MQD's user-visible part).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwQueue {
    /// Process-wide queue id.
    pub id: u32,
    /// Packet language of the ring.
    pub kind: HwQueueKind,
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
    /// Control stack bytes of one XCC.
    pub control_stack_bytes: u32,
    /// KFD priority 0..=15.
    pub priority: u32,
}

impl HwQueue {
    /// The queue with the save area of one XCC (`init_mqd_v9_4_3`); `None` behind the end of the address space.
    #[must_use]
    pub fn of_xcc(&self, xcc: usize) -> Option<Self> {
        let before = u64::try_from(xcc).ok()?.checked_mul(u64::from(self.cwsr_bytes))?;
        Some(Self { cwsr_va: self.cwsr_va.checked_add(before)?, ..*self })
    }
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

/// Bytes of a queue's memory descriptor (`v11_compute_mqd`).
pub const MQD_BYTES: usize = 2048;

/// A queue's memory queue descriptors, one for each XCC: all that the hardware knows of a queue that is off it, beside the
/// queue's buffers. The driver keeps them, moves them, and looks only at the fields below; the words behind dword 256 are
/// the firmware's own. All zero means a queue that has never run.
///
/// Where no XCC is named, the first one's descriptor is meant, which is the only one on most chips.
#[derive(Clone, PartialEq, Eq)]
pub struct Mqd {
    first: [u8; MQD_BYTES],
    further: Vec<[u8; MQD_BYTES]>,
}

/// Dword offsets of `v11_compute_mqd` that the driver reads (`v11_structs.h`).
pub mod mqd_field {
    /// Offset of the used control stack in the save area, bytes; it ends at [`CONTROL_STACK_SIZE`].
    pub const CONTROL_STACK_OFFSET: usize = 174;
    /// `ctl_stack_size`.
    pub const CONTROL_STACK_SIZE: usize = 175;
    /// End of the wave records in the save area, bytes; they begin at [`CONTROL_STACK_SIZE`].
    pub const WAVE_STATE_OFFSET: usize = 176;
    /// Bytes of one XCC's save area.
    pub const SAVE_AREA_SIZE: usize = 177;
    /// First dword that only the firmware reads.
    pub const FIRMWARE: usize = 256;
}

impl Default for Mqd {
    fn default() -> Self {
        Self { first: [0; MQD_BYTES], further: Vec::new() }
    }
}

impl std::fmt::Debug for Mqd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mqd").field("waves", &self.waves()).finish_non_exhaustive()
    }
}

impl Mqd {
    /// Descriptors for so many XCCs, at least one, all zero.
    #[must_use]
    pub fn with_xccs(xccs: usize) -> Self {
        Self { further: vec![[0; MQD_BYTES]; xccs.saturating_sub(1)], ..Self::default() }
    }

    /// Takes a descriptor's bytes; missing ones are zero (an SDMA descriptor has 512), further ones are ignored.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut mqd = Self::default();
        mqd.set_bytes(0, bytes);
        mqd
    }

    /// Takes the bytes of one XCC's descriptor, as [`Mqd::from_bytes`] does; nothing happens if there is no such XCC.
    pub fn set_bytes(&mut self, xcc: usize, bytes: &[u8]) {
        let places = self.part_mut(xcc).into_iter().flatten();
        places.zip(bytes).for_each(|(place, byte)| *place = *byte);
    }

    /// How many XCCs it has descriptors for.
    #[must_use]
    pub fn xccs(&self) -> usize {
        1 + self.further.len()
    }

    /// The bytes of each XCC's descriptor, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8; MQD_BYTES]> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// The first XCC's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; MQD_BYTES] {
        &self.first
    }

    fn part(&self, xcc: usize) -> Option<&[u8; MQD_BYTES]> {
        if xcc == 0 { Some(&self.first) } else { self.further.get(xcc - 1) }
    }

    fn part_mut(&mut self, xcc: usize) -> Option<&mut [u8; MQD_BYTES]> {
        if xcc == 0 { Some(&mut self.first) } else { self.further.get_mut(xcc - 1) }
    }

    /// A dword; 0 beyond the end.
    #[must_use]
    pub fn word(&self, index: usize) -> u32 {
        self.word_of(0, index)
    }

    /// A dword of an XCC's descriptor; 0 beyond the end.
    #[must_use]
    pub fn word_of(&self, xcc: usize, index: usize) -> u32 {
        let word = self.part(xcc).and_then(|part| part.as_chunks::<4>().0.get(index));
        word.copied().map_or(0, u32::from_le_bytes)
    }

    /// Sets a dword; nothing happens beyond the end.
    pub fn set_word(&mut self, index: usize, value: u32) {
        self.set_word_of(0, index, value);
    }

    /// Sets a dword of an XCC's descriptor; nothing happens beyond the end.
    pub fn set_word_of(&mut self, xcc: usize, index: usize, value: u32) {
        if let Some(place) = self.part_mut(xcc).and_then(|part| part.as_chunks_mut::<4>().0.get_mut(index)) {
            *place = value.to_le_bytes();
        }
    }

    /// What the save area holds, as the fields of `kfd_device_queue_manager.c:get_wave_state` say.
    #[must_use]
    pub fn waves(&self) -> SavedWaves {
        self.waves_of(0)
    }

    /// What an XCC's save area holds.
    #[must_use]
    pub fn waves_of(&self, xcc: usize) -> SavedWaves {
        let stack_offset = self.word_of(xcc, mqd_field::CONTROL_STACK_OFFSET);
        let stack_bytes = self.word_of(xcc, mqd_field::CONTROL_STACK_SIZE);
        let wave_offset = self.word_of(xcc, mqd_field::WAVE_STATE_OFFSET);
        SavedWaves {
            control_stack_offset: stack_offset,
            control_stack_bytes: stack_bytes.saturating_sub(stack_offset),
            wave_state_offset: wave_offset,
            wave_state_bytes: wave_offset.saturating_sub(stack_bytes),
        }
    }
}

/// A VM fault as the interrupt tells of it: bits 3 to 6 of its ring id, which are the field `PERMISSION_FAULTS` of
/// `GCVM_L2_PROTECTION_FAULT_STATUS`. On all of gfx9 to gfx12 a store to memory that is not mapped has both the valid
/// and the write bit: ring 173 with permission faults 5 in the kernel log of a gfx12, "page not present; write access
/// to a read-only page" from ROCr's debug agent on a gfx906.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmFault {
    /// Faulting address (the event carries its page).
    pub address: u64,
    /// What the page table entry does not allow: [`VmFault::VALID`] and others.
    pub permission_faults: u8,
}

impl VmFault {
    /// There is no valid entry.
    pub const VALID: u8 = 1;
    /// It was a load.
    pub const READ: u8 = 2;
    /// It was a store or an atomic.
    pub const WRITE: u8 = 4;
    /// It was an instruction fetch.
    pub const EXECUTE: u8 = 8;
}

/// The GPUs of one client process, as its driver sees them. `gpu` counts GPU nodes from 0.
pub trait Hardware: Send + Sync {
    /// Enters a mapping into the GPU's page tables.
    ///
    /// # Errors
    /// `EINVAL` when the range overlaps another mapping or cannot be had, `ENOMEM` when the host is out of memory.
    fn map(&self, gpu: usize, mapping: &GpuMapping<'_>) -> Result<(), Errno>;

    /// Removes a mapping, or a part of one; returns once no wave can touch it any more.
    fn unmap(&self, gpu: usize, va: u64, bytes: u64);

    /// Changes what is allowed in a range that is mapped whole, without a moment in which it is not; returns once no
    /// wave acts under the old permission any more.
    fn protect(&self, gpu: usize, va: u64, bytes: u64, access: PageAccess);

    /// Sets the client's trap handler of a GPU: the addresses of its code, 0 for none, and of its memory (the second-level
    /// TBA and TMA, which the driver's handler reads at each trap).
    fn set_trap_handler(&self, gpu: usize, code: u64, data: u64);

    /// Puts a queue on the hardware in the state that `mqd` and the queue's save area hold, which is all that is left
    /// of an earlier run; a default `mqd` is a new queue at read pointer 0.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when this hardware does not execute what is in it, `EIO` when its memory is not mapped, `EINVAL`
    /// when `mqd` is none of this hardware's, `EBUSY` when a queue of this id is on the hardware.
    fn start_queue(&self, gpu: usize, queue: &HwQueue, mqd: &Mqd) -> Result<(), Errno>;

    /// Takes a queue off the hardware, saves its waves into its save area, and forgets it. Returns once it is off; the
    /// answer is what a later `start_queue` needs. Of an id that is not on the hardware, `None`.
    ///
    /// # Errors
    /// `ETIME` when its waves do not stop: the GPU hangs, which it has reported ([`Interrupts::hang`]); the queue is
    /// lost.
    fn stop_queue(&self, gpu: usize, id: u32) -> Result<Option<Box<Mqd>>, Errno>;

    /// Forgets a queue that is on the hardware; whatever it was running is abandoned. Waits until it is off.
    fn destroy_queue(&self, gpu: usize, id: u32);

    /// The doorbell slice of this process on a GPU (8192 B, one u64 a slot) and the page holding its parked word.
    ///
    /// # Errors
    /// `ENOMEM` when it cannot be made.
    fn doorbells(&self, gpu: usize) -> Result<(OwnedFd, OwnedFd), Errno>;

    /// From now on the client rings its doorbells on a GPU by stores alone. `pages` is its mapping of the slice, if stores
    /// to it can be awaited.
    ///
    /// # Errors
    /// `EAGAIN` when there is no thread to await them.
    fn expect_stores(&self, gpu: usize, pages: Option<WatchedPages>) -> Result<(), Errno>;

    /// The page with the register that flushes the GPU's host data path (HDP).
    ///
    /// # Errors
    /// `EMFILE` when there is no descriptor for it.
    fn hdp_page(&self, gpu: usize) -> Result<OwnedFd, Errno>;

    /// Memory of the GPU that the host sees through the PCI aperture was made: what the host stores there waits in the HDP.
    /// `code` is memory that can be executed.
    fn hold_host_writes(&self, gpu: usize, memory: BorrowedFd<'_>, code: bool);

    /// Memory of the GPU was given to other processes, whose flushes count as well.
    fn release_host_writes(&self, gpu: usize, memory: BorrowedFd<'_>);

    /// Has everything arrive in memory that the host stored and a GPU does not see yet. No queue may be on the hardware.
    fn settle_host_writes(&self);

    /// Clock counter of a GPU in ticks of [`CLOCK_HZ`].
    fn clock(&self, gpu: usize) -> u64;
}

/// Frequency of the GPU clock counter, Hz (gfx11: 100 MHz, `gpu_counter_freq`).
pub const CLOCK_HZ: u64 = 100_000_000;

/// Interrupts a GPU raises; the driver turns them into events (`kfd_events.c`).
pub trait Interrupts: Send + Sync {
    /// End-of-pipe interrupt with this context id; the mailbox slot was written before.
    fn end_of_pipe(&self, event_id: u32);

    /// VM fault on a GPU. The hardware has halted the waves of the queue that caused it.
    fn memory_fault(&self, gpu: usize, fault: VmFault);

    /// The hardware scheduler could not preempt a queue: the GPU hangs, and every queue on it is lost with the reset.
    fn hang(&self, gpu: usize);

    /// A wave sent a message with this M0; `privileged`: with `STATUS.PRIV`, as trap handlers do.
    fn wave_message(&self, gpu: usize, m0: u32, privileged: bool);

    /// The processor of a queue raised an exception and halted the queue.
    fn queue_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode);
}
