// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hardware queues: created over buffers that exist, suspended, looked into, destroyed.
//!
//! INVARIANT: a queue's buffers exist and are mapped exactly before `create_queue`, and are not freed before
//! `destroy_queue`.
#![allow(unsafe_code)]

use kfd::ioctl::CreateQueue;
use kfd::ioctl::QueueKind as KfdQueueKind;
use kfd::ioctl::{UpdateQueue, WaveStateSizes};
use kfd::sys::{DOORBELL_SLICE_BYTES, doorbell_cookie};
use kfd::{Doorbell, Errno, QueueId};
use queues::words::size;

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::queue::live::{READ_INDEX, WRITE_INDEX};
use crate::context::registry::state::{AgentIndex, BoKey, QueueKind, QueueState};
use crate::context::registry::{Bo, Queue, Table};

/// Addresses of a queue's buffers; 0 for those its kind has not.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    ring: u64,
    page: u64,
    eop: u64,
    eop_bytes: u64,
    save_area: u64,
}

impl Addresses {
    fn of(state: &QueueState, bos: &Table<Bo>) -> Result<Self, DeviceError> {
        let find = |key: BoKey| bos.get(key).ok_or(DeviceError::Absent { what: "a queue's buffer" });
        let optional = |key: Option<BoKey>| key.map(find).transpose();
        let eop = optional(state.bos.eop)?;
        Ok(Addresses {
            ring: find(state.bos.ring)?.state.va,
            page: find(state.bos.page)?.state.va,
            eop: eop.map_or(0, |eop| eop.state.va),
            eop_bytes: eop.map_or(0, |eop| eop.state.bytes),
            save_area: optional(state.bos.save_area)?.map_or(0, |area| area.state.va),
        })
    }
}

const fn kfd_kind(kind: QueueKind) -> KfdQueueKind {
    match kind {
        QueueKind::Aql => KfdQueueKind::ComputeAql,
        QueueKind::Pm4 => KfdQueueKind::ComputePm4,
        QueueKind::Sdma { engine: None } => KfdQueueKind::Sdma,
        QueueKind::Sdma { engine: Some(engine) } => KfdQueueKind::SdmaEngine(engine),
    }
}

/// What the driver is to give it now.
const fn percentage(state: &QueueState) -> u32 {
    if state.suspended { 0 } else { state.percentage }
}

impl Device {
    /// Creates the hardware queue of an entry, of any kind, over its buffers, whose contents are ready
    /// ([`crate::context::queue::bringup::bring_up`]), gives it its CU mask, and returns its doorbell. The agent's
    /// doorbell slice is mapped at `doorbells` if it is not yet.
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
        // The driver ignores these of a queue without waves.
        let (save_bytes, control_stack_bytes) = match state.kind.is_compute() {
            true => (geometry.save_bytes, geometry.control_stack_bytes),
            false => (0, 0),
        };
        let created = self
            .kfd
            .create_queue(&CreateQueue {
                gpu: node.gpu,
                kind: kfd_kind(state.kind),
                ring: at.ring,
                ring_bytes: state.ring_bytes,
                write_pointer: at.page + WRITE_INDEX,
                read_pointer: at.page + READ_INDEX,
                eop: at.eop,
                eop_bytes: at.eop_bytes,
                save_area: at.save_area,
                save_bytes,
                control_stack_bytes,
                percentage: percentage(state),
                priority: state.priority,
            })
            .map_err(ioctl("a queue"))?;
        let doorbell = self
            .mask_units(created.id, &state.cu_mask)
            .and_then(|()| self.map_doorbells(state.agent, doorbells, created.doorbell_byte()));
        let doorbell = match doorbell {
            Ok(doorbell) => doorbell,
            Err(error) => {
                let _ = self.kfd.destroy_queue(created.id);
                return Err(error);
            }
        };
        queue.numbers.id = created.id.0;
        queue.numbers.doorbell_offset = created.doorbell_byte();
        queue.created = true;
        Ok(doorbell)
    }

    /// The doorbell of a queue that is in the driver already; the agent's slice is mapped at `doorbells` if it is not
    /// yet.
    ///
    /// # Errors
    /// [`DeviceError::Mmap`].
    pub fn doorbell_of(&self, queue: &Queue, doorbells: &Bo) -> Result<Doorbell, DeviceError> {
        self.map_doorbells(queue.state.agent, doorbells, queue.numbers.doorbell_offset)
    }

    fn map_doorbells(&self, agent: AgentIndex, slice: &Bo, byte: u32) -> Result<Doorbell, DeviceError> {
        let mut mapped = self.doorbells.lock();
        let place = mapped.get_mut(agent.at()).ok_or(DeviceError::Absent { what: "the agent" })?;
        if let Some(slice) = place {
            return Ok(slice.doorbell(byte));
        }
        let node = self.node(agent)?;
        let offset = doorbell_cookie(node.gpu.0);
        let at = std::ptr::with_exposed_provenance_mut::<u8>(size(slice.state.va));
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
    /// [`DeviceError::Ioctl`]; it is on the hardware as before then.
    pub fn suspend_queue(&self, queue: &mut Queue, bos: &Table<Bo>) -> Result<(), DeviceError> {
        self.set_suspended(queue, bos, true)
    }

    /// Puts a suspended queue back, with the share of the hardware it had.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; it is suspended as before then.
    pub fn resume_queue(&self, queue: &mut Queue, bos: &Table<Bo>) -> Result<(), DeviceError> {
        self.set_suspended(queue, bos, false)
    }

    fn set_suspended(&self, queue: &mut Queue, bos: &Table<Bo>, suspended: bool) -> Result<(), DeviceError> {
        let old = std::mem::replace(&mut queue.state.suspended, suspended);
        self.update_queue(queue, bos).inspect_err(|_| queue.state.suspended = old)
    }

    /// Tells the driver what an entry says.
    fn update_queue(&self, queue: &Queue, bos: &Table<Bo>) -> Result<(), DeviceError> {
        let state = &queue.state;
        self.kfd
            .update_queue(&UpdateQueue {
                id: QueueId(queue.numbers.id),
                ring: Addresses::of(state, bos)?.ring,
                ring_bytes: state.ring_bytes,
                percentage: percentage(state),
                priority: state.priority,
            })
            .map_err(ioctl("a change of a queue"))
    }

    /// Changes the priority of a queue (0 to 15).
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; it is as before then.
    pub fn set_priority(&self, queue: &mut Queue, bos: &Table<Bo>, priority: u32) -> Result<(), DeviceError> {
        let old = std::mem::replace(&mut queue.state.priority, priority);
        self.update_queue(queue, bos).inspect_err(|_| queue.state.priority = old)
    }

    /// Changes the compute units a compute queue may use; `mask` is one the driver takes
    /// ([`crate::context::queue::cu_mask::CuMask`]).
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; they are as before then.
    pub fn set_cu_mask(&self, queue: &mut Queue, mask: &[u32]) -> Result<(), DeviceError> {
        self.mask_units(QueueId(queue.numbers.id), mask)?;
        queue.state.cu_mask = mask.to_vec();
        Ok(())
    }

    fn mask_units(&self, id: QueueId, mask: &[u32]) -> Result<(), DeviceError> {
        // A queue without a mask uses all units; the driver takes no empty one.
        if mask.is_empty() {
            return Ok(());
        }
        self.kfd.set_cu_mask(id, mask).map_err(ioctl("a mask of compute units"))
    }

    /// Has the driver write where the waves of a suspended queue are into its save area's header.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn wave_state(&self, queue: &Queue, bos: &Table<Bo>) -> Result<WaveStateSizes, DeviceError> {
        let at = Addresses::of(&queue.state, bos)?;
        // SAFETY: `save_area` is the start of this queue's save area, mapped for the CPU with its entry; shared
        // memory is never borrowed.
        unsafe { self.kfd.get_queue_wave_state(QueueId(queue.numbers.id), at.save_area) }
            .map_err(ioctl("the state of a queue's waves"))
    }

    /// Whether the driver took a compute queue off the hardware that nobody suspended: only then does it tell where the
    /// waves of an unsuspended queue are (`kfd_device_queue_manager.c:get_wave_state`, EINVAL for an active queue and
    /// for queues without waves).
    pub fn is_evicted(&self, queue: &Queue, bos: &Table<Bo>) -> bool {
        queue.created && !queue.state.suspended && self.wave_state(queue, bos).is_ok()
    }

    /// Destroys the hardware queue of an entry, whose state and buffers stay.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn destroy_queue(&self, queue: &mut Queue) -> Result<(), DeviceError> {
        if !queue.created {
            return Ok(());
        }
        match self.kfd.destroy_queue(QueueId(queue.numbers.id)) {
            Ok(()) => {}
            // The hardware did not answer, but the queue is gone.
            Err(error) if matches!(error.errno, Errno::ETIME | Errno::EIO) => {
                tracing::warn!(target: "queues", %error, "a queue did not stop in time");
            }
            Err(error) => return Err(ioctl("the end of a queue")(error)),
        }
        queue.created = false;
        Ok(())
    }
}
