// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a failed ioctl says: which, on which file, with which errno, and what to do where that is known.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::sys;

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
    /// How many of the GPUs, from the first, are done and stay so.
    pub done: u32,
    /// How many were asked for.
    pub wanted: u32,
    /// The failure at the next one.
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
    by_ioctl(ioctl, errno).or_else(|| by_errno(errno))
}

/// What an errno means for one ioctl only.
fn by_ioctl(ioctl: &str, errno: Errno) -> Option<&'static str> {
    Some(match (ioctl, errno) {
        ("CREATE_QUEUE", Errno::INVAL) => {
            "each of ring, pointers, EOP buffer and save area needs its own mapping of exactly its size, and \
             ctl_stack_size must equal the node's"
        }
        ("CREATE_QUEUE", Errno::NOSPC) => "destroy a queue of this process on this GPU",
        ("CREATE_QUEUE", Errno::PERM) => "the GPU has no queue left; destroy one in this or another process",
        ("CREATE_QUEUE", errno) if errno.raw_os_error() == sys::ENOTSUPP => "no such queue type",
        ("CREATE_QUEUE" | "SET_MEMORY_POLICY" | "SET_TRAP_HANDLER", Errno::SRCH) => {
            "call ACQUIRE_VM for this GPU first"
        }
        ("UPDATE_QUEUE", Errno::FAULT) => {
            "the queue does not exist, or no mapping of the ring's size starts there"
        }
        ("UPDATE_QUEUE", Errno::ACCESS) => "the driver reset this queue; destroy it",
        ("GET_QUEUE_WAVE_STATE", Errno::INVAL) => "make the compute queue inactive first (percentage 0)",
        ("GET_QUEUE_WAVE_STATE" | "SET_CU_MASK", Errno::FAULT) => "the queue does not exist",
        ("ACQUIRE_VM", Errno::BUSY) => {
            "this process acquired this GPU through another open render node; use that same open file"
        }
        ("ACQUIRE_VM", Errno::INVAL) => "pass a fresh amdgpu render node and a GPU id of the topology",
        ("FREE_MEMORY_OF_GPU", Errno::BUSY) => "unmap it from every GPU first",
        ("FREE_MEMORY_OF_GPU", Errno::PERM) => "the event page lives as long as the process",
        ("UNMAP_MEMORY_FROM_GPU", Errno::BUSY) => "destroy the queue that uses it first",
        ("UNMAP_MEMORY_FROM_GPU", Errno::INVAL) => "it is not mapped on that GPU",
        ("MAP_MEMORY_TO_GPU", Errno::INVAL) => {
            "the address must be free and aligned to pages, and a peer GPU needs a P2P link"
        }
        ("MAP_MEMORY_TO_GPU" | "UNMAP_MEMORY_FROM_GPU", Errno::NOMEM) => "there may be no such handle",
        ("ALLOC_MEMORY_OF_GPU", Errno::NOMEM) => "free memory; AVAILABLE_MEMORY tells what is left",
        ("ALLOC_MEMORY_OF_GPU", Errno::FAULT) => "the pages at the user address cannot be written",
        ("ALLOC_MEMORY_OF_GPU", Errno::ADDRINUSE) => "the range is registered as shared virtual memory",
        ("CREATE_EVENT", Errno::INVAL) => "the event page can be given only once in the life of a process",
        ("CREATE_EVENT", Errno::NOSPC) => "all 4095 signal events are in use; destroy some",
        ("CREATE_EVENT", Errno::NOMEM) => "pass an event page with the first event",
        ("WAIT_EVENTS", Errno::IO) => "an event was destroyed during the wait",
        ("RUNTIME_ENABLE", Errno::EXIST) => "enable before the first queue is created",
        ("RUNTIME_ENABLE", Errno::BUSY) => "it is enabled already",
        ("SET_XNACK_MODE", Errno::BUSY) => "destroy all queues first",
        ("CRIU_OP", Errno::ACCESS) => "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN is needed",
        ("CRIU_OP", Errno::OPNOTSUPP) => "the driver cannot take the queues of this GPU; destroy them first",
        ("CRIU_OP", Errno::SRCH) => "there is no such process, or it has not opened the device",
        ("CRIU_OP", Errno::MFILE) => "raise the limit of open files (ulimit -n) above the number of buffers",
        ("ALLOC_MEMORY_OF_GPU", Errno::MFILE | Errno::NFILE) => {
            "the software device has an open file for each buffer: raise the limit (ulimit -n)"
        }
        ("DRM_PRIME_FD_TO_HANDLE" | "IMPORT_DMABUF", Errno::INVAL) => {
            "the descriptor is no DMABuf, or not one that this GPU can reach"
        }
        ("DRM_PRIME_FD_TO_HANDLE" | "IMPORT_DMABUF", Errno::BADF) => {
            "the descriptor is not open, or no DMABuf"
        }
        ("DRM_PRIME_HANDLE_TO_FD" | "AMDGPU_GEM_MMAP", Errno::NOENT) => {
            "there is no such handle on this open file"
        }
        ("DRM_GEM_CLOSE", Errno::INVAL) => "there is no such handle on this open file",
        ("AMDGPU_GEM_VA", Errno::NOENT) => {
            "there is no such handle on this open file, or no mapping of it starts there"
        }
        ("AMDGPU_GEM_VA", Errno::INVAL) => {
            "address, offset and size must be whole pages inside the object, and the range must be free"
        }
        ("AMDGPU_GEM_VA" | "DRM_GEM_CLOSE", Errno::BUSY) => "destroy the queue that uses the memory first",
        ("AMDGPU_GEM_MMAP", Errno::PERM) => "the memory cannot be mapped by the CPU",
        _ => return None,
    })
}

/// What an errno means for every ioctl.
fn by_errno(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::NODEV => "the GPU is gone, or ACQUIRE_VM was not called for it",
        Errno::BADF => "the file was opened by the parent of this process, or is closed; open it again",
        Errno::NOTTY => "the driver is too old for it",
        Errno::IO | Errno::TIME => "the GPU does not answer; see the kernel log",
        _ => return None,
    })
}
