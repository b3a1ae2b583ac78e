// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a lock drains: queues are given what the program has published by then and no more, and complete it while the program's
//! threads run, since packets may wait for what a thread does: a function of the host in a stream.
//!
//! What was published by then waits for nothing that is published later, if the program publishes what is waited for first. One that
//! does not is given another moment. Queues that stay at packets which wait for signals are left to the drain, which keeps those
//! packets; copy engines are not, which keep nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use stasis::{Limit, RawQueue, Submitter, WaitError};

use super::Queue;
use super::forward::Forward;
use crate::abi::declared::HSA_PACKET_TYPE_KERNEL_DISPATCH;
use crate::instance::{Instance, opened};

/// How long nothing may happen before another moment is tried; twice as long the next time.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long nothing may happen if all that is left stands at packets which wait for signals: the drain keeps those.
const PATIENCE_OF_WAITS: Duration = Duration::from_millis(50);
/// TIMEOUT: how often queues are looked at.
const LOOK: Duration = Duration::from_micros(50);
/// TIMEOUT: of a look at a copy engine, which is a packet in its ring.
const LOOK_AT_ENGINE: Duration = Duration::from_millis(20);
/// How long packets are moved between two moments.
const BETWEEN: Duration = Duration::from_millis(5);
/// What is left of the lock's time when queues do not settle: enough for it to find which of them runs.
const REST: Duration = Duration::from_millis(100);
/// TIMEOUT: of a lock without a limit.
const LONGEST: Duration = Duration::from_secs(86_400);
/// How often the rings are looked through for one moment of all.
const SCANS: usize = 8;

/// The library as the runtime's locks know it.
#[derive(Debug)]
pub struct Settler;

impl Submitter for Settler {
    fn settle(&self, limit: &Limit) {
        let Some(instance) = opened() else { return };
        let end = limit.deadline(LONGEST).checked_sub(REST).unwrap_or_else(Instant::now);
        let is_over = || limit.check().is_err() || Instant::now() >= end;
        let mut patience = PATIENCE;
        loop {
            instance.stop();
            if settled(instance, patience, &is_over) || is_over() {
                return;
            }
            instance.take_up();
            std::thread::sleep(BETWEEN);
            patience *= 2;
        }
    }

    fn go_on(&self) {
        if let Some(instance) = opened() {
            instance.take_up();
        }
    }
}

impl Instance {
    /// Moves no more than what is published now.
    fn stop(&self) {
        let queues = self.queues.all();
        // Locked in the order of the places; all other code holds one of these locks at a time.
        let locks: Vec<MutexGuard<'_, Forward>> = queues.iter().map(|queue| queue.forward.lock()).collect();
        let scan = || -> Vec<u64> {
            queues.iter().zip(&locks).map(|(queue, forward)| queue.published(forward.next)).collect()
        };
        // Of a packet and one that waits for it, in another ring, the second must not be seen alone.
        let mut ends = scan();
        for _ in 0..SCANS {
            let again = scan();
            if again == ends {
                break;
            }
            ends = again;
        }
        for (queue, end) in queues.iter().zip(ends) {
            queue.end.store(end, Ordering::Relaxed);
        }
        // Copies from now on are kept back; what is published behind them is not seen any more.
        self.settling.set(true);
    }

    fn take_up(&self) {
        self.settling.set(false);
        for queue in self.queues.all() {
            let _forward = queue.forward.lock();
            queue.end.store(u64::MAX, Ordering::Relaxed);
        }
        self.queues.watch.nudge();
    }

    /// Whether packets or copies wait for queues to be taken up.
    fn keeps_back(&self) -> bool {
        let is_kept = |queue: &Queue| queue.ring.is_published(queue.end.load(Ordering::Relaxed));
        let queues = self.queues.all();
        let mut hardware = queues.iter().filter(|queue| queue.hardware.is_some());
        self.memory.engines.keeps_back() || hardware.any(|queue| is_kept(queue))
    }
}

impl Queue {
    /// Behind the last packet that is published from `next` on.
    fn published(&self, next: u64) -> u64 {
        let all = next..next.wrapping_add(u64::from(self.ring.packets()));
        all.clone().find(|index| !self.ring.is_published(*index)).unwrap_or(all.end)
    }

    /// Has the packets moved that are published now, and no others, if queues are to settle.
    pub(super) fn stop(&self, settling: &Settling) {
        let forward = self.forward.lock();
        // Behind the lock: who takes queues up has the flag cleared before it has the lock.
        if settling.is_on() && self.end.load(Ordering::Relaxed) == u64::MAX {
            self.end.store(self.published(forward.next), Ordering::Relaxed);
        }
    }

    /// Whether nothing of it is to be moved; the program moves what is in a queue without hardware.
    fn is_moved(&self, instance: &Instance) -> bool {
        // One that was made meanwhile.
        self.stop(&instance.settling);
        instance.queues.forward(self);
        let has_ended = self.hardware.is_none()
            || self.inactive.load(Ordering::Relaxed)
            || self.reported.load(Ordering::Relaxed);
        has_ended || self.forward.lock().next >= self.end.load(Ordering::Relaxed)
    }
}

/// Whether the processor has taken everything.
fn is_taken(queue: &RawQueue) -> bool {
    queue.fault().is_some() || queue.read_position().ok() == queue.write_position().ok()
}

/// Whether the packet that the processor takes next waits for others' ends and not for signals.
fn is_busy(queue: &RawQueue) -> bool {
    let Ok(read) = queue.read_position() else { return false };
    if is_taken(queue) {
        return false;
    }
    let header = queue.access().map(|access| access.ring().packet(read)[0] & 0xff);
    header.is_ok_and(|kind| kind == HSA_PACKET_TYPE_KERNEL_DISPATCH)
}

/// Whether a copy engine has done everything, or never will.
fn is_idle(engine: &RawQueue) -> bool {
    let waited = engine.wait_idle(Some(LOOK_AT_ENGINE));
    !matches!(waited, Err(WaitError::Timeout { .. })) || engine.fault().is_some()
}

/// Waits until all is moved and taken, and copied. False if it is over, or if what is kept back may be what the rest waits for.
fn settled(instance: &Instance, patience: Duration, is_over: &dyn Fn() -> bool) -> bool {
    let mut seen = 0;
    let mut last = Instant::now();
    loop {
        let (all, engines) = (instance.queues.all(), instance.memory.engines.all());
        let queues: Vec<&RawQueue> = all.iter().filter_map(|queue| queue.hardware.as_ref()).collect();
        let hardware = || queues.iter().copied().chain(&engines);
        let positions = || hardware().map(RawQueue::read_position);
        if positions().any(|position| position.is_err()) {
            // The device is lost, which the lock finds too.
            return true;
        }
        // All of them, also behind one that has more to move.
        let unmoved: Vec<_> = all.iter().filter(|queue| !queue.is_moved(instance)).collect();
        let now = positions().filter_map(Result::ok).fold(0, u64::wrapping_add);
        if now != seen || queues.iter().any(|queue| is_busy(queue)) {
            (seen, last) = (now, Instant::now());
        }
        // The drain keeps what waits for signals, in the ring and behind it.
        let stays = last.elapsed() >= PATIENCE_OF_WAITS;
        let is_done = |queue: &RawQueue| is_taken(queue) || stays && queue.is_at_wait().unwrap_or(true);
        let is_given = (unmoved.is_empty() || stays) && !instance.memory.engines.is_under_way();
        // What runs is the drain's to wait for. A copy engine may have read a copy whose signals it waits for.
        if is_given && hardware().all(is_done) && engines.iter().all(is_idle) {
            return true;
        }
        if is_over() || last.elapsed() >= patience && instance.keeps_back() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether packets and copies are kept back.
#[derive(Debug, Default)]
pub struct Settling(AtomicBool);

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
