// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of a process that is restored, off the hardware.

use kfd::sys::*;

use super::{Restore, damaged, gpu_index};
use crate::driver::criu::sanitise;
use crate::driver::doorbells::sdma_doorbell;
use crate::driver::ledger::Resource;
use crate::driver::persist::state::{DoorbellState, PddState, QueueState};
use crate::driver::process::State;
use crate::driver::queue_buffers::{self, QueueBuffers};
use crate::driver::queue_table::{Doorbell, MAX_QUEUES, Queue, QueueProperties};
use crate::driver::queues::{check_addresses, check_properties};
use crate::hardware::{MQD_BYTES, Mqd};
use crate::persist::{Part, PersistError};
use crate::sysfs::GpuModel;

/// The argument with which CREATE_QUEUE would make the queue.
fn arguments(properties: &QueueProperties) -> kfd_ioctl_create_queue_args {
    kfd_ioctl_create_queue_args {
        ring_base_address: properties.ring_va,
        write_pointer_address: properties.write_pointer_va,
        read_pointer_address: properties.read_pointer_va,
        ring_size: properties.ring_bytes,
        queue_type: properties.queue_type,
        queue_percentage: properties.percent,
        queue_priority: properties.priority,
        eop_buffer_address: properties.eop_va,
        eop_buffer_size: u64::from(properties.eop_bytes),
        ctx_save_restore_address: properties.cwsr_va,
        ctx_save_restore_size: properties.cwsr_bytes,
        ctl_stack_size: properties.control_stack_bytes,
        ..Default::default()
    }
}

impl Restore<'_> {
    pub(super) fn queue(&self, state: &mut State, saved: &QueueState) -> Result<(), PersistError> {
        let broken = || damaged(Part::Queue, saved.id);
        let process = self.process;
        let gpu = gpu_index(process, saved.gpu).ok_or_else(broken)?;
        let is_free = (saved.id as usize) < MAX_QUEUES && state.queues.get(saved.id).is_none();
        if !is_free || state.bound(gpu).is_err() {
            return Err(broken());
        }
        let args = arguments(&saved.properties);
        let QueueProperties { queue_type, ring_va, ring_bytes, percent, priority, .. } = saved.properties;
        let ring = check_properties(percent, priority, ring_va, ring_bytes);
        let known = matches!(
            queue_type,
            KFD_IOC_QUEUE_TYPE_COMPUTE
                | KFD_IOC_QUEUE_TYPE_COMPUTE_AQL
                | KFD_IOC_QUEUE_TYPE_SDMA
                | KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID
        );
        let are_possible = ring == Ok(ring_bytes) && percent <= KFD_MAX_QUEUE_PERCENTAGE;
        if !known || !are_possible || check_addresses(&args).is_err() {
            return Err(broken());
        }
        let buffers = self.queue_buffers(state, gpu, saved, &args)?;
        let mut queue = Queue {
            gpu,
            properties: saved.properties,
            // Taken below, when nothing else can fail.
            doorbell: Doorbell::Compute { id: 0 },
            buffers,
            running: false,
            reset: saved.reset,
            mqd: Box::default(),
        };
        queue.mqd = Box::new(self.mqd(gpu, &queue, saved)?);
        let counted = process.count_queue(state, gpu);
        let counted =
            counted.map_err(|_| PersistError::Exhausted { resource: Resource::Queues(gpu), amount: 1 })?;
        queue.doorbell = self.doorbell(state, gpu, queue.is_compute(), saved)?;
        let Some(pdd) = state.pdds.get_mut(gpu) else { return Err(broken()) };
        // The ranges say themselves which queues they are part of.
        queue.buffers.hold_mappings(&mut pdd.vm);
        pdd.queue_count += 1;
        counted.keep();
        // The id was free.
        let _ = state.queues.insert_at(saved.id, queue);
        Ok(())
    }

    /// The descriptors, whose save areas must be such as the driver knows.
    fn mqd(&self, gpu: usize, queue: &Queue, saved: &QueueState) -> Result<Mqd, PersistError> {
        let broken = || damaged(Part::Queue, saved.id);
        let xccs = self.process.descriptors(gpu, queue.is_compute());
        if saved.mqd.len() != xccs || saved.mqd.iter().any(|part| part.len() != MQD_BYTES) {
            return Err(broken());
        }
        let mut mqd = Mqd::with_xccs(xccs);
        for (xcc, part) in saved.mqd.iter().enumerate() {
            mqd.set_bytes(xcc, part);
        }
        if queue.is_compute() {
            let stack = self.process.gpus.get(gpu).map(|model| model.geometry().control_stack_bytes);
            let QueueProperties { control_stack_bytes, cwsr_bytes, .. } = queue.properties;
            if stack != Some(control_stack_bytes) {
                return Err(broken());
            }
            let mut checked = mqd.clone();
            (0..xccs).for_each(|xcc| sanitise(&mut checked, xcc, control_stack_bytes, cwsr_bytes));
            if checked != mqd {
                return Err(broken());
            }
        }
        Ok(mqd)
    }

    /// What the queue holds: what CREATE_QUEUE would find for it, and the ring that UPDATE_QUEUE may have left it. A queue
    /// that CRIU_OP restored holds nothing but such a ring, on kernels whose CRIU_OP is so.
    fn queue_buffers(
        &self,
        state: &State,
        gpu: usize,
        saved: &QueueState,
        args: &kfd_ioctl_create_queue_args,
    ) -> Result<QueueBuffers, PersistError> {
        let broken = || damaged(Part::Queue, saved.id);
        let process = self.process;
        let (Some(model), Some(pdd)) = (process.gpus.get(gpu), state.pdds.get(gpu)) else {
            return Err(broken());
        };
        let others = saved.others.iter().map(|other| self.identity(*other)).collect::<Result<Vec<_>, _>>()?;
        let ring = saved.ring.map(|ring| self.identity(ring)).transpose()?;
        let holds = process.kernel.holds_restored_buffers() || !others.is_empty();
        let mut svm = None;
        if saved.in_svm && !(holds && self.saved.has_svm) {
            return Err(broken());
        }
        if holds {
            // The write pointer's page stands for the ring, which a parked queue may not name.
            let ring_base_address = args.write_pointer_address;
            let args = kfd_ioctl_create_queue_args { ring_base_address, ring_size: 4096, ..*args };
            let found = queue_buffers::find_again(state, gpu, model, &args, saved.in_svm);
            let found = found.map_err(|_| broken())?;
            if found.others != others {
                return Err(broken());
            }
            svm = found.svm;
            if process.target(gpu).is_some_and(|target| target.mes) {
                queue_buffers::check_write_pointer(state, gpu, args.write_pointer_address)
                    .map_err(|_| broken())?;
            }
        }
        let QueueProperties { ring_va, ring_bytes, .. } = saved.properties;
        let is_ring = match ring {
            None => !holds || ring_va == 0,
            Some(ring) if ring_va == 0 => pdd.vm.iter().any(|(_, mapping)| mapping.backing.identity == ring),
            Some(ring) => queue_buffers::find_ring(state, gpu, ring_va, ring_bytes) == Ok(ring),
        };
        if is_ring { Ok(QueueBuffers { ring, others, svm }) } else { Err(broken()) }
    }

    fn doorbell(
        &self,
        state: &mut State,
        gpu: usize,
        compute: bool,
        saved: &QueueState,
    ) -> Result<Doorbell, PersistError> {
        let broken = || damaged(Part::Queue, saved.id);
        let (Some(model), Some(pdd)) = (self.process.gpus.get(gpu), state.pdds.get_mut(gpu)) else {
            return Err(broken());
        };
        match (compute, saved.doorbell) {
            (true, DoorbellState::Compute { id }) if pdd.doorbells.take_at(id) => {
                Ok(Doorbell::Compute { id })
            }
            (false, DoorbellState::Sdma { id }) if model.sdma_queue_ids().any(|other| other == id) => {
                let taken = self.process.slot.reserve_sdma(gpu, [id]);
                taken.ok_or(PersistError::CopyQueueTaken { gpu, id })?;
                Ok(Doorbell::Sdma { id, doorbell: sdma_doorbell(id, model.sdma_engines()) })
            }
            _ => Err(broken()),
        }
    }

    /// The queue that has the global wave sync.
    pub(super) fn wave_sync(
        &self,
        state: &mut State,
        gpu: usize,
        saved: &PddState,
    ) -> Result<(), PersistError> {
        let Some(id) = saved.gws_queue else { return Ok(()) };
        let has_it = self.process.gpus.get(gpu).is_some_and(GpuModel::has_gws);
        let is_there = state.queues.get(id).is_some_and(|queue| queue.gpu == gpu);
        match state.pdds.get_mut(gpu) {
            Some(pdd) if has_it && is_there => {
                pdd.gws_queue = Some(id);
                Ok(())
            }
            _ => Err(damaged(Part::Queue, id)),
        }
    }
}
