// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking every object out of the driver, while its entry stays in the registry.

use stasis_protocol::gate::Closed;

use super::error::{CheckpointError, device};
use crate::context::device::Device;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKind, BoRole};
use crate::vmem;

/// Takes everything out of the driver: queues, events, buffer objects. Entries keep their state.
///
/// On failure some objects are gone and some are not; the functions of [`super::rebuild`] make what is missing.
pub(super) fn destroy_all(
    registry: &mut Registry,
    from: &Device,
    closed: &mut Closed,
) -> Result<(), CheckpointError> {
    let Registry { bos, queues, events, maps, svm, .. } = registry;
    // Packets that are kept may be copies.
    let keeps_packets = queues.iter().any(|(_, queue)| queue.keeps_packets());
    for (_, queue) in queues.iter_mut() {
        if let Some(live) = &queue.live {
            live.detach(closed);
        }
        from.destroy_queue(queue).map_err(device("to destroy a queue"))?;
    }
    for (_, event) in events.iter_mut() {
        from.destroy_event(event).map_err(device("to destroy an event"))?;
    }
    from.end_svm(svm).map_err(device("to end agents' access to shared memory"))?;
    vmem::end_all(maps, bos, from).map_err(device("to unmap a part of a range"))?;
    // The event page last: it cannot be freed, only left.
    for last in [false, true] {
        for (_, bo) in bos.iter_mut().filter(|(_, bo)| (bo.state.role == BoRole::EventPage) == last) {
            from.destroy_bo(bo).map_err(device("to free a buffer"))?;
            if keeps_packets {
                continue;
            }
            // Copies map it again where they need it, which may be somewhere else then.
            let for_copies = std::mem::take(&mut bo.state.for_copies);
            bo.state.mapped.retain(|agent| !for_copies.contains(agent));
        }
    }
    Ok(())
}

/// After [`destroy_all`] failed half way: takes the doorbells away, which must not outlive the device, whatever else
/// is left. The next device maps its own.
pub(super) fn detach_doorbells(registry: &Registry, from: &Device, closed: &mut Closed) {
    registry.queues.iter().filter_map(|(_, queue)| queue.live.as_ref()).for_each(|live| live.detach(closed));
    for (key, bo) in registry.bos.iter().filter(|(_, bo)| bo.state.kind == BoKind::Doorbell) {
        if let Err(error) = from.unmap_cpu(bo) {
            tracing::warn!(target: "checkpoint", %key, %error, "doorbells stay mapped");
        }
    }
}

/// Forgets everything that was in a driver which has gone.
pub(super) fn forget_all(registry: &mut Registry, closed: &mut Closed) {
    let Registry { bos, queues, events, .. } = registry;
    for (_, queue) in queues.iter_mut().filter(|(_, queue)| queue.created) {
        if let Some(live) = &queue.live {
            live.detach(closed);
        }
        queue.created = false;
    }
    events.iter_mut().for_each(|(_, event)| event.created = false);
    bos.iter_mut().for_each(|(_, bo)| bo.kernel = None);
    registry.svm.set_made(false);
    registry.forget_mappings();
}
