// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why queues cannot be preempted for a checkpoint, and why preempted queues cannot be carried on.

use std::sync::Arc;

use kfd::blob::BlobError;
use kfd::{Errno, IoctlError};
use thiserror::Error;

use super::probe::{ForkError, Step};
use crate::context::error::AgentLost;
use crate::context::registry::state::BoKey;

/// Why queues cannot be stopped in the middle of their kernels here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The process may not read its own driver state.
    #[error(
        "The driver shows its state of this process only with CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; give the process \
         one of them, or lock with Mode::Drain"
    )]
    NotPermitted,
    /// No kernel with this interface restores queues of the chip. It was not tried, since some of those kernels follow a
    /// null pointer.
    #[error(
        "KFD 1.{minor} cannot restore the queues of {target}, whose scheduler runs on the GPU: no kernel up to KFD \
         1.{last} (Linux 7.3) can, so it was not tried; lock with Mode::Drain, or use a kernel that can"
    )]
    Kernel {
        /// Minor number of the interface.
        minor: u32,
        /// The chip.
        target: &'static str,
        /// The last minor that is known not to.
        last: u32,
    },
    /// A memory fault took the queues off an agent: where their waves stood then is not what a copy could go on with.
    #[error("{0}; lock with Mode::Drain to save what is in memory")]
    AgentLost(Arc<AgentLost>),
    /// Queues that run on several XCCs cannot be saved whole.
    #[error(
        "{target} runs each queue on {xccs} XCCs, and only the first one's waves could be saved; lock with Mode::Drain"
    )]
    SeveralXccs {
        /// The chip.
        target: &'static str,
        /// XCCs of a queue.
        xccs: u32,
    },
    /// The node is a part of a chip, whose queues some kernels restore wrongly: they write behind their own buffer, so it is
    /// not even tried.
    #[error(
        "The node is a part of a {target}, and kernels from Linux 6.18 to the middle of 2026 damage their own memory when \
         they restore queues there; lock with Mode::Drain"
    )]
    PartOfChip {
        /// The chip.
        target: &'static str,
    },
    /// It was tried with a queue of its own, and the driver refused.
    #[error(
        "This kernel (KFD 1.{minor}) does not restore queues of {target}: {step} was tried in a process of its own and \
         failed with {errno} ({text}); lock with Mode::Drain, or use a kernel that can"
    )]
    Refused {
        /// Minor number of the interface.
        minor: u32,
        /// The chip.
        target: &'static str,
        /// What failed.
        step: Step,
        /// The driver's errno.
        errno: Errno,
        /// The failure in words.
        text: String,
    },
    /// It was tried and failed for a reason that may pass.
    #[error(
        "Whether this kernel restores queues of {target} is not known: {step} failed in a process of its own with \
         {errno} ({text}); try again, or lock with Mode::Drain"
    )]
    Inconclusive {
        /// The chip.
        target: &'static str,
        /// What failed.
        step: Step,
        /// The errno, [`Errno::UnknownErrno`] if the failure has none.
        errno: Errno,
        /// The failure in words.
        text: String,
    },
    /// It could not be tried.
    #[error(
        "Whether this kernel restores queues of {target} could not be tried; try again, or lock with Mode::Drain"
    )]
    NotTried {
        /// The chip.
        target: &'static str,
        /// Why.
        #[source]
        source: ForkError,
    },
    /// Memory that is the process's own would have to be lent again, which no driver does for a copy.
    #[error(
        "{bo} is memory that the process had before: the driver cannot give it to a restored process's preempted waves; \
         release it, or lock with Mode::Drain"
    )]
    Userptr {
        /// Which buffer.
        bo: BoKey,
    },
    /// The driver's checkpoint has no ranges of shared memory.
    #[error(
        "agents use the process's own memory at {address:#x}: the driver cannot give it to a restored process's preempted \
         waves; take their access away, or lock with Mode::Drain"
    )]
    Svm {
        /// Its first address.
        address: u64,
    },
    /// No driver gives a copy the memory that others have.
    #[error(
        "{bo} is memory that others may hold (exported or imported): the driver would give a restored process one of its \
         own; lock with Mode::Drain"
    )]
    Shared {
        /// Which buffer.
        bo: BoKey,
    },
    /// The driver refused for another reason.
    #[error("The driver does not show its state of this process")]
    Driver(#[source] IoctlError),
}

/// Why the driver's state of a process is not what its registry knows.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The driver's record cannot be read.
    #[error("The driver's record of the process cannot be read")]
    Blob(#[from] BlobError),
    /// A buffer is missing in it.
    #[error("The driver's record of the process has no buffer at {va:#x} (+{bytes:#x}), where {bo} is")]
    Buffer {
        /// The registry's name.
        bo: BoKey,
        /// Its address.
        va: u64,
        /// Its length.
        bytes: u64,
    },
    /// A GPU of the record is not here.
    #[error(
        "The waves were preempted on GPU {gpu_id:#x}, which is not here; only the same GPU can continue them"
    )]
    Gpu {
        /// The id.
        gpu_id: u32,
    },
}
