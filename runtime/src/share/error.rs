// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why memory could not be shared, or not be carried through a checkpoint.

use std::path::PathBuf;

use kfd::Errno;

use super::barrier::SessionError;
use super::holders::Outsider;
use super::rendezvous::RendezvousError;
use crate::context::error::{ArenaError, DeviceError, Lost};
use crate::context::registry::state::{BoKey, DmabufId, SignalKey};
use crate::image::ImageError;

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
    /// No number could be drawn for a name.
    #[error("No name could be drawn: {errno}")]
    Name {
        /// Why.
        errno: Errno,
    },
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

/// Shared memory could not be carried through a checkpoint. A checkpoint's errors say the same, variant by variant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedMemoryError {
    /// A buffer's bytes cannot be reached by the CPU.
    #[error("Buffer {bo} is not visible to the CPU")]
    Hidden {
        /// Which buffer.
        bo: BoKey,
    },
    /// Processes outside the session hold memory of it.
    #[error("{} processes outside the session hold shared memory", holders.len())]
    Outsiders {
        /// Which, and where it shows.
        holders: Vec<Outsider>,
    },
    /// A DMABuf was sent and not received.
    #[error("DMABuf {dmabuf} waits in the queue of socket fd {socket}")]
    InFlight {
        /// The descriptor of the socket that is to receive it.
        socket: i32,
        /// Which memory.
        dmabuf: DmabufId,
    },
    /// The processes of the session did not come to an agreement.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The processes of the session do not find each other's memory.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A member's image is of another session.
    #[error("{} is not of session {wanted}", path.display())]
    OtherSession {
        /// The file.
        path: PathBuf,
        /// Its session.
        found: Option<String>,
        /// This process's.
        wanted: String,
    },
    /// Shared memory's bytes are in the image of a process that nobody knows of.
    #[error("The image of {member} is not to be found")]
    NoImage {
        /// Its name in the session.
        member: String,
    },
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The driver refused a step.
    #[error("The driver refused {what}")]
    Device {
        /// Which step.
        what: &'static str,
        /// Why.
        #[source]
        source: DeviceError,
    },
    /// The system refused something outside the device.
    #[error("Cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

pub(super) fn device(what: &'static str) -> impl FnOnce(DeviceError) -> SharedMemoryError {
    move |source| SharedMemoryError::Device { what, source }
}

pub(super) fn system(act: &'static str) -> impl FnOnce(std::io::Error) -> SharedMemoryError {
    move |source| SharedMemoryError::System { act, source }
}
