// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker of a run: the softgpud that knows which processes have a device.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use kfd::transport::control::{BrokerAnswer, BrokerOrder, Control, ControlError, broker_socket};
use nix::errno::Errno;

/// TIMEOUT: how long a broker may take to answer; it never waits for anybody.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a broker. Processes are named as they are in the broker's pid namespace.
#[derive(Debug)]
pub struct Broker(Control);

impl Broker {
    /// Connects to the broker of a run, in the network namespace of this thread; `user` is whose it has to be.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub fn connect(run: &str, user: u32) -> Result<Self, ControlError> {
        let control = Control::connect(&broker_socket(run), user)?;
        let limited = control.set_limit(PATIENCE);
        limited.map_err(|errno| ControlError::Nobody { name: run.to_owned(), errno })?;
        Ok(Self(control))
    }

    /// The broker's own process, as this process sees it; 0 if it is in a pid namespace that cannot be seen.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.0.peer().unwrap_or(0)
    }

    /// A pidfd of it.
    pub(crate) fn process(&self) -> Result<OwnedFd, Errno> {
        self.0.process()
    }

    fn order(&mut self, what: &'static str, order: &BrokerOrder) -> Result<BrokerAnswer, ControlError> {
        match self.0.order(what, order, &[])?.0 {
            BrokerAnswer::Failed { message } => Err(ControlError::Failed { order: what, message }),
            answer => Ok(answer),
        }
    }

    /// Starts an executor for a client that was restored.
    ///
    /// # Errors
    /// Why not.
    pub fn start_executor(&mut self, client: i32) -> Result<(), ControlError> {
        self.order("start an executor", &BrokerOrder::Start { client }).map(drop)
    }

    /// Has the broker stay until a process has ended.
    ///
    /// # Errors
    /// Why it does not.
    pub fn stay(&mut self, process: i32) -> Result<(), ControlError> {
        self.order("stay for the program", &BrokerOrder::Stay { process }).map(drop)
    }

    /// Has the broker let no process connect that has no device yet, until this connection ends.
    ///
    /// # Errors
    /// Why it does not.
    pub fn hold(&mut self) -> Result<(), ControlError> {
        self.order("hold new clients back", &BrokerOrder::Hold).map(drop)
    }

    /// The processes that have a device.
    ///
    /// # Errors
    /// Why it does not say.
    pub fn clients(&mut self) -> Result<BTreeSet<i32>, ControlError> {
        const WHAT: &str = "name its clients";
        match self.order(WHAT, &BrokerOrder::Clients)? {
            BrokerAnswer::Clients(pids) => Ok(pids.into_iter().collect()),
            _ => Err(ControlError::Answer { order: WHAT }),
        }
    }
}
