// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why queues cannot be preempted for a checkpoint, and why preempted queues cannot be carried on.

use kfd::IoctlError;
use kfd::blob::BlobError;
use thiserror::Error;

use crate::context::registry::state::BoKey;

/// First KFD interface whose CRIU_OP RESTORE gives back the queues of chips with a microengine scheduler (gfx11,
/// gfx12). An assumption: no kernel up to 7.3 (interface 1.23) can, since
/// `kfd_criu_restore_queue` (`kfd_process_queue_manager.c`) gives such a queue no write pointer buffer.
pub const MIN_KFD_MINOR_MES: u32 = 24;

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
    /// The kernel could not put the queues back.
    #[error(
        "KFD 1.{minor} cannot restore the queues of {target} (its scheduler runs on the GPU); it takes 1.{wanted}: lock \
         with Mode::Drain"
    )]
    Kernel {
        /// Minor number of the interface.
        minor: u32,
        /// The chip.
        target: &'static str,
        /// The first minor that can.
        wanted: u32,
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
