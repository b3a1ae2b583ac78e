// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a verb of a checkpoint was refused or failed.

use std::path::PathBuf;
use std::time::Duration;

use kfd::Errno;
use kfd::transport::wire::WireError;
use stasis_protocol::{State, Stopped};
use thiserror::Error;

use super::admit::{Difference, ElsewhereError, PlaceError, SwitchError};
use super::audit::Culprit;
use super::keeper::KeeperError;
use super::preempt::{CaptureError, ForkError, Unavailable};
use super::rescue::Stranded;
use super::text::list;
use crate::context::error::{CloseError, DeviceError, Lost, OpenError, QueueError};
use crate::context::memory::window::WindowError;
use crate::context::queue::fault::QueueFault;
use crate::context::registry::state::{BoKey, DmabufId, QueueKey};
use crate::image::ImageError;
use crate::share::{Outsider, RendezvousError, SessionError, SharedMemoryError};

/// A verb was refused or failed. The state is the one before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The verb does not fit the state.
    #[error("Cannot {verb} while {state}; it needs {wanted}")]
    State {
        /// The verb.
        verb: &'static str,
        /// The state now.
        state: State,
        /// The state it needs.
        wanted: State,
    },
    /// No buffer has a label.
    #[error("No buffer has a label, so there is nothing to save: give labels first (Buffer::set_label)")]
    Unlabelled,
    /// The gate could not be closed.
    #[error("Calls in flight did not leave the runtime")]
    Gate(#[from] CloseError),
    /// A queue did not drain in time; the process runs on.
    #[error(
        "Queue {queue} still runs {} after {} ms: let it end, give a later deadline, or lock with Mode::Preempt",
        running.as_deref().unwrap_or("its packets"), elapsed.as_millis()
    )]
    LockTimeout {
        /// The kernel at its read index, if that is a dispatch of a loaded executable.
        running: Option<String>,
        /// Which queue.
        queue: QueueKey,
        /// How long was waited.
        elapsed: Duration,
    },
    /// Queues cannot be stopped in the middle of their kernels here.
    #[error("Queues cannot be preempted for a checkpoint")]
    Preempt(#[source] Unavailable),
    /// The driver's state of the process is not what it should be.
    #[error("The preempted queues cannot be carried on")]
    Capture(#[from] CaptureError),
    /// The verb was stopped before its end.
    #[error("The {verb} was given up: {stopped}")]
    Stopped {
        /// The verb.
        verb: &'static str,
        /// By what.
        stopped: Stopped,
    },
    /// The device did not answer before the verb's end.
    #[error(
        "The {verb} was given up: the device did not answer within its deadline; it is stopped or short of time, not lost: \
         try again when it answers"
    )]
    Stalled {
        /// The verb.
        verb: &'static str,
        /// The call that had no answer.
        #[source]
        source: Box<CheckpointError>,
    },
    /// Another thread's verb is at work.
    #[error("Cannot {verb}: another verb was still at work after {} ms; wait for it or cancel it", waited.as_millis())]
    AtWork {
        /// The verb.
        verb: &'static str,
        /// How long was waited for the other.
        waited: Duration,
    },
    /// A call of the program did not return from the device in time.
    #[error("A thread was still inside the device after {} ms", waited.as_millis())]
    Busy {
        /// How long was waited.
        waited: Duration,
    },
    /// A buffer's bytes can be reached neither by the CPU nor by a copy engine: the agent has none, or its queues are
    /// preempted, when none would run.
    #[error(
        "Buffer {bo} is not visible to the CPU, and no copy engine can move it now: drain the queues of an agent that has \
         copy engines, or allocate it host-visible"
    )]
    Hidden {
        /// Which buffer.
        bo: BoKey,
    },
    /// The copy engine that was to move contents could not be had.
    #[error("A copy engine could not be had for the contents of memory")]
    Engine(#[source] Box<QueueError>),
    /// A process outside the session holds memory that is shared within it.
    #[error(
        "Memory is shared with processes outside the checkpoint, which would lose it: {}; end them, have them close it, \
         or checkpoint them together",
        list(holders)
    )]
    Outsiders {
        /// Who, and where it shows.
        holders: Vec<Outsider>,
    },
    /// A DMABuf was sent and not received.
    #[error(
        "DMABuf {dmabuf} waits in the queue of socket fd {socket}, where it would be lost: receive it first"
    )]
    InFlight {
        /// The descriptor of the socket that is to receive it.
        socket: i32,
        /// Which memory.
        dmabuf: DmabufId,
    },
    /// The processes of the session did not come to an agreement.
    #[error("The processes that share memory do not let go of it together")]
    Session(#[from] SessionError),
    /// The processes of the session do not find each other's memory.
    #[error("Shared memory is not found again")]
    Rendezvous(#[from] RendezvousError),
    /// A member's image is of another session.
    #[error(
        "{} is not of session {wanted}, in which this process was checkpointed, but of {}: restore what belongs together",
        path.display(), found.as_deref().unwrap_or("none")
    )]
    OtherSession {
        /// The file.
        path: PathBuf,
        /// Its session.
        found: Option<String>,
        /// This process's.
        wanted: String,
    },
    /// Shared memory's bytes are in the image of a process that nobody knows of.
    #[error("The image of {member}, which has the bytes of shared memory, is not to be found")]
    NoImage {
        /// Its name in the session.
        member: String,
    },
    /// A process with others in its session, whose contents were to stay in its own memory.
    #[error(
        "A self-contained checkpoint is one of a process by itself; this one is to share memory with others"
    )]
    NotContained,
    /// A self-contained checkpoint upon a parent.
    #[error(
        "A self-contained checkpoint has its contents in the process's memory and not beside those of a parent: leave one or the other out"
    )]
    ParentOfContained,
    /// The image could not be written or taken.
    #[error("The image cannot be used")]
    Image(#[from] ImageError),
    /// The image is another one.
    #[error("{} is another process's or another time's image: it has id {found}, this process wants {wanted}", path.display())]
    OtherImage {
        /// The file.
        path: PathBuf,
        /// Id in the file.
        found: String,
        /// Id this process waits for.
        wanted: String,
    },
    /// Taking an object down or making it again was refused by the driver.
    #[error("The driver refused {what}")]
    Device {
        /// Which step.
        what: &'static str,
        /// Why.
        #[source]
        source: DeviceError,
    },
    /// The device could not be opened again.
    #[error("The device could not be opened again; the contents are kept, try again")]
    Open(#[source] OpenError),
    /// The addresses of the buffers were given to something else.
    #[error("The buffers cannot go back to their addresses")]
    Window(#[from] WindowError),
    /// The agents here are not those the process had.
    #[error("No GPUs here can take the places of those of the checkpoint: {}", list(differences))]
    Agents {
        /// Every difference.
        differences: Vec<Difference>,
    },
    /// The map of agents cannot be used.
    #[error("The agents cannot be placed as the map says")]
    Place(#[from] PlaceError),
    /// The device that the restore asks for cannot be taken.
    #[error("The process cannot be restored on another device")]
    Elsewhere(#[from] ElsewhereError),
    /// A switch of the environment is neither on nor off.
    #[error("The checks of admission are not known")]
    Switch(#[from] SwitchError),
    /// A queue came back failed.
    #[error("A queue failed while it was drained")]
    Queue(#[source] std::sync::Arc<QueueFault>),
    /// The audit found something of the device.
    #[error("The process still holds: {}", list(culprits))]
    Audit {
        /// What and where.
        culprits: Vec<Culprit>,
    },
    /// The process cannot have its device back in this life: the driver takes no render files but those that are lost.
    #[error(transparent)]
    Stranded(Box<Stranded>),
    /// The render files cannot be left with keepers, or not be had back now.
    #[error("The render files cannot be handed over")]
    Keeper(#[from] KeeperError),
    /// The system refused something outside the device.
    #[error("Cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The driver gave an object another number than it had, which memory already names.
    #[error("The driver calls {what} {found} where it was {wanted}")]
    Identity {
        /// What.
        what: &'static str,
        /// The number it had.
        wanted: u32,
        /// The number it has now.
        found: u32,
    },
    /// The failure was undone only in part.
    #[error("{failure}; and going back failed, so the gate stays shut: {undo}")]
    Stuck {
        /// What failed first.
        failure: Box<CheckpointError>,
        /// What failed on the way back.
        undo: Box<CheckpointError>,
    },
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

pub(crate) fn device(what: &'static str) -> impl FnOnce(DeviceError) -> CheckpointError {
    move |source| CheckpointError::Device { what, source }
}

pub(crate) fn system(act: &'static str) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::System { act, source }
}

/// Whether an error says that the device did not answer in time.
pub(super) fn is_stall(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_call = error.downcast_ref().is_some_and(|error: &kfd::IoctlError| error.errno == Errno::ETIMEDOUT);
    let of_connection = matches!(
        error.downcast_ref(),
        Some(kfd::OpenError::Unreachable { .. } | kfd::OpenError::Wire { source: WireError::TimedOut, .. })
    );
    let of_probe = matches!(error.downcast_ref(), Some(ForkError::GivenUp { .. }));
    of_call || of_connection || of_probe || error.source().is_some_and(is_stall)
}

impl From<SharedMemoryError> for CheckpointError {
    fn from(error: SharedMemoryError) -> Self {
        use SharedMemoryError as Error;
        match error {
            Error::Hidden { bo } => Self::Hidden { bo },
            Error::Outsiders { holders } => Self::Outsiders { holders },
            Error::InFlight { socket, dmabuf } => Self::InFlight { socket, dmabuf },
            Error::Session(error) => Self::Session(error),
            Error::Rendezvous(error) => Self::Rendezvous(error),
            Error::OtherSession { path, found, wanted } => Self::OtherSession { path, found, wanted },
            Error::NoImage { member } => Self::NoImage { member },
            Error::Image(error) => Self::Image(error),
            Error::Device { what, source } => Self::Device { what, source },
            Error::System { act, source } => Self::System { act, source },
        }
    }
}
