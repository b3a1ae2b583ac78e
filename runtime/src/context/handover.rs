// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking the device away from all calls, and giving them one again.
//!
//! INVARIANT: both need the closed gate. Calls either have a device whose events are listened to, or none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kfd::transport::CallLimit;
use stasis_protocol::gate::Closed;

use super::Context;
use super::device::Device;
use super::error::DeviceError;
use super::events::start;
use super::memory::host_writes::Written;

/// Stops the event thread, gets every sleeper out of the device and takes the device away from all calls. The
/// wake event stays set.
///
/// # Errors
/// [`TakeError`]; the device is as before, and in use again.
pub fn take_device(
    context: &Arc<Context>,
    closed: &mut Closed,
    deadline: Instant,
) -> Result<Device, TakeError> {
    let device = {
        let pass = closed.pass();
        context.device(&pass).map(Arc::clone)
    };
    let device = device.ok_or(TakeError::Gone)?;
    let watch = context.watch.lock().take();
    if let Some(watch) = watch {
        watch.stop(&device).map_err(|(watch, error)| {
            *context.watch.lock() = Some(watch);
            error
        })?;
    }
    context.device.set(closed, None);
    context.host_writes.set_pages(closed, Vec::new());
    match Device::reclaim(device, context.wake.id.load(Ordering::Relaxed), deadline) {
        Ok(device) => Ok(device),
        Err((device, stalled)) => {
            let sleepers = Arc::strong_count(&device) - 1;
            // However long it takes: calls need a device whose events are listened to.
            CallLimit::none().hold(|| put_device(context, closed, device))?;
            Err(stalled.map_or(TakeError::Busy { sleepers }, TakeError::Device))
        }
    }
}

/// The same as [`put_device`], but gives the device back if it cannot be put to use.
///
/// # Errors
/// [`TakeError`] with the device; calls have none then.
pub fn try_put_device(
    context: &Arc<Context>,
    closed: &mut Closed,
    device: Device,
) -> Result<(), (Option<Box<Device>>, TakeError)> {
    let device = Arc::new(device);
    put_device(context, closed, Arc::clone(&device)).map_err(|error| {
        context.device.set(closed, None);
        context.host_writes.set_pages(closed, Vec::new());
        (Arc::into_inner(device).map(Box::new), error)
    })
}

/// Gives calls a device and the registers of its agents, lowers the wake event and starts the event thread.
///
/// # Errors
/// [`TakeError`]; the device is in use nevertheless.
pub fn put_device(context: &Arc<Context>, closed: &mut Closed, device: Arc<Device>) -> Result<(), TakeError> {
    context.device.set(closed, Some(Arc::clone(&device)));
    context.host_writes.set_pages(closed, device.hdp_pages()?);
    // The process that had the device before may have written, as a restore does.
    context.host_writes.note(Written::ANY);
    device.reset_event(context.wake.id.load(Ordering::Relaxed))?;
    start(context, device).map(|watch| *context.watch.lock() = Some(watch)).map_err(TakeError::Thread)
}

/// The device could not be taken from, or given to, the calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// It was taken already.
    #[error("The device was closed already")]
    Gone,
    /// A thread did not come out of the driver in time.
    #[error("{sleepers} threads are still asleep in the driver: retry with a later deadline")]
    Busy {
        /// How many.
        sleepers: usize,
    },
    /// The event thread could not be stopped or the wake event not changed.
    #[error("The driver refused")]
    Device(#[from] DeviceError),
    /// The event thread could not be started.
    #[error("The event thread could not be started")]
    Thread(#[source] std::io::Error),
}
