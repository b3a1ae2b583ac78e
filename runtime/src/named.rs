// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and signals of other processes, asked for by name: a process asks the agent of the one whose they are.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::checkpoint::{CallError, Done, Request, call_with};
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::share::{ShareError, SharedName};
use crate::signal::Signal;

/// TIMEOUT: after how long an owner is asked again that is locked.
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
    /// The owner was locked or checkpointed all the time.
    #[error("Process {owner} was locked or checkpointed for {} ms: ask again", waited.as_millis())]
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
    /// What the owner gave could not be taken.
    #[error(transparent)]
    Share(#[from] ShareError),
}

/// The DMABuf of what a name names.
fn ask(name: &SharedName, limit: Duration) -> Result<OwnedFd, NamedError> {
    let SharedName { owner, number } = *name;
    if owner <= 0 {
        return Err(NamedError::Unknown { owner });
    }
    let started = Instant::now();
    let request = Request::Share { number: format!("{number:032x}") };
    loop {
        let left = limit.saturating_sub(started.elapsed());
        let (_, done, files) =
            call_with(owner, &request, &[], left).map_err(|source| NamedError::Owner { owner, source })?;
        match (done, files.into_iter().next()) {
            (Done::Shared, Some(file)) => return Ok(file),
            (Done::NotNow, _) if started.elapsed() + AGAIN < limit => std::thread::sleep(AGAIN),
            (Done::NotNow, _) => return Err(NamedError::Away { owner, waited: started.elapsed() }),
            _ => return Err(NamedError::Unknown { owner }),
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
        Ok(self.import(ask(name, limit)?, agent)?)
    }

    /// The shared signal that [`Signal::name`] names, in the same way.
    ///
    /// # Errors
    /// As for [`Runtime::import_named`].
    pub fn import_named_signal(&self, name: &SharedName, limit: Duration) -> Result<Signal, NamedError> {
        Ok(self.import_signal(ask(name, limit)?)?)
    }
}
