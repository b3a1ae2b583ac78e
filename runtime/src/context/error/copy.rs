// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of copies, fills and uploads.

use std::sync::Arc;

use super::{
    AgentLost, AllocError, DeviceError, LoadError, Lost, QueueError, RawError, SubmitError, WaitError,
};
use crate::context::registry::state::BoKey;

/// A copy or fill could not be started or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A buffer was restored without its contents, and they cannot be used now. Try again.
    #[error("A buffer whose contents have come after the restore cannot be mapped to its agents")]
    Contents(#[source] DeviceError),
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
    /// Elements outside their buffer.
    #[error("Elements {at}..{at}+{count} are outside buffer {key} of {len} elements")]
    Elements {
        /// The buffer.
        key: BoKey,
        /// First element.
        at: u64,
        /// How many.
        count: u64,
        /// The buffer's length in elements.
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
    /// The driver runs no queue of this process on the agent that was to copy.
    #[error(transparent)]
    AgentLost(Arc<AgentLost>),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<LoadError> for CopyError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::AgentLost(lost) => Self::AgentLost(lost),
            other => Self::Load(Box::new(other)),
        }
    }
}

impl From<QueueError> for CopyError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::AgentLost(lost) => Self::AgentLost(lost),
            other => Self::Queue(Box::new(other)),
        }
    }
}

impl From<SubmitError> for CopyError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::AgentLost(lost) => Self::AgentLost(lost),
            other => Self::Submit(Box::new(other)),
        }
    }
}

impl From<WaitError> for CopyError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::AgentLost(lost) => Self::AgentLost(lost),
            other => Self::Wait(Box::new(other)),
        }
    }
}

/// A buffer could not be made and filled. There is none then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// It could not be allocated.
    #[error("The buffer to upload into could not be allocated")]
    Alloc(#[from] AllocError),
    /// It could not be filled.
    #[error("The elements could not be copied into the buffer")]
    Copy(#[from] CopyError),
}
