// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way down: drains the queues, then takes every object out of the driver while its entry stays.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use stasis_protocol::gate::Closed;
use stasis_protocol::{Limit, Stopped};

use super::{CheckpointError, device};
use crate::context::device::Device;
use crate::context::queue::live::QueueLive;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoKind, BoRole, QueueKey};
use crate::image::Extent;
use crate::vmem;

/// How long a drain sleeps between looks once it has looked for a while.
const DRAIN_POLL: Duration = Duration::from_micros(50);

/// The live parts of all queues; taken before the wait so that the registry is not locked during it.
pub(super) fn queues(registry: &Registry) -> Vec<(QueueKey, Arc<QueueLive>)> {
    registry.queues.iter().filter_map(|(key, queue)| Some((key, Arc::clone(queue.live.as_ref()?)))).collect()
}

/// The queue that a drain gave up on.
#[derive(Debug)]
pub(super) struct Late {
    queue: QueueKey,
    live: Arc<QueueLive>,
    elapsed: Duration,
    stopped: Stopped,
}

impl Late {
    /// The error, with the name of the kernel that runs.
    pub(super) fn explain(self, registry: &Registry) -> CheckpointError {
        let Self { queue, live, elapsed, stopped } = self;
        if let Stopped::Cancelled { .. } = stopped {
            return CheckpointError::Stopped { verb: "lock", stopped };
        }
        let name = |object: u64| {
            let (_, executable, _) = registry.executable_at(object)?;
            executable.program.as_ref()?.kernel_of(object).map(str::to_owned)
        };
        let running = live.running_object().and_then(name);
        CheckpointError::LockTimeout { running, queue, elapsed }
    }
}

/// Waits until every packet of every queue has completed.
///
/// A read index at the end says that the packets were taken, not that they have completed, so a marker behind them
/// has to complete too. A queue that failed has nothing left to wait for.
pub(super) fn drain(
    queues: &[(QueueKey, Arc<QueueLive>)],
    closed: &Closed,
    limit: &Limit,
) -> Result<(), Late> {
    for (key, queue) in queues {
        if queue.is_destroyed() {
            continue;
        }
        let mut marked = false;
        let mut looks = 0u32;
        while queue.fault().is_none() {
            if queue.marker_pending() {
                // An earlier drain gave up while its marker was under way, or ours is.
            } else if marked {
                break;
            } else {
                marked = queue.submit_marker(&closed.pass());
            }
            if let Err(stopped) = limit.check() {
                // One that runs a kernel says more than one that merely had not its turn yet.
                let busy = |(_, live): &&(QueueKey, Arc<QueueLive>)| {
                    live.fault().is_none() && live.pending() > 0 && live.running_object().is_some()
                };
                let (key, live) = queues.iter().find(busy).map_or((key, queue), |(key, live)| (key, live));
                return Err(Late { queue: *key, live: Arc::clone(live), elapsed: limit.elapsed(), stopped });
            }
            looks += 1;
            if looks > 1000 {
                std::thread::sleep(DRAIN_POLL);
            } else {
                std::hint::spin_loop();
            }
        }
    }
    Ok(())
}

/// The buffer objects whose bytes are saved, in the order of the image's extents.
pub(super) fn saved(registry: &Registry) -> Result<Vec<BoKey>, CheckpointError> {
    let mut keys = Vec::new();
    for (key, bo) in registry.bos.iter() {
        // A userptr's bytes are the process's own memory: CRIU has them. Shared memory is its session's.
        let is_own = matches!(bo.state.kind, BoKind::Vram | BoKind::Gtt) && bo.state.sharing.is_none();
        if !bo.state.role.has_contents() || !is_own {
            continue;
        }
        if !bo.state.cpu_mapped {
            return Err(CheckpointError::Hidden { bo: key });
        }
        keys.push(key);
    }
    Ok(keys)
}

/// The host mappings of `keys`, for the image.
pub(super) fn extents(registry: &Registry, keys: &[BoKey]) -> Vec<Extent> {
    keys.iter()
        .filter_map(|&key| {
            let state = &registry.bos.get(key)?.state;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(state.va as usize))?;
            // SAFETY: the entry is CPU-mapped at `va` for `bytes` (`saved` has seen to it, or `rebuild` just mapped
            // it), the gate is closed so that nobody frees it, and the queues are drained.
            Some(unsafe { Extent::new(start, state.bytes) })
        })
        .collect()
}

/// Puts into the entries where the queues are, which is read from their memory: while that is mapped and theirs.
pub(super) fn save(registry: &mut Registry) {
    for (_, queue) in registry.queues.iter_mut().filter(|(_, queue)| queue.created) {
        if let Some(live) = &queue.live {
            queue.state = live.with_indices(&queue.state);
        }
    }
}

/// Takes everything out of the driver: queues, events, buffer objects. Entries keep their state.
///
/// On failure some objects are gone and some are not; [`super::rebuild::rebuild`] makes what is missing.
pub(super) fn evacuate(
    registry: &mut Registry,
    from: &Device,
    closed: &mut Closed,
) -> Result<(), CheckpointError> {
    let Registry { bos, queues, events, maps, .. } = registry;
    for (_, queue) in queues.iter_mut() {
        if let Some(live) = &queue.live {
            live.detach(closed);
        }
        from.destroy_queue(queue).map_err(device("to destroy a queue"))?;
    }
    for (_, event) in events.iter_mut() {
        from.destroy_event(event).map_err(device("to destroy an event"))?;
    }
    vmem::evacuate(maps, bos, from).map_err(device("to unmap a part of a range"))?;
    // The event page last: it cannot be freed, only left.
    for last in [false, true] {
        for (_, bo) in bos.iter_mut().filter(|(_, bo)| (bo.state.role == BoRole::EventPage) == last) {
            from.destroy_bo(bo).map_err(device("to free a buffer"))?;
            // Copies map it again where they need it, which may be somewhere else then.
            let for_copies = std::mem::take(&mut bo.state.for_copies);
            bo.state.mapped.retain(|agent| !for_copies.contains(agent));
        }
    }
    Ok(())
}

/// After an evacuation that failed half way: takes the doorbells away, which must not outlive the device, whatever else
/// is left. The next device maps its own.
pub(super) fn hang_up(registry: &Registry, from: &Device, closed: &mut Closed) {
    registry.queues.iter().filter_map(|(_, queue)| queue.live.as_ref()).for_each(|live| live.detach(closed));
    for (key, bo) in registry.bos.iter().filter(|(_, bo)| bo.state.kind == BoKind::Doorbell) {
        if let Err(error) = from.unmap_cpu(bo) {
            tracing::warn!(target: "checkpoint", %key, %error, "doorbells stay mapped");
        }
    }
}

/// Forgets everything that was in a driver which has gone.
pub(super) fn forget(registry: &mut Registry, closed: &mut Closed) {
    let Registry { bos, queues, events, .. } = registry;
    for (_, queue) in queues.iter_mut().filter(|(_, queue)| queue.created) {
        if let Some(live) = &queue.live {
            live.detach(closed);
        }
        queue.created = false;
    }
    events.iter_mut().for_each(|(_, event)| event.created = false);
    bos.iter_mut().for_each(|(_, bo)| bo.kernel = None);
    registry.forget_mappings();
}
