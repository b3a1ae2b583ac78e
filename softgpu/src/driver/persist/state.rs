// SPDX-License-Identifier: MIT OR Apache-2.0
//! The saved state of a process.
//!
//! INVARIANT: objects refer to each other by index or number. What follows from other objects is not here: KFD's mappings
//! follow from the buffers and the GPUs that map them, doorbells and counts of queues from the queues.

use serde::{Deserialize, Serialize};

use crate::driver::bo::Domain;
use crate::driver::kernel::KernelModel;
use crate::driver::process::{GpuSettings, Runtime};
use crate::driver::queue_table::QueueProperties;
use crate::driver::svm::Attributes;
use crate::hardware::PageAccess;

/// A process of the driver, as [`KfdProcess::save`](crate::driver::KfdProcess::save) made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    pub(super) kernel: KernelModel,
    /// Whether the kernel has shared virtual memory.
    pub(super) has_svm: bool,
    /// The hardware's own ids of the GPUs, and those by which the process knows them.
    pub(super) gpu_ids: Vec<u32>,
    pub(super) user_ids: Vec<u32>,
    pub(super) memories: Vec<MemoryState>,
    pub(super) backings: Vec<BackingState>,
    pub(super) files: Vec<FileState>,
    /// How many files were ever opened.
    pub(super) opened: u64,
    pub(super) gpus: Vec<PddState>,
    pub(super) handles: Vec<HandleState>,
    pub(super) contexts: Vec<ContextState>,
    pub(super) ranges: Vec<RangeState>,
    pub(super) queues: Vec<QueueState>,
    pub(super) event_page: Option<EventPageState>,
    pub(super) events: Vec<EventState>,
    pub(super) runtime: Runtime,
    /// What CRIU_OP remembers: paused, blocked.
    pub(super) criu: (bool, bool),
    pub(super) next_mmap_offset: u64,
    pub(super) last_client_memory: u64,
}

impl ProcessState {
    /// Name and size of each memory that restore needs.
    pub fn memories(&self) -> impl Iterator<Item = (&str, u64)> {
        self.memories.iter().map(|memory| (memory.name.as_str(), memory.bytes))
    }

    /// The descriptors of the queues, by id.
    #[cfg(test)]
    pub(in crate::driver) fn descriptors_mut(&mut self) -> impl Iterator<Item = (u32, &mut Vec<Vec<u8>>)> {
        self.queues.iter_mut().map(|queue| (queue.id, &mut queue.mqd))
    }
}

/// A memfd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryState {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The extended attribute with the metadata of AMDGPU_GEM_METADATA, which CRIU does not carry.
    pub(super) metadata: Vec<u8>,
}

/// A part of a memfd, by the index of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunState {
    pub(super) memory: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// What a queue holds, or what a backing is: the only run's memory by its index, or the number of a memory of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum IdentityState {
    Memory(u32),
    Client(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackingState {
    pub(super) runs: Vec<RunState>,
    pub(super) bytes: u64,
    pub(super) domain: Domain,
    pub(super) gpu: u32,
    pub(super) identity: IdentityState,
    /// Whether this process took it from the ledger, and not the one that exported it.
    pub(super) charged: bool,
    /// Whether the descriptor cannot write: it came from a DMABuf that cannot.
    pub(super) read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    pub(super) id: u64,
    /// The GPU of a render node; none for `/dev/kfd`.
    pub(super) render: Option<u32>,
    /// The token's memory, by its index.
    pub(super) token: u32,
}

/// One GPU (`struct kfd_process_device`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PddState {
    /// Number of the render file whose address space was acquired.
    pub(super) render: Option<u64>,
    pub(super) buffers: Vec<BufferState>,
    /// The mappings of GEM_VA.
    pub(super) mappings: Vec<MappingState>,
    /// Reasons for eviction, without that of the pause.
    pub(super) evicted: u32,
    pub(super) resets: u32,
    pub(super) gws_queue: Option<u32>,
    pub(super) settings: GpuSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BufferState {
    pub(super) index: u32,
    pub(super) backing: u32,
    pub(super) va: u64,
    pub(super) flags: u32,
    pub(super) mmap_offset: u64,
    /// Bit per GPU that maps it.
    pub(super) mapped: u32,
    /// Whether the client has lost pages of it, which is its own memory then.
    pub(super) lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MappingState {
    pub(super) va: u64,
    pub(super) bytes: u64,
    pub(super) backing: u32,
    pub(super) offset: u64,
    /// The handle of the acquired render file.
    pub(super) handle: u32,
    pub(super) access: PageAccess,
}

/// A handle of a render file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HandleState {
    pub(super) file: u64,
    pub(super) slot: u32,
    pub(super) backing: u32,
    pub(super) mmap_offset: u64,
    pub(super) read_only: bool,
}

/// A context of a render file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContextState {
    pub(super) file: u64,
    pub(super) slot: u32,
    pub(super) made: u32,
    pub(super) asked: u32,
}

/// A range of shared virtual memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangeState {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) attributes: Attributes,
    /// The client's pages while GPUs map them.
    pub(super) memory: Option<RangeMemoryState>,
    /// Bit per GPU that maps it.
    pub(super) mapped: u32,
    /// Queues whose save areas it is part of. A range that was made where such an area had been is not part of it.
    pub(super) queues: u32,
}

/// Where the pages of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangeMemoryState {
    pub(super) memory: u32,
    pub(super) offset: u64,
    /// Whether the client itself may write them.
    pub(super) writable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DoorbellState {
    Compute {
        id: u32,
    },
    /// Its doorbell follows from the number.
    Sdma {
        id: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueState {
    pub(super) id: u32,
    pub(super) gpu: u32,
    pub(super) properties: QueueProperties,
    pub(super) doorbell: DoorbellState,
    pub(super) ring: Option<IdentityState>,
    pub(super) others: Vec<IdentityState>,
    /// Whether the save area is shared virtual memory, and not one of the others.
    pub(super) in_svm: bool,
    /// Whether a reset lost it.
    pub(super) reset: bool,
    /// The bytes of each XCC's descriptor.
    pub(super) mqd: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EventPageState {
    /// A buffer of the client, by its handle.
    Client { handle: u64 },
    /// The driver's own: the memory's index, and how many ids may be given out.
    Driver { memory: u32, usable: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventState {
    pub(super) id: u32,
    pub(super) event_type: u32,
    pub(super) auto_reset: bool,
    pub(super) signaled: bool,
    pub(super) age: u64,
    /// `kfd_hsa_memory_exception_data`: the four failures, address, GPU, kind of error.
    pub(super) memory: ([u32; 4], u64, u32, u32),
    /// `kfd_hsa_hw_exception_data`: type and cause of the reset, whether memory was lost, GPU.
    pub(super) hardware: [u32; 4],
}
