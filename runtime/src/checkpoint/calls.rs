// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a verb's calls to the device may take, and how long they took.

use std::time::{Duration, Instant};

use kfd::Transport;
use kfd::transport::CallLimit;
use stasis_protocol::Limit;

use super::error::CheckpointError;

/// TIMEOUT: how long threads asleep in the driver may take to come out; the time in which the device does not answer is
/// not theirs, and not counted.
pub(super) const RECLAIM: Duration = Duration::from_secs(5);

/// The limit of a verb, for the calls that its thread makes to the device.
pub(super) fn call_limit(limit: &Limit) -> CallLimit {
    let limit = limit.clone();
    CallLimit::while_true(move || limit.check().is_ok())
}

/// Milliseconds since then.
pub(super) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Has the transport give up its sockets.
pub(super) fn disconnect(transport: &dyn Transport) -> Result<(), CheckpointError> {
    let deadline = Instant::now() + RECLAIM;
    while let Err(error) = transport.close() {
        if Instant::now() >= deadline {
            tracing::warn!(target: "checkpoint", %error, "the transport is still in use");
            return Err(CheckpointError::Busy { waited: RECLAIM });
        }
        // TIMEOUT: a call on its way out needs microseconds.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
