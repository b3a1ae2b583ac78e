// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draining queues: waiting until every packet that they were given has completed, but for those that wait for the program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stasis_protocol::gate::Closed;
use stasis_protocol::{Limit, Stopped};

use super::error::CheckpointError;
use super::waiting;
use crate::context::Context;
use crate::context::queue::live::QueueLive;
use crate::context::registry::Registry;
use crate::context::registry::state::QueueKey;

/// How long a drain sleeps between looks once it has looked for a while.
const DRAIN_POLL: Duration = Duration::from_micros(50);
/// How long queues that stand at packets which wait for signals stay on the hardware; after a look that found waves of before such a
/// packet twice as long, up to the second.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(20);
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);

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

/// A queue under a drain.
struct Draining<'q> {
    key: QueueKey,
    live: &'q Arc<QueueLive>,
    /// Whether there is a marker of this drain behind its packets.
    marked: bool,
    /// Where it was at the last look.
    read: u64,
}

impl Draining<'_> {
    /// Whether every packet has completed, or never will: a queue that failed has nothing left to wait for.
    ///
    /// A read index at the end says that the packets were taken, not that they have completed, so a marker behind them
    /// has to complete too.
    fn is_over(&mut self, closed: &Closed) -> bool {
        if self.live.is_destroyed() || self.live.fault().is_some() || self.live.waits() {
            return true;
        }
        // An earlier drain gave up while its marker was under way, or ours is.
        if self.live.marker_pending() {
            return false;
        }
        if !self.marked {
            self.marked = self.live.submit_marker(&closed.pass());
            return false;
        }
        true
    }

    /// Whether it has taken packets since the last look.
    fn has_moved(&mut self) -> bool {
        let read = self.live.hardware_read();
        std::mem::replace(&mut self.read, read) != read
    }
}

/// Waits until every packet of every queue has completed, but for those behind packets that wait for signals which nothing sets:
/// such queues are taken off the hardware ([`waiting`]).
pub(super) fn drain<'q>(
    context: &Context,
    queues: &'q [(QueueKey, Arc<QueueLive>)],
    closed: &Closed,
    limit: &Limit,
) -> Result<(), Undrained> {
    let begin = |(key, live): &'q (QueueKey, _)| Draining { key: *key, live, marked: false, read: 0 };
    let mut left: Vec<Draining<'q>> = queues.iter().map(begin).collect();
    let mut looks = 0u32;
    let (mut last, mut patience) = (Instant::now(), SHORTEST_PATIENCE);
    loop {
        left.retain_mut(|queue| !queue.is_over(closed));
        let Some(first) = left.first() else { return Ok(()) };
        if let Err(stopped) = limit.check() {
            // One that runs a kernel says more than one that merely had not its turn yet.
            let busy = |queue: &&Draining<'_>| {
                queue.live.pending() > 0 && queue.live.running_object().is_some() && !queue.live.is_at_wait()
            };
            let Draining { key, live, .. } = left.iter().find(busy).unwrap_or(first);
            return Err(Undrained { queue: *key, live: Arc::clone(live), elapsed: limit.elapsed(), stopped });
        }
        looks += 1;
        if looks <= 1000 {
            std::hint::spin_loop();
            continue;
        }
        // All of them: what one of them runs may set the signals of the others.
        if left.iter_mut().fold(false, |moved, queue| queue.has_moved() | moved) {
            last = Instant::now();
        } else if last.elapsed() >= patience && left.iter().all(|queue| queue.live.is_at_wait()) {
            let left: Vec<QueueKey> = left.iter().map(|queue| queue.key).collect();
            if waiting::take_off(context, closed, &left, limit) {
                return Ok(());
            }
            (last, patience) = (Instant::now(), (patience * 2).min(LONGEST_PATIENCE));
        }
        std::thread::sleep(DRAIN_POLL);
    }
}

/// Puts into the entries where the queues are, which is read from their memory: while that is mapped and theirs.
pub(super) fn save_indices(registry: &mut Registry) {
    for (_, queue) in registry.queues.iter_mut().filter(|(_, queue)| queue.created) {
        if let Some(live) = &queue.live {
            queue.state = live.with_indices(&queue.state);
        }
    }
}
