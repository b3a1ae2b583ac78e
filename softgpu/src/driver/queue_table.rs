// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of a process.

use kfd::sys::*;
use serde::{Deserialize, Serialize};

use super::bo::Slots;
use super::doorbells::DOORBELL_BYTES;
use super::queue_buffers::QueueBuffers;
use crate::hardware::{HwQueue, HwQueueKind, Mqd};

/// Queues one process may have (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`).
pub(super) const MAX_QUEUES: usize = 1024;

/// What a client asked for (`struct queue_properties`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueProperties {
    pub(super) queue_type: u32,
    pub(super) ring_va: u64,
    pub(super) ring_bytes: u32,
    pub(super) percent: u32,
    pub(super) priority: u32,
    pub(super) read_pointer_va: u64,
    pub(super) write_pointer_va: u64,
    pub(super) eop_va: u64,
    pub(super) eop_bytes: u32,
    pub(super) cwsr_va: u64,
    pub(super) cwsr_bytes: u32,
    pub(super) control_stack_bytes: u32,
}

/// One queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) gpu: usize,
    pub(super) properties: QueueProperties,
    pub(super) doorbell: Doorbell,
    pub(super) buffers: QueueBuffers,
    /// Whether it is on the hardware.
    pub(super) running: bool,
    /// Whether a reset of its GPU lost it.
    pub(super) reset: bool,
    /// The memory descriptors, one for each XCC: the whole state of a queue that is off the hardware. They also hold the CU
    /// mask, which does not affect where this device places waves.
    pub(super) mqd: Box<Mqd>,
}

/// Which allocator gave the queue's doorbell and takes it back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doorbell {
    Compute { id: u32 },
    Sdma { id: u32, doorbell: u32 },
}

impl Doorbell {
    pub(super) fn byte_offset(self) -> u32 {
        match self {
            Self::Compute { id } => id * DOORBELL_BYTES,
            Self::Sdma { doorbell, .. } => doorbell * DOORBELL_BYTES,
        }
    }
}

impl Queue {
    /// Whether it is to be on the hardware while its GPU has `evicted` reasons to keep queues off.
    pub(super) fn is_active(&self, evicted: u32) -> bool {
        let QueueProperties { ring_va, ring_bytes, percent, .. } = self.properties;
        ring_bytes > 0 && ring_va != 0 && percent > 0 && evicted == 0 && !self.reset
    }

    pub(super) fn is_compute(&self) -> bool {
        matches!(self.properties.queue_type, KFD_IOC_QUEUE_TYPE_COMPUTE | KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
    }

    pub(super) fn for_hardware(&self, id: u32) -> HwQueue {
        let properties = &self.properties;
        HwQueue {
            id,
            kind: kind_of(properties.queue_type),
            ring_va: properties.ring_va,
            ring_bytes: u64::from(properties.ring_bytes),
            read_ptr_va: properties.read_pointer_va,
            write_ptr_va: properties.write_pointer_va,
            doorbell_offset: self.doorbell.byte_offset(),
            cwsr_va: properties.cwsr_va,
            cwsr_bytes: properties.cwsr_bytes,
            control_stack_bytes: properties.control_stack_bytes,
            priority: properties.priority,
        }
    }
}

/// The process's queues by id.
#[derive(Debug, Default)]
pub(super) struct QueueTable {
    pub(super) slots: Slots<Queue>,
}

impl QueueTable {
    pub(super) fn get(&self, id: u32) -> Option<&Queue> {
        self.slots.get(id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Queue> {
        self.slots.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Queue)> {
        self.slots.iter_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// Inserts a queue under the number that it had at the checkpoint; fails if the number is taken.
    #[must_use]
    pub(super) fn insert_at(&mut self, id: u32, queue: Queue) -> bool {
        self.slots.insert_at(id, queue)
    }
}

/// What the hardware needs to know of a queue type.
pub(super) fn kind_of(queue_type: u32) -> HwQueueKind {
    match queue_type {
        kfd::sys::KFD_IOC_QUEUE_TYPE_COMPUTE => HwQueueKind::Compute,
        kfd::sys::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL => HwQueueKind::Aql,
        _ => HwQueueKind::Sdma,
    }
}
