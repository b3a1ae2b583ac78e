// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors, one family per kind of operation: what failed, with which numbers, and what to do about it.

mod copy;
mod queue;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use kfd::{Errno, GpuId};

pub use crate::code_object::{CodeObjectError, KernargError, LaunchError};
pub use crate::context::error::copy::{CopyError, UploadError};
pub use crate::context::error::queue::{CodeCacheError, CuMaskError, QueueError, RawError, SubmitError};
pub use crate::context::error::transfer::TransferError;
pub use crate::context::memory::window::WindowError;
use crate::context::queue::fault::QueueFault;
pub use crate::context::queue::lost_agent::AgentLost;
pub use crate::context::registry::arena::ArenaError;
use crate::context::registry::state::{BoKey, BoUse, QueueKey};
use crate::context::registry::tally::Holdings;
pub use stasis_protocol::gate::{CloseError, Lost};

/// An error with all its causes, in one line.
#[must_use]
pub fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The driver refused something. Kept as the cause of the families below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An ioctl failed.
    #[error("The driver refused {what}")]
    Ioctl {
        /// What was being done, in HSA words.
        what: &'static str,
        /// Which ioctl, on which file, with which errno.
        #[source]
        source: kfd::IoctlError,
    },
    /// A device file could not be opened.
    #[error("A device file could not be opened")]
    Open(#[source] kfd::OpenError),
    /// A buffer object could not be mapped for the CPU.
    #[error("Cannot map {bytes} bytes of {path} at {va:#x} (offset {offset:#x}): {errno}")]
    Mmap {
        /// The device file.
        path: std::path::PathBuf,
        /// Where.
        va: u64,
        /// How much.
        bytes: u64,
        /// The driver's cookie.
        offset: u64,
        /// Why.
        errno: Errno,
    },
    /// The reservation could not be put back.
    #[error("Cannot put the address reservation back at {va:#x} (+{bytes:#x}): {errno}")]
    PutBack {
        /// Where.
        va: u64,
        /// How much.
        bytes: u64,
        /// Why.
        errno: Errno,
    },
    /// The process's own mappings could not be read.
    #[error("Cannot read /proc/self/maps: {errno}")]
    Maps {
        /// Why.
        errno: Errno,
    },
    /// The topology has no GPU with the id an agent had.
    #[error("GPU {gpu} is not in the topology any more")]
    NoGpu {
        /// KFD's id of the GPU.
        gpu: GpuId,
    },
    /// A descriptor cannot be used.
    #[error("The descriptor cannot be used: {errno}")]
    Descriptor {
        /// Why.
        errno: Errno,
    },
    /// The driver's interface is too old for it.
    #[error("The driver's interface 1.{minor} has no {what}: it came with 1.{wanted}")]
    Interface {
        /// What.
        what: &'static str,
        /// Minor number of the interface.
        minor: u32,
        /// The first that has it.
        wanted: u32,
    },
    /// The object is not in the driver, or the registry holds no such entry.
    #[error("INVARIANT: {what} does not exist in the driver")]
    Absent {
        /// What.
        what: &'static str,
    },
}

impl DeviceError {
    /// What the system said, where it said anything.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Ioctl { source, .. } => Some(source.errno),
            Self::Open(kfd::OpenError::File { errno, .. })
            | Self::Mmap { errno, .. }
            | Self::PutBack { errno, .. }
            | Self::Descriptor { errno } => Some(*errno),
            _ => None,
        }
    }
}

/// [`crate::Runtime::open`] failed. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// `STASIS_DEVICE` is not understood.
    #[error("STASIS_DEVICE cannot be used")]
    Device(#[source] kfd::transport::SpecError),
    /// The list of agents is not understood, or names what is not here.
    #[error("The agent list cannot be used")]
    Agents(#[from] crate::context::agent::spec::SpecError),
    /// The driver has preempted queues of this process, tied to other render files.
    #[error("The driver has this process's preempted queues, and takes no other render files than theirs")]
    Known,
    /// No way to a device.
    #[error("No device answers")]
    Transport(#[source] kfd::OpenError),
    /// The topology cannot be read.
    #[error("The topology of {transport} cannot be read")]
    Topology {
        /// The transport's name.
        transport: String,
        /// Why.
        #[source]
        source: kfd::TopologyError,
    },
    /// There is no GPU.
    #[error("{transport} has no GPU; set STASIS_DEVICE=soft:gfx1100 to use the software device")]
    NoAgents {
        /// The transport's name.
        transport: String,
    },
    /// A GPU of an unknown generation.
    #[error("GPU {uuid} has gfx_target_version {version}, which is not in the table of targets")]
    UnknownTarget {
        /// Its unique id.
        uuid: String,
        /// KFD's number.
        version: u32,
    },
    /// The save area of a GPU cannot be sized.
    #[error("The context save area of GPU {uuid} cannot be sized")]
    Geometry {
        /// Its unique id.
        uuid: String,
        /// Why.
        #[source]
        source: queues::cwsr::GeometryError,
    },
    /// The driver's interface is too old or too new.
    #[error("KFD interface {major}.{minor} is not supported, wanted 1.{wanted} or newer")]
    Version {
        /// Found.
        major: u32,
        /// Found.
        minor: u32,
        /// Oldest that works.
        wanted: u32,
    },
    /// No addresses.
    #[error("No address window can be had")]
    Window(#[from] WindowError),
    /// The driver refused a step of the bring-up.
    #[error("The device could not be brought up")]
    Bringup(#[from] DeviceError),
    /// One of the runtime's own objects could not be made.
    #[error("The runtime's own {what} could not be made")]
    Fixture {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: AllocError,
    },
    /// A process has one context in the driver; it was opened with other agents.
    #[error("The process has a runtime on {open} already and cannot have another on {wanted}")]
    AlreadyOpen {
        /// The agents of the open one.
        open: String,
        /// The agents asked for.
        wanted: String,
    },
    /// The agent that takes orders for checkpoints could not be started.
    #[error("The checkpoint agent could not be started")]
    Agent(#[source] std::io::Error),
    /// A thread could not be started.
    #[error("The event thread could not be started")]
    Thread(#[source] std::io::Error),
    /// The process's runtime exists and its device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The agent has not that much left.
    #[error(
        "{agent} is out of memory: {wanted} bytes wanted, {available} available; this process holds {held}; free buffers \
         or use less"
    )]
    OutOfMemory {
        /// Whose memory: an agent's name, or `gtt`.
        agent: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that could be had.
        available: u64,
        /// What this process holds there, and for what.
        held: Holdings,
    },
    /// Memory costs the software device an open file, and none was left.
    #[error(
        "No open file is left for a buffer (EMFILE): this process may have {limit}, the software device as many as whoever \
         started it, and each has one for every buffer; raise the limit (ulimit -n)"
    )]
    Files {
        /// This process's limit of open files.
        limit: u64,
        /// What the driver said.
        #[source]
        source: DeviceError,
    },
    /// Memory to be registered that is not whole pages.
    #[error("Only whole pages of {page} bytes can be registered, found {bytes:#x} bytes at {address:#x}")]
    Pages {
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// An agent of another runtime.
    #[error("The agent belongs to another runtime")]
    Foreign,
    /// A range is not given to agents as a whole.
    #[error("Agents have access to what is mapped into range {key}: use set_access on the range")]
    Range {
        /// Its key.
        key: BoKey,
    },
    /// No addresses.
    #[error("No addresses are left")]
    Address(#[from] ArenaError),
    /// Nothing was asked for.
    #[error("A buffer of 0 bytes cannot be allocated")]
    Empty,
    /// More elements than there are addresses.
    #[error("A buffer of {elements} elements of {element_bytes} bytes is larger than 64 bits can count")]
    Elements {
        /// Elements asked for.
        elements: u64,
        /// Bytes of an element.
        element_bytes: u64,
    },
    /// All signal events and slots are in use.
    #[error("No signal can be made: {live} exist")]
    Signals {
        /// How many there are.
        live: usize,
    },
    /// The agent does not reach the memory.
    #[error(transparent)]
    NoPath(#[from] crate::context::agent::links::NoPath),
    /// The driver refused.
    #[error("The allocation failed")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Memory could not be given back; it is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// It was freed before.
    #[error("Buffer {key} was freed before")]
    Stale {
        /// Its key.
        key: BoKey,
    },
    /// Something lives in it.
    #[error("Buffer {key} is in use by {user:?}: destroy that first, or wait for it")]
    InUse {
        /// Its key.
        key: BoKey,
        /// By what.
        user: BoUse,
    },
    /// Packets that were submitted with it have not completed.
    #[error(
        "Buffer {key} is an argument of packets that queue {queue} has not completed: wait for them first"
    )]
    Pending {
        /// Its key.
        key: BoKey,
        /// Where they are.
        queue: QueueKey,
    },
    /// The driver refused.
    #[error("Freeing failed")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A wait ended without its condition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Time is up.
    #[error("The signal is still {value} after {waited:?}")]
    Timeout {
        /// Its value.
        value: i64,
        /// How long was waited.
        waited: Duration,
    },
    /// Time is up, and the processor has not come to a place in a ring.
    #[error("The queue has consumed {read} {unit} of the {position} waited for, after {waited:?}")]
    Consumed {
        /// The position waited for.
        position: u64,
        /// The read pointer.
        read: u64,
        /// What both count.
        unit: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The queue that was to complete it stopped.
    #[error(transparent)]
    Queue(Arc<QueueFault>),
    /// The driver runs no queue of this process any more where it was to be completed.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The driver refused the wait.
    #[error("Waiting for the signal failed")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<Arc<QueueFault>> for WaitError {
    fn from(fault: Arc<QueueFault>) -> Self {
        match &fault.lost {
            Some(lost) => Self::AgentLost(Arc::clone(lost)),
            None => Self::Queue(fault),
        }
    }
}

/// A code object could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A buffer was restored without its contents, and they cannot be used now. Try again.
    #[error("A buffer whose contents have come after the restore cannot be mapped to its agents")]
    Contents(#[source] DeviceError),
    /// The file is not usable here.
    #[error(transparent)]
    CodeObject(#[from] CodeObjectError),
    /// A kernel's descriptor is not one for this target.
    #[error("Kernel {kernel}: its descriptor is not valid")]
    Descriptor {
        /// The kernel.
        kernel: String,
        /// Why.
        #[source]
        source: queues::hsa::DescriptorError,
    },
    /// A kernel's arguments make no sense.
    #[error(transparent)]
    Arguments(#[from] KernargError),
    /// Its image could not be allocated.
    #[error("The image could not be allocated")]
    Memory(#[from] AllocError),
    /// It could not be copied to memory that the CPU does not see: no copy engine could be had.
    #[error("No copy engine could be had for the image")]
    Engine(#[source] QueueError),
    /// It was not copied to memory that the CPU does not see.
    #[error("The image could not be copied to the agent's memory")]
    Copy(#[from] TransferError),
    /// It was written where other code was, which the agent may still run.
    #[error("The agent's instruction caches could not be invalidated")]
    CodeCaches(#[source] CodeCacheError),
    /// The driver runs no queue of this process there.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<CodeCacheError> for LoadError {
    fn from(error: CodeCacheError) -> Self {
        match error {
            CodeCacheError::AgentLost(lost) => Self::AgentLost(lost),
            other => Self::CodeCaches(other),
        }
    }
}
