// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::staged::Hold;
use crate::context::agent::copy_path::{CopyEngine, CopyPath};
use crate::context::error::{CopyError, WaitError};
use crate::signal::Signal;

/// TIMEOUT: how often who waits for a staged copy looks whether a queue on its way has failed.
const FAULT_POLL: Duration = Duration::from_millis(200);

/// A copy or fill in flight. Dropping it does not stop it.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub(super) signal: Signal,
    pub(super) engine: CopyEngine,
    pub(super) path: CopyPath,
    pub(super) staged: Option<Hold>,
}

impl Transfer {
    /// The signal it completes: 1 while in flight, then 0. Other packets can wait for it.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Who does it: [`CopyEngine::Shader`] or [`CopyEngine::Sdma`]; of a staged copy, who copies to the destination.
    pub fn engine(&self) -> CopyEngine {
        self.engine
    }

    /// The way it takes. A fill is [`CopyPath::Local`] in an agent's memory, else [`CopyPath::Host`].
    pub fn path(&self) -> CopyPath {
        self.path
    }

    /// Waits until it is done; `None` waits for ever.
    ///
    /// # Errors
    /// [`CopyError::Wait`], [`CopyError::AgentLost`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), CopyError> {
        let Some(hold) = &self.staged else { return self.signal.wait_done(timeout).map_err(CopyError::from) };
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            // The signal is the last queue's; one before it may have failed.
            if let Some(fault) = hold.under_way.fault() {
                return Err(WaitError::from(Arc::clone(fault)).into());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let look = left.map_or(FAULT_POLL, |left| left.min(FAULT_POLL));
            match self.signal.wait_done(Some(look)) {
                Ok(()) => return Ok(()),
                Err(WaitError::Timeout { .. }) if left.is_none_or(|left| left > look) => {}
                // A fault is looked at above, and releases the other queue.
                Err(WaitError::Queue(_) | WaitError::AgentLost(_)) if hold.under_way.fault().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
