// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ioctls on a queue that exists: UPDATE_QUEUE, SET_CU_MASK, GET_QUEUE_WAVE_STATE, ALLOC_QUEUE_GWS.
//!
//! INVARIANT: when the ioctl returns, a parked queue (ring 0 or percentage 0) is off the hardware and its waves are
//! saved. It still holds its ring.

use kfd::sys::*;
use nix::errno::Errno;

use super::cu_mask;
use super::process::{KfdProcess, State};
use super::queue_buffers::find_ring;
use super::queues::check_properties;
use super::{Call, access_ok};

impl KfdProcess {
    pub(super) fn update_queue(
        &self,
        args: &mut kfd_ioctl_update_queue_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let ring_bytes = check_properties(
            args.queue_percentage,
            args.queue_priority,
            args.ring_base_address,
            args.ring_size,
        )?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let gpu = state.queues.get(args.queue_id).ok_or(Errno::EFAULT)?.gpu;
        if args.ring_base_address != 0 {
            let ring = find_ring(state, gpu, args.ring_base_address, ring_bytes)?;
            let queue = state.queues.get_mut(args.queue_id).ok_or(Errno::EFAULT)?;
            let vm = &mut state.pdds[gpu].vm;
            // A restored queue may hold no ring until UPDATE_QUEUE gives it one.
            if let Some(old) = queue.buffers.ring.replace(ring) {
                vm.release(old);
            }
            vm.hold(ring);
        }
        let queue = state.queues.get_mut(args.queue_id).ok_or(Errno::EFAULT)?;
        queue.properties.ring_va = args.ring_base_address;
        queue.properties.ring_bytes = ring_bytes;
        queue.properties.percent = args.queue_percentage & 0xff;
        queue.properties.priority = args.queue_priority;
        if queue.reset {
            return Err(Errno::EACCES);
        }
        // New properties need a new hardware queue, so that a queue comes off the hardware even to be changed. The
        // descriptor stays unchanged, also for another ring: its pointers are counts.
        self.take_off(args.queue_id, queue)?;
        self.put_on(args.queue_id, queue, &state.pdds[gpu])
    }

    pub(super) fn set_cu_mask(
        &self,
        args: &mut kfd_ioctl_set_cu_mask_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.num_cu_mask == 0 || !args.num_cu_mask.is_multiple_of(32) {
            return Err(Errno::EINVAL);
        }
        let bits = args.num_cu_mask.min(KFD_MAX_CU_MASK_BITS);
        let mask = call.read_u32s(args.cu_mask_ptr, bits / 32)?;
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(args.queue_id).ok_or(Errno::EFAULT)?;
        let pairs = self.target(queue.gpu).is_some_and(|target| target.paired_cus);
        // Both CUs of a pair are allowed, or neither: bit 2k must equal bit 2k + 1.
        if pairs && mask.iter().any(|word| (word ^ word >> 1) & 0x5555_5555 != 0) {
            return Err(Errno::EINVAL);
        }
        if queue.reset {
            return Err(Errno::EACCES);
        }
        // The descriptor of an SDMA queue has no such words.
        if queue.is_compute() {
            for (xcc, number) in (0..queue.mqd.xccs()).zip(0..) {
                let masks = cu_mask::distribute(&mask, self.gpus[queue.gpu].shape(), pairs, number);
                cu_mask::write(&mut queue.mqd, xcc, masks);
            }
        }
        Ok(())
    }

    pub(super) fn get_queue_wave_state(
        &self,
        args: &mut kfd_ioctl_get_queue_wave_state_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let state = self.state.lock();
        let queue = state.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
        if !queue.is_compute() || queue.running || queue.is_active(state.pdds[queue.gpu].evicted) {
            return Err(Errno::EINVAL);
        }
        // The numbers of the first XCC; those of the others are in their headers alone (`get_wave_state_v9_4_3`).
        let first = queue.mqd.waves();
        let mut address = args.ctl_stack_address;
        for xcc in 0..queue.mqd.xccs() {
            let saved = queue.mqd.waves_of(xcc);
            let words = [
                saved.control_stack_offset,
                saved.control_stack_bytes,
                saved.wave_state_offset,
                saved.wave_state_bytes,
            ];
            self.write_user(&state, queue.gpu, address, bytemuck::cast_slice(&words), call)?;
            address = address.wrapping_add(u64::from(queue.properties.cwsr_bytes));
        }
        args.ctl_stack_used_size = first.control_stack_bytes;
        args.save_area_used_size = first.wave_state_bytes;
        Ok(())
    }

    /// Writes to the client at an address that is usually one of its own GPU mappings. A buffer has the same address on
    /// the CPU and on the GPU. If the CPU has not mapped it, the driver writes through the GPU mapping.
    fn write_user(
        &self,
        state: &State,
        gpu: usize,
        address: u64,
        bytes: &[u8],
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        // CAST: a header of a few words.
        if !access_ok(address, bytes.len() as u64) {
            return Err(Errno::EFAULT);
        }
        match call.memory.write(address, bytes) {
            Err(Errno::EFAULT) => {
                let memory = state.resolve(gpu, address, bytes.len() as u64);
                let (file, offset) = memory.ok_or(Errno::EFAULT)?;
                nix::sys::uio::pwrite(file, bytes, offset).map(drop).map_err(|_| Errno::EFAULT)
            }
            answer => answer,
        }
    }

    pub(super) fn alloc_queue_gws(
        &self,
        args: &mut kfd_ioctl_alloc_queue_gws_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let gpu = state.queues.get(args.queue_id).ok_or(Errno::EINVAL)?.gpu;
        if !self.gpus[gpu].has_gws() {
            return Err(Errno::ENODEV);
        }
        let holder = &mut state.pdds[gpu].gws_queue;
        match (args.num_gws, *holder) {
            (0, None) => return Err(Errno::EINVAL),
            (0, Some(_)) => *holder = None,
            (_, Some(_)) => return Err(Errno::EBUSY),
            (_, None) => *holder = Some(args.queue_id),
        }
        args.first_gws = 0;
        Ok(())
    }
}
