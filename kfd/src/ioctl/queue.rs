// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of the queue ioctls.

use super::call::{Issue, Slice};
use super::error::IoctlError;
use super::file::Kfd;
use crate::ids::{GpuId, QueueId};
use crate::sys::{self, kfd_ioctl};
use queues::words::words;

/// What packets a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// AQL packets.
    #[default]
    ComputeAql,
    /// PM4 packets.
    ComputePm4,
    /// Copy engine packets, any engine.
    Sdma,
    /// Copy engine packets, an engine with XGMI links.
    SdmaXgmi,
    /// Copy engine packets, this engine (since 1.17).
    SdmaEngine(u32),
}

impl QueueKind {
    /// KFD's number and the engine id.
    fn encode(self) -> (u32, u32) {
        match self {
            Self::ComputeAql => (sys::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 0),
            Self::ComputePm4 => (sys::KFD_IOC_QUEUE_TYPE_COMPUTE, 0),
            Self::Sdma => (sys::KFD_IOC_QUEUE_TYPE_SDMA, 0),
            Self::SdmaXgmi => (sys::KFD_IOC_QUEUE_TYPE_SDMA_XGMI, 0),
            Self::SdmaEngine(engine) => (sys::KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID, engine),
        }
    }
}

/// What queue to create. Every buffer must be one mapping of exactly its size (`kfd_queue_acquire_buffers`,
/// `kfd_queue.c`, since Linux 6.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CreateQueue {
    /// GPU.
    pub gpu: GpuId,
    /// Packets.
    pub kind: QueueKind,
    /// GPU address of the ring.
    pub ring: u64,
    /// Its bytes, a power of two.
    pub ring_bytes: u32,
    /// GPU address of the write pointer.
    pub write_pointer: u64,
    /// GPU address of the read pointer.
    pub read_pointer: u64,
    /// GPU address of the end-of-pipe buffer.
    pub eop: u64,
    /// Its bytes.
    pub eop_bytes: u64,
    /// GPU address of the context save area.
    pub save_area: u64,
    /// Its bytes for one XCC without the debugger's part.
    pub save_bytes: u32,
    /// Control stack bytes of one XCC, equal to the node's.
    pub control_stack_bytes: u32,
    /// 0 (never runs) to 100.
    pub percentage: u32,
    /// 0 to 15.
    pub priority: u32,
}

/// What queue was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedQueue {
    /// Its number.
    pub id: QueueId,
    /// mmap cookie of the doorbell slice plus the doorbell's byte offset in it.
    pub doorbell_offset: u64,
    /// Ring bytes in force.
    pub ring_bytes: u32,
}

impl CreatedQueue {
    /// The cookie to map the slice with.
    pub fn doorbell_cookie(&self) -> u64 {
        self.doorbell_offset & (sys::KFD_MMAP_TYPE_MASK | sys::KFD_MMAP_GPU_ID_MASK)
    }

    /// The doorbell's byte offset in the slice.
    pub fn doorbell_byte(&self) -> u32 {
        words(self.doorbell_offset & (sys::DOORBELL_SLICE_BYTES as u64 - 1))[0]
    }
}

/// What to change of a queue; all four values are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UpdateQueue {
    /// Queue.
    pub id: QueueId,
    /// GPU address of the ring; 0 parks the queue.
    pub ring: u64,
    /// Its bytes.
    pub ring_bytes: u32,
    /// 0 (parks the queue) to 100.
    pub percentage: u32,
    /// 0 to 15.
    pub priority: u32,
}

impl Kfd {
    /// CREATE_QUEUE.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn create_queue(&self, queue: &CreateQueue) -> Result<CreatedQueue, IoctlError> {
        let (queue_type, sdma_engine_id) = queue.kind.encode();
        let mut args = sys::kfd_ioctl_create_queue_args {
            ring_base_address: queue.ring,
            write_pointer_address: queue.write_pointer,
            read_pointer_address: queue.read_pointer,
            doorbell_offset: 0,
            ring_size: queue.ring_bytes,
            gpu_id: queue.gpu.0,
            queue_type,
            queue_percentage: queue.percentage,
            queue_priority: queue.priority,
            queue_id: 0,
            eop_buffer_address: queue.eop,
            eop_buffer_size: queue.eop_bytes,
            ctx_save_restore_address: queue.save_area,
            ctx_save_restore_size: queue.save_bytes,
            ctl_stack_size: queue.control_stack_bytes,
            sdma_engine_id,
            metadata_ring_size: 0,
        };
        self.call_plain::<kfd_ioctl::CreateQueue>(&mut args)?;
        Ok(CreatedQueue {
            id: QueueId(args.queue_id),
            doorbell_offset: args.doorbell_offset,
            ring_bytes: args.ring_size,
        })
    }

    /// UPDATE_QUEUE. With percentage 0 the waves have been saved when it returns.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn update_queue(&self, update: &UpdateQueue) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_update_queue_args {
            ring_base_address: update.ring,
            queue_id: update.id.0,
            ring_size: update.ring_bytes,
            queue_percentage: update.percentage,
            queue_priority: update.priority,
        };
        self.call_plain::<kfd_ioctl::UpdateQueue>(&mut args).map(drop)
    }

    /// DESTROY_QUEUE.
    ///
    /// # Errors
    /// [`IoctlError`]; after ETIME and EIO the queue is gone nevertheless.
    pub fn destroy_queue(&self, id: QueueId) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_destroy_queue_args { queue_id: id.0, pad: 0 };
        self.call_plain::<kfd_ioctl::DestroyQueue>(&mut args).map(drop)
    }

    /// SET_CU_MASK: bit `n` of the words allows the `n`th compute unit.
    ///
    /// # Errors
    /// [`IoctlError`]; on gfx10 and later both units of a pair must agree.
    pub fn set_cu_mask(&self, id: QueueId, mask: &[u32]) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_set_cu_mask_args { queue_id: id.0, ..Default::default() };
        let words = Slice::Read(bytemuck::cast_slice(mask));
        self.call_with::<kfd_ioctl::SetCuMask>(&mut args, &mut [words]).map(drop)
    }
}
