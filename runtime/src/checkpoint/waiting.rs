// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that a drain finds at packets which wait for signals: for a thread of this process that stands at the gate, or for another
//! process. They are taken off the hardware, and their packets kept (`QueueState::waiting`), until the process is unlocked.
//!
//! INVARIANT: a packet runs once. It is in the ring of a queue that is off the hardware, or, when that is gone, in the entry, and in
//! no other place. And a queue counts as waiting only if the driver says that none of its waves is left: what came before has
//! completed.

use std::time::{Duration, Instant};

use kfd::ioctl::WaveStateSizes;
use queues::aql::Packet;
use queues::cwsr::HEADER_BYTES;
use queues::save_area::SaveAreaHeader;
use stasis_protocol::gate::{Closed, Pass};
use stasis_protocol::{LONGEST_VERB, Limit, Stopped};

use super::calls::call_limit;
use super::error::CheckpointError;
use crate::context::Context;
use crate::context::device::Device;
use crate::context::error::{DeviceError, SubmitError};
use crate::context::memory::mapped::view;
use crate::context::registry::Registry;
use crate::context::registry::state::QueueKey;
use crate::context::signal::make::break_promises;

/// TIMEOUT: between looks for room in a ring whose no-ops are not consumed yet.
const POLL: Duration = Duration::from_micros(50);

/// Takes these queues off the hardware if each of them stands at a packet that waits for signals and runs nothing; else, or where the
/// driver refuses, all of them stay on it.
pub(super) fn take_off(context: &Context, closed: &Closed, keys: &[QueueKey], limit: &Limit) -> bool {
    let pass = closed.pass();
    let Some(on) = context.device(&pass) else { return false };
    let mut registry = context.registry.lock();
    let are_off = call_limit(limit).hold(|| try_take_off(&mut registry, on, keys));
    let are_off = are_off.unwrap_or_else(|error| {
        tracing::warn!(target: "checkpoint", %error, "queues that wait for signals are not taken off the hardware");
        false
    });
    if are_off {
        return true;
    }
    let Registry { queues, bos, .. } = &mut *registry;
    for key in keys {
        // However long the device takes: nobody else puts them back.
        if let Some(queue) = queues.get_mut(*key).filter(|queue| queue.state.suspended)
            && let Err(error) = on.resume_queue(queue, bos)
        {
            tracing::error!(target: "checkpoint", %key, %error, "a queue stays off the hardware");
        }
    }
    false
}

fn try_take_off(registry: &mut Registry, on: &Device, keys: &[QueueKey]) -> Result<bool, DeviceError> {
    let Registry { queues, bos, .. } = registry;
    for key in keys {
        let Some(queue) = queues.get_mut(*key) else { return Ok(false) };
        on.suspend_queue(queue, bos)?;
    }
    let live = |key: &QueueKey| registry.queues.get(*key).and_then(|queue| queue.live.as_ref());
    for key in keys {
        // One that goes on meanwhile has what it waited for.
        let is_at_wait = live(key).is_some_and(|live| live.is_at_wait());
        if !is_at_wait || !is_empty(registry, on, *key)? {
            return Ok(false);
        }
    }
    keys.iter().filter_map(live).for_each(|live| live.set_waits(true));
    Ok(true)
}

/// Whether nothing of a suspended queue runs, on any XCC (`kfd_mqd_manager_v9.c`, `get_wave_state_v9_4_3`: the driver's answer is of
/// the first, and a header of each).
fn is_empty(registry: &Registry, on: &Device, key: QueueKey) -> Result<bool, DeviceError> {
    const ABSENT: DeviceError = DeviceError::Absent { what: "a queue's save area" };
    let Registry { queues, bos, .. } = registry;
    let queue = queues.get(key).ok_or(ABSENT)?;
    let WaveStateSizes { control_stack_bytes: 0, wave_state_bytes: 0 } = on.wave_state(queue, bos)? else {
        return Ok(false);
    };
    let geometry = on.node(queue.state.agent)?.info.geometry();
    let area = queue.state.bos.save_area.and_then(|area| bos.get(area)).filter(|area| area.state.cpu_mapped);
    let memory = area.and_then(|area| view(area.state.va, area.state.bytes)).ok_or(ABSENT)?;
    for xcc in 1..geometry.num_xcc {
        let at =
            geometry.area_offset(xcc).filter(|at| memory.holds(*at, HEADER_BYTES as u64)).ok_or(ABSENT)?;
        let mut header = [0; HEADER_BYTES];
        memory.read(at, &mut header);
        let state = SaveAreaHeader::from_bytes(&header).wave_state;
        if (state.control_stack_size, state.wave_state_size) != (0, 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// When the queues are on the hardware again: those that waited have their packets, which is all for one that was never gone; one that
/// was made anew is given them, when its no-ops have been consumed.
///
/// # Errors
/// [`CheckpointError::Stopped`] at the deadline, while a queue has no room for them; what is not given is still in the entries.
pub(super) fn put_back(context: &Context, pass: &Pass<'_>, limit: &Limit) -> Result<(), CheckpointError> {
    // A caller that cancels wants the process to run.
    let deadline = limit.deadline(LONGEST_VERB);
    // Not locked in between: the thread that tells of a queue's fault needs the registry.
    while !try_put_back(&mut context.registry.lock(), pass) {
        if Instant::now() >= deadline {
            let stopped = Stopped::Deadline { limit: limit.elapsed() };
            return Err(CheckpointError::Stopped { verb: "unlock", stopped });
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Whether all have theirs now.
fn try_put_back(registry: &mut Registry, pass: &Pass<'_>) -> bool {
    let Registry { queues, signals, .. } = registry;
    let mut are_back = true;
    for (key, queue) in queues.iter_mut().filter(|(_, queue)| queue.created) {
        let Some(live) = &queue.live else { continue };
        if live.waits() {
            if !queue.state.suspended {
                live.set_waits(false);
                queue.state.waiting.clear();
            }
            continue;
        }
        if queue.state.waiting.is_empty() {
            continue;
        }
        match live.put_back(pass, &queue.state.waiting) {
            Ok(()) => queue.state.waiting.clear(),
            Err(SubmitError::WouldBlock { .. }) => are_back = false,
            Err(error) => {
                tracing::warn!(target: "checkpoint", %key, %error, "a queue has failed before its packets were back");
                let packets = std::mem::take(&mut queue.state.waiting);
                let Some(fault) = live.fault() else { continue };
                let completion =
                    |packet| Packet::decode(packet).ok().map(|packet| packet.completion_signal());
                let handles: Vec<u64> = packets.iter().filter_map(completion).collect();
                // Of packets that are in no ring nobody else knows.
                break_promises(signals, &handles, fault);
            }
        }
    }
    are_back
}
