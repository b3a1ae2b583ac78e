// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue in the blob (`kfd_process_queue_manager.c:criu_checkpoint_queue`, `kfd_criu_restore_queue`).
//!
//! INVARIANT: RESTORE makes a queue under its old number, doorbell and SDMA queue, or not at all. Every value of the
//! blob's entry is checked against the device before it is used.

use kfd::sys::*;
use nix::errno::Errno;
use queues::words::{count, words};

use super::blob::Cursor;
use crate::driver::Call;
use crate::driver::doorbells::sdma_doorbell;
use crate::driver::process::{KfdProcess, State};
use crate::driver::queue_buffers::{self, QueueBuffers};
use crate::driver::queue_table::{Doorbell, MAX_QUEUES, Queue, QueueProperties};
use crate::hardware::{MQD_BYTES, Mqd, mqd_field};

/// Bytes of an SDMA queue's descriptor (`v11_sdma_mqd`, `v12_sdma_mqd`).
const SDMA_MQD_BYTES: usize = 512;

/// What follows a queue's entry in the blob: its descriptors, then its control stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Bytes of a descriptor.
    mqd: usize,
    /// Bytes of a control stack; 0 where it is in the save area.
    control_stack: usize,
    /// How many there are of each.
    xccs: usize,
}

impl Parts {
    /// Bytes of all of them.
    pub(super) fn bytes(self) -> usize {
        self.xccs * (self.mqd + self.control_stack)
    }
}

impl KfdProcess {
    /// What follows the entry of a queue.
    ///
    /// Since "Fix checkpoint-restore on multi-xcc" (2025) the driver takes the descriptors and control stacks of all XCCs, and
    /// counts those of copy queues as many times, although they have one (`get_queue_checkpoint_info`). Before, it took the
    /// first XCC's.
    pub(super) fn queue_parts(&self, gpu: usize, compute: bool) -> Parts {
        let geometry = self.gpus[gpu].geometry();
        let stack = geometry.control_stack_bytes as usize;
        let carried = compute && self.target(gpu).is_some_and(|target| target.kernel_control_stack);
        Parts {
            mqd: if compute { MQD_BYTES } else { SDMA_MQD_BYTES },
            control_stack: if carried { stack } else { 0 },
            xccs: if self.kernel.knows_several_xccs() { geometry.num_xcc.max(1) as usize } else { 1 },
        }
    }

    /// Appends a queue that is off the hardware, with its descriptors. From gfx10 on the control stack is in the save
    /// area and not in the blob. On gfx9 it is in both here: the software GPU keeps it in the save area on every chip, so that
    /// what the blob has of it says nothing.
    pub(super) fn append_queue(
        &self,
        blob: &mut Vec<u8>,
        state: &State,
        id: u32,
        queue: &Queue,
    ) -> Result<(), Errno> {
        if !self.kernel.dumps_queues(self.target(queue.gpu)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let pdd = &state.pdds[queue.gpu];
        if queue.running || queue.is_active(pdd.evicted) {
            return Err(Errno::EINVAL);
        }
        let aql = queue.properties.queue_type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
        let (doorbell_id, sdma_id) = match queue.doorbell {
            Doorbell::Compute { id } => (id, 0),
            Doorbell::Sdma { id, doorbell } => (doorbell, id),
        };
        let parts = self.queue_parts(queue.gpu, queue.is_compute());
        let data = kfd_criu_queue_priv_data {
            object_type: KFD_CRIU_OBJECT_TYPE_QUEUE,
            q_address: queue.properties.ring_va,
            q_size: u64::from(queue.properties.ring_bytes),
            read_ptr_addr: queue.properties.read_pointer_va,
            write_ptr_addr: queue.properties.write_pointer_va,
            eop_ring_buffer_address: queue.properties.eop_va,
            ctx_save_restore_area_address: queue.properties.cwsr_va,
            gpu_id: self.user_id(queue.gpu),
            queue_type: if queue.is_compute() { KFD_QUEUE_TYPE_COMPUTE } else { KFD_QUEUE_TYPE_SDMA },
            format: if aql { KFD_QUEUE_FORMAT_AQL } else { KFD_QUEUE_FORMAT_PM4 },
            q_id: id,
            priority: queue.properties.priority,
            q_percent: queue.properties.percent,
            doorbell_id,
            gws: u32::from(pdd.gws_queue == Some(id)),
            sdma_id,
            eop_ring_buffer_size: queue.properties.eop_bytes,
            ctx_save_restore_area_size: queue.properties.cwsr_bytes,
            mqd_size: count(parts.xccs * parts.mqd),
            ctl_stack_size: count(parts.xccs * parts.control_stack),
            ..Default::default()
        };
        blob.extend_from_slice(bytemuck::bytes_of(&data));
        let end = blob.len() + parts.bytes();
        for mqd in queue.mqd.parts().take(parts.xccs) {
            blob.extend_from_slice(&mqd[..parts.mqd]);
        }
        blob.resize(end, 0);
        Ok(())
    }

    /// Makes the queue of the next entry, off the hardware.
    pub(super) fn restore_queue(
        &self,
        state: &mut State,
        cursor: &mut Cursor,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let data: kfd_criu_queue_priv_data = cursor.take(call)?;
        cursor.expect(u64::from(data.mqd_size) + u64::from(data.ctl_stack_size), 1)?;
        let gpu = self.gpu_by_id(data.gpu_id)?;
        let queue_type = queue_type(&data)?;
        let compute = queue_type != KFD_IOC_QUEUE_TYPE_SDMA;
        let geometry = self.gpus[gpu].geometry();
        let parts = self.queue_parts(gpu, compute);
        let stacks = u64::from(geometry.control_stack_bytes) * u64::from(geometry.num_xcc.max(1));
        if data.mqd_size as usize != parts.xccs * parts.mqd || u64::from(data.ctl_stack_size) > stacks {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0; parts.xccs * parts.mqd];
        cursor.fill(&mut bytes, call)?;
        cursor.skip(u64::from(data.ctl_stack_size), 1)?;
        let mut mqd = Mqd::with_xccs(self.descriptors(gpu, compute));
        for (xcc, part) in bytes.chunks_exact(parts.mqd).enumerate() {
            mqd.set_bytes(xcc, part);
            if compute {
                sanitise(&mut mqd, xcc, geometry.control_stack_bytes, data.ctx_save_restore_area_size);
            }
        }
        if data.q_id as usize >= MAX_QUEUES {
            return Err(Errno::EINVAL);
        }
        if state.queues.get(data.q_id).is_some() {
            return Err(Errno::ENOSPC);
        }
        if !self.kernel.restores_queues(self.target(gpu), geometry.num_xcc) {
            return Err(Errno::EINVAL);
        }
        state.bound(gpu)?;
        let counted = self.count_queue(state, gpu)?;
        let buffers = self.restored_buffers(state, gpu, queue_type, &data)?;
        let doorbell = self.restored_doorbell(state, gpu, compute, &data)?;
        let queue = Queue {
            gpu,
            properties: QueueProperties {
                queue_type,
                ring_va: data.q_address,
                // `queue_type` has refused longer rings.
                ring_bytes: words(data.q_size)[0],
                percent: data.q_percent,
                priority: data.priority,
                read_pointer_va: data.read_ptr_addr,
                write_pointer_va: data.write_ptr_addr,
                eop_va: data.eop_ring_buffer_address,
                eop_bytes: data.eop_ring_buffer_size,
                cwsr_va: data.ctx_save_restore_area_address,
                cwsr_bytes: data.ctx_save_restore_area_size,
                // The entry says how many bytes of control stack follow: none from gfx10 on.
                control_stack_bytes: geometry.control_stack_bytes,
            },
            doorbell,
            buffers,
            running: false,
            reset: false,
            mqd: Box::new(mqd),
        };
        let pdd = &mut state.pdds[gpu];
        if !state.queues.insert_at(data.q_id, queue) {
            self.give_back_doorbell(pdd, gpu, doorbell);
            return Err(Errno::ENOSPC);
        }
        if let Some(queue) = state.queues.get(data.q_id) {
            queue.buffers.hold(&mut pdd.vm, &mut state.svm);
        }
        pdd.queue_count += 1;
        counted.keep();
        self.restore_gws(state, gpu, &data)
    }

    /// The buffers that the queue holds: all of them, checked as CREATE_QUEUE does; or none, for a kernel whose
    /// restored queues hold no buffers.
    fn restored_buffers(
        &self,
        state: &State,
        gpu: usize,
        queue_type: u32,
        data: &kfd_criu_queue_priv_data,
    ) -> Result<QueueBuffers, Errno> {
        if !self.kernel.holds_restored_buffers() {
            return Ok(QueueBuffers::default());
        }
        let model = &self.gpus[gpu];
        let mut args = kfd_ioctl_create_queue_args {
            ring_base_address: data.q_address,
            write_pointer_address: data.write_ptr_addr,
            read_pointer_address: data.read_ptr_addr,
            // `queue_type` has refused longer rings.
            ring_size: words(data.q_size)[0],
            queue_type,
            eop_buffer_address: data.eop_ring_buffer_address,
            eop_buffer_size: u64::from(data.eop_ring_buffer_size),
            ctx_save_restore_address: data.ctx_save_restore_area_address,
            ctx_save_restore_size: data.ctx_save_restore_area_size,
            ctl_stack_size: model.geometry().control_stack_bytes,
            ..Default::default()
        };
        queue_buffers::check_write_pointer(state, gpu, args.write_pointer_address)?;
        if args.ring_base_address != 0 {
            return queue_buffers::find(state, gpu, model, &args);
        }
        // UPDATE_QUEUE with ring 0 parked the queue. The kernel does not store which ring it still held.
        args.ring_base_address = args.write_pointer_address;
        args.ring_size = 4096;
        let found = queue_buffers::find(state, gpu, model, &args)?;
        Ok(QueueBuffers { ring: None, ..found })
    }

    fn restored_doorbell(
        &self,
        state: &mut State,
        gpu: usize,
        compute: bool,
        data: &kfd_criu_queue_priv_data,
    ) -> Result<Doorbell, Errno> {
        if compute {
            let taken = state.pdds[gpu].doorbells.take_at(data.doorbell_id);
            return if taken { Ok(Doorbell::Compute { id: data.doorbell_id }) } else { Err(Errno::EINVAL) };
        }
        let ids = self.gpus[gpu].sdma_queue_ids().filter(|id| *id == data.sdma_id);
        let id = self.slot.reserve_sdma(gpu, ids).ok_or(Errno::EBUSY)?;
        let doorbell = sdma_doorbell(id, self.gpus[gpu].sdma_engines());
        if doorbell != data.doorbell_id {
            self.slot.release_sdma(gpu, id);
            return Err(Errno::EINVAL);
        }
        Ok(Doorbell::Sdma { id, doorbell })
    }

    fn restore_gws(
        &self,
        state: &mut State,
        gpu: usize,
        data: &kfd_criu_queue_priv_data,
    ) -> Result<(), Errno> {
        if data.gws == 0 {
            return Ok(());
        }
        if !self.gpus[gpu].has_gws() {
            return Err(Errno::ENODEV);
        }
        let holder = &mut state.pdds[gpu].gws_queue;
        if holder.is_some() {
            return Err(Errno::EBUSY);
        }
        *holder = Some(data.q_id);
        Ok(())
    }
}

/// The type by which CREATE_QUEUE knows the entry's queue, if CREATE_QUEUE and UPDATE_QUEUE would accept the entry's
/// plain numbers. (The kernel does not check them.)
fn queue_type(data: &kfd_criu_queue_priv_data) -> Result<u32, Errno> {
    let ring = u32::try_from(data.q_size).map_err(|_| Errno::EINVAL)?;
    let numbers = ring.is_power_of_two()
        && ring >= KFD_MIN_QUEUE_RING_SIZE
        && data.q_percent <= KFD_MAX_QUEUE_PERCENTAGE
        && data.priority <= KFD_MAX_QUEUE_PRIORITY;
    match (data.queue_type, data.format) {
        _ if !numbers => Err(Errno::EINVAL),
        (KFD_QUEUE_TYPE_COMPUTE, KFD_QUEUE_FORMAT_PM4) => Ok(KFD_IOC_QUEUE_TYPE_COMPUTE),
        (KFD_QUEUE_TYPE_COMPUTE, KFD_QUEUE_FORMAT_AQL) => Ok(KFD_IOC_QUEUE_TYPE_COMPUTE_AQL),
        (KFD_QUEUE_TYPE_SDMA, _) => Ok(KFD_IOC_QUEUE_TYPE_SDMA),
        // This device has no XGMI engines, and no client can create the kernel's own queues.
        _ => Err(Errno::EINVAL),
    }
}

/// Limits an XCC's offsets and sizes in its save area to the area's bounds, as Linux 7.3 does.
pub(in super::super) fn sanitise(mqd: &mut Mqd, xcc: usize, control_stack: u32, area: u32) {
    let stack = mqd.word_of(xcc, mqd_field::CONTROL_STACK_SIZE).min(control_stack);
    let offset = mqd.word_of(xcc, mqd_field::CONTROL_STACK_OFFSET).min(stack);
    let waves = mqd.word_of(xcc, mqd_field::WAVE_STATE_OFFSET).min(area).max(stack);
    mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_SIZE, stack);
    mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_OFFSET, offset);
    mqd.set_word_of(xcc, mqd_field::WAVE_STATE_OFFSET, waves);
    mqd.set_word_of(xcc, mqd_field::SAVE_AREA_SIZE, area);
}
