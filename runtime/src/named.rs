// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and signals of other processes, asked for by name: a process asks the agent of the one whose they are.
//!
//! INVARIANT: who asks holds a pass while it has a connection, or a descriptor that is not imported yet; and it asks for a short time
//! only, since its own lock waits for that. So neither is there when the process is frozen.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::checkpoint::{CallError, Done, Request, call_with};
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::share::{ShareError, SharedName};
use crate::signal::Signal;

/// TIMEOUT: how long one question may take, and after how long there is another. An owner that is locked does not hear of it.
const QUESTION: Duration = Duration::from_millis(200);
const AGAIN: Duration = Duration::from_millis(20);

/// What a name names was not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedError {
    /// The owner has nothing of that name, or no more.
    #[error("Process {owner} has nothing of this name: it was freed, or the name is another process's")]
    Unknown {
        /// The process that was asked.
        owner: i32,
    },
    /// The owner was locked or checkpointed all the time, or stopped.
    #[error("Process {owner} was locked, checkpointed or stopped for {} ms: ask again", waited.as_millis())]
    Away {
        /// The process that was asked.
        owner: i32,
        /// How long it was asked.
        waited: Duration,
    },
    /// The owner could not be asked.
    #[error("Process {owner} cannot be asked for shared memory")]
    Owner {
        /// The process that was to be asked.
        owner: i32,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The descriptor of the memory was lost on its way.
    #[error("The descriptor that process {owner} gave did not arrive: is RLIMIT_NOFILE reached?")]
    NoDescriptor {
        /// The process that was asked.
        owner: i32,
    },
    /// What the owner gave could not be taken.
    #[error(transparent)]
    Share(#[from] ShareError),
}

/// Asks once: the DMABuf of what a name names; `None` if the owner does not answer now.
fn ask_once(name: &SharedName, request: &Request, limit: Duration) -> Result<Option<OwnedFd>, NamedError> {
    let owner = name.owner;
    match call_with(owner, request, &[], limit) {
        Ok((_, Done::Shared, files)) => {
            files.into_iter().next().map(Some).ok_or(NamedError::NoDescriptor { owner })
        }
        Ok((_, Done::NotNow, _)) | Err(CallError::NoAnswer { .. }) => Ok(None),
        Ok(_) => Err(NamedError::Unknown { owner }),
        Err(source) => Err(NamedError::Owner { owner, source }),
    }
}

/// Asks until there is an answer, and takes what a name names.
fn ask<T>(
    runtime: &Runtime,
    name: &SharedName,
    limit: Duration,
    take: impl FnOnce(OwnedFd) -> Result<T, ShareError>,
) -> Result<T, NamedError> {
    let SharedName { owner, number } = *name;
    if owner <= 0 {
        return Err(NamedError::Unknown { owner });
    }
    let request = Request::Share { number: format!("{number:032x}") };
    // The time in which this process is itself locked, or gone, is not counted.
    let mut waited = Duration::ZERO;
    loop {
        let pass = runtime.context().gate.enter().map_err(ShareError::Lost)?;
        let begun = Instant::now();
        if let Some(file) = ask_once(name, &request, QUESTION)? {
            return Ok(take(file)?);
        }
        waited += begun.elapsed();
        drop(pass);
        if waited >= limit {
            return Err(NamedError::Away { owner, waited });
        }
        std::thread::sleep(AGAIN);
        waited += AGAIN;
    }
}

impl NamedError {
    /// Whether it is the name that is wrong: asking again is of no use.
    #[must_use]
    pub fn is_name(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            Self::Owner { source: CallError::NoAgent { .. } | CallError::Impostor { .. }, .. } => true,
            Self::Owner { source: CallError::Denied { source, .. }, .. } => {
                source.kind() == ErrorKind::PermissionDenied
            }
            Self::Share(ShareError::NoSignal { .. }) => true,
            _ => false,
        }
    }
}

impl Runtime {
    /// A buffer of the memory that [`Buffer::name`] names, of a process of the same user, which is asked for it, for at most
    /// `limit`; `agent` may access it. The owner's program need not do anything.
    ///
    /// # Errors
    /// [`NamedError`]; nothing is imported then.
    pub fn import_named(
        &self,
        name: &SharedName,
        agent: &Agent,
        limit: Duration,
    ) -> Result<Buffer, NamedError> {
        ask(self, name, limit, |file| self.import(file, agent))
    }

    /// The shared signal that [`Signal::name`] names, in the same way.
    ///
    /// # Errors
    /// As for [`Runtime::import_named`].
    pub fn import_named_signal(&self, name: &SharedName, limit: Duration) -> Result<Signal, NamedError> {
        ask(self, name, limit, |file| self.import_signal(file))
    }
}
