// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of CRIU_OP: the driver's state of a whole process, taken and put back.
//!
//! INVARIANT: every descriptor the driver makes is owned by what is returned, close-on-exec.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::call::{Issue, NO_FD, Slice, failed};
use super::error::IoctlError;
use super::file::Kfd;
use crate::sys::kfd_ioctl::CriuOp;
use crate::sys::{self, kfd_criu_bo_bucket, kfd_criu_device_bucket, kfd_ioctl_criu_args};

/// What PROCESS_INFO says of a process: how much CHECKPOINT will write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ProcessInfo {
    /// Its number in its own PID namespace.
    pub pid: u32,
    /// GPUs.
    pub devices: u32,
    /// Buffer objects.
    pub bos: u32,
    /// Queues, events and ranges.
    pub objects: u32,
    /// Bytes of the private blob.
    pub private_bytes: u64,
}

/// What CHECKPOINT wrote.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// GPUs.
    pub devices: Vec<kfd_criu_device_bucket>,
    /// Buffer objects; the descriptors are in `dmabufs`.
    pub bos: Vec<kfd_criu_bo_bucket>,
    /// Queues, events and ranges in the blob.
    pub objects: u32,
    /// The blob, which [`crate::blob::Blob`] reads.
    pub private: Vec<u8>,
    /// The memory of each buffer object that has some of its own (VRAM and GTT).
    pub dmabufs: Vec<Option<OwnedFd>>,
}

/// A GPU for RESTORE.
#[derive(Clone, Copy, Debug)]
pub struct RestoreDevice<'a> {
    /// The id that the process knows (of the checkpoint).
    pub user_gpu_id: u32,
    /// The id of the hardware that takes its place.
    pub actual_gpu_id: u32,
    /// A fresh render node of it, which was not acquired.
    pub render_node: BorrowedFd<'a>,
}

impl Kfd {
    /// CRIU_OP PROCESS_INFO: takes all queues of the process off the hardware until [`Kfd::criu_unpause`].
    ///
    /// # Errors
    /// [`IoctlError`]; EACCES without CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN. Nothing is paused then.
    pub fn criu_process_info(&self) -> Result<ProcessInfo, IoctlError> {
        let mut args = kfd_ioctl_criu_args { op: sys::KFD_CRIU_OP_PROCESS_INFO, ..Default::default() };
        self.call_with::<CriuOp>(&mut args, &mut [])?;
        Ok(ProcessInfo {
            pid: args.pid,
            devices: args.num_devices,
            bos: args.num_bos,
            objects: args.num_objects,
            private_bytes: args.priv_data_size,
        })
    }

    /// CRIU_OP CHECKPOINT of the paused process. Opens a descriptor for each VRAM and GTT object.
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL if `info` does not describe the process any more, EOPNOTSUPP if the driver cannot
    /// take a queue's state, EMFILE when there are fewer descriptors left than buffer objects.
    pub fn criu_checkpoint(&self, info: &ProcessInfo) -> Result<Checkpoint, IoctlError> {
        let too_large = || failed::<CriuOp>(self.target(), Errno::ENOMEM);
        let mut private = Vec::new();
        let length = usize::try_from(info.private_bytes).map_err(|_| too_large())?;
        private.try_reserve_exact(length).map_err(|_| too_large())?;
        private.resize(length, 0_u8);
        let mut devices = vec![kfd_criu_device_bucket::default(); info.devices as usize];
        let empty = kfd_criu_bo_bucket { dmabuf_fd: NO_FD, ..Default::default() };
        let mut bos = vec![empty; info.bos as usize];
        let mut args = kfd_ioctl_criu_args {
            num_objects: info.objects,
            op: sys::KFD_CRIU_OP_CHECKPOINT,
            ..Default::default()
        };
        let mut arrays = [
            Slice::Write(bytemuck::cast_slice_mut(&mut devices)),
            Slice::Write(bytemuck::cast_slice_mut(&mut bos)),
            Slice::Write(&mut private),
        ];
        // A checkpoint that fails has closed the descriptors whose numbers it wrote.
        let (outcome, dmabufs) = self.call_for_descriptors::<CriuOp>(&mut args, &mut arrays, |_| false);
        outcome?;
        Ok(Checkpoint { devices, bos, objects: info.objects, private, dmabufs })
    }

    /// CRIU_OP UNPAUSE: the queues run again, each by its percentage.
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL if nothing is paused.
    pub fn criu_unpause(&self) -> Result<(), IoctlError> {
        let mut args = kfd_ioctl_criu_args { op: sys::KFD_CRIU_OP_UNPAUSE, ..Default::default() };
        self.call_with::<CriuOp>(&mut args, &mut []).map(drop)
    }

    /// CRIU_OP RESTORE in a process that has acquired nothing yet: buffer objects, queues and events come back under
    /// their numbers, the queues stopped until [`Kfd::criu_resume`]. Each bucket gets its `restored_offset`; answers
    /// the memory of each VRAM and GTT object, to be filled.
    ///
    /// # Errors
    /// [`IoctlError`]; what was made before stays, so that the process is of no further use.
    pub fn criu_restore(
        &self,
        devices: &[RestoreDevice<'_>],
        bos: &mut [kfd_criu_bo_bucket],
        objects: u32,
        private: &[u8],
    ) -> Result<Vec<Option<OwnedFd>>, IoctlError> {
        if devices.len().max(bos.len()) > u32::MAX as usize {
            return Err(failed::<CriuOp>(self.target(), Errno::EINVAL));
        }
        let mut buckets: Vec<kfd_criu_device_bucket> = devices
            .iter()
            .map(|device| kfd_criu_device_bucket {
                user_gpu_id: device.user_gpu_id,
                actual_gpu_id: device.actual_gpu_id,
                drm_fd: device.render_node.as_raw_fd().cast_unsigned(),
                pad: 0,
            })
            .collect();
        // The driver only reads it, but the transport may offer it for writing.
        let mut private = private.to_vec();
        let mut args =
            kfd_ioctl_criu_args { num_objects: objects, op: sys::KFD_CRIU_OP_RESTORE, ..Default::default() };
        let mut arrays = [
            Slice::Write(bytemuck::cast_slice_mut(&mut buckets)),
            Slice::Write(bytemuck::cast_slice_mut(bos)),
            Slice::Write(&mut private),
        ];
        // A restore that fails does not take back the descriptors that it has made. Only after EFAULT the buckets may
        // hold numbers of descriptors that were never installed.
        let stays = |errno| errno != Errno::EFAULT;
        let (outcome, dmabufs) = self.call_for_descriptors::<CriuOp>(&mut args, &mut arrays, stays);
        outcome.map(|()| dmabufs)
    }

    /// CRIU_OP RESUME of the restored process `pid`: its queues run, each by its percentage.
    ///
    /// # Errors
    /// [`IoctlError`]; ESRCH for a process without driver state, EINVAL for one that was not restored.
    pub fn criu_resume(&self, pid: u32) -> Result<(), IoctlError> {
        let mut args = kfd_ioctl_criu_args { op: sys::KFD_CRIU_OP_RESUME, pid, ..Default::default() };
        self.call_with::<CriuOp>(&mut args, &mut []).map(drop)
    }
}
