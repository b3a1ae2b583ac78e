// SPDX-License-Identifier: MIT OR Apache-2.0
//! The doorbell slice of a process on one GPU, and how its queues sleep until one is rung.
//!
//! A client rings by storing to its slot and then looking at the `parked` word: nonzero means that a queue sleeps,
//! so it stores 0 and wakes all sleepers by futex. Several queues share the word. Each of them parks under a ticket
//! of its own and sleeps only while the word still holds it, which rules out the lost wake-up of a fixed value:
//!
//! ```text
//!   queue A          client                queue B
//!   parked = 1
//!   nothing rung
//!                    ring A; parked = 0
//!                                          parked = 1
//!                    wake all (nobody)
//!   sleep while 1  <- would sleep for ever; with tickets the word holds B's, and A looks again
//! ```
//!
//! INVARIANT: after a ring, no queue of the slice sleeps before it has read its slot again. The word lies in
//! memory of the client's; a client that overwrites it can delay only its own queues.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use kfd::linux;
use nix::errno::Errno;

use super::shared::SharedPages;

/// Bytes of a slice: 1024 slots of 8 bytes (`AMDGPU_MES_MAX_NUM_OF_QUEUES_PER_PROCESS`).
pub const SLICE_BYTES: usize = 8192;
/// Bytes of the page that holds the parked word at offset 0.
pub const PARKED_BYTES: usize = 4096;
/// What a slot holds before its first ring: no packet index, and before all of them.
pub(super) const NEVER_RUNG: u64 = u64::MAX;

/// One process's doorbells on one GPU.
#[derive(Debug)]
pub(super) struct Doorbells {
    slots: SharedPages,
    parked: SharedPages,
    ticket: AtomicU32,
}

impl Doorbells {
    /// Makes a slice on which nothing was rung yet.
    ///
    /// # Errors
    /// As [`SharedPages::new`].
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self {
            slots: SharedPages::new("softgpu-doorbells", SLICE_BYTES)?,
            parked: SharedPages::new("softgpu-parked", PARKED_BYTES)?,
            ticket: AtomicU32::new(0),
        })
    }

    /// Descriptors of the slice and of the parked page, for the client.
    ///
    /// # Errors
    /// `EMFILE` when this process has no descriptor left.
    pub(super) fn descriptors(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        Ok((linux::duplicate(self.slots.fd())?, linux::duplicate(self.parked.fd())?))
    }

    /// What was last rung at a byte offset ([`NEVER_RUNG`] also for an offset that is no slot).
    pub(super) fn value(&self, offset: u32) -> u64 {
        // ORDERING: Acquire pairs with the client's release store, so that what the value announces is visible.
        self.slots.u64_at(offset as usize).map_or(NEVER_RUNG, |slot| slot.load(Ordering::Acquire))
    }

    /// Removes the value that an earlier queue left in this slot.
    pub(super) fn reset(&self, offset: u32) {
        if let Some(slot) = self.slots.u64_at(offset as usize) {
            slot.store(NEVER_RUNG, Ordering::Release);
        }
    }

    /// Sleeps until the client rings a doorbell, or returns at once when `ready` holds after the parking was announced.
    /// May also return early: the caller checks its condition again in any case.
    pub(super) fn park(&self, mut ready: impl FnMut() -> bool) {
        let Some(word) = self.parked.u32_at(0) else { return };
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        word.store(ticket, Ordering::SeqCst);
        // ORDERING: pairs with the client's fence between its slot store and its load of the word. Either that load
        // sees a ticket, or `ready` sees the store.
        fence(Ordering::SeqCst);
        if ready() {
            return;
        }
        // After any error (EAGAIN, EINTR) the caller checks again.
        let _ = linux::wait_futex(word, ticket, None);
    }

    /// Wakes every parked queue, as a ring does.
    pub(super) fn wake_all(&self) {
        let Some(word) = self.parked.u32_at(0) else { return };
        // ORDERING: pairs with the fence in `park`; a queue that checks again sees what the caller stored before.
        fence(Ordering::SeqCst);
        word.store(0, Ordering::SeqCst);
        if let Err(error) = linux::wake_futex(word) {
            tracing::error!(target: "processor", %error, "parked queues not woken");
        }
    }

    /// Wakes the parked queues, if there are any. A client that overwrites the word can prevent it.
    pub(super) fn wake_parked(&self) {
        let Some(word) = self.parked.u32_at(0) else { return };
        // ORDERING: as in `wake_all`.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    /// Rings as the soft transport's client does.
    #[cfg(test)]
    pub(super) fn ring(&self, offset: u32, value: u64) {
        self.slots.u64_at(offset as usize).unwrap().store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        let word = self.parked.u32_at(0).unwrap();
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Release);
            linux::wake_futex(word).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn value_outside_slice_is_never_rung() {
        let doorbells = Doorbells::new().unwrap();
        assert_eq!(doorbells.value(8192), NEVER_RUNG);
        assert_eq!(doorbells.value(4), NEVER_RUNG);
        assert_eq!(doorbells.value(8184), 0);
    }

    #[test]
    fn park_many_sleepers_no_ring_is_lost() {
        const RINGS: u64 = 3000;
        let doorbells = Arc::new(Doorbells::new().unwrap());
        let seen: Arc<[AtomicU64; 3]> = Arc::default();
        let sleepers: Vec<_> = (0..3_u32)
            .map(|queue| {
                let (doorbells, seen) = (Arc::clone(&doorbells), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let mut last = 0;
                    while last < RINGS {
                        doorbells.park(|| doorbells.value(queue * 8) != last);
                        last = doorbells.value(queue * 8);
                        seen[queue as usize].store(last, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for round in 1..=RINGS {
            for queue in 0..3 {
                doorbells.ring(queue * 8, round);
            }
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while seen.iter().any(|value| value.load(Ordering::SeqCst) < round) {
                assert!(std::time::Instant::now() < deadline, "ring {round} was lost");
                std::thread::yield_now();
            }
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }
}
