// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a lock drains: queues are given what the program has published by then and no more, and complete it while the program's
//! threads run, since packets may wait for what a thread does: a function of the host in a stream.
//!
//! What was published by then waits for nothing that is published later, if the program publishes what is waited for first. One that
//! does not is given another moment.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stasis::{Limit, RawQueue, Submitter};

use super::{Queue, Queues};
use crate::instance::{Instance, opened};

/// How long nothing may happen before another moment is tried.
const PATIENCE: Duration = Duration::from_secs(3);
/// TIMEOUT: how often queues are looked at.
const LOOK: Duration = Duration::from_micros(50);
/// How long packets are moved between two moments.
const BETWEEN: Duration = Duration::from_millis(5);

/// The library as the runtime's locks know it.
#[derive(Debug)]
pub struct Settler;

impl Submitter for Settler {
    fn settle(&self, limit: &Limit) {
        let Some(instance) = opened() else { return };
        loop {
            instance.stop();
            if settled(instance, limit) || limit.check().is_err() {
                return;
            }
            instance.take_up();
            std::thread::sleep(BETWEEN);
        }
    }

    fn go_on(&self) {
        if let Some(instance) = opened() {
            instance.clocks.go_on(&instance.runtime);
            instance.take_up();
        }
    }
}

impl Instance {
    /// Moves no more than what is published now.
    fn stop(&self) {
        self.settling.set(true);
        self.queues.all().iter().for_each(|queue| queue.stop());
    }

    fn take_up(&self) {
        self.settling.set(false);
        for queue in self.queues.all() {
            let _forward = queue.forward.lock();
            queue.end.store(u64::MAX, Ordering::Relaxed);
        }
        self.queues.watch.nudge();
    }
}

impl Queue {
    /// Has the packets moved that are published now, and no others.
    pub(super) fn stop(&self) {
        let forward = self.forward.lock();
        let all = forward.next..forward.next + u64::from(self.ring.packets());
        let end = all.clone().find(|index| !self.ring.is_published(*index)).unwrap_or(all.end);
        self.end.store(end, Ordering::Relaxed);
    }

    /// Whether nothing of it is to be moved.
    fn is_moved(&self, queues: &Queues) -> bool {
        queues.forward(self);
        let has_ended = self.inactive.load(Ordering::Relaxed) || self.reported.load(Ordering::Relaxed);
        has_ended || self.forward.lock().next >= self.end.load(Ordering::Relaxed)
    }
}

/// Whether the processor has taken everything.
fn is_taken(queue: &RawQueue) -> bool {
    queue.fault().is_some() || queue.read_position().ok() == queue.write_position().ok()
}

/// Waits until all is moved and taken, and copied; false if nothing happens any more, or at the limit.
fn settled(instance: &Instance, limit: &Limit) -> bool {
    let mut seen = 0;
    let mut last = Instant::now();
    loop {
        let (queues, engines) = (instance.queues.all(), instance.memory.engines.all());
        let hardware: Vec<&RawQueue> =
            queues.iter().filter_map(|queue| queue.hardware.as_ref()).chain(&engines).collect();
        let is_moved = queues.iter().filter(|queue| !queue.is_moved(&instance.queues)).count() == 0;
        if is_moved && hardware.iter().all(|queue| is_taken(queue)) {
            // What runs is the drain's to wait for. A copy engine may have read a copy whose signals it waits for.
            let left = PATIENCE.saturating_sub(last.elapsed());
            let is_idle =
                |engine: &RawQueue| engine.fault().is_some() || engine.wait_idle(Some(left)).is_ok();
            return engines.iter().all(is_idle);
        }
        let positions = hardware.iter().filter_map(|queue| queue.read_position().ok());
        let now = positions.fold(0, u64::wrapping_add);
        if now != seen {
            (seen, last) = (now, Instant::now());
        }
        if last.elapsed() >= PATIENCE || limit.check().is_err() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether packets and copies are kept back.
#[derive(Debug, Default)]
pub struct Settling(std::sync::atomic::AtomicBool);

impl Settling {
    #[inline]
    pub fn is_on(&self) -> bool {
        // ORDERING: with `set`, so that what is made meanwhile is seen by one side.
        self.0.load(Ordering::SeqCst)
    }

    fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::SeqCst);
    }
}
