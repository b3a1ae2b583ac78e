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
//! A wave that enqueues stores to a slot, too, and knows nothing of the word. The queue that runs its dispatch looks at the
//! slots for it ([`Doorbells::notice`]): when the dispatch has ended, and, if it lasts, now and then while the queue waits
//! for its end.
//!
//! INVARIANT: after a ring, no queue of the slice sleeps before it has read its slot again; after a ring of a wave, none
//! sleeps for longer than [`LONGEST_NAP`]. The word lies in memory of the client's; a client that overwrites it can delay
//! only its own queues.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use kfd::linux;
use kfd::userfault::WatchedPages;
use nix::errno::Errno;
use parking_lot::Mutex;

use super::ring_watch::RingWatch;
use super::shared::SharedPages;

/// Bytes of a slice: 1024 slots of 8 bytes (`AMDGPU_MES_MAX_NUM_OF_QUEUES_PER_PROCESS`).
pub const SLICE_BYTES: usize = 8192;
/// Bytes of the page that holds the parked word at offset 0.
pub const PARKED_BYTES: usize = 4096;
/// What a slot holds before its first ring: no packet index, and before all of them.
pub(super) const NEVER_RUNG: u64 = u64::MAX;

/// How long a queue sleeps beside its running dispatch before it looks for rings of waves for the first time: longer than
/// most dispatches last.
const FIRST_NAP: Duration = Duration::from_micros(200);
/// How long after the protection was lifted, and how often, the store is looked for.
const LOOK: Duration = Duration::from_micros(10);
/// How late such a look may come, ns; 1 is the least (prctl(2), PR_SET_TIMERSLACK).
const TIMER_SLACK: u64 = 1;
/// The longest such sleep; each is twice as long as the one before.
pub(super) const LONGEST_NAP: Duration = Duration::from_millis(2);

/// How long a queue sleeps next beside its running dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nap(Duration);

impl Default for Nap {
    fn default() -> Self {
        Self(FIRST_NAP)
    }
}

/// One process's doorbells on one GPU.
#[derive(Debug)]
pub(super) struct Doorbells {
    slots: SharedPages,
    parked: SharedPages,
    ticket: AtomicU32,
    /// The slots of queues on the hardware, and what they held when somebody last looked for rings of waves.
    watched: Mutex<Vec<(u32, u64)>>,
    rings: RingWatch,
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
            watched: Mutex::default(),
            rings: RingWatch::default(),
        })
    }

    /// The doorbells of a restored client: the slice, the page of the parked word, and what
    /// [`Doorbells::storing_mappings`] said.
    pub(super) fn restored(slots: SharedPages, parked: SharedPages, storing_mappings: Option<u32>) -> Self {
        let rings = storing_mappings.map_or_else(RingWatch::default, RingWatch::restored);
        Self { slots, parked, ticket: AtomicU32::new(0), watched: Mutex::default(), rings }
    }

    /// The slice and the page of the parked word.
    pub(super) fn pages(&self) -> [&SharedPages; 2] {
        [&self.slots, &self.parked]
    }

    /// Of a client that rings by stores alone, how many mappings of the slice it has; else none.
    pub(super) fn storing_mappings(&self) -> Option<u32> {
        self.rings.mappings()
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
    pub(super) fn park(&self, ready: impl FnMut() -> bool) {
        self.sleep(ready, None);
    }

    /// As [`Doorbells::park`], for a queue whose waves run and may ring: it sleeps for a moment, and then notices that.
    pub(super) fn park_beside_waves(&self, nap: &mut Nap, ready: impl FnMut() -> bool) {
        self.sleep(ready, Some(nap.0));
        self.notice();
        nap.0 = (nap.0 * 2).min(LONGEST_NAP);
    }

    /// Has [`Doorbells::notice`] look at the slot of a queue that comes onto the hardware.
    pub(super) fn watch(&self, offset: u32) {
        self.watched.lock().push((offset, self.value(offset)));
    }

    /// The end of [`Doorbells::watch`].
    pub(super) fn unwatch(&self, offset: u32) {
        let mut watched = self.watched.lock();
        if let Some(at) = watched.iter().position(|&(other, _)| other == offset) {
            watched.swap_remove(at);
        }
    }

    /// Wakes the parked queues if the slot of one has another value than when this was last called. Costs a fence and a load
    /// when no queue is parked.
    pub(super) fn notice(&self) {
        self.notice_rings();
    }

    /// As [`Doorbells::notice`]; says whether there was another value.
    fn notice_rings(&self) -> bool {
        let Some(word) = self.parked.u32_at(0) else { return false };
        // ORDERING: pairs with the fence in `sleep`: either this thread sees the ticket, or `ready` sees what a wave stored.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut rung = false;
        for (offset, last) in self.watched.lock().iter_mut() {
            let value = self.value(*offset);
            rung |= std::mem::replace(last, value) != value;
        }
        if rung {
            self.rings.rang();
            self.wake_all();
        }
        rung
    }

    /// Wakes queues for a client that only stores to its mapping of the slice. Returns when the mapping is gone.
    pub(super) fn watch_stores(&self, pages: &WatchedPages) {
        // The system's default would make each look five times as late. If it is refused they only come later.
        let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK);
        while self.rings.wait_for_store(pages).is_ok() {
            while self.rings.expects_store() && !self.notice_rings() {
                // The client may have been woken on this thread's core, and go on there without a system call: a thread that only
                // yielded would not get the core back before the client's time slice ends, milliseconds later.
                std::thread::sleep(LOOK);
            }
            self.rings.arrived();
            // A queue that is awake has seen the store itself, and one that was about to sleep looks again.
            self.wake_all();
        }
    }

    /// From now on the client only stores, to a mapping that [`Doorbells::watch_stores`] watches, or that nobody can.
    pub(super) fn expect_stores(&self, pages: Option<Arc<WatchedPages>>) {
        self.rings.add(pages);
        self.wake_all();
    }

    fn sleep(&self, mut ready: impl FnMut() -> bool, limit: Option<Duration>) {
        let Some(word) = self.parked.u32_at(0) else { return };
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        word.store(ticket, Ordering::SeqCst);
        // ORDERING: pairs with the client's fence between its slot store and its load of the word, and with `notice`. Either that load
        // sees a ticket, or `ready` sees the store.
        fence(Ordering::SeqCst);
        if ready() {
            return;
        }
        let limit = self.rings.prepare(limit);
        // A store that came before the client's pages were protected.
        if self.rings.is_on() && ready() {
            return;
        }
        // After any error (EAGAIN, EINTR, ETIMEDOUT) the caller checks again.
        let _ = linux::wait_futex(word, ticket, limit);
        if self.rings.is_on() {
            self.notice_rings();
        }
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
#[allow(unsafe_code)] // A second mapping, as a client has one.
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
    fn ring_of_a_wave_is_noticed_by_a_queue_beside_it() {
        let doorbells = Arc::new(Doorbells::new().unwrap());
        doorbells.watch(8);
        // A wave stores and does nothing else.
        let store = |value| doorbells.slots.u64_at(8).unwrap().store(value, Ordering::Release);
        for value in 1..=100 {
            let sleeper = std::thread::spawn({
                let doorbells = Arc::clone(&doorbells);
                move || {
                    while doorbells.value(8) != value {
                        doorbells.park(|| doorbells.value(8) == value);
                    }
                }
            });
            if value % 2 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            store(value);
            let mut nap = Nap::default();
            while !sleeper.is_finished() {
                doorbells.park_beside_waves(&mut nap, || false);
            }
            sleeper.join().unwrap();
        }
    }

    /// Stores to a mapping of the slice, as a client does that knows nothing of the parked word; a sleeping queue sees each store
    /// before the next one.
    fn every_store_is_seen(doorbells: &Arc<Doorbells>, slot: &AtomicU64) {
        const STORES: u64 = 60;
        doorbells.watch(16);
        let seen = Arc::new(AtomicU64::new(0));
        let sleeper = std::thread::spawn({
            let (doorbells, seen) = (Arc::clone(doorbells), Arc::clone(&seen));
            move || {
                let mut last = 0;
                while last < STORES {
                    doorbells.park(|| doorbells.value(16) != last);
                    last = doorbells.value(16);
                    seen.store(last, Ordering::SeqCst);
                }
            }
        });
        for value in 1..=STORES {
            if value % 2 == 0 {
                // Long enough for the queue to be asleep, on most machines.
                std::thread::sleep(Duration::from_millis(3));
            }
            slot.store(value, Ordering::Release);
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while seen.load(Ordering::SeqCst) != value {
                assert!(std::time::Instant::now() < deadline, "store {value} was lost");
                std::thread::yield_now();
            }
        }
        sleeper.join().unwrap();
    }

    #[test]
    fn stores_alone_wake_queues_by_the_clients_pages() {
        let doorbells = Arc::new(Doorbells::new().unwrap());
        let (slice, _parked) = doorbells.descriptors().unwrap();
        // The client's mapping, in this process.
        let mapping = memmap2::MmapOptions::new().len(SLICE_BYTES).map_raw(&slice).unwrap();
        let start = mapping.as_mut_ptr().expose_provenance() as u64;
        let range = start..start + SLICE_BYTES as u64;
        let pages = Arc::new(WatchedPages::new(kfd::userfault::watch(&range).unwrap(), range));
        let (watcher, watched) = (Arc::clone(&doorbells), Arc::clone(&pages));
        let thread = std::thread::spawn(move || watcher.watch_stores(&watched));
        doorbells.expect_stores(Some(pages));
        // SAFETY: the slot is mapped until the end of the test, and accessed as an atomic only.
        let slot = unsafe { AtomicU64::from_ptr(mapping.as_mut_ptr().add(16).cast()) };
        every_store_is_seen(&doorbells, slot);
        assert!(!thread.is_finished(), "the pages are watched for as long as they are mapped");
    }

    #[test]
    fn stores_alone_are_noticed_in_naps_where_pages_cannot_be_watched() {
        let doorbells = Arc::new(Doorbells::new().unwrap());
        doorbells.expect_stores(None);
        let slot = doorbells.slots.u64_at(16).unwrap();
        every_store_is_seen(&doorbells, slot);
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
