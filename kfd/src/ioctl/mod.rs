// SPDX-License-Identifier: MIT OR Apache-2.0
//! One typed wrapper per ioctl, on a [`Kfd`] that owns the open `/dev/kfd` or a [`Render`] that owns a render node.
//!
//! INVARIANT: argument structs start zeroed, EINTR is retried, and an error names the ioctl, the file and the errno.
//! GPU addresses are passed as numbers: the caller and the driver are responsible for what they name.

mod call;
mod criu;
mod drm;
mod error;
mod event;
mod file;
mod memory;
mod process;
mod queue;
mod svm;
mod wave_state;

#[cfg(test)]
mod tests;

pub use self::criu::{Checkpoint, ProcessInfo, RestoreDevice};
pub use self::drm::{DrmVersion, Render, VaAccess, VaRange};
pub use self::error::{IoctlError, MapError};
pub use self::event::{CreateEvent, CreatedEvent, EventKind, WaitOutcome};
pub use self::file::Kfd;
pub use self::memory::{AllocMemory, Allocation, DmabufInfo};
pub use self::process::{ClockCounters, MemoryPolicy, Version};
pub use self::queue::{CreateQueue, CreatedQueue, QueueKind, UpdateQueue};
pub use self::svm::{SvmAnswer, SvmAttribute, SvmPlace, SvmUse};
pub use self::wave_state::WaveStateSizes;
pub use crate::transport::map_fixed as map_dmabuf;
