// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP CHECKPOINT.
//!
//! INVARIANT: CHECKPOINT changes nothing of the process. It gives out descriptors last, so that a checkpoint that fails
//! leaves no descriptor behind.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};

use kfd::sys::*;
use nix::errno::Errno;

use super::Census;
use crate::driver::bo::{Bo, Domain};
use crate::driver::process::{KfdProcess, Pdd, State};
use crate::driver::{Call, FdPlace, device, memfd};

/// `KFD_INVALID_FD`: the bucket has no descriptor, or the client's side will write its number.
const NO_FD: u32 = u32::MAX;

/// The buffers that a checkpoint holds, by index. Buffers below the GPU's first address belong to the trap handler and
/// are left out.
pub(super) fn bos(pdd: &Pdd) -> impl Iterator<Item = (u32, &Bo)> {
    pdd.bos.iter().filter(|(_, bo)| bo.va == 0 || bo.va > device::GPUVM_BASE)
}

/// Address of element `index` of an array in the client.
///
/// # Errors
/// `EFAULT` when there can be no such address.
pub(super) fn element(array: u64, index: usize, bytes: usize) -> Result<u64, Errno> {
    // CAST: usize to u64 on a 64-bit target.
    let offset = (index as u64).checked_mul(bytes as u64).ok_or(Errno::EFAULT)?;
    array.checked_add(offset).ok_or(Errno::EFAULT)
}

impl KfdProcess {
    pub(super) fn checkpoint(&self, args: &kfd_ioctl_criu_args, call: &Call<'_>) -> Result<(), Errno> {
        if args.devices == 0 || args.bos == 0 || args.priv_data == 0 {
            return Err(Errno::EINVAL);
        }
        let state = self.state.lock();
        if self.gpus.is_empty() {
            return Err(Errno::ENODEV);
        }
        // The pages of shared virtual memory are lent by a client who is alive: a restored one could not lend them at RESUME,
        // where the kernel sets the ranges' attributes again.
        if !state.svm.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        let asked = Census {
            devices: args.num_devices,
            bos: args.num_bos,
            objects: args.num_objects,
            private_bytes: args.priv_data_size,
        };
        if !state.criu.paused || asked != self.census(&state) {
            return Err(Errno::EINVAL);
        }
        let mut buckets = Vec::new();
        let mut memory = Vec::new();
        let private = self.private_blob(&state, &mut buckets, &mut memory)?;
        // Another thread may have created an event after the events were counted.
        if private.len() as u64 != args.priv_data_size {
            return Err(Errno::EINVAL);
        }
        call.memory.write(args.devices, bytemuck::cast_slice(&self.device_buckets()))?;
        call.memory.write(args.priv_data, &private)?;
        call.memory.write(args.bos, bytemuck::cast_slice(&buckets))?;
        for (index, fd) in memory {
            let bucket = element(args.bos, index, size_of::<kfd_criu_bo_bucket>())?;
            // CAST: an offset in a struct of 48 bytes.
            let field = offset_of!(kfd_criu_bo_bucket, dmabuf_fd) as u64;
            call.fds.give_out(FdPlace::Memory(bucket.checked_add(field).ok_or(Errno::EFAULT)?), fd);
        }
        Ok(())
    }

    fn device_buckets(&self) -> Vec<kfd_criu_device_bucket> {
        let bucket = |(gpu, model): (usize, &crate::sysfs::GpuModel)| kfd_criu_device_bucket {
            user_gpu_id: self.user_id(gpu),
            actual_gpu_id: model.gpu_id(),
            ..Default::default()
        };
        self.gpus.iter().enumerate().map(bucket).collect()
    }

    /// The blob. Also fills `buckets`, one for each buffer, and `memory`: index and descriptor of each buffer whose
    /// bucket has one.
    fn private_blob(
        &self,
        state: &State,
        buckets: &mut Vec<kfd_criu_bo_bucket>,
        memory: &mut Vec<(usize, OwnedFd)>,
    ) -> Result<Vec<u8>, Errno> {
        let process = kfd_criu_process_priv_data { version: KFD_CRIU_PRIV_VERSION, xnack_mode: 0 };
        let mut blob = bytemuck::bytes_of(&process).to_vec();
        for _ in self.gpus.iter() {
            blob.extend_from_slice(bytemuck::bytes_of(&kfd_criu_device_priv_data::default()));
        }
        for (gpu, pdd) in state.pdds.iter().enumerate() {
            for (index, bo) in bos(pdd) {
                blob.extend_from_slice(bytemuck::bytes_of(&self.bo_private(index, bo)));
                if let Some(fd) = descriptor(bo)? {
                    memory.push((buckets.len(), fd));
                }
                buckets.push(self.bo_bucket(gpu, bo));
            }
        }
        for gpu in 0..self.gpus.len() {
            for (id, queue) in state.queues.iter().filter(|(_, queue)| queue.gpu == gpu) {
                self.append_queue(&mut blob, state, id, queue)?;
            }
        }
        for event in self.events.lock().checkpoint(state.event_page) {
            blob.extend_from_slice(bytemuck::bytes_of(&event));
        }
        Ok(blob)
    }

    fn bo_private(&self, index: u32, bo: &Bo) -> kfd_criu_bo_priv_data {
        // The offset of a USERPTR buffer is the address of its pages.
        let user_addr = if bo.backing.domain == Domain::Userptr { bo.mmap_offset } else { 0 };
        let mut private = kfd_criu_bo_priv_data { user_addr, idr_handle: index, ..Default::default() };
        let mapped = (0..self.gpus.len()).filter(|gpu| bo.is_mapped_on(*gpu));
        for (slot, gpu) in private.mapped_gpuids.iter_mut().zip(mapped) {
            *slot = self.user_id(gpu);
        }
        private
    }

    fn bo_bucket(&self, gpu: usize, bo: &Bo) -> kfd_criu_bo_bucket {
        let actual = kfd_mmap_gpu_id(self.gpus[gpu].gpu_id());
        kfd_criu_bo_bucket {
            addr: bo.va,
            size: bo.backing.bytes,
            offset: match bo.backing.domain {
                Domain::Doorbell => KFD_MMAP_TYPE_DOORBELL | actual,
                Domain::Mmio => KFD_MMAP_TYPE_MMIO | actual,
                // The render node cannot map USERPTR memory, so that there is no offset.
                Domain::Userptr => 0,
                Domain::Vram { .. } | Domain::Gtt => bo.mmap_offset,
            },
            gpu_id: self.user_id(gpu),
            alloc_flags: bo.flags,
            dmabuf_fd: NO_FD,
            ..Default::default()
        }
    }
}

/// The DMABuf of a VRAM or GTT buffer; none for others. It is writable if the buffer is.
fn descriptor(bo: &Bo) -> Result<Option<OwnedFd>, Errno> {
    if bo.flags & (KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_GTT) == 0 {
        return Ok(None);
    }
    let fd = &bo.backing.fd;
    if bo.writable() { memfd::duplicate(fd) } else { memfd::reopen_read_only(fd.as_fd()) }.map(Some)
}
