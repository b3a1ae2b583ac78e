// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving published packets from the program's ring into the hardware's; and the thread that looks after queues.
//!
//! `hsa_signal_store` of a doorbell moves the packets in the same call. The thread moves packets that found no room then and packets whose
//! doorbell the program rang by a store to its word, and tells of faults. It looks at the packets and not at the word: of two stores that come
//! close together it would see only one, perhaps the smaller. A packet is published by its header; the doorbell says when to look
//! (HSA 1.2, 2.8 and 2.9).
//!
//! INVARIANT: one at a time moves the packets of a queue. A packet is in the hardware's ring before its place is the program's again.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use queues::words::size;
use stasis::RawError;

use super::{Queue, Queues};
use crate::abi::{OUT_OF_RESOURCES, Outcome};
use crate::instance::Instance;

/// Packets that are moved together.
const TOGETHER: usize = 64;
const PACKET_WORDS: usize = 16;
/// TIMEOUT: how often the thread looks: at once after something was there, and later and later while there is nothing.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(5);
/// How long it goes on looking at once.
const BUSY: Duration = Duration::from_micros(200);

/// How far a queue's packets were moved.
#[derive(Debug, Default)]
pub struct Forward {
    pub(super) next: u64,
    words: Vec<u32>,
}

impl Queues {
    /// Moves what is published of a queue; whether anything was.
    #[inline]
    pub(super) fn forward(&self, queue: &Queue) -> bool {
        let Some(hardware) = &queue.hardware else { return false };
        let mut forward = queue.forward.lock();
        // Behind the lock: a queue whose end has waited for it is not touched again.
        if queue.inactive.load(Ordering::Relaxed) {
            return false;
        }
        let begun = forward.next;
        loop {
            let Forward { next, words } = &mut *forward;
            words.clear();
            let mut end = *next;
            while words.len() < TOGETHER * PACKET_WORDS && end < queue.end.load(Ordering::Relaxed) {
                let Some(packet) = queue.ring.packet(end) else { break };
                words.extend_from_slice(&packet);
                end += 1;
            }
            if words.is_empty() {
                queue.stalled.store(false, Ordering::Relaxed);
                break;
            }
            if self.area.take_flush(hardware.agent().index())
                && let Err(error) = hardware.agent().flush_host_writes()
            {
                tracing::warn!(target: "hsa", error = %stasis::explain(&error), "the host data path was not flushed");
            }
            let moved = match submit(hardware, words) {
                Ok(moved) => moved,
                Err(error) => {
                    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "packets were not submitted");
                    self.report(queue);
                    break;
                }
            };
            for index in *next..*next + moved {
                queue.ring.take(index);
            }
            *next += moved;
            // ORDERING: the places are free before the program hears of it.
            self.area.read_index(queue.place).store(*next, Ordering::Release);
            if size(moved) < words.len() / PACKET_WORDS {
                if !queue.stalled.swap(true, Ordering::Relaxed) {
                    self.watch.nudge();
                }
                break;
            }
        }
        forward.next != begun
    }
}

/// Submits as many packets as there is room for; how many.
fn submit(hardware: &stasis::RawQueue, words: &[u32]) -> Result<u64, RawError> {
    let mut some = words;
    loop {
        match hardware.submit(some) {
            Ok(_) => return Ok((some.len() / PACKET_WORDS) as u64),
            Err(RawError::Full { free: 0, .. }) => return Ok(0),
            Err(RawError::Full { free, .. }) => {
                let fit = size(free).min(some.len() / PACKET_WORDS).saturating_sub(1).max(1);
                if fit * PACKET_WORDS >= some.len() && some.len() == PACKET_WORDS {
                    return Ok(0);
                }
                some = &some[..fit * PACKET_WORDS];
            }
            Err(error) => return Err(error),
        }
    }
}

/// What wakes the thread.
#[derive(Debug, Default)]
pub struct Watch {
    started: Mutex<bool>,
    nudged: Mutex<bool>,
    awake: Condvar,
}

impl Watch {
    /// Starts the thread, once.
    pub fn start(&self, instance: &'static Instance) -> Outcome {
        let mut started = self.started.lock();
        if !*started {
            let thread = std::thread::Builder::new().name("stasis-hsa-queues".to_owned());
            thread.spawn(move || watch(instance)).map_err(|_| OUT_OF_RESOURCES)?;
            *started = true;
        }
        drop(started);
        self.nudge();
        Ok(())
    }

    /// Has the thread look at once, or once more.
    pub fn nudge(&self) {
        *self.nudged.lock() = true;
        self.awake.notify_one();
    }

    /// Sleeps, unless there was a nudge since the last time.
    fn sleep(&self, limit: Option<Duration>) {
        let mut nudged = self.nudged.lock();
        if !*nudged {
            match limit {
                Some(limit) => drop(self.awake.wait_for(&mut nudged, limit)),
                None => self.awake.wait(&mut nudged),
            }
        }
        *nudged = false;
    }
}

/// The thread.
fn watch(instance: &'static Instance) {
    let queues = &instance.queues;
    let mut pause = SHORTEST;
    let mut last = Instant::now();
    loop {
        let all = queues.all();
        let mut found = false;
        for queue in &all {
            found |= queues.look(queue);
        }
        found |= instance.memory.engines.take_up(instance);
        if found {
            (last, pause) = (Instant::now(), SHORTEST);
        }
        match () {
            () if all.is_empty() => queues.watch.sleep(None),
            () if last.elapsed() < BUSY => std::thread::yield_now(),
            () => {
                queues.watch.sleep(Some(pause));
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

impl Queues {
    /// Looks after a queue; whether there was anything to do.
    fn look(&self, queue: &Queue) -> bool {
        if queue.hardware.as_ref().is_some_and(|hardware| hardware.fault().is_some()) {
            self.report(queue);
            return false;
        }
        // A thread that has the lock moves packets already.
        let next = queue.forward.try_lock().map(|forward| forward.next);
        let is_behind = next.is_some_and(|next| queue.ring.is_published(next));
        is_behind && self.forward(queue)
    }
}
