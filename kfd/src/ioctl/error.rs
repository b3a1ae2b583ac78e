// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a failed ioctl reports: its name, the file, the errno, and, where it is known, what the user can do.

use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::errno::ENOTSUPP;
use crate::sys::{DrmIoctl, Ioctl, KfdIoctl};

/// A failed ioctl.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ioctl} on {} failed with {}{}", path.display(), Number(*errno), Advice(ioctl, *errno))]
pub struct IoctlError {
    /// The ioctl's name without its prefix, such as `CREATE_QUEUE`.
    pub ioctl: &'static str,
    /// The file's path.
    pub path: PathBuf,
    /// The driver's answer.
    pub errno: Errno,
}

/// A failed MAP_MEMORY_TO_GPU or UNMAP_MEMORY_FROM_GPU, which may have done some of its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Only {done} of {wanted} GPUs were done")]
pub struct MapError {
    /// How many GPUs, from the first, are done; they stay done.
    pub done: u32,
    /// How many were asked for.
    pub wanted: u32,
    /// The failure at the next GPU.
    #[source]
    pub source: IoctlError,
}

impl From<MapError> for IoctlError {
    fn from(error: MapError) -> Self {
        error.source
    }
}

struct Number(Errno);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ENOTSUPP => f.write_str("ENOTSUPP: Not supported (524)"),
            errno => write!(f, "{errno}"),
        }
    }
}

struct Advice<'a>(&'a str, Errno);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match advice(self.0, self.1) {
            Some(text) => write!(f, "; {text}"),
            None => Ok(()),
        }
    }
}

fn advice(ioctl: &str, errno: Errno) -> Option<&'static str> {
    Ioctl::named(ioctl).and_then(|ioctl| by_ioctl(ioctl, errno)).or_else(|| by_errno(errno))
}

/// What an errno means for one ioctl only.
fn by_ioctl(ioctl: Ioctl, errno: Errno) -> Option<&'static str> {
    use Ioctl::{Drm, Kfd};
    use {DrmIoctl as D, KfdIoctl as K};
    Some(match (ioctl, errno) {
        (Kfd(K::CreateQueue), Errno::EINVAL) => {
            "each of ring, pointers, EOP buffer and save area needs its own mapping of exactly its size, and \
             ctl_stack_size must equal the node's"
        }
        (Kfd(K::CreateQueue), Errno::ENOSPC) => "destroy a queue of this process on this GPU",
        (Kfd(K::CreateQueue), Errno::EPERM) => {
            "the GPU has no queue left; destroy a queue of this or another process"
        }
        (Kfd(K::CreateQueue), ENOTSUPP) => "no such queue type",
        (Kfd(K::CreateQueue) | Kfd(K::SetMemoryPolicy) | Kfd(K::SetTrapHandler), Errno::ESRCH) => {
            "call ACQUIRE_VM for this GPU first"
        }
        (Kfd(K::UpdateQueue), Errno::EFAULT) => {
            "the queue does not exist, or no mapping of the ring's size starts there"
        }
        (Kfd(K::UpdateQueue), Errno::EACCES) => "the driver reset this queue; destroy the queue",
        (Kfd(K::GetQueueWaveState), Errno::EINVAL) => "make the compute queue inactive first (percentage 0)",
        (Kfd(K::GetQueueWaveState) | Kfd(K::SetCuMask), Errno::EFAULT) => "the queue does not exist",
        (Kfd(K::AcquireVm), Errno::EBUSY) => {
            "this process acquired this GPU through another open render node; use that open file"
        }
        (Kfd(K::AcquireVm), Errno::EINVAL) => "pass a fresh amdgpu render node and a GPU id of the topology",
        (Kfd(K::FreeMemoryOfGpu), Errno::EBUSY) => "unmap the memory from every GPU first",
        (Kfd(K::FreeMemoryOfGpu), Errno::EPERM) => "the event page lives as long as the process",
        (Kfd(K::UnmapMemoryFromGpu), Errno::EBUSY) => "destroy the queue that uses the memory first",
        (Kfd(K::UnmapMemoryFromGpu), Errno::EINVAL) => "the memory is not mapped on that GPU",
        (Kfd(K::MapMemoryToGpu), Errno::EINVAL) => {
            "the address must be free and aligned to pages, and a peer GPU needs a P2P link"
        }
        (Kfd(K::MapMemoryToGpu) | Kfd(K::UnmapMemoryFromGpu), Errno::ENOMEM) => "there may be no such handle",
        (Kfd(K::AllocMemoryOfGpu), Errno::ENOMEM) => "free memory; AVAILABLE_MEMORY tells what is left",
        (Kfd(K::AllocMemoryOfGpu), Errno::EFAULT) => "the pages at the user address cannot be written",
        (Kfd(K::AllocMemoryOfGpu), Errno::EADDRINUSE) => "the range is registered as shared virtual memory",
        (Kfd(K::CreateEvent), Errno::EINVAL) => {
            "the event page can be given only once in the life of a process"
        }
        (Kfd(K::CreateEvent), Errno::ENOSPC) => "all 4095 signal events are in use; destroy some",
        (Kfd(K::CreateEvent), Errno::ENOMEM) => "pass an event page with the first event",
        (Kfd(K::WaitEvents), Errno::EIO) => "an event was destroyed during the wait",
        (Kfd(K::RuntimeEnable), Errno::EEXIST) => "enable the runtime before the first queue is created",
        (Kfd(K::RuntimeEnable), Errno::EBUSY) => "the runtime is enabled already",
        (Kfd(K::SetXnackMode), Errno::EBUSY) => "destroy all queues first",
        (Kfd(K::CriuOp), Errno::EACCES) => "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN is needed",
        (Kfd(K::CriuOp), Errno::EOPNOTSUPP) => {
            "the driver cannot take the queues of this GPU; destroy them first"
        }
        (Kfd(K::CriuOp), Errno::ESRCH) => "there is no such process, or it has not opened the device",
        (Kfd(K::CriuOp), Errno::EMFILE) => {
            "raise the limit of open files (ulimit -n) above the number of buffers"
        }
        (Kfd(K::AllocMemoryOfGpu), Errno::EMFILE | Errno::ENFILE) => {
            "the software device has an open file for each buffer: raise the limit (ulimit -n)"
        }
        (Drm(D::PrimeFdToHandle) | Kfd(K::ImportDmabuf), Errno::EINVAL) => {
            "the descriptor is no DMABuf, or not one that this GPU can reach"
        }
        (Drm(D::PrimeFdToHandle) | Kfd(K::ImportDmabuf), Errno::EBADF) => {
            "the descriptor is not open, or no DMABuf"
        }
        (Drm(D::PrimeHandleToFd) | Drm(D::GemMmap), Errno::ENOENT) => {
            "there is no such handle on this open file"
        }
        (Drm(D::GemClose), Errno::EINVAL) => "there is no such handle on this open file",
        (Drm(D::GemVa), Errno::ENOENT) => {
            "there is no such handle on this open file, or no mapping of it starts there"
        }
        (Drm(D::GemVa), Errno::EINVAL) => {
            "address, offset and size must be whole pages inside the object, and the range must be free"
        }
        (Drm(D::GemVa) | Drm(D::GemClose), Errno::EBUSY) => "destroy the queue that uses the memory first",
        (Drm(D::GemMmap), Errno::EPERM) => "the memory cannot be mapped by the CPU",
        _ => return None,
    })
}

/// What an errno means for every ioctl.
fn by_errno(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ENODEV => "the GPU is gone, or ACQUIRE_VM was not called for it",
        Errno::EBADF => "the file was opened by the parent of this process, or is closed; open it again",
        Errno::ENOTTY => "the driver is too old for this ioctl",
        Errno::EIO | Errno::ETIME => "the GPU does not answer; see the kernel log",
        _ => return None,
    })
}
