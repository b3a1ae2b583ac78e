// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hold on the running event thread.
//!
//! INVARIANT: the thread has ended when [`Watch::stop`] returns `Ok`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::context::device::Device;
use crate::context::error::DeviceError;
use crate::context::signal::event::EventLive;

/// The running thread.
#[derive(Debug)]
pub struct Watch {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) thread: JoinHandle<()>,
    pub(super) wake: Arc<EventLive>,
}

impl Watch {
    /// Stops it and waits for it. Leaves the wake event set.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`] if it could not be woken; it goes on as before.
    pub fn stop(self, device: &Device) -> Result<(), (Self, DeviceError)> {
        // The event stays set: the thread does not sleep any more, and sees before its next attempt that it is to end.
        if let Err(error) = device.set_event(self.wake.id.load(Ordering::Relaxed)) {
            return Err((self, error));
        }
        self.stop.store(true, Ordering::Release);
        if self.thread.join().is_err() {
            tracing::error!(target: "exceptions", "the event thread panicked");
        }
        Ok(())
    }
}
