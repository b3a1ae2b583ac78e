// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why memory could not be shared.

use kfd::Errno;

use crate::context::error::{ArenaError, DeviceError, Lost};
use crate::context::registry::state::{BoKey, SignalKey};

/// A DMABuf could not be made or taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The buffer was freed.
    #[error("Buffer {key} was freed")]
    Freed {
        /// The buffer.
        key: BoKey,
    },
    /// The signal is one that only this process can have.
    #[error("Signal {key} is this process's alone: make signals for other processes with Signal::shared")]
    NotShared {
        /// The signal.
        key: SignalKey,
    },
    /// The memory holds no signal.
    #[error("The DMABuf's {bytes} bytes are no signal: only what Signal::export gives is")]
    NoSignal {
        /// Its length.
        bytes: u64,
    },
    /// A message between processes could not be sent or received.
    #[error("Cannot {act} shared objects")]
    Message {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Too much for one message.
    #[error("{count} objects are too many for one message, which takes {most}: send several")]
    TooMany {
        /// How many.
        count: usize,
        /// How many go.
        most: usize,
    },
    /// The agent belongs to another runtime.
    #[error("The agent belongs to another runtime than the one that imports")]
    OtherRuntime,
    /// The memory has no whole number of pages.
    #[error(
        "The descriptor's memory has {bytes} bytes; memory to be imported has whole pages of 4096, and some"
    )]
    Length {
        /// Its length.
        bytes: u64,
    },
    /// The descriptor cannot be looked at.
    #[error("The descriptor cannot be looked at: {errno}")]
    Descriptor {
        /// Why.
        errno: Errno,
    },
    /// The descriptor of another exporter could not be kept.
    #[error("The descriptor cannot be duplicated")]
    Duplicate(#[source] std::io::Error),
    /// No addresses.
    #[error("No addresses are left")]
    Address(#[from] ArenaError),
    /// The driver refused.
    #[error("Memory cannot be shared")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}
