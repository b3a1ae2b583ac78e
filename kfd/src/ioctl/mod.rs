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
mod memory;
mod process;
mod queue;
mod wave_state;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::criu::{Checkpoint, ProcessInfo, RestoreDevice};
pub use self::drm::{DrmVersion, Render, VaAccess, VaRange};
pub use self::error::{IoctlError, MapError};
pub use self::event::{CreateEvent, CreatedEvent, EventKind, WaitOutcome};
pub use self::memory::{AllocMemory, Allocation, DmabufInfo};
pub use self::process::{ClockCounters, MemoryPolicy, Version};
pub use self::queue::{CreateQueue, CreatedQueue, QueueKind, UpdateQueue};
pub use self::wave_state::WaveStateSizes;
pub use crate::transport::map_fixed as map_dmabuf;
use crate::transport::{File, KFD_PATH, OpenError, Transport};

/// An open `/dev/kfd`.
#[derive(Clone, Debug)]
pub struct Kfd {
    file: Arc<dyn File>,
}

impl Kfd {
    /// Wraps an open file, which should be `/dev/kfd`.
    pub fn new(file: Arc<dyn File>) -> Self {
        Self { file }
    }

    /// Opens `/dev/kfd` on `transport`.
    ///
    /// # Errors
    /// As for [`Transport::open`].
    pub fn open(transport: &dyn Transport) -> Result<Self, OpenError> {
        transport.open(Path::new(KFD_PATH)).map(Self::new)
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }
}
