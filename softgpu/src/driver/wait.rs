// SPDX-License-Identifier: MIT OR Apache-2.0
//! WAIT_EVENTS (`amdkfd/kfd_events.c`: `kfd_wait_on_events`).
//!
//! INVARIANT: a sleeping wait holds no lock. A wait leaves the lists of all its events before it answers, whether a
//! signal, a destroyed event, the timeout, a cancellation or a pause ended it. A wait that a pause ended has consumed
//! nothing, and its argument is such that the client can issue it again as it is.

use std::time::{Duration, Instant};

use kfd::sys::*;
use nix::errno::Errno;

use super::Call;
use super::event_state::{EventState, Waiter};
use super::process::KfdProcess;

/// Longest finite timeout, ms.
const MAX_TIMEOUT_MS: u32 = 0x7fff_ffff;
/// The kernel rounds up by one timer tick.
const TICK: Duration = Duration::from_millis(1);

/// The state of a wait's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Complete,
    Pending,
    /// An event was destroyed.
    Failed,
}

impl KfdProcess {
    pub(super) fn wait_events(
        &self,
        args: &mut kfd_ioctl_wait_events_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let answer = self.wait(args, call);
        match answer {
            Ok(Condition::Complete) => args.wait_result = KFD_IOC_WAIT_RESULT_COMPLETE,
            Ok(Condition::Pending) => args.wait_result = KFD_IOC_WAIT_RESULT_TIMEOUT,
            Ok(Condition::Failed) | Err(_) => args.wait_result = KFD_IOC_WAIT_RESULT_FAIL,
        }
        if answer? == Condition::Failed { Err(Errno::EIO) } else { Ok(()) }
    }

    fn wait(&self, args: &mut kfd_ioctl_wait_events_args, call: &Call<'_>) -> Result<Condition, Errno> {
        if args.num_events > KFD_SIGNAL_EVENT_LIMIT {
            return Err(Errno::ENOMEM);
        }
        let deadline = match args.timeout {
            u32::MAX => None,
            ms => Some(Instant::now() + Duration::from_millis(u64::from(ms.min(MAX_TIMEOUT_MS))) + TICK),
        };
        let mut events = self.events.lock();
        if events.restarts {
            return Err(Errno::ERESTART);
        }
        let wait = events.begin_wait();
        let answer = add_all(&mut events, wait, args, call).and_then(|()| {
            loop {
                let condition = test(events.waiters(wait), args.wait_for_all != 0);
                if condition != Condition::Pending || args.timeout == 0 {
                    return Ok(condition);
                }
                if events.cancelled {
                    return Err(Errno::EINTR);
                }
                if events.restarts {
                    // As the kernel writes it for a wait that a signal interrupts.
                    args.timeout = deadline.map_or(u32::MAX, remaining);
                    return Err(Errno::ERESTART);
                }
                match deadline {
                    None => self.events.changed.wait(&mut events),
                    Some(deadline) if Instant::now() >= deadline => return Ok(condition),
                    Some(deadline) => {
                        self.events.changed.wait_until(&mut events, deadline);
                    }
                }
            }
        });
        let answer = match answer {
            Ok(Condition::Complete) => copy_payloads(&events, wait, args, call).map(|()| Condition::Complete),
            other => other,
        };
        events.end_wait(wait, matches!(answer, Err(Errno::EINTR | Errno::ERESTART)));
        if events.restarts {
            self.events.changed.notify_all();
        }
        answer
    }
}

/// Whole milliseconds of a timeout that are left, without the tick that the next wait adds again.
fn remaining(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now()).saturating_sub(TICK);
    u32::try_from(left.as_millis()).unwrap_or(MAX_TIMEOUT_MS)
}

/// Adds all events of the array to the wait, one after another. If one is invalid, the events before it stay consumed.
fn add_all(
    events: &mut EventState,
    wait: u64,
    args: &kfd_ioctl_wait_events_args,
    call: &Call<'_>,
) -> Result<(), Errno> {
    for at in 0..args.num_events {
        let mut bytes = [0u8; size_of::<kfd_event_data>()];
        call.memory.read(entry_address(args, at)?, &mut bytes)?;
        let data: kfd_event_data = bytemuck::cast(bytes);
        events.add_waiter(wait, data.event_id, data.last_event_age())?;
    }
    Ok(())
}

fn entry_address(args: &kfd_ioctl_wait_events_args, at: u32) -> Result<u64, Errno> {
    // CAST: 48.
    let offset = u64::from(at) * size_of::<kfd_event_data>() as u64;
    args.events_ptr.checked_add(offset).ok_or(Errno::EFAULT)
}

/// Tests the entries in array order (`test_event_condition`), so that a wait for any event completes if an activated
/// event comes before a destroyed one.
fn test(waiters: &[Waiter], all: bool) -> Condition {
    let mut activated = 0;
    for waiter in waiters {
        if waiter.event.is_none() {
            return Condition::Failed;
        }
        if waiter.activated {
            if !all {
                return Condition::Complete;
            }
            activated += 1;
        }
    }
    if activated == waiters.len() { Condition::Complete } else { Condition::Pending }
}

/// Writes each activated event's payload into its array entry (`copy_signaled_event_data`).
fn copy_payloads(
    events: &EventState,
    wait: u64,
    args: &kfd_ioctl_wait_events_args,
    call: &Call<'_>,
) -> Result<(), Errno> {
    for (at, waiter) in (0..).zip(events.waiters(wait)) {
        let event = waiter.event.and_then(|id| events.get(id)).ok_or(Errno::EINVAL)?;
        if !waiter.activated {
            continue;
        }
        let address = entry_address(args, at)?;
        match event.event_type {
            KFD_IOC_EVENT_MEMORY => {
                call.memory.write(address, bytemuck::bytes_of(&event.memory_exception))?
            }
            KFD_IOC_EVENT_HW_EXCEPTION => {
                call.memory.write(address, bytemuck::bytes_of(&event.hw_exception))?
            }
            KFD_IOC_EVENT_SIGNAL if waiter.compares_age => {
                call.memory.write(address, &event.age.to_le_bytes())?;
            }
            _ => {}
        }
    }
    Ok(())
}
