// SPDX-License-Identifier: MIT OR Apache-2.0
//! Knowing that a queue has completed what it was given.
//!
//! INVARIANT: consumed is not completed. Only a packet that waits for all before it (an AQL packet with the barrier bit,
//! the release of a compute queue, the fence of a copy engine) and has itself completed proves that they have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::error::{AllocError, Lost, WaitError};
use crate::context::queue::live::QueueLive;
use crate::context::registry::state::{QueueKey, SignalKey};
use crate::context::signal::live::SignalLive;
use crate::context::signal::make::{drop_signal, new_signal, submitted};
use crate::context::signal::wait::{Condition, WaitMode, wait_signal};

/// A packet in flight behind all others, and the signal it completes.
struct Marker<'i> {
    context: &'i Context,
    key: SignalKey,
    signal: Arc<SignalLive>,
    /// The caller's index of the first unit behind the packet.
    end: u64,
}

impl Marker<'_> {
    /// Whether the processor has consumed the packet too: it completes the signal before that.
    fn is_consumed(&self, live: &QueueLive) -> bool {
        let ahead = live.logical(live.hardware_read()).wrapping_sub(self.end);
        live.is_destroyed() || live.fault().is_some() || ahead.cast_signed() >= 0
    }
}

impl Drop for Marker<'_> {
    fn drop(&mut self) {
        if let Ok(_pass) = self.context.gate.enter() {
            drop_signal(self.context, &mut self.context.registry.lock(), self.key);
        }
    }
}

/// The queues whose key index mod 64 is set in `uses`.
pub(crate) fn queues_of(context: &Context, uses: u64) -> Vec<(QueueKey, Arc<QueueLive>)> {
    let registry = context.registry.lock();
    let used = registry.queues.iter().filter(|(key, _)| uses & 1 << (key.index() % 64) != 0);
    used.filter_map(|(key, queue)| Some((key, queue.live.clone()?))).collect()
}

fn mark<'c>(
    context: &'c Context,
    pass: &Pass<'_>,
    live: &QueueLive,
) -> Result<Option<Marker<'c>>, WaitError> {
    let (key, signal) = new_signal(context, pass, 1).map_err(|error| match error {
        AllocError::Lost(lost) => WaitError::Lost(lost),
        AllocError::Device(error) => WaitError::Device(error),
        _ => WaitError::Device(crate::context::error::DeviceError::Absent { what: "a signal for the wait" }),
    })?;
    let mut marker = Marker { context, key, signal, end: 0 };
    match live.complete_behind(pass, &marker.signal)? {
        Some(end) => marker.end = end,
        None => return Ok(None),
    }
    submitted(context, pass, live, Some(&marker.signal));
    Ok(Some(marker))
}

/// Whether a queue has completed everything, or never will; looks until `deadline`.
pub(crate) fn is_idle(
    context: &Context,
    pass: &Pass<'_>,
    live: &QueueLive,
    deadline: Instant,
) -> Result<bool, Lost> {
    if live.is_destroyed() || live.fault().is_some() || live.hardware_write() == 0 {
        return Ok(true);
    }
    let marker = match mark(context, pass, live) {
        Ok(Some(marker)) => marker,
        Ok(None) => return Ok(false),
        Err(WaitError::Lost(lost)) => return Err(lost),
        Err(WaitError::Queue(_) | WaitError::AgentLost(_)) => return Ok(true),
        Err(_) => return Ok(false),
    };
    loop {
        if marker.signal.load() <= 0 || live.fault().is_some() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

/// Waits until a queue has completed everything submitted so far, and consumed it: it can be destroyed then.
pub(crate) fn wait_idle(
    context: &Context,
    live: &QueueLive,
    timeout: Option<Duration>,
) -> Result<(), WaitError> {
    let start = Instant::now();
    let marker = loop {
        let pass = context.gate.enter()?;
        if live.hardware_write() == 0 || live.is_destroyed() {
            return Ok(());
        }
        if let Some(marker) = mark(context, &pass, live)? {
            break marker;
        }
        drop(pass);
        let waited = start.elapsed();
        if timeout.is_some_and(|limit| waited >= limit) {
            return Err(WaitError::Timeout { value: 1, waited });
        }
        // TIMEOUT: a full ring makes room with the next packet consumed.
        std::thread::sleep(Duration::from_micros(100));
    };
    let left = timeout.map(|limit| limit.saturating_sub(start.elapsed()));
    wait_signal(context, &marker.signal, Condition::LessThan(1), left, WaitMode::Auto)?;
    loop {
        let pass = context.gate.enter()?;
        if marker.is_consumed(live) {
            return Ok(());
        }
        drop(pass);
        let waited = start.elapsed();
        if timeout.is_some_and(|limit| waited >= limit) {
            return Err(WaitError::Timeout { value: 0, waited });
        }
        // TIMEOUT: what follows the signal is at most the interrupt that announces it.
        std::thread::sleep(Duration::from_micros(20));
    }
}
