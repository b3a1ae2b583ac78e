// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of queues: making them, and giving them packets.

use std::sync::Arc;
use std::time::Duration;

use crate::context::error::{
    AgentLost, AllocError, DeviceError, KernargError, LaunchError, Lost, QueueFault,
};
use crate::context::registry::state::{BoKey, QueueKey};

/// A queue could not be made, changed or destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A ring of that size cannot be.
    #[error("A queue holds {min} to {max} packets, a power of two; found {packets}")]
    Packets {
        /// Asked for.
        packets: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A ring of that size cannot be.
    #[error("A ring has {min} to {max} bytes, a power of two; found {bytes}")]
    RingBytes {
        /// Asked for.
        bytes: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A share of the hardware that cannot be given.
    #[error("A queue gets 1 to 100 percent of the hardware, found {percentage}")]
    Percentage {
        /// Asked for.
        percentage: u32,
    },
    /// The agent has no queues of that kind.
    #[error("{agent} has no {kind} queues: {why}")]
    Unsupported {
        /// The agent.
        agent: String,
        /// The kind.
        kind: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// There is no such copy engine.
    #[error("{agent} has {engines} copy engines, counted from 0; found engine {engine}")]
    Engine {
        /// The agent.
        agent: String,
        /// Asked for.
        engine: u32,
        /// How many there are.
        engines: u32,
    },
    /// A mask of compute units that the driver would refuse.
    #[error("The mask of compute units cannot be used")]
    CuMask(#[from] CuMaskError),
    /// A kernel-argument slot of that size cannot be.
    #[error("Kernel-argument slots have 64 to 65536 bytes, a power of two; found {bytes}")]
    KernargSlot {
        /// Asked for.
        bytes: u32,
    },
    /// Priority out of range.
    #[error("Queue priorities are 0 to 15, found {priority}")]
    Priority {
        /// Asked for.
        priority: u32,
    },
    /// Scratch that the hardware's field cannot hold.
    #[error("Scratch of {bytes} bytes a lane is more than the {max} a queue can have")]
    Scratch {
        /// Asked for.
        bytes: u32,
        /// Most.
        max: u32,
    },
    /// Its memory could not be had.
    #[error("The queue's {what} could not be allocated")]
    Memory {
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: AllocError,
    },
    /// It still runs packets.
    #[error("Queue {queue} has {pending} {unit} that have not been consumed: wait for them first")]
    Busy {
        /// Which.
        queue: QueueKey,
        /// How many.
        pending: u64,
        /// Of what.
        unit: &'static str,
    },
    /// It was destroyed before.
    #[error("Queue {queue} was destroyed before")]
    Stale {
        /// Which.
        queue: QueueKey,
    },
    /// Code was loaded before there was a queue, and the agent may still run what was in its place.
    #[error("The agent's instruction caches could not be invalidated before the queue's first packet")]
    CodeCaches(#[source] Box<CodeCacheError>),
    /// The driver runs no queue of this process there.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The driver refused.
    #[error("The driver refused the queue")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// An agent's instruction caches could not be invalidated, so that it may run code that is not in memory any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeCacheError {
    /// The queue for it could not be made.
    #[error("There is no queue for the invalidation")]
    Queue(#[source] Box<QueueError>),
    /// The queue did not take the packet.
    #[error("The packet of the invalidation could not be submitted")]
    Submit(#[source] Box<SubmitError>),
    /// The queue stopped.
    #[error(transparent)]
    Fault(Arc<QueueFault>),
    /// The driver runs no queue of this process there.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The agent did not answer.
    #[error("The invalidation had not ended after {} ms: the agent hangs, or its queues are suspended", waited.as_millis())]
    Stalled {
        /// How long was waited.
        waited: Duration,
    },
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<QueueError> for CodeCacheError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::AgentLost(lost) => Self::AgentLost(lost),
            QueueError::Lost(lost) => Self::Lost(lost),
            other => Self::Queue(Box::new(other)),
        }
    }
}

impl From<Arc<QueueFault>> for CodeCacheError {
    fn from(fault: Arc<QueueFault>) -> Self {
        match &fault.lost {
            Some(lost) => Self::AgentLost(Arc::clone(lost)),
            None => Self::Fault(fault),
        }
    }
}

/// Packets could not be submitted. None of them was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The ring has no room.
    #[error("The queue is full: {wanted} packets wanted, {free} of {packets} free; wait for earlier ones")]
    WouldBlock {
        /// Asked for.
        wanted: u64,
        /// Free now.
        free: u64,
        /// Size of the ring.
        packets: u64,
    },
    /// A buffer that the kernel may reach was restored without its contents, and they cannot be used now. Try again.
    #[error(
        "A buffer that the kernel may reach, whose contents have come after the restore, cannot be mapped to its agents"
    )]
    Contents(#[source] DeviceError),
    /// What its kernel would call the host through could not be made.
    #[error(
        "Kernel {kernel} may call the host (printf, assert), and the memory for it could not be allocated"
    )]
    HostCalls {
        /// The kernel.
        kernel: String,
        /// Why.
        #[source]
        source: AllocError,
    },
    /// The ring had no room for as long as the caller would wait.
    #[error("The queue was still full after {} ms, with {packets} packets", waited.as_millis())]
    Timeout {
        /// Size of the ring.
        packets: u64,
        /// How long was waited.
        waited: Duration,
    },
    /// The queue stopped with an exception.
    #[error(transparent)]
    Queue(Arc<QueueFault>),
    /// The driver runs no queue of this process there any more.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The queue was destroyed.
    #[error("Queue {queue} was destroyed")]
    Stale {
        /// Which.
        queue: QueueKey,
    },
    /// An argument's buffer was freed.
    #[error("Argument {index} is buffer {key}, which was freed")]
    FreedBuffer {
        /// Which argument.
        index: usize,
        /// The buffer's key.
        key: BoKey,
    },
    /// An argument's buffer belongs to another runtime, whose addresses mean something else.
    #[error("Argument {index} is buffer {key} of another runtime")]
    ForeignBuffer {
        /// Which argument.
        index: usize,
        /// The buffer's key, in its own runtime.
        key: BoKey,
    },
    /// An argument's span does not lie in its buffer.
    #[error("Argument {index} is {bytes} bytes from offset {offset} of buffer {key}, which has {len} bytes")]
    SpanRange {
        /// Which argument.
        index: usize,
        /// The buffer's key.
        key: BoKey,
        /// Where the span begins, bytes from the buffer's start.
        offset: u64,
        /// The span's bytes.
        bytes: u64,
        /// The buffer's bytes.
        len: u64,
    },
    /// The kernel's image was unloaded, or is on another agent.
    #[error("Kernel {kernel} is loaded on {loaded}, the queue is on {queue}")]
    OtherAgent {
        /// The kernel.
        kernel: String,
        /// Where it is.
        loaded: String,
        /// Where the queue is.
        queue: String,
    },
    /// A dispatch without a grid.
    #[error("Kernel {kernel}: no grid was given")]
    NoGrid {
        /// The kernel.
        kernel: String,
    },
    /// The kernel cannot be launched so.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The arguments are not the kernel's.
    #[error(transparent)]
    Arguments(#[from] KernargError),
    /// The arguments do not fit the queue's slots.
    #[error(
        "Kernel {kernel} takes {bytes} bytes of arguments, the queue's slots have {slot}: create it with larger ones"
    )]
    KernargSlot {
        /// The kernel.
        kernel: String,
        /// Needed.
        bytes: u64,
        /// There.
        slot: u64,
    },
    /// The kernel needs more scratch than the hardware can give a lane.
    #[error(
        "Kernel {kernel} needs {wanted} bytes of scratch a lane, more than the {max} that the agent can give: use smaller private arrays"
    )]
    Scratch {
        /// The kernel.
        kernel: String,
        /// Needed.
        wanted: u32,
        /// Most.
        max: u32,
    },
    /// One of several dispatches, or a packet of a list, cannot be submitted.
    #[error("Packet {index} of those to submit together was refused")]
    Packet {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: Box<SubmitError>,
    },
    /// A dispatch of another queue.
    #[error("The dispatch was made for queue {found}, not for queue {queue}")]
    OtherQueue {
        /// The queue that it was made for.
        found: QueueKey,
        /// The queue that was to take it.
        queue: QueueKey,
    },
    /// More packets at once than the ring ever has room for.
    #[error(
        "{wanted} packets are more than the {packets} of the queue: submit fewer at once, or make a larger queue"
    )]
    TooLong {
        /// Asked for.
        wanted: u64,
        /// Size of the ring.
        packets: u64,
    },
    /// A list has no such argument to replace.
    #[error("Packet {packet} of the list has {arguments} arguments to replace, so none with index {index}")]
    NoArgument {
        /// Which packet, from 0.
        packet: usize,
        /// Which argument, from 0.
        index: usize,
        /// How many the packet has; 0 for a barrier, for a dispatch given its block as bytes, and for no packet.
        arguments: usize,
    },
    /// More dependencies than a barrier packet holds.
    #[error("A barrier packet waits for at most 5 signals, found {found}")]
    Dependencies {
        /// How many.
        found: usize,
    },
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<Arc<QueueFault>> for SubmitError {
    fn from(fault: Arc<QueueFault>) -> Self {
        match &fault.lost {
            Some(lost) => Self::AgentLost(Arc::clone(lost)),
            None => Self::Queue(fault),
        }
    }
}

/// Words could not be submitted to a raw queue. None of them was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// A buffer was restored without its contents, and they cannot be used now. Try again.
    #[error("A buffer whose contents have come after the restore cannot be mapped to its agents")]
    Contents(#[source] DeviceError),
    /// The ring has no room now.
    #[error("The ring is full: {wanted} {unit} wanted, {used} in use, {free} free; wait for earlier ones")]
    Full {
        /// What they take, with the padding to the ring's start where packets may not straddle its end.
        wanted: u64,
        /// Written and not consumed.
        used: u64,
        /// Room now.
        free: u64,
        /// What all of them count.
        unit: &'static str,
    },
    /// The ring will never have that much room.
    #[error("{wanted} {unit} are more than the ring's {most}: submit fewer at once, or make a larger ring")]
    TooLong {
        /// What they take.
        wanted: u64,
        /// What the ring takes at once.
        most: u64,
        /// What both count.
        unit: &'static str,
    },
    /// Nothing was to be submitted.
    #[error("Nothing was given to submit")]
    Empty,
    /// An AQL queue takes whole packets.
    #[error("AQL packets have 16 dwords; found {dwords} dwords, which is no whole number of them")]
    Packets {
        /// Given.
        dwords: usize,
    },
    /// A packet whose header says that it is none.
    #[error("Packet {index} of those given has the header {header:#06x}, which publishes nothing")]
    Unpublished {
        /// Which, from 0.
        index: usize,
        /// The low half of its first dword.
        header: u16,
    },
    /// A buffer was freed, or is of another runtime.
    #[error("Buffer {key} was freed")]
    Freed {
        /// The buffer.
        key: BoKey,
    },
    /// The queue stopped with an exception.
    #[error(transparent)]
    Queue(Arc<QueueFault>),
    /// The driver runs no queue of this process there any more.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The queue was destroyed.
    #[error("Queue {queue} was destroyed")]
    Stale {
        /// Which.
        queue: QueueKey,
    },
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<Arc<QueueFault>> for RawError {
    fn from(fault: Arc<QueueFault>) -> Self {
        match &fault.lost {
            Some(lost) => Self::AgentLost(Arc::clone(lost)),
            None => Self::Queue(fault),
        }
    }
}

/// A mask of compute units that SET_CU_MASK would refuse, or that would stop the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CuMaskError {
    /// No whole words.
    #[error("A mask has a multiple of 32 bits, at least 32 and at most {most}; found {bits}")]
    Bits {
        /// Given.
        bits: usize,
        /// Most.
        most: usize,
    },
    /// Half a work-group processor.
    #[error(
        "Compute units {first} and {second} are one work-group processor: both or neither, found {mask:#04b}"
    )]
    Pair {
        /// The even one.
        first: u32,
        /// The odd one.
        second: u32,
        /// Their two bits, the even one's first.
        mask: u32,
    },
    /// Nothing could run.
    #[error("The mask allows none of the {units} compute units")]
    None {
        /// How many there are.
        units: u32,
    },
}
