// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a failed ioctl reports: its name, the file, the errno, and, where it is known, what the user can do.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::sys::{self, DrmIoctl, Ioctl, KfdIoctl};

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
        match self.0.raw_os_error() {
            sys::ENOTSUPP => f.write_str("ENOTSUPP (os error 524)"),
            _ => write!(f, "{}", self.0),
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
        (Kfd(K::CreateQueue), Errno::INVAL) => {
            "each of ring, pointers, EOP buffer and save area needs its own mapping of exactly its size, and \
             ctl_stack_size must equal the node's"
        }
        (Kfd(K::CreateQueue), Errno::NOSPC) => "destroy a queue of this process on this GPU",
        (Kfd(K::CreateQueue), Errno::PERM) => {
            "the GPU has no queue left; destroy a queue of this or another process"
        }
        (Kfd(K::CreateQueue), errno) if errno.raw_os_error() == sys::ENOTSUPP => "no such queue type",
        (Kfd(K::CreateQueue) | Kfd(K::SetMemoryPolicy) | Kfd(K::SetTrapHandler), Errno::SRCH) => {
            "call ACQUIRE_VM for this GPU first"
        }
        (Kfd(K::UpdateQueue), Errno::FAULT) => {
            "the queue does not exist, or no mapping of the ring's size starts there"
        }
        (Kfd(K::UpdateQueue), Errno::ACCESS) => "the driver reset this queue; destroy the queue",
        (Kfd(K::GetQueueWaveState), Errno::INVAL) => "make the compute queue inactive first (percentage 0)",
        (Kfd(K::GetQueueWaveState) | Kfd(K::SetCuMask), Errno::FAULT) => "the queue does not exist",
        (Kfd(K::AcquireVm), Errno::BUSY) => {
            "this process acquired this GPU through another open render node; use that open file"
        }
        (Kfd(K::AcquireVm), Errno::INVAL) => "pass a fresh amdgpu render node and a GPU id of the topology",
        (Kfd(K::FreeMemoryOfGpu), Errno::BUSY) => "unmap the memory from every GPU first",
        (Kfd(K::FreeMemoryOfGpu), Errno::PERM) => "the event page lives as long as the process",
        (Kfd(K::UnmapMemoryFromGpu), Errno::BUSY) => "destroy the queue that uses the memory first",
        (Kfd(K::UnmapMemoryFromGpu), Errno::INVAL) => "the memory is not mapped on that GPU",
        (Kfd(K::MapMemoryToGpu), Errno::INVAL) => {
            "the address must be free and aligned to pages, and a peer GPU needs a P2P link"
        }
        (Kfd(K::MapMemoryToGpu) | Kfd(K::UnmapMemoryFromGpu), Errno::NOMEM) => "there may be no such handle",
        (Kfd(K::AllocMemoryOfGpu), Errno::NOMEM) => "free memory; AVAILABLE_MEMORY tells what is left",
        (Kfd(K::AllocMemoryOfGpu), Errno::FAULT) => "the pages at the user address cannot be written",
        (Kfd(K::AllocMemoryOfGpu), Errno::ADDRINUSE) => "the range is registered as shared virtual memory",
        (Kfd(K::CreateEvent), Errno::INVAL) => {
            "the event page can be given only once in the life of a process"
        }
        (Kfd(K::CreateEvent), Errno::NOSPC) => "all 4095 signal events are in use; destroy some",
        (Kfd(K::CreateEvent), Errno::NOMEM) => "pass an event page with the first event",
        (Kfd(K::WaitEvents), Errno::IO) => "an event was destroyed during the wait",
        (Kfd(K::RuntimeEnable), Errno::EXIST) => "enable the runtime before the first queue is created",
        (Kfd(K::RuntimeEnable), Errno::BUSY) => "the runtime is enabled already",
        (Kfd(K::SetXnackMode), Errno::BUSY) => "destroy all queues first",
        (Kfd(K::CriuOp), Errno::ACCESS) => "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN is needed",
        (Kfd(K::CriuOp), Errno::OPNOTSUPP) => {
            "the driver cannot take the queues of this GPU; destroy them first"
        }
        (Kfd(K::CriuOp), Errno::SRCH) => "there is no such process, or it has not opened the device",
        (Kfd(K::CriuOp), Errno::MFILE) => {
            "raise the limit of open files (ulimit -n) above the number of buffers"
        }
        (Kfd(K::AllocMemoryOfGpu), Errno::MFILE | Errno::NFILE) => {
            "the software device has an open file for each buffer: raise the limit (ulimit -n)"
        }
        (Drm(D::PrimeFdToHandle) | Kfd(K::ImportDmabuf), Errno::INVAL) => {
            "the descriptor is no DMABuf, or not one that this GPU can reach"
        }
        (Drm(D::PrimeFdToHandle) | Kfd(K::ImportDmabuf), Errno::BADF) => {
            "the descriptor is not open, or no DMABuf"
        }
        (Drm(D::PrimeHandleToFd) | Drm(D::GemMmap), Errno::NOENT) => {
            "there is no such handle on this open file"
        }
        (Drm(D::GemClose), Errno::INVAL) => "there is no such handle on this open file",
        (Drm(D::GemVa), Errno::NOENT) => {
            "there is no such handle on this open file, or no mapping of it starts there"
        }
        (Drm(D::GemVa), Errno::INVAL) => {
            "address, offset and size must be whole pages inside the object, and the range must be free"
        }
        (Drm(D::GemVa) | Drm(D::GemClose), Errno::BUSY) => "destroy the queue that uses the memory first",
        (Drm(D::GemMmap), Errno::PERM) => "the memory cannot be mapped by the CPU",
        _ => return None,
    })
}

/// What an errno means for every ioctl.
fn by_errno(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::NODEV => "the GPU is gone, or ACQUIRE_VM was not called for it",
        Errno::BADF => "the file was opened by the parent of this process, or is closed; open it again",
        Errno::NOTTY => "the driver is too old for this ioctl",
        Errno::IO | Errno::TIME => "the GPU does not answer; see the kernel log",
        _ => return None,
    })
}
