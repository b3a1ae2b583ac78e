// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a signal: spinning, or asleep in the driver's WAIT_EVENTS.
//!
//! INVARIANT: no wake-up is lost. The event's age is read before the value; any completion after that raises the age
//! (`kfd_events.c:set_event`), and a wait that brings an old age returns at once. A thread asleep holds no pass, so
//! it never keeps a process from being checkpointed; the event ids it uses are read anew for every sleep, since a
//! restore may have changed them.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use kfd::Errno;
use kfd::transport::CallLimit;
use queues::words::count;
use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::error::{DeviceError, WaitError};
use crate::context::signal::event::EventLive;
use crate::context::signal::live::SignalLive;

/// What a wait waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The value equals this.
    Equal(i64),
    /// The value differs from this.
    NotEqual(i64),
    /// The value is below this.
    LessThan(i64),
    /// The value is this or more.
    AtLeast(i64),
}

impl Condition {
    /// Whether `value` meets it.
    pub const fn met(self, value: i64) -> bool {
        match self {
            Condition::Equal(wanted) => value == wanted,
            Condition::NotEqual(unwanted) => value != unwanted,
            Condition::LessThan(limit) => value < limit,
            Condition::AtLeast(limit) => value >= limit,
        }
    }
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Spins: the shortest latency, a whole core.
    Busy,
    /// Sleeps in the driver at once.
    Blocked,
    /// Spins for as long as an empty dispatch takes, then sleeps.
    #[default]
    Auto,
}

/// How long `Auto` spins.
const AUTO_SPIN: Duration = Duration::from_micros(30);
/// Looks at the value per pass: long enough to make the pass cheap, short enough (a microsecond) not to hold up a
/// lock.
const SPINS: u32 = 64;
/// TIMEOUT: the longest single sleep. Every sleep ends by its event, by the wake event when the device is let go, or
/// by an error; this bounds what a driver that breaks those promises costs.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// How often one that waits without an event looks.
const LOOK: Duration = Duration::from_micros(50);
/// How often a wait may fail in a row, with the device still open, before it is reported.
const FAILURES: u32 = 20;

/// Keeps an event's count of sleepers right.
struct Sleeper<'a>(&'a EventLive);

impl<'a> Sleeper<'a> {
    fn announce(event: &'a EventLive) -> Self {
        event.waiters.fetch_add(1, Ordering::Relaxed);
        // ORDERING: pairs with the fence in `SignalLive::has_sleepers`.
        fence(Ordering::SeqCst);
        Sleeper(event)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A signal and what its value is to become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited<'s> {
    pub signal: &'s SignalLive,
    pub condition: Condition,
}

impl Awaited<'_> {
    /// The value, if it meets the condition.
    fn met(&self) -> Option<i64> {
        Some(self.signal.load()).filter(|value| self.condition.met(*value))
    }
}

/// The first of `all` whose condition is met, and its value.
fn first_met(all: &[Awaited<'_>]) -> Option<(usize, i64)> {
    all.iter().enumerate().find_map(|(at, awaited)| Some((at, awaited.met()?)))
}

/// Waits until one of the signals meets its condition: which, and its value. Of none, until time is up.
pub(crate) fn wait_signals(
    context: &Context,
    all: &[Awaited<'_>],
    timeout: Option<Duration>,
    mode: WaitMode,
) -> Result<(usize, i64), WaitError> {
    let start = Instant::now();
    let mut failures = 0;
    let looks = (SPINS / count(all.len().max(1))).max(1);
    let is_silent = all.iter().any(|awaited| awaited.signal.event.is_none());
    loop {
        let pass = context.gate.enter()?;
        for _ in 0..looks {
            if let Some(met) = first_met(all) {
                return Ok(met);
            }
            std::hint::spin_loop();
        }
        if let Some(fault) = all.iter().find_map(|awaited| awaited.signal.fault()) {
            return Err(fault.into());
        }
        let waited = start.elapsed();
        if timeout.is_some_and(|limit| waited >= limit) {
            let value = all.first().map_or(0, |awaited| awaited.signal.load());
            return Err(WaitError::Timeout { value, waited });
        }
        let busy = match mode {
            WaitMode::Busy => true,
            WaitMode::Auto => waited < AUTO_SPIN,
            WaitMode::Blocked => false,
        };
        if busy || is_silent {
            drop(pass);
            match busy {
                true => std::thread::yield_now(),
                // Another process may complete one that has no event, which raises nothing here.
                false => std::thread::sleep(LOOK),
            }
            continue;
        }
        let left = timeout.map_or(LONGEST_SLEEP, |limit| (limit - waited).min(LONGEST_SLEEP));
        // A device that does not answer cannot tell the time either.
        let deadline = timeout.and_then(|limit| start.checked_add(limit));
        let limit = deadline.map_or(CallLimit::none(), CallLimit::until);
        match limit.hold(|| sleep(context, pass, all, left)) {
            Ok(()) => failures = 0,
            Err(DeviceError::Ioctl { source, .. }) if source.errno == Errno::ETIMEDOUT => {}
            // The device was let go under the wait, or is dying: the gate knows which. If it lets us pass again
            // and again and only this wait fails, the caller is told.
            Err(error) if failures < FAILURES => {
                tracing::debug!(target: "signals", %error, failures, "a wait failed");
                failures += 1;
                std::thread::sleep(Duration::from_millis(u64::from(failures)));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The events of signals, each once.
fn distinct_events<'s>(all: &[Awaited<'s>]) -> Vec<&'s EventLive> {
    let mut events: Vec<&EventLive> =
        all.iter().filter_map(|awaited| awaited.signal.event.as_deref()).collect();
    events.sort_unstable_by_key(|event| std::ptr::from_ref(*event));
    events.dedup_by_key(|event| std::ptr::from_ref(*event));
    events
}

/// Sleeps until an event is raised, the device is let go or `limit` has passed. Gives up `pass` before.
fn sleep(context: &Context, pass: Pass<'_>, all: &[Awaited<'_>], limit: Duration) -> Result<(), DeviceError> {
    let Some(device) = context.device(&pass).map(Arc::clone) else { return Ok(()) };
    let wake = context.wake_event(&pass);
    let events = distinct_events(all);
    let _sleepers: Vec<Sleeper<'_>> = events.iter().map(|event| Sleeper::announce(event)).collect();
    let known = |event: &&EventLive| (event.id.load(Ordering::Relaxed), event.age.load(Ordering::Acquire));
    let before: Vec<(u32, u64)> = events.iter().map(known).collect();
    // After the ages were read: a completion from here on makes the wait return at once.
    if first_met(all).is_some() || all.iter().any(|awaited| awaited.signal.fault().is_some()) {
        return Ok(());
    }
    drop(pass);
    let mut after = before.clone();
    let result = device.sleep_on(&mut after, wake, limit);
    // Free the device before anything else: whoever wants to let it go waits for that.
    drop(device);
    result?;
    for (event, (before, after)) in events.iter().zip(before.into_iter().zip(after)) {
        if after != before {
            event.age.store(after.1, Ordering::Release);
        }
    }
    Ok(())
}

/// Waits until a signal meets a condition; its value.
pub(crate) fn wait_signal(
    context: &Context,
    signal: &SignalLive,
    condition: Condition,
    timeout: Option<Duration>,
    mode: WaitMode,
) -> Result<i64, WaitError> {
    wait_signals(context, &[Awaited { signal, condition }], timeout, mode).map(|(_, value)| value)
}

pub(crate) fn wake_sleepers(
    context: &Context,
    pass: &Pass<'_>,
    signal: &SignalLive,
) -> Result<(), WaitError> {
    if let (Some(event), Some(device)) = (signal.has_sleepers(), context.device(pass)) {
        device.set_event(event.id.load(Ordering::Relaxed))?;
    }
    Ok(())
}
