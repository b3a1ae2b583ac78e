// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP RESTORE: process, devices, buffers, then queues and events in the blob's order.
//!
//! INVARIANT: the blob is untrusted. It cannot make the driver read beyond its end, allocate more than one entry at a
//! time, or enter a state that CREATE and ALLOC could not reach. As in the kernel, objects made before a failure stay;
//! the queues stay off the hardware then.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};

use kfd::sys::*;
use nix::errno::Errno;

use super::blob::{BO_BYTES, Cursor};
use super::dump::element;
use crate::driver::bo::Domain;
use crate::driver::memory::wanted;
use crate::driver::mmap::acquired_file;
use crate::driver::process::{KfdProcess, State};
use crate::driver::{Call, FdPlace, UserPages, memfd};

const DEVICE_BUCKET: usize = size_of::<kfd_criu_device_bucket>();
const BO_BUCKET: usize = size_of::<kfd_criu_bo_bucket>();
/// Offsets of the buckets' descriptor fields.
const DRM_FD: u64 = offset_of!(kfd_criu_device_bucket, drm_fd) as u64;
const DMABUF_FD: u64 = offset_of!(kfd_criu_bo_bucket, dmabuf_fd) as u64;

impl KfdProcess {
    pub(super) fn criu_restore(&self, args: &kfd_ioctl_criu_args, call: &Call<'_>) -> Result<(), Errno> {
        let missing = args.devices == 0 || args.bos == 0 || args.priv_data == 0;
        if missing || args.priv_data_size == 0 || args.num_devices == 0 || args.num_bos == 0 {
            return Err(Errno::EINVAL);
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // The queues stay off the hardware until RESUME, so that none runs before its memory is restored.
        self.evict_queues(state)?;
        let mut cursor = Cursor::new(args);
        let process: kfd_criu_process_priv_data = cursor.take(call)?;
        if process.version != KFD_CRIU_PRIV_VERSION {
            return Err(Errno::EINVAL);
        }
        // No GPU of this device can retry faults.
        if process.xnack_mode != 0 {
            return Err(Errno::EPERM);
        }
        self.restore_devices(state, args, &mut cursor, call)?;
        let memory = self.restore_bos(state, args, &mut cursor, call)?;
        for _ in 0..args.num_objects {
            self.restore_object(state, &mut cursor, call)?;
        }
        if !cursor.at_end() {
            return Err(Errno::EINVAL);
        }
        // The kernel has installed the descriptors by now, even if a later object failed. Here a failed ioctl installs
        // none, so that the client gets no descriptor that it does not know of.
        for (place, fd) in memory {
            call.fds.give_out(place, fd);
        }
        Ok(())
    }

    fn restore_devices(
        &self,
        state: &mut State,
        args: &kfd_ioctl_criu_args,
        cursor: &mut Cursor,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.num_devices as usize != self.gpus.len() {
            return Err(Errno::EINVAL);
        }
        cursor.skip(u64::from(args.num_devices), size_of::<kfd_criu_device_priv_data>())?;
        for index in 0..args.num_devices as usize {
            let address = element(args.devices, index, DEVICE_BUCKET)?;
            let mut bucket = kfd_criu_device_bucket::default();
            call.memory.read(address, bytemuck::bytes_of_mut(&mut bucket))?;
            if bucket.user_gpu_id == 0 {
                return Err(Errno::EINVAL);
            }
            let gpu = self.gpu_by_actual_id(bucket.actual_gpu_id)?;
            self.set_user_id(gpu, bucket.user_gpu_id);
            let place = FdPlace::Memory(address.checked_add(DRM_FD).ok_or(Errno::EFAULT)?);
            let fd = call.fds.take_in(place).ok_or(Errno::EINVAL)?;
            if state.pdds[gpu].render.is_some() {
                return Err(Errno::EINVAL);
            }
            let file = acquired_file(state, &fd).filter(|(_, of_gpu)| *of_gpu == gpu);
            state.pdds[gpu].render = Some(file.ok_or(Errno::EINVAL)?.0);
            // Creates the doorbell slice, as the first queue would.
            self.hardware.doorbells(gpu)?;
        }
        Ok(())
    }

    /// Makes all buffers and writes their buckets back. Answers the memory of each buffer whose bucket has a
    /// descriptor.
    fn restore_bos(
        &self,
        state: &mut State,
        args: &kfd_ioctl_criu_args,
        cursor: &mut Cursor,
        call: &Call<'_>,
    ) -> Result<Vec<(FdPlace, OwnedFd)>, Errno> {
        cursor.expect(u64::from(args.num_bos), BO_BYTES)?;
        state.criu.blocked = true;
        let mut memory = Vec::new();
        for index in 0..args.num_bos as usize {
            let address = element(args.bos, index, BO_BUCKET)?;
            let place = FdPlace::Memory(address.checked_add(DMABUF_FD).ok_or(Errno::EFAULT)?);
            let mut bucket = kfd_criu_bo_bucket::default();
            call.memory.read(address, bytemuck::bytes_of_mut(&mut bucket))?;
            let private: kfd_criu_bo_priv_data = cursor.take(call)?;
            let pages = call.fds.take_in(place).and_then(|fd| {
                let bytes = memfd::sealed_bytes(fd.as_fd())?;
                Some(UserPages::New { fd, bytes, writable: true })
            });
            let pages = pages.into_iter().collect();
            if let Some(fd) = self.restore_bo(state, &mut bucket, &private, pages)? {
                memory.push((place, fd));
            }
            bucket.dmabuf_fd = u32::MAX;
            call.memory.write(address, bytemuck::bytes_of(&bucket))?;
        }
        Ok(memory)
    }

    /// Makes one buffer under its old index and maps it on the GPUs where it was mapped. `pages` is the memory of a
    /// USERPTR buffer.
    fn restore_bo(
        &self,
        state: &mut State,
        bucket: &mut kfd_criu_bo_bucket,
        private: &kfd_criu_bo_priv_data,
        pages: Vec<UserPages>,
    ) -> Result<Option<OwnedFd>, Errno> {
        let gpu = self.gpu_by_id(bucket.gpu_id).map_err(|_| Errno::ENODEV)?;
        let args = kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr: bucket.addr,
            size: bucket.size,
            mmap_offset: private.user_addr,
            flags: bucket.alloc_flags,
            ..Default::default()
        };
        // The bucket has the size of the memory. AQL_QUEUE_MEM maps the memory twice, so that ALLOC was asked for twice
        // the size.
        let once = kfd_ioctl_alloc_memory_of_gpu_args {
            flags: args.flags & !KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM,
            ..args
        };
        let bo = self.new_bo(state, gpu, &wanted(&once)?, &args, pages)?;
        let (domain, offset) = (bo.backing.domain, bo.mmap_offset);
        let dmabuf = bucket.alloc_flags & (KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_GTT) != 0;
        let fd = if dmabuf { Some(memfd::duplicate(&bo.backing.fd)?) } else { None };
        if !state.pdds[gpu].bos.insert_at(private.idr_handle, bo) {
            return Err(Errno::ENOMEM);
        }
        let actual = kfd_mmap_gpu_id(self.gpus[gpu].gpu_id());
        match domain {
            Domain::Doorbell => bucket.restored_offset = KFD_MMAP_TYPE_DOORBELL | actual,
            Domain::Mmio => bucket.restored_offset = KFD_MMAP_TYPE_MMIO | actual,
            Domain::Vram { .. } | Domain::Gtt => bucket.restored_offset = offset,
            // A USERPTR buffer has no descriptor: its memory is the client's own.
            Domain::Userptr => {}
        }
        let mapped = private.mapped_gpuids.iter().take(self.gpus.len());
        for id in mapped.take_while(|id| **id != 0) {
            let on = self.gpu_by_id(*id)?;
            state.bound(on)?;
            self.map_on(state, gpu, private.idr_handle, on)?;
        }
        Ok(fd)
    }

    fn restore_object(&self, state: &mut State, cursor: &mut Cursor, call: &Call<'_>) -> Result<(), Errno> {
        match cursor.peek::<u32>(call)? {
            KFD_CRIU_OBJECT_TYPE_QUEUE => self.restore_queue(state, cursor, call),
            KFD_CRIU_OBJECT_TYPE_EVENT => {
                let event: kfd_criu_event_priv_data = cursor.take(call)?;
                let mut events = self.events.lock();
                if event.user_handle != 0 {
                    self.set_event_page(state, &mut events, event.user_handle)?;
                }
                events.restore(&event)
            }
            // Ranges of shared virtual memory, as of a kernel without them: CHECKPOINT makes no image that has any.
            _ => Err(Errno::EINVAL),
        }
    }
}
