// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors, one family per kind of operation: what failed, with which numbers, and what to do about it.

mod queue;

use std::sync::Arc;
use std::time::Duration;

use kfd::{Errno, GpuId};

pub use crate::code_object::{CodeObjectError, KernargError, LaunchError};
pub use crate::context::error::queue::{CuMaskError, QueueError, RawError, SubmitError};
pub use crate::context::memory::window::WindowError;
use crate::context::queue::fault::QueueFault;
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
    Queue(#[from] Arc<QueueFault>),
    /// The driver refused the wait.
    #[error("Waiting for the signal failed")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A code object could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
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
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A copy or fill could not be started or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A range outside its buffer.
    #[error("Bytes {offset}..{offset}+{bytes} are outside buffer {key} of {len} bytes")]
    Range {
        /// The buffer.
        key: BoKey,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The buffer's length.
        len: u64,
    },
    /// The buffer was freed.
    #[error("Buffer {key} was freed")]
    Freed {
        /// The buffer.
        key: BoKey,
    },
    /// A part of a range without memory.
    #[error("Nothing is mapped at {offset:#x} of range {key}: map memory there first")]
    NotMapped {
        /// The range.
        key: BoKey,
        /// The first byte without memory.
        offset: u64,
    },
    /// The agent that would copy may not.
    #[error("{agent} may not {act} range {key} at {offset:#x}: give it access with set_access")]
    NoAccess {
        /// The agent.
        agent: String,
        /// `read` or `write`.
        act: &'static str,
        /// The range.
        key: BoKey,
        /// The first byte it may not touch.
        offset: u64,
    },
    /// The CPU does not see the buffer's memory.
    #[error("Buffer {key} is not visible to the CPU: copy it on the agent instead")]
    NotVisible {
        /// The buffer.
        key: BoKey,
    },
    /// A fill pattern of an impossible length.
    #[error("Fill patterns have 1, 2, 4, 8 or 16 bytes, found {found}")]
    Pattern {
        /// Bytes given.
        found: usize,
    },
    /// Source and destination share bytes.
    #[error("Copying {bytes} bytes within buffer {key}: source and destination overlap")]
    Overlap {
        /// The buffer.
        key: BoKey,
        /// How many.
        bytes: u64,
    },
    /// Source and destination differ in length.
    #[error("Cannot copy {from} bytes to {to}")]
    Length {
        /// Bytes of the destination.
        to: u64,
        /// Bytes of the source.
        from: u64,
    },
    /// Copy engines were asked for where there are none.
    #[error("{agent} has no copy engines whose packets are known: use CopyEngine::Auto or Shader")]
    NoEngine {
        /// The agent.
        agent: String,
    },
    /// Copy engines were asked for a fill that is none of dwords.
    #[error(
        "Copy engines fill whole dwords at multiples of 4 with one dword; found {bytes} bytes at {address:#x} and a \
         pattern of {pattern} bytes"
    )]
    Dwords {
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Bytes of the pattern.
        pattern: usize,
    },
    /// The packets of a copy engine could not be made.
    #[error("The copy cannot be said in packets of the copy engine")]
    Packets(#[from] queues::sdma::SdmaError),
    /// The packets of a copy engine could not be submitted.
    #[error("The copy could not be submitted to a copy engine")]
    Ring(#[source] Box<RawError>),
    /// A path was asked for that does not lead from the source to the destination.
    #[error("A copy from {from} to {to} cannot take the path {path}: use Runtime::copy to have one chosen")]
    Impossible {
        /// The path.
        path: crate::context::agent::copy_path::CopyPath,
        /// Where the destination is.
        to: String,
        /// Where the source is.
        from: String,
    },
    /// The agent that was to move the bytes does not reach the other one's memory.
    #[error("The copy cannot go that way")]
    NoPath(#[from] crate::context::agent::links::NoPath),
    /// The agent cannot address one of the buffers.
    #[error("The agent that is to copy cannot address the other agent's memory")]
    Peer(#[source] DeviceError),
    /// There are no kernels for the agent.
    #[error("The copy kernels for this agent are not built in")]
    NoKernels(#[source] device_lib::DeviceLibError),
    /// No system memory to copy through.
    #[error("The staging buffer could not be allocated")]
    Stage(#[source] Box<AllocError>),
    /// The kernels could not be loaded.
    #[error("The copy kernels could not be loaded")]
    Load(#[source] Box<LoadError>),
    /// The internal queue could not be made.
    #[error("The copy queue could not be made")]
    Queue(#[source] Box<QueueError>),
    /// A signal could not be made.
    #[error("The completion signal could not be made")]
    Signal(#[source] Box<AllocError>),
    /// The packet could not be submitted.
    #[error("The copy could not be submitted")]
    Submit(#[source] Box<SubmitError>),
    /// It did not complete.
    #[error("The copy did not complete")]
    Wait(#[source] Box<WaitError>),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}
