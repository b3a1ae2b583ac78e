// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draining queues: waiting until every packet that they were given has completed.

use std::sync::Arc;
use std::time::Duration;

use stasis_protocol::gate::Closed;
use stasis_protocol::{Limit, Stopped};

use super::error::CheckpointError;
use crate::context::queue::live::QueueLive;
use crate::context::registry::Registry;
use crate::context::registry::state::QueueKey;

/// How long a drain sleeps between looks once it has looked for a while.
const DRAIN_POLL: Duration = Duration::from_micros(50);

/// The live parts of all queues; taken before the wait so that the registry is not locked during it.
pub(super) fn queues(registry: &Registry) -> Vec<(QueueKey, Arc<QueueLive>)> {
    registry.queues.iter().filter_map(|(key, queue)| Some((key, Arc::clone(queue.live.as_ref()?)))).collect()
}

/// The queue that a drain gave up on.
#[derive(Debug)]
pub(super) struct Undrained {
    queue: QueueKey,
    live: Arc<QueueLive>,
    elapsed: Duration,
    stopped: Stopped,
}

impl Undrained {
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
) -> Result<(), Undrained> {
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
                return Err(Undrained {
                    queue: *key,
                    live: Arc::clone(live),
                    elapsed: limit.elapsed(),
                    stopped,
                });
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

/// Puts into the entries where the queues are, which is read from their memory: while that is mapped and theirs.
pub(super) fn save_indices(registry: &mut Registry) {
    for (_, queue) in registry.queues.iter_mut().filter(|(_, queue)| queue.created) {
        if let Some(live) = &queue.live {
            queue.state = live.with_indices(&queue.state);
        }
    }
}
