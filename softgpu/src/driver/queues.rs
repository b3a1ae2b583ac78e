// SPDX-License-Identifier: MIT OR Apache-2.0
//! CREATE_QUEUE and DESTROY_QUEUE (`kfd_chardev.c`, `kfd_process_queue_manager.c`), in the kernel's order of checks.
//!
//! INVARIANT: a queue is on the hardware exactly when it is active: its ring and percentage are not zero, its GPU is
//! not evicted, and no reset lost it. Ids are process-wide; a new queue gets the lowest free one.

use kfd::sys::*;
use nix::errno::Errno;
use queues::target::Target;
use queues::words::words;

use super::cu_mask;
use super::doorbells::sdma_doorbell;
use super::ledger::Resource;
use super::process::{KfdProcess, Pdd, State};
use super::queue_buffers::{self, QueueBuffers};
use super::queue_table::{Doorbell, MAX_QUEUES, Queue, QueueProperties, kind_of};
use super::{Call, access_ok};
use crate::hardware::{HwQueueKind, Mqd, mqd_field};

/// Queues one process may have on a GPU that the target table does not know.
const FEW_QUEUES: u32 = 127;
/// Percentage, priority, ring address and ring size, in that order; answers the ring size to use.
pub(super) fn check_properties(
    percent: u32,
    priority: u32,
    ring: u64,
    ring_bytes: u32,
) -> Result<u32, Errno> {
    if percent & 0xff > KFD_MAX_QUEUE_PERCENTAGE || priority > KFD_MAX_QUEUE_PRIORITY {
        return Err(Errno::EINVAL);
    }
    if ring != 0 && !access_ok(ring, 8) {
        return Err(Errno::EFAULT);
    }
    if ring_bytes != 0 && !ring_bytes.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    Ok(ring_bytes.max(KFD_MIN_QUEUE_RING_SIZE))
}

impl KfdProcess {
    pub(super) fn create_queue(
        &self,
        args: &mut kfd_ioctl_create_queue_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        args.ring_size = check_properties(
            args.queue_percentage,
            args.queue_priority,
            args.ring_base_address,
            args.ring_size,
        )?;
        check_addresses(args)?;
        if args.queue_type > KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID {
            return Err(kfd::errno::ENOTSUPP);
        }
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let model = &self.gpus[gpu];
        let mut state = self.state.lock();
        state.bound(gpu).map_err(|_| Errno::ESRCH)?;
        let engines = model.sdma_engines() + model.sdma_xgmi_engines();
        if args.queue_type == KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID && args.sdma_engine_id >= engines {
            return Err(Errno::EINVAL);
        }
        // Creates the slice if there is none. mmap asks for its descriptors again.
        self.hardware.doorbells(gpu)?;
        let buffers = queue_buffers::find(&state, gpu, model, args)?;
        let counted = self.count_queue(&state, gpu)?;
        if self.target(gpu).is_some_and(|target| target.mes) {
            queue_buffers::check_write_pointer(&state, gpu, args.write_pointer_address)?;
        }
        let doorbell = self.take_doorbell(&mut state, gpu, args)?;
        let xccs = self.descriptors(gpu, kind_of(args.queue_type) != HwQueueKind::Sdma);
        let queue = new_queue(gpu, args, doorbell, buffers, xccs);
        let id = self.add_queue(&mut state, queue)?;
        counted.keep();
        args.queue_id = id;
        args.doorbell_offset =
            KFD_MMAP_TYPE_DOORBELL | kfd_mmap_gpu_id(args.gpu_id) | u64::from(doorbell.byte_offset());
        Ok(())
    }

    /// What the GPU's chip is, if it is known.
    pub(super) fn target(&self, gpu: usize) -> Option<&'static Target> {
        Target::from_gfx_version(self.gpus[gpu].shape().gfx_target_version)
    }

    /// How many descriptors a queue has: one for each XCC, and one for a copy queue.
    pub(super) fn descriptors(&self, gpu: usize, compute: bool) -> usize {
        let xccs = usize::try_from(self.gpus[gpu].geometry().num_xcc).unwrap_or(1);
        if compute { xccs.max(1) } else { 1 }
    }

    /// Counts one more queue on the device, if the process may have one more.
    pub(super) fn count_queue(&self, state: &State, gpu: usize) -> Result<Counted<'_>, Errno> {
        let limit = self.target(gpu).map_or(FEW_QUEUES, |target| target.max_queues_per_process);
        if state.pdds[gpu].queue_count >= limit {
            return Err(Errno::ENOSPC);
        }
        if state.queues.slots.len() >= MAX_QUEUES {
            return Err(Errno::ENOMEM);
        }
        self.slot.reserve(Resource::Queues(gpu), 1).map_err(|_| Errno::EPERM)?;
        Ok(Counted { process: self, gpu, kept: false })
    }

    fn take_doorbell(
        &self,
        state: &mut State,
        gpu: usize,
        args: &kfd_ioctl_create_queue_args,
    ) -> Result<Doorbell, Errno> {
        let model = &self.gpus[gpu];
        let engines = model.sdma_engines();
        let ids = model.sdma_queue_ids();
        let id = match args.queue_type {
            KFD_IOC_QUEUE_TYPE_SDMA => self.slot.reserve_sdma(gpu, ids),
            KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID => {
                self.slot.reserve_sdma(gpu, ids.filter(|id| id % engines.max(1) == args.sdma_engine_id))
            }
            // The topology lists XGMI engines, but this device executes none.
            KFD_IOC_QUEUE_TYPE_SDMA_XGMI => None,
            _ => {
                let id = state.pdds[gpu].doorbells.take().ok_or(Errno::EBUSY)?;
                return Ok(Doorbell::Compute { id });
            }
        };
        let id = id.ok_or(Errno::ENOMEM)?;
        Ok(Doorbell::Sdma { id, doorbell: sdma_doorbell(id, engines) })
    }

    /// Puts a queue into the table and, if it is active, on the hardware.
    fn add_queue(&self, state: &mut State, queue: Queue) -> Result<u32, Errno> {
        let (gpu, doorbell) = (queue.gpu, queue.doorbell);
        queue.buffers.hold(&mut state.pdds[gpu].vm, &mut state.svm);
        let id = state.queues.slots.insert(queue);
        let pdd = &mut state.pdds[gpu];
        let started = match state.queues.slots.get_mut(id) {
            Some(queue) => self.put_on(id, queue, pdd),
            None => Ok(()),
        };
        if let Err(errno) = started {
            if let Some(queue) = state.queues.slots.remove(id) {
                queue.buffers.release(&mut pdd.vm, &mut state.svm);
            }
            self.give_back_doorbell(pdd, gpu, doorbell);
            return Err(errno);
        }
        pdd.queue_count += 1;
        Ok(id)
    }

    pub(super) fn give_back_doorbell(&self, pdd: &mut Pdd, gpu: usize, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Compute { id } => pdd.doorbells.release(id),
            Doorbell::Sdma { id, .. } => self.slot.release_sdma(gpu, id),
        }
    }

    pub(super) fn destroy_queue(
        &self,
        args: &mut kfd_ioctl_destroy_queue_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let queue = state.queues.slots.remove(args.queue_id).ok_or(Errno::EINVAL)?;
        let gpu = queue.gpu;
        if queue.running {
            self.hardware.destroy_queue(gpu, args.queue_id);
        }
        let pdd = &mut state.pdds[gpu];
        queue.buffers.release(&mut pdd.vm, &mut state.svm);
        self.give_back_doorbell(pdd, gpu, queue.doorbell);
        pdd.queue_count -= 1;
        if pdd.gws_queue == Some(args.queue_id) {
            pdd.gws_queue = None;
        }
        self.slot.release(Resource::Queues(gpu), 1);
        Ok(())
    }
}

/// A queue that is counted in the ledger. Dropping it undoes the count, unless it is kept.
pub(super) struct Counted<'a> {
    process: &'a KfdProcess,
    gpu: usize,
    kept: bool,
}

impl Counted<'_> {
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.process.slot.release(Resource::Queues(self.gpu), 1);
        }
    }
}

/// User addresses that the kernel accesses later. Only the range is checked now.
pub(super) fn check_addresses(args: &kfd_ioctl_create_queue_args) -> Result<(), Errno> {
    let given = |address: u64| address == 0 || access_ok(address, 4);
    let all = [
        args.read_pointer_address,
        args.write_pointer_address,
        args.eop_buffer_address,
        args.ctx_save_restore_address,
    ];
    if all.into_iter().all(given) { Ok(()) } else { Err(Errno::EFAULT) }
}

fn new_queue(
    gpu: usize,
    args: &kfd_ioctl_create_queue_args,
    doorbell: Doorbell,
    buffers: QueueBuffers,
    xccs: usize,
) -> Queue {
    Queue {
        gpu,
        properties: QueueProperties {
            queue_type: args.queue_type,
            ring_va: args.ring_base_address,
            ring_bytes: args.ring_size,
            percent: args.queue_percentage & 0xff,
            priority: args.queue_priority,
            read_pointer_va: args.read_pointer_address,
            write_pointer_va: args.write_pointer_address,
            eop_va: args.eop_buffer_address,
            // The kernel keeps 32 bits of it too (`queue_properties.eop_ring_buffer_size`).
            eop_bytes: words(args.eop_buffer_size)[0],
            cwsr_va: args.ctx_save_restore_address,
            cwsr_bytes: args.ctx_save_restore_size,
            control_stack_bytes: args.ctl_stack_size,
        },
        doorbell,
        buffers,
        running: false,
        reset: false,
        mqd: Box::new(initial_mqd(args, xccs)),
    }
}

/// The descriptors of a queue that has never run (`mqd_manager_v11:init_mqd`, `init_mqd_v9_4_3`): both parts of every XCC's
/// save area are empty and grow away from their boundary, and every compute unit is allowed.
fn initial_mqd(args: &kfd_ioctl_create_queue_args, xccs: usize) -> Mqd {
    let mut mqd = Mqd::with_xccs(xccs);
    if kind_of(args.queue_type) == HwQueueKind::Sdma {
        return mqd;
    }
    for xcc in 0..xccs {
        mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_OFFSET, args.ctl_stack_size);
        mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_SIZE, args.ctl_stack_size);
        mqd.set_word_of(xcc, mqd_field::WAVE_STATE_OFFSET, args.ctl_stack_size);
        mqd.set_word_of(xcc, mqd_field::SAVE_AREA_SIZE, args.ctx_save_restore_size);
        cu_mask::write(&mut mqd, xcc, [u32::MAX; 8]);
    }
    mqd
}
