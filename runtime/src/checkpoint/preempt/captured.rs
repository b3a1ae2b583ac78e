// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's record of a process with preempted queues: kept for a copy of the process, which gives it to its driver.

use std::sync::Arc;

use kfd::blob::Blob;
use kfd::ioctl::RestoreDevice;
use kfd::sys::{kfd_criu_bo_bucket, kfd_criu_device_bucket};
use kfd::{File, GpuId, IoctlError, Kfd};
use queues::words::count;

use super::super::contents::Contents;
use super::error::CaptureError;
use crate::context::registry::state::BoKind;
use crate::context::registry::{KernelBo, Registry};

/// The driver's state of a process, to be given to a copy of it.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(super) devices: Vec<kfd_criu_device_bucket>,
    pub(super) bos: Vec<kfd_criu_bo_bucket>,
    pub(super) objects: u32,
    pub(super) private: Vec<u8>,
    /// The buffers whose bytes are in the image, and how many of each.
    pub(crate) contents: Contents,
}

impl Captured {
    /// Whether every GPU of the record is among `here`.
    ///
    /// # Errors
    /// [`CaptureError::Gpu`].
    pub(crate) fn check_gpus(&self, here: &[GpuId]) -> Result<(), CaptureError> {
        let absent =
            self.devices.iter().map(|device| device.actual_gpu_id).find(|id| !here.contains(&GpuId(*id)));
        absent.map_or(Ok(()), |gpu_id| Err(CaptureError::Gpu { gpu_id }))
    }

    /// Gives the state to this process, which has nothing in the driver yet. `render` is a fresh render file of each
    /// GPU.
    ///
    /// # Errors
    /// [`IoctlError`]; this process cannot be restored any more then, another copy can.
    pub(crate) fn put(
        &mut self,
        kfd: &Kfd,
        render: impl Fn(GpuId) -> Option<Arc<dyn File>>,
    ) -> Result<(), IoctlError> {
        let files: Vec<_> = self
            .devices
            .iter()
            .filter_map(|bucket| Some((bucket, render(GpuId(bucket.actual_gpu_id))?)))
            .collect();
        let devices: Vec<_> = files
            .iter()
            .map(|(bucket, file)| RestoreDevice {
                user_gpu_id: bucket.user_gpu_id,
                actual_gpu_id: bucket.actual_gpu_id,
                render_node: file.as_fd(),
            })
            .collect();
        kfd.criu_restore(&devices, &mut self.bos, self.objects, &self.private).map(drop)
    }

    /// Tells the registry what the driver has after [`Captured::put`].
    ///
    /// # Errors
    /// [`CaptureError`].
    pub(crate) fn adopt(&self, registry: &mut Registry) -> Result<(), CaptureError> {
        // Counts that were u32 when the driver gave them.
        let blob = Blob::parse(&self.private, count(self.devices.len()), count(self.bos.len()))?;
        for (key, bo) in registry.bos.iter_mut() {
            let state = &bo.state;
            if state.kind == BoKind::Reserved {
                continue;
            }
            let found = self.bos.iter().zip(&blob.bos).find(|(bucket, _)| bucket.addr == state.va);
            let (bucket, entry) =
                found.ok_or(CaptureError::Buffer { bo: key, va: state.va, bytes: state.bytes })?;
            let handle = entry.handle(GpuId(bucket.gpu_id));
            bo.kernel = Some(KernelBo { handle: handle.0, mmap_offset: bucket.restored_offset });
        }
        registry.events.iter_mut().for_each(|(_, event)| event.created = true);
        registry.queues.iter_mut().for_each(|(_, queue)| queue.created = true);
        Ok(())
    }
}
