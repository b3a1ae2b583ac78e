// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rebuilding: makes every registered object again, with the same addresses and numbers.
//!
//! Order: buffer objects, events in the order of their ids, contents, queues in the order of theirs. The driver hands
//! out the lowest free number, so the same order gives the same numbers; gaps are filled with events that are
//! destroyed again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stasis_protocol::gate::Closed;

use super::error::{CheckpointError, device};
use super::preempt;
use crate::context::device::Device;
use crate::context::queue::bringup::bring_up;
use crate::context::queue::live::QueueLive;
use crate::context::queue::trap::set_trap_handler;
use crate::context::registry::state::{BoRole, EventKind, EventState, QueueKey};
use crate::context::registry::{Event, Registry};
use crate::share;

/// TIMEOUT: a processor needs microseconds for a ring of no-ops; one that takes longer is busy elsewhere, and the worst
/// that comes of going on is a queue that is full for a moment.
const NOOPS: Duration = Duration::from_secs(1);
/// How long to sleep between looks.
const NOOP_POLL: Duration = Duration::from_micros(20);

/// Makes the buffer objects that are not there, but for shared memory, which others may have made already. Memory of
/// other exporters is made of their files.
pub(super) fn buffers(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    for (_, bo) in registry.bos.iter_mut() {
        if bo.kernel.is_some() {
            if bo.state.role == BoRole::EventPage {
                on.map_cpu(bo).map_err(device("to map the event page again"))?;
            }
            continue;
        }
        match bo.file.clone() {
            Some(file) => share::make_foreign(bo, on, &file)
                .map_err(device("to import another exporter's memory again"))?,
            None if bo.state.sharing.is_some() => {}
            None => on.create_bo(bo).map_err(device("to make a buffer again"))?,
        }
    }
    Ok(())
}

/// Makes the events again under their ids. `page_is_set`: this process's event page is set already.
pub(super) fn events(registry: &mut Registry, on: &Device, page_is_set: bool) -> Result<(), CheckpointError> {
    let page = registry.fixtures.event_page;
    let mut page_is_set = page_is_set;
    let mut fillers = Vec::new();
    for key in registry.events_by_id() {
        let Registry { bos, events, .. } = &mut *registry;
        let Some(event) = events.get_mut(key) else { continue };
        if event.created {
            continue;
        }
        let wanted = event.id;
        loop {
            let page = page.filter(|_| !page_is_set).and_then(|page| bos.get(page));
            let mut made =
                Event::new(EventState { auto_reset: event.state.auto_reset, ..event.state.clone() });
            on.create_event(&mut made, page).map_err(device("to make an event again"))?;
            page_is_set = true;
            let found = made.id;
            if found == wanted {
                event.live.id.store(found, Ordering::Relaxed);
                event.live.age.store(1, Ordering::Release);
                event.created = true;
                break;
            }
            fillers.push(made);
            if found > wanted {
                destroy(on, &mut fillers);
                let what = if event.state.kind == EventKind::Signal { "a signal event" } else { "an event" };
                return Err(CheckpointError::Identity { what, wanted, found });
            }
        }
    }
    destroy(on, &mut fillers);
    Ok(())
}

fn destroy(on: &Device, fillers: &mut Vec<Event>) {
    for mut filler in fillers.drain(..) {
        if let Err(error) = on.destroy_event(&mut filler) {
            tracing::warn!(target: "checkpoint", %error, "a placeholder event was not destroyed");
        }
    }
}

/// Has the driver know the trap handlers of all agents with queues: it forgets them with the device, and its own checkpoint
/// does not have them.
pub(super) fn trap_handlers(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    let agents: BTreeSet<_> = registry.queues.iter().map(|(_, queue)| queue.state.agent).collect();
    agents
        .into_iter()
        .try_for_each(|agent| set_trap_handler(registry, on, agent))
        .map_err(device("to set a trap handler again"))
}

/// Makes the queues again over their buffers, whose contents are back, and lets them continue where they were. Those
/// that a failed tear-down did not reach are in the driver still, and only get their doorbells back.
pub(super) fn queues(
    registry: &mut Registry,
    on: &Device,
    closed: &mut Closed,
) -> Result<(), CheckpointError> {
    preempt::reattach_doorbells(registry, on, closed)?;
    trap_handlers(registry, on)?;
    let mut made = Vec::new();
    for key in registry.queues_by_id() {
        let Some(queue) = registry.queues.get_mut(key).filter(|queue| !queue.created) else { continue };
        let Some(live) = queue.live.clone() else { continue };
        // Its packets are in the entry now, and a hardware queue is made that is on.
        queue.state.suspended = false;
        live.set_waits(false);
        let logical = queue.state.write_index;
        let doorbell =
            bring_up(on, registry, key, &live, logical).map_err(device("to make a queue again"))?;
        live.attach(closed, doorbell);
        made.push((key, live));
    }
    await_noops(&made);
    Ok(())
}

/// Waits until the no-ops before the queues' next packets are consumed: they take room in the ring that the process,
/// which knows nothing of them, counts on.
fn await_noops(made: &[(QueueKey, Arc<QueueLive>)]) {
    let deadline = Instant::now() + NOOPS;
    for (key, live) in made {
        while live.pending() > 0 && live.fault().is_none() {
            if Instant::now() >= deadline {
                tracing::warn!(target: "checkpoint", queue = %key, "a queue is slow to take up its work");
                return;
            }
            std::thread::sleep(NOOP_POLL);
        }
    }
}
