// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why softgpud cannot start or must end.

use std::path::PathBuf;

use kfd::transport::wire::WireError;
use nix::errno::Errno;
use thiserror::Error;

use super::settings::SettingError;
use crate::driver::{KernelModelError, LedgerError};
use crate::sysfs::{SpecError, WriteTreeError};

/// A failure of the broker or of an executor as a whole. One client's mistakes are never among them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The device list cannot be had.
    #[error("Cannot model the devices {spec:?}")]
    Devices {
        /// The list.
        spec: String,
        /// What is wrong with it.
        #[source]
        source: SpecError,
    },
    /// The topology file cannot be read.
    #[error("Cannot read the topology file {path}")]
    Topology {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The topology file was changed between the client's read and the broker's.
    #[error(
        "The topology file {path} is not what the client read: it was edited meanwhile; open the device again"
    )]
    Edited {
        /// The file.
        path: String,
    },
    /// A variable has an invalid value.
    #[error("softgpud does not understand its environment")]
    Setting(#[source] SettingError),
    /// `SOFTGPU_KERNEL` names no kernel.
    #[error("Cannot imitate that kernel")]
    Kernel(#[source] KernelModelError),
    /// The files of the machine cannot be written.
    #[error("Cannot write the files of the machine")]
    Tree(#[source] WriteTreeError),
    /// A chip of the list is missing from the target table.
    #[error("Device {name} has a topology but no entry in the target table; this build is inconsistent")]
    Target {
        /// The chip.
        name: &'static str,
    },
    /// The socket's name cannot be one.
    #[error("{name:?} cannot be the name of an abstract socket (1 to 107 bytes) ({errno})")]
    SocketName {
        /// The name.
        name: String,
        /// What is wrong with it.
        errno: Errno,
    },
    /// Another instance has the socket's name, and no files of a machine are written for it.
    #[error("another softgpud has the socket {name:?}; choose another name")]
    Taken {
        /// The name.
        name: String,
    },
    /// A system call failed.
    #[error("{what} failed ({errno})")]
    System {
        /// The act.
        what: &'static str,
        /// Its errno.
        errno: Errno,
    },
    /// An executor could not be started.
    #[error("Cannot start an executor from /proc/self/exe")]
    Spawn(#[source] std::io::Error),
    /// A thread could not be started.
    #[error("Cannot start a thread of the executor")]
    Thread(#[source] std::io::Error),
    /// The ledger of the device cannot be used.
    #[error("Cannot use the device's ledger")]
    Ledger(#[source] LedgerError),
    /// This process's own mappings are not known.
    #[error("Cannot read /proc/self/maps")]
    Maps(#[source] std::io::Error),
    /// A mapping of this process lies in the address range of the clients' buffers.
    #[error(
        "The addresses from 16 to 80 TiB must be free, found {mapping:?}; run softgpud with a limited stack (ulimit -s)"
    )]
    Window {
        /// The line of `/proc/self/maps`.
        mapping: String,
    },
    /// A file for what clients do cannot be opened.
    #[error("Cannot append to {}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Broker and executor do not understand each other.
    #[error("Broker and executor cannot talk; both must come from one build")]
    Control(#[source] WireError),
    /// The broker's first message lacks something.
    #[error(
        "The broker sent {found} descriptors for a new executor, wanted the client's pidfd and the ledger"
    )]
    Seed {
        /// Descriptors that came.
        found: usize,
    },
}

impl ServeError {
    /// The error code for a client that cannot have an executor.
    pub(super) fn errno(&self) -> Errno {
        match self {
            Self::System { errno, .. } | Self::Control(WireError::System { errno, .. }) => *errno,
            Self::Spawn(source) => kfd::errno::of_io(source).unwrap_or(Errno::ENOMEM),
            _ => Errno::ENOMEM,
        }
    }

    /// Makes the error of a failed system call, for `map_err`.
    pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}
