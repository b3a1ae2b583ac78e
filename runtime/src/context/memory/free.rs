// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freeing buffer objects, at once or once no packet can use them any more.
//!
//! INVARIANT: an object is freed once, and never while something is registered that lives in it, or a packet that was
//! given it may not have completed.

use std::time::{Duration, Instant};

use stasis_protocol::gate::Pass;

use super::mappings::end_mappings;
use crate::context::Context;
use crate::context::error::{FreeError, Lost};
use crate::context::queue::idle::{is_idle, queues_of};
use crate::context::registry::state::{BoKey, BoRole, BoUse, QueueKey};

/// Frees a buffer object of the caller's. `uses` are the queues (key index mod 64) that may still run packets
/// with it.
pub fn free_bo(
    context: &Context,
    pass: &Pass<'_>,
    key: BoKey,
    uses: u64,
    grace: Duration,
) -> Result<(), FreeError> {
    if let Some(queue) = busy_queue(context, pass, uses, Instant::now() + grace)? {
        return Err(FreeError::Pending { key, queue });
    }
    let mut registry = context.registry.lock();
    if registry.bos.get(key).is_none() {
        return Err(FreeError::Stale { key });
    }
    if let Some(user) = registry.bo_use(key) {
        return Err(FreeError::InUse { key, user });
    }
    let device = context.device_or_lost(pass)?;
    let Some(bo) = registry.bos.get_mut(key) else { return Err(FreeError::Stale { key }) };
    context.arriving.while_freed(bo.state.va, || device.destroy_bo(bo))?;
    registry.remove_bo(key);
    Ok(())
}

/// A queue of `uses` that has not completed everything by the deadline, if there is one.
pub fn busy_queue(
    context: &Context,
    pass: &Pass<'_>,
    uses: u64,
    deadline: Instant,
) -> Result<Option<QueueKey>, Lost> {
    if uses == 0 {
        return Ok(None);
    }
    for (queue, live) in queues_of(context, uses) {
        if !is_idle(context, pass, &live, deadline)? {
            return Ok(Some(queue));
        }
    }
    Ok(None)
}

/// Frees what was still in use, or mapped, when its last handle was dropped.
pub fn free_deferred(context: &Context, pass: &Pass<'_>) {
    loop {
        let waiting = std::mem::take(&mut *context.deferred.lock());
        let mut range_freed = false;
        for (key, uses) in waiting {
            match release_bo(context, pass, key, uses, Duration::ZERO) {
                Err(FreeError::Pending { .. } | FreeError::InUse { user: BoUse::Mapping(_), .. }) => {
                    context.deferred.lock().push((key, uses))
                }
                Ok(is_range) => range_freed |= is_range,
                Err(FreeError::Stale { .. } | FreeError::Lost(Lost { .. })) => {}
                Err(error) => {
                    tracing::warn!(target: "pools", %error, %key, "a dropped buffer could not be freed")
                }
            }
        }
        // A range that went may have been all that held a memory.
        if !range_freed {
            return;
        }
    }
}

/// Frees what the last handle was dropped of: a range is unmapped first. Whether it was one.
pub fn release_bo(
    context: &Context,
    pass: &Pass<'_>,
    key: BoKey,
    uses: u64,
    grace: Duration,
) -> Result<bool, FreeError> {
    let role = context.registry.lock().bos.get(key).map(|bo| bo.state.role);
    if role != Some(BoRole::Range) {
        return free_bo(context, pass, key, uses, grace).map(|()| false);
    }
    if let Some(queue) = busy_queue(context, pass, uses, Instant::now() + grace)? {
        return Err(FreeError::Pending { key, queue });
    }
    let mut registry = context.registry.lock();
    let device = context.device_or_lost(pass)?;
    let keys = registry.maps.of_range(key).map(|(map, _)| map).collect();
    end_mappings(&mut registry, device, keys)?;
    drop(registry);
    free_bo(context, pass, key, 0, grace).map(|()| true)
}
