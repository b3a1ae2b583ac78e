// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why the memory of a session could not be found again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stasis_protocol::Stopped;
use thiserror::Error;

use crate::context::registry::state::DmabufId;

/// Memory of a session could not be found again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// A file or socket of the rendezvous.
    #[error("Cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else's socket is there.
    #[error("The session's rendezvous socket in {} is owned by uid {uid}, which is neither this process's nor root's", path.display())]
    Stranger {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// Other participants have finished.
    #[error(
        "{} of the session went on without this process and no longer share{} what they had: end them and restore all \
         together", names.join(", "), if names.len() == 1 { "s" } else { "" }
    )]
    GoneOn {
        /// Who.
        names: Vec<String>,
    },
    /// The coordinator would not have this process.
    #[error("The session's rendezvous refused this process: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The coordinator has ended.
    #[error("The coordinator of the session's rendezvous ended; try again")]
    CoordinatorGone,
    /// Memory was not made in time by whoever was to.
    #[error("Memory {dmabuf} of the session was not there after {} ms: {stopped}", waited.as_millis())]
    Late {
        /// Which.
        dmabuf: DmabufId,
        /// How long was waited.
        waited: Duration,
        /// What ended the wait.
        stopped: Stopped,
    },
    /// The wait for a coordinator ended.
    #[error("The session's rendezvous has no coordinator: {0}")]
    NoCoordinator(#[source] Stopped),
    /// An answer that makes no sense here.
    #[error("The coordinator of the session's rendezvous gave an answer of another version")]
    Answer,
}

pub(super) fn io_error(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RendezvousError {
    let path = path.to_owned();
    move |source| RendezvousError::Io { act, path, source }
}
