// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a device of a run is not saved or not restored.

use std::io;
use std::path::PathBuf;

use kfd::transport::control::ControlError;
use kfd::transport::soft::StartError;
use stasis::criu::ManifestError;
use thiserror::Error;

use crate::run_directory::RunDirectoryError;

/// Why something is not done. Nothing of a device is lost by it, but for [`ForeignError::LostInMove`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// softgpud does not carry out an order.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The same for one client.
    #[error("The device of process {client} {failure}")]
    Client {
        /// The client.
        client: i32,
        /// What it does not do.
        failure: &'static str,
        /// Why.
        #[source]
        source: Box<Self>,
    },
    /// The system refuses something.
    #[error("Cannot {act}")]
    System {
        /// What was tried.
        act: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The new softgpud has failed after the old one was ended.
    #[error(
        "The software device in the tree was ended, and another one outside cannot go on with its state: the programs have lost \
         their device. End them, and restore an earlier checkpoint"
    )]
    LostInMove(#[source] Box<Self>),
    /// A state is no softgpud's.
    #[error("The state of a device has {bytes} bytes, more than any softgpud takes")]
    LongState {
        /// Its bytes.
        bytes: u64,
    },
    /// Memory that is not in the tree alone.
    #[error(
        "Process {client} shares memory of its device ({memory}) with process {other}, which is not in the tree of process {root}"
    )]
    Shared {
        /// A process of the tree.
        client: i32,
        /// The memory's name.
        memory: String,
        /// The process outside.
        other: i32,
        /// The root of the tree.
        root: i32,
    },
    /// Memory that CRIU has left out and that is not found.
    #[error("CRIU left out the memory {name:?}, which no task has; try --self-contained")]
    LeftOut {
        /// Its name.
        name: String,
    },
    /// Memory would not be found again by its name.
    #[error("Two memories of the tree have the name {name:?}; try --self-contained")]
    TwoOfOneName {
        /// Their name.
        name: String,
    },
    /// The device of a process is gone.
    #[error(
        "A process of the tree of process {root} has a device ({gate}) whose executor has ended: its state is lost"
    )]
    Lost {
        /// The root of the tree.
        root: i32,
        /// The gate that the process has.
        gate: String,
    },
    /// A client is not in the tree.
    #[error("Process {client}, which has a device, is not among the processes of the tree of process {root}")]
    NoTask {
        /// The client, as softgpud names it.
        client: i32,
        /// The root of the tree.
        root: i32,
    },
    /// The description cannot be used.
    #[error("{} describes what cannot be: {why}", path.display())]
    Description {
        /// Its file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The description is no JSON of this form.
    #[error("{} is no description of a device", path.display())]
    Parse {
        /// Its file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// The description cannot be written.
    #[error("Cannot encode the description of the devices")]
    Encode(#[source] serde_json::Error),
    /// A file of the checkpoint cannot be opened.
    #[error(transparent)]
    File(#[from] ManifestError),
    /// A state names memory that the description does not.
    #[error("The memory {name:?} is not described")]
    NotDescribed {
        /// Its name.
        name: String,
    },
    /// A restored task does not have what it had.
    #[error("CRIU has not restored the memory {name:?}")]
    NotRestored {
        /// Its name.
        name: String,
    },
    /// A restored memory is shorter than it was.
    #[error("The memory {name:?} has {found} bytes and not {wanted}")]
    Short {
        /// Its name.
        name: String,
        /// Its bytes.
        found: u64,
        /// Those that it had.
        wanted: u64,
    },
    /// The run has a softgpud that is in use.
    #[error(
        "A softgpud serves the run that the checkpoint is of ({socket}): end its program, or restore beside it (--beside)"
    )]
    Served {
        /// Its socket.
        socket: String,
    },
    /// The machine cannot be made.
    #[error("The machine that the checkpoint was made on, {devices}, cannot be had: {said}")]
    Machine {
        /// Its devices.
        devices: String,
        /// What softgpud said.
        said: String,
    },
    /// softgpud cannot be started.
    #[error("softgpud cannot be started")]
    Start(#[from] StartError),
    /// softgpud was started and does not listen.
    #[error("softgpud does not serve {devices}")]
    Silent {
        /// The devices.
        devices: String,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// The run's directory cannot be made.
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
}

impl ForeignError {
    /// Whether no process listens on an executor's socket: it has not started yet, or has ended.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        matches!(self, Self::Control(ControlError::Nobody { .. }))
    }

    /// Names the client whose device it is.
    pub fn of(client: i32, failure: &'static str) -> impl Fn(Self) -> Self {
        move |source| Self::Client { client, failure, source: Box::new(source) }
    }
}

/// For a refusal of the system.
pub(crate) fn system<E: Into<io::Error>>(act: impl Into<String>) -> impl FnOnce(E) -> ForeignError {
    let act = act.into();
    move |source| ForeignError::System { act, source: source.into() }
}
