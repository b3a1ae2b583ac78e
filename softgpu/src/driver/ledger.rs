// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that belong to the device rather than to one process: memory in use, queues, SDMA queue slots.
//!
//! A memfd shared by the broker and its executors. Each executor adds only to its own slot and the total is the sum
//! over slots, so that clearing the slot of a dead executor gives back all it held.
//! INVARIANT: a reservation is added first and checked second. Concurrent reservations may both fail, but they never
//! exceed the total.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use thiserror::Error;

use super::memfd;
use super::shared::SharedWords;

/// GPUs a ledger has room for.
pub const MAX_GPUS: usize = 16;
/// Executors a ledger has room for.
pub const MAX_SLOTS: usize = 1024;
/// SDMA queues of one GPU (engines times queues) a ledger has room for.
pub const MAX_SDMA_QUEUES: u32 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"softledg");
const VERSION: u64 = 1;
const CAPACITY_AT: usize = 4;
const SDMA_AT: usize = CAPACITY_AT + COUNTERS;
const SLOTS_AT: usize = SDMA_AT + MAX_GPUS * MAX_SDMA_QUEUES as usize;
const WORDS: usize = SLOTS_AT + MAX_SLOTS * SLOT_WORDS;

/// Counters of a slot: VRAM bytes and queues of each GPU, then system memory and TTM bytes.
const COUNTERS: usize = 2 * MAX_GPUS + 2;
const SLOT_WORDS: usize = COUNTERS + 1;

/// Why a ledger cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// More GPUs than there is room for.
    #[error("A ledger has room for {MAX_GPUS} GPUs, {wanted} were asked for; list fewer devices")]
    TooManyGpus {
        /// GPUs asked for.
        wanted: usize,
    },
    /// Every slot is taken.
    #[error("All {MAX_SLOTS} executor slots are taken; end some client processes")]
    NoFreeSlot,
    /// There is no such slot.
    #[error("Ledger slot {index} is beyond the last, {}", MAX_SLOTS - 1)]
    NoSuchSlot {
        /// Index asked for.
        index: usize,
    },
    /// The file is not a ledger of this version.
    #[error("The file is not a version {VERSION} ledger; start broker and executor from the same build")]
    NotALedger,
    /// The memory could not be made or mapped.
    #[error("Cannot map the ledger ({} bytes)", WORDS * 8)]
    Map(#[source] Errno),
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// VRAM bytes of a GPU.
    Vram(usize),
    /// Queues of a GPU.
    Queues(usize),
    /// System memory bytes pinned or owned by the driver.
    System,
    /// Bytes of system memory managed by TTM (GTT buffers).
    Ttm,
}

impl Resource {
    fn index(self) -> Option<usize> {
        match self {
            Self::Vram(gpu) => (gpu < MAX_GPUS).then_some(gpu),
            Self::Queues(gpu) => (gpu < MAX_GPUS).then_some(MAX_GPUS + gpu),
            Self::System => Some(2 * MAX_GPUS),
            Self::Ttm => Some(2 * MAX_GPUS + 1),
        }
    }
}

/// What a device has of everything the ledger counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// VRAM bytes for each GPU.
    pub vram: Vec<u64>,
    /// Queues on each GPU (`max_num_of_queues_per_device`).
    pub queues: u64,
    /// System memory bytes (`kfd_mem_limit.max_system_mem_limit`).
    pub system: u64,
    /// TTM bytes (`ttm_tt_pages_limit`).
    pub ttm: u64,
}

/// The shared memory of all slots.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    words: SharedWords,
}

impl Ledger {
    /// Makes an empty ledger.
    ///
    /// # Errors
    /// [`LedgerError::TooManyGpus`], [`LedgerError::Map`].
    pub fn create(capacities: &Capacities) -> Result<Self, LedgerError> {
        let gpus = capacities.vram.len();
        if gpus > MAX_GPUS {
            return Err(LedgerError::TooManyGpus { wanted: gpus });
        }
        // CAST: a compile-time constant far below u64::MAX.
        let fd = memfd::create("softgpu:ledger", (WORDS * 8) as u64).map_err(LedgerError::Map)?;
        let words = SharedWords::map(fd.as_fd(), WORDS).map_err(LedgerError::Map)?;
        let this = Self(Arc::new(Inner { fd, words }));
        for (gpu, vram) in capacities.vram.iter().enumerate() {
            this.set_capacity(Resource::Vram(gpu), *vram);
            this.set_capacity(Resource::Queues(gpu), capacities.queues);
        }
        this.set_capacity(Resource::System, capacities.system);
        this.set_capacity(Resource::Ttm, capacities.ttm);
        this.words()[1].store(VERSION, Ordering::Relaxed);
        this.words()[0].store(MAGIC, Ordering::Release);
        Ok(this)
    }

    /// Maps a ledger made by another process.
    ///
    /// # Errors
    /// [`LedgerError::NotALedger`] for any other file, [`LedgerError::Map`].
    pub fn open(fd: OwnedFd) -> Result<Self, LedgerError> {
        // CAST: as in `create`.
        if memfd::sealed_bytes(fd.as_fd()) != Some((WORDS * 8) as u64) {
            return Err(LedgerError::NotALedger);
        }
        let words = SharedWords::map(fd.as_fd(), WORDS).map_err(LedgerError::Map)?;
        if words.words()[0].load(Ordering::Acquire) != MAGIC
            || words.words()[1].load(Ordering::Relaxed) != VERSION
        {
            return Err(LedgerError::NotALedger);
        }
        Ok(Self(Arc::new(Inner { fd, words })))
    }

    /// Takes a free slot for the executor with this process id.
    ///
    /// # Errors
    /// [`LedgerError::NoFreeSlot`].
    pub fn claim(&self, owner: u32) -> Result<LedgerSlot, LedgerError> {
        let owner = u64::from(owner).max(1);
        for index in 0..MAX_SLOTS {
            let word = &self.words()[SLOTS_AT + index * SLOT_WORDS];
            if word.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(LedgerSlot { ledger: self.clone(), index });
            }
        }
        Err(LedgerError::NoFreeSlot)
    }

    /// The slot that another process claimed for this one.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchSlot`].
    pub fn slot(&self, index: usize) -> Result<LedgerSlot, LedgerError> {
        if index >= MAX_SLOTS {
            return Err(LedgerError::NoSuchSlot { index });
        }
        Ok(LedgerSlot { ledger: self.clone(), index })
    }

    /// Gives back everything a dead executor held, and its slot.
    ///
    /// # Errors
    /// [`LedgerError::NoSuchSlot`].
    pub fn clear(&self, index: usize) -> Result<(), LedgerError> {
        if index >= MAX_SLOTS {
            return Err(LedgerError::NoSuchSlot { index });
        }
        let owner = slot_mark(index);
        for word in &self.words()[SDMA_AT..SLOTS_AT] {
            // If the exchange fails, another slot owns this SDMA queue.
            let _ = word.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let at = SLOTS_AT + index * SLOT_WORDS;
        for word in &self.words()[at + 1..at + SLOT_WORDS] {
            word.store(0, Ordering::SeqCst);
        }
        // ORDERING: Release, after the counters are cleared, so that the next owner of the slot finds zeros.
        self.words()[at].store(0, Ordering::Release);
        Ok(())
    }

    /// What all executors together hold.
    pub fn used(&self, resource: Resource) -> u64 {
        let Some(counter) = resource.index() else { return 0 };
        let words = &self.words()[SLOTS_AT..];
        words
            .chunks_exact(SLOT_WORDS)
            .fold(0u64, |sum, slot| sum.saturating_add(slot[1 + counter].load(Ordering::SeqCst)))
    }

    /// What the device has.
    pub fn capacity(&self, resource: Resource) -> u64 {
        resource.index().map_or(0, |counter| self.words()[CAPACITY_AT + counter].load(Ordering::Relaxed))
    }

    fn set_capacity(&self, resource: Resource, value: u64) {
        if let Some(counter) = resource.index() {
            self.words()[CAPACITY_AT + counter].store(value, Ordering::Relaxed);
        }
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.words.words()
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// What slot `index` writes into an SDMA queue that it holds; 0 means free.
fn slot_mark(index: usize) -> u64 {
    // CAST: index < MAX_SLOTS.
    index as u64 + 1
}

/// One executor's share. Dropping it keeps the share: only [`Ledger::clear`] gives a slot back.
#[derive(Clone, Debug)]
pub struct LedgerSlot {
    ledger: Ledger,
    index: usize,
}

impl LedgerSlot {
    /// The slot's number, for [`Ledger::slot`] in the executor and [`Ledger::clear`] in the broker.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The ledger it is part of.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes `amount` of a resource.
    ///
    /// # Errors
    /// `ENOMEM` when the device has not that much left.
    pub fn reserve(&self, resource: Resource, amount: u64) -> Result<(), Errno> {
        let capacity = self.ledger.capacity(resource);
        let counter = self.counter(resource).ok_or(Errno::ENOMEM)?;
        if amount > capacity {
            return Err(Errno::ENOMEM);
        }
        // ORDERING: SeqCst add, then SeqCst sum: of two racing reservations at least one sees the other.
        counter.fetch_add(amount, Ordering::SeqCst);
        if self.ledger.used(resource) > capacity {
            counter.fetch_sub(amount, Ordering::SeqCst);
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }

    /// Gives back what `reserve` took.
    pub fn release(&self, resource: Resource, amount: u64) {
        if let Some(counter) = self.counter(resource) {
            // The closure never answers None, so that the update cannot fail. Saturation covers a slot that was cleared
            // meanwhile.
            let _ = counter
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| Some(held.saturating_sub(amount)));
        }
    }

    /// Takes the first free SDMA queue of `gpu` among `ids`, in their order.
    pub fn reserve_sdma(&self, gpu: usize, ids: impl IntoIterator<Item = u32>) -> Option<u32> {
        let words = self.ledger.words();
        ids.into_iter().filter(|id| gpu < MAX_GPUS && *id < MAX_SDMA_QUEUES).find(|id| {
            words[sdma_word(gpu, *id)]
                .compare_exchange(0, slot_mark(self.index), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Gives back an SDMA queue.
    pub fn release_sdma(&self, gpu: usize, id: u32) {
        if gpu < MAX_GPUS && id < MAX_SDMA_QUEUES {
            let word = &self.ledger.words()[sdma_word(gpu, id)];
            // If the exchange fails, the slot was cleared meanwhile.
            let _ = word.compare_exchange(slot_mark(self.index), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn counter(&self, resource: Resource) -> Option<&AtomicU64> {
        let counter = resource.index()?;
        Some(&self.ledger.words()[SLOTS_AT + self.index * SLOT_WORDS + 1 + counter])
    }
}

fn sdma_word(gpu: usize, id: u32) -> usize {
    SDMA_AT + gpu * MAX_SDMA_QUEUES as usize + id as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger::create(&Capacities { vram: vec![100, 50], queues: 4, system: 1000, ttm: 500 }).unwrap()
    }

    #[test]
    fn reserve_counts_over_all_slots() {
        let ledger = ledger();
        let (first, second) = (ledger.claim(1).unwrap(), ledger.claim(2).unwrap());
        first.reserve(Resource::Vram(0), 60).unwrap();
        assert_eq!(second.reserve(Resource::Vram(0), 41), Err(Errno::ENOMEM));
        second.reserve(Resource::Vram(0), 40).unwrap();
        assert_eq!(ledger.used(Resource::Vram(0)), 100);
        assert_eq!(ledger.used(Resource::Vram(1)), 0);
    }

    #[test]
    fn clear_gives_back_a_dead_executors_share() {
        let ledger = ledger();
        let (dead, alive) = (ledger.claim(1).unwrap(), ledger.claim(2).unwrap());
        dead.reserve(Resource::Vram(0), 100).unwrap();
        assert_eq!(dead.reserve_sdma(1, 4..8), Some(4));
        assert_eq!(alive.reserve_sdma(1, 4..8), Some(5));
        ledger.clear(dead.index()).unwrap();
        alive.reserve(Resource::Vram(0), 100).unwrap();
        assert_eq!(alive.reserve_sdma(1, 4..8), Some(4));
        assert_eq!(ledger.claim(3).unwrap().index(), dead.index());
    }

    #[test]
    fn open_shares_the_same_words_and_refuses_other_files() {
        let ledger = ledger();
        let other = Ledger::open(memfd::duplicate(&ledger).unwrap()).unwrap();
        ledger.claim(1).unwrap().reserve(Resource::System, 7).unwrap();
        assert_eq!(other.used(Resource::System), 7);
        let plain = memfd::create("x", 4096).unwrap();
        assert!(matches!(Ledger::open(plain), Err(LedgerError::NotALedger)));
    }

    #[test]
    fn release_never_goes_below_zero() {
        let ledger = ledger();
        let slot = ledger.claim(1).unwrap();
        slot.release(Resource::Ttm, 5);
        assert_eq!(ledger.used(Resource::Ttm), 0);
        assert_eq!(slot.reserve(Resource::Ttm, u64::MAX), Err(Errno::ENOMEM));
    }

    #[test]
    fn racing_reservations_never_overcommit() {
        let ledger = ledger();
        std::thread::scope(|scope| {
            for owner in 1..5 {
                let slot = ledger.claim(owner).unwrap();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        if slot.reserve(Resource::Vram(1), 30).is_ok() {
                            slot.release(Resource::Vram(1), 30);
                        }
                    }
                });
            }
        });
        assert_eq!(ledger.used(Resource::Vram(1)), 0);
    }
}
