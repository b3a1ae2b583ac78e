// SPDX-License-Identifier: MIT OR Apache-2.0
//! The current session with a device: begun again when the last one has ended.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::address::Address;
use super::local::LocalDevice;
use super::session::{CallError, Channels, Session};
use crate::errno;
use crate::transport::wire::{Reply, Request, WireError};
use crate::transport::{CloseError, OpenError};

/// One session at a time.
#[derive(Debug)]
pub(super) struct Sessions {
    address: Address,
    local: Option<Arc<dyn LocalDevice>>,
    channels: Channels,
    current: Mutex<Option<Arc<Session>>>,
}

impl Sessions {
    /// With the device at `address`; none is begun.
    pub fn new(address: Address, channels: Channels) -> Self {
        Self { address, local: None, channels, current: Mutex::default() }
    }

    /// With a device in this process.
    pub fn local(address: Address, device: Arc<dyn LocalDevice>) -> Self {
        Self { address, local: Some(device), channels: Channels::Kept, current: Mutex::default() }
    }

    /// The current session, if there is one.
    pub fn current(&self) -> Option<Arc<Session>> {
        self.current.lock().clone()
    }

    /// Begins a session, if there is none.
    ///
    /// # Errors
    /// Why the device cannot be reached.
    pub fn begin(&self) -> Result<(), OpenError> {
        self.session().map(drop)
    }

    /// Ends the current session.
    ///
    /// # Errors
    /// [`CloseError`]; the session goes on then.
    pub fn close(&self) -> Result<(), CloseError> {
        let mut current = self.current.lock();
        if let Some(session) = current.as_ref() {
            session.close()?;
        }
        *current = None;
        Ok(())
    }

    /// The current session, or a new one; says whether it is new.
    fn session(&self) -> Result<(Arc<Session>, bool), OpenError> {
        let mut current = self.current.lock();
        if let Some(session) = current.as_ref() {
            if session.is_usable() {
                return Ok((Arc::clone(session), false));
            }
            session.abandon();
        }
        // The lock is held, so that concurrent callers share one new session.
        let session = match &self.local {
            Some(device) => Session::local(&self.address, Arc::clone(device)),
            None => Session::connect(&self.address, self.channels)?,
        };
        *current = Some(Arc::clone(&session));
        Ok((session, true))
    }

    /// Exchanges one message. If the device turns out to be dead, the exchange is repeated on a new session.
    ///
    /// # Errors
    /// [`OpenError::Refused`] with the device's answer, or why there is none.
    pub fn exchange(
        &self,
        what: &'static str,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Arc<Session>, Reply, Vec<OwnedFd>), OpenError> {
        loop {
            let (session, fresh) = self.session()?;
            match session.exchange(request, fds) {
                Ok((Reply::Error { errno, message }, _)) => {
                    return Err(OpenError::Refused { what, errno: errno::from_raw(errno), message });
                }
                Ok((reply, fds)) => return Ok((session, reply, fds)),
                Err(CallError::Wire(source)) => return Err(OpenError::Wire { what, source }),
                Err(_) if fresh => return Err(OpenError::Wire { what, source: WireError::Closed }),
                Err(_) => {}
            }
        }
    }
}
