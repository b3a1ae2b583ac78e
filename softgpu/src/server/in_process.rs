// SPDX-License-Identifier: MIT OR Apache-2.0
//! A software device in the process of its client, for the client's tests: the same driver and hardware as behind
//! `softgpud`, without socket and without another process.
//!
//! The client's buffers and the GPU's view of them are one mapping, so that a client can crash its device. The memory of
//! the device has other names than that of a `softgpud` ([`MEMORY_NAMES`]).
//!
//! INVARIANT: the device lives until the last reference to it is gone, however often its files are closed, as the state
//! that KFD keeps for a process does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kfd::transport::soft::{LocalDevice, SoftTransport};
use kfd::transport::wire::{Reply, Request};

use super::devices::Devices;
use super::error::ServeError;
use super::host::{Answer, Host, make_gate};
use crate::client_gpus::ClientGpus;
use crate::driver::{KernelModel, ObjectCounts};
use crate::names;

/// What the names of the device's memory begin with, as `/proc` shows them.
pub const MEMORY_NAMES: &str = names::IN_PROCESS;

/// A device of this process.
#[derive(Debug)]
pub struct Device {
    host: Host,
    gone: AtomicBool,
}

impl Device {
    /// Makes the machine that a topology file with this text would describe (`docs/topology.md`), behind the driver of
    /// this kernel.
    ///
    /// # Errors
    /// [`ServeError`] for a text that describes no machine, or a lack of memory, descriptors or threads.
    pub fn open(machine: &str, kernel: KernelModel) -> Result<Arc<Self>, ServeError> {
        names::be_in_process();
        let devices = Devices::of_text(machine)?;
        let gpus = ClientGpus::with_client(&devices.chips(true));
        let gpus = gpus.map_err(ServeError::system("making the GPUs"))?;
        let client = nix::unistd::getpid();
        // CAST: a pid is positive.
        let slot = devices.ledger()?.claim(client.as_raw().cast_unsigned());
        let gate = make_gate().map_err(ServeError::system("making the gate"))?;
        let host = Host::with(&devices, slot.map_err(ServeError::Ledger)?, client, gpus, kernel, gate);
        Ok(Arc::new(Self { host, gone: AtomicBool::new(false) }))
    }

    /// The transport to it. All transports of a device reach the same state, as all connections of a process do.
    #[must_use]
    pub fn transport(self: &Arc<Self>) -> SoftTransport {
        SoftTransport::local("in-process", Arc::clone(self) as _)
    }

    /// Takes the device away, as the end of `softgpud` does: every call fails from now on, those in progress too.
    pub fn kill(&self) {
        self.gone.store(true, Ordering::Release);
        self.host.process().canceller().cancel();
    }

    /// What the process has of the driver.
    #[must_use]
    pub fn object_counts(&self) -> ObjectCounts {
        self.host.process().object_counts()
    }
}

impl LocalDevice for Device {
    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> Option<(Reply, Vec<OwnedFd>)> {
        if self.gone.load(Ordering::Acquire) {
            return None;
        }
        let Answer { reply, fds } = self.host.answer(request, fds, true);
        // A wait that was ended when the device went is not repeated.
        (!self.gone.load(Ordering::Acquire)).then_some((reply, fds))
    }
}
