// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hardware queues: created over buffers that exist, parked, looked into, destroyed.
//!
//! INVARIANT: a queue's buffers exist and are mapped exactly before `create_queue`, and are not freed before
//! `destroy_queue`.
#![allow(unsafe_code)]

use kfd::ioctl::CreateQueue;
use kfd::ioctl::QueueKind as KfdQueueKind;
use kfd::ioctl::{UpdateQueue, WaveStateSizes};
use kfd::sys::{DOORBELL_SLICE_BYTES, doorbell_cookie};
use kfd::{Doorbell, Errno, QueueId};

use super::{Device, ioctl};
use crate::error::DeviceError;
use crate::queue::live::{READ_INDEX, WRITE_INDEX};
use crate::registry::state::{AgentIndex, BoKey, QueueKind, QueueState};
use crate::registry::{Bo, Queue, Table};

/// Addresses of a queue's buffers.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    ring: u64,
    ring_bytes: u32,
    page: u64,
    eop: u64,
    eop_bytes: u64,
    save_area: u64,
}

impl Addresses {
    fn of(state: &QueueState, bos: &Table<Bo>) -> Result<Self, DeviceError> {
        let find = |key: BoKey| bos.get(key).ok_or(DeviceError::Absent { what: "a queue's buffer" });
        let (ring, eop) = (find(state.bos.ring)?, find(state.bos.eop)?);
        Ok(Addresses {
            ring: ring.state.va,
            // CAST: at most 2^17 packets of 64 bytes.
            ring_bytes: state.packets * queues::aql::PACKET_BYTES as u32,
            page: find(state.bos.page)?.state.va,
            eop: eop.state.va,
            eop_bytes: eop.state.bytes,
            save_area: find(state.bos.save_area)?.state.va,
        })
    }
}

impl Device {
    /// Creates the hardware queue of an entry over its buffers, whose contents are ready
    /// ([`crate::queue::bring_up`]), and returns its doorbell. The agent's doorbell slice is mapped at `doorbells` if
    /// it is not yet.
    ///
    /// # Errors
    /// [`DeviceError`]; no queue is left then.
    pub fn create_queue(
        &self,
        queue: &mut Queue,
        bos: &Table<Bo>,
        doorbells: &Bo,
    ) -> Result<Doorbell, DeviceError> {
        let state = &queue.state;
        let node = self.node(state.agent)?;
        let at = Addresses::of(state, bos)?;
        let geometry = node.info.geometry();
        let QueueKind::Aql = state.kind;
        let created = self
            .kfd
            .create_queue(&CreateQueue {
                gpu: node.gpu,
                kind: KfdQueueKind::ComputeAql,
                ring: at.ring,
                ring_bytes: at.ring_bytes,
                write_pointer: at.page + WRITE_INDEX,
                read_pointer: at.page + READ_INDEX,
                eop: at.eop,
                eop_bytes: at.eop_bytes,
                save_area: at.save_area,
                save_bytes: geometry.save_bytes,
                control_stack_bytes: geometry.control_stack_bytes,
                percentage: state.percentage,
                priority: state.priority,
            })
            .map_err(ioctl("a queue"))?;
        let doorbell = match self.map_doorbells(state.agent, doorbells, created.doorbell_byte()) {
            Ok(doorbell) => doorbell,
            Err(error) => {
                let _ = self.kfd.destroy_queue(created.id);
                return Err(error);
            }
        };
        queue.state.queue_id = created.id.0;
        queue.state.doorbell_offset = created.doorbell_byte();
        queue.created = true;
        Ok(doorbell)
    }

    fn map_doorbells(&self, agent: AgentIndex, slice: &Bo, byte: u32) -> Result<Doorbell, DeviceError> {
        let mut mapped = self.doorbells.lock();
        let place = mapped.get_mut(agent.at()).ok_or(DeviceError::Absent { what: "the agent" })?;
        if let Some(slice) = place {
            return Ok(slice.doorbell(byte));
        }
        let node = self.node(agent)?;
        let offset = doorbell_cookie(node.gpu.0);
        // CAST: u64 and usize are the same here.
        let at = std::ptr::with_exposed_provenance_mut::<u8>(slice.state.va as usize);
        // SAFETY: the range belongs to the doorbell entry alone and holds the reservation; it stays mapped until
        // `destroy_bo` of that entry, before which every queue has let go of its doorbell.
        let made = unsafe { self.kfd.file().map_doorbells(at, DOORBELL_SLICE_BYTES, offset) };
        let made = made.map_err(|errno| DeviceError::Mmap {
            path: self.kfd.file().path().to_owned(),
            va: slice.state.va,
            bytes: slice.state.bytes,
            offset,
            errno,
        })?;
        Ok(place.insert(made).doorbell(byte))
    }

    /// Lets go of an agent's doorbell slice.
    pub(super) fn release_doorbells(&self, agent: AgentIndex) {
        if let Some(place) = self.doorbells.lock().get_mut(agent.at()) {
            *place = None;
        }
    }

    /// Takes a queue off the hardware: its waves are saved when this returns, its packets stay.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn park_queue(&self, queue: &mut Queue, bos: &Table<Bo>) -> Result<(), DeviceError> {
        self.set_percentage(queue, bos, 0)
    }

    /// Puts a parked queue back.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn resume_queue(&self, queue: &mut Queue, bos: &Table<Bo>) -> Result<(), DeviceError> {
        self.set_percentage(queue, bos, 100)
    }

    fn set_percentage(&self, queue: &mut Queue, bos: &Table<Bo>, percentage: u32) -> Result<(), DeviceError> {
        let at = Addresses::of(&queue.state, bos)?;
        self.kfd
            .update_queue(&UpdateQueue {
                id: QueueId(queue.state.queue_id),
                ring: at.ring,
                ring_bytes: at.ring_bytes,
                percentage,
                priority: queue.state.priority,
            })
            .map_err(ioctl("a change of a queue"))?;
        queue.state.percentage = percentage;
        Ok(())
    }

    /// Changes the priority of a queue (0 to 15).
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn set_priority(&self, queue: &mut Queue, bos: &Table<Bo>, priority: u32) -> Result<(), DeviceError> {
        let old = std::mem::replace(&mut queue.state.priority, priority);
        let percentage = queue.state.percentage;
        self.set_percentage(queue, bos, percentage).inspect_err(|_| queue.state.priority = old)
    }

    /// Has the driver write where the waves of a parked queue are into its save area's header.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn wave_state(&self, queue: &Queue, bos: &Table<Bo>) -> Result<WaveStateSizes, DeviceError> {
        let at = Addresses::of(&queue.state, bos)?;
        // SAFETY: `save_area` is the start of this queue's save area, mapped for the CPU with its entry; shared
        // memory is never borrowed.
        unsafe { self.kfd.get_queue_wave_state(QueueId(queue.state.queue_id), at.save_area) }
            .map_err(ioctl("the state of a queue's waves"))
    }

    /// Whether the driver took a queue off the hardware that nobody parked: only then does it tell where the waves of an
    /// unparked queue are (`kfd_device_queue_manager.c:get_wave_state`, EINVAL for an active queue).
    pub fn is_evicted(&self, queue: &Queue, bos: &Table<Bo>) -> bool {
        queue.created && queue.state.percentage > 0 && self.wave_state(queue, bos).is_ok()
    }

    /// Destroys the hardware queue of an entry, whose state and buffers stay.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn destroy_queue(&self, queue: &mut Queue) -> Result<(), DeviceError> {
        if !queue.created {
            return Ok(());
        }
        match self.kfd.destroy_queue(QueueId(queue.state.queue_id)) {
            Ok(()) => {}
            // The hardware did not answer, but the queue is gone.
            Err(error) if matches!(error.errno, Errno::TIME | Errno::IO) => {
                tracing::warn!(target: "queues", %error, "a queue did not stop in time");
            }
            Err(error) => return Err(ioctl("the end of a queue")(error)),
        }
        queue.created = false;
        Ok(())
    }
}
