// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry: all tables, the window of addresses, and what follows from them.
//!
//! INVARIANT: `tally` and `slots` always agree with the tables; every key inside an entry names a living entry.

use std::sync::atomic::Ordering;

use super::arena::{Arena, ArenaError, Window};
use super::entry::{Bo, Event, Executable, Queue, Signal};
use super::key::{Table, TableError};
use super::maps::{MapFault, Maps};
use super::persist::Persist;
use super::slots::SignalSlots;
use super::state;
use super::state::{
    BoKey, BoState, BoUse, DriverNumbers, EventKey, ExecutableKey, Fixtures, MapKey, QueueKey, RegistryState,
    SignalKey, SignalState,
};
use super::svm::{SvmRangeFault, SvmRanges};
use super::tally::Tally;

/// A saved registry that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A table is malformed.
    #[error("The saved table of {table} is malformed")]
    Table {
        /// Which.
        table: &'static str,
        /// How.
        #[source]
        source: TableError,
    },
    /// Two buffer objects overlap, or one lies outside the window.
    #[error("The saved address of buffer object {bo} cannot be had")]
    Address {
        /// Which.
        bo: BoKey,
        /// Why.
        #[source]
        source: ArenaError,
    },
    /// Two signals have the same slot, or it does not exist.
    #[error("The saved signal {signal} has slot {slot} of page {page}, which is taken or not there")]
    Slot {
        /// The signal.
        signal: SignalKey,
        /// Its page.
        page: BoKey,
        /// Its slot.
        slot: u32,
    },
    /// A mapping that cannot be.
    #[error("The saved mapping {map} {fault}")]
    Mapping {
        /// Which.
        map: MapKey,
        /// How.
        fault: MapFault,
    },
    /// A range of shared virtual memory that cannot be.
    #[error(transparent)]
    SvmRange(#[from] SvmRangeFault),
    /// An object names one that is not there.
    #[error("The saved {what} {index} names a {missing} that is not saved")]
    Dangling {
        /// Kind of the naming object.
        what: &'static str,
        /// Its index.
        index: u32,
        /// Kind of the missing object.
        missing: &'static str,
    },
}

/// The registry. Lives behind one mutex, see the module documentation.
#[derive(Debug)]
pub struct Registry {
    /// Addresses.
    pub arena: Arena,
    /// Buffer objects.
    pub bos: Table<Bo>,
    /// Events.
    pub events: Table<Event>,
    /// Signals.
    pub signals: Table<Signal>,
    /// Queues.
    pub queues: Table<Queue>,
    /// Executables.
    pub executables: Table<Executable>,
    /// Mappings of physical memory into reserved ranges.
    pub maps: Maps,
    /// Ranges of shared virtual memory.
    pub svm: SvmRanges,
    /// Bytes held and the most there were; follows from `bos`.
    pub tally: Tally,
    /// The singletons.
    pub fixtures: Fixtures,
    /// Free slots of the signal pages; follows from `signals`.
    pub slots: SignalSlots,
    /// Signals without handles whose promised completions have not all happened.
    pub retired: Vec<SignalKey>,
}

impl Registry {
    /// An empty registry over a reserved window.
    pub fn new(window: Window) -> Self {
        Registry {
            arena: Arena::new(window),
            bos: Table::default(),
            events: Table::default(),
            signals: Table::default(),
            queues: Table::default(),
            executables: Table::default(),
            maps: Maps::default(),
            svm: SvmRanges::default(),
            tally: Tally::default(),
            fixtures: Fixtures::default(),
            slots: SignalSlots::default(),
            retired: Vec::new(),
        }
    }

    /// Takes addresses for `state` (whose `va` is ignored) and registers it. The driver is not asked.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn add_bo(&mut self, state: BoState) -> Result<BoKey, ArenaError> {
        self.add_aligned_bo(state, 1)
    }

    /// As [`Registry::add_bo`], at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn add_aligned_bo(&mut self, mut state: BoState, align: u64) -> Result<BoKey, ArenaError> {
        state.va = self.arena.take_aligned(state.bytes, align)?;
        self.tally.add(&state);
        Ok(self.bos.insert(Bo::new(state)))
    }

    /// Registers `state` at the addresses that it names. The driver is not asked.
    ///
    /// # Errors
    /// [`ArenaError::Taken`].
    pub fn add_bo_at(&mut self, state: BoState) -> Result<BoKey, ArenaError> {
        self.arena.claim(state.va, state.bytes)?;
        self.tally.add(&state);
        Ok(self.bos.insert(Bo::new(state)))
    }

    /// Forgets a buffer object that the driver no longer knows and gives its addresses back.
    pub fn remove_bo(&mut self, key: BoKey) -> Option<Bo> {
        let bo = self.bos.remove(key)?;
        self.arena.give_back(bo.state.va, bo.state.bytes);
        self.tally.remove(&bo.state);
        Some(bo)
    }

    /// Forgets mappings that were in a driver which is gone, or in another process's.
    pub fn forget_mappings(&mut self) {
        self.maps.forget();
        self.bos.iter_mut().for_each(|(_, bo)| bo.gems.clear());
    }

    /// What holds a buffer object, if anything does.
    pub fn bo_use(&self, key: BoKey) -> Option<BoUse> {
        let bo = self.bos.get(key)?;
        match bo.state.role {
            state::BoRole::User => None,
            state::BoRole::Range => self.maps.of_range(key).next().map(|(map, _)| BoUse::Mapping(map)),
            state::BoRole::Physical => self.maps.of_memory(key).next().map(|(map, _)| BoUse::Mapping(map)),
            state::BoRole::Signals => Some(BoUse::Signals),
            state::BoRole::SharedSignal => {
                let is_here = |(_, signal): (SignalKey, &Signal)| signal.state.page == key;
                self.signals.iter().any(is_here).then_some(BoUse::Signals)
            }
            state::BoRole::EventPage | state::BoRole::Doorbell | state::BoRole::TrapHandler => {
                Some(BoUse::Fixture)
            }
            state::BoRole::Image => {
                self.executables.iter().find(|(_, e)| e.image == key).map(|(k, _)| BoUse::Executable(k))
            }
            _ => self
                .queues
                .iter()
                .find(|(_, q)| q.state.bos.all().any(|bo| bo == key))
                .map(|(k, _)| BoUse::Queue(k)),
        }
    }

    /// The buffer object whose range holds `va`.
    pub fn bo_at(&self, va: u64) -> Option<(BoKey, &Bo)> {
        self.bos.iter().find(|(_, bo)| va >= bo.state.va && va - bo.state.va < bo.state.bytes)
    }

    /// The executable whose image holds `pc`, and where its image starts.
    pub fn executable_at(&self, pc: u64) -> Option<(ExecutableKey, &Executable, u64)> {
        let (bo, entry) = self.bo_at(pc)?;
        self.executables.iter().find(|(_, e)| e.image == bo).map(|(k, e)| (k, e, entry.state.va))
    }

    /// The events in the order in which their ids were given, so that making them again in that order on a fresh
    /// process gives the same ids (`kfd_events.c`: lowest free id first).
    pub fn events_by_id(&self) -> Vec<EventKey> {
        let mut keys: Vec<_> = self.events.iter().map(|(key, event)| (event.id, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// The queues in the order of their ids, for the same reason (`kfd_process_queue_manager.c`: lowest free bit).
    pub fn queues_by_id(&self) -> Vec<QueueKey> {
        let mut keys: Vec<_> = self.queues.iter().map(|(key, queue)| (queue.numbers.id, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    fn claim_addresses(mut self) -> Result<Self, RegistryError> {
        for (bo, entry) in self.bos.iter() {
            if entry.state.role == state::BoRole::Signals {
                self.slots.add_page(bo);
            }
            self.tally.add(&entry.state);
            let BoState { va, bytes, .. } = entry.state;
            self.arena.claim(va, bytes).map_err(|source| RegistryError::Address { bo, source })?;
        }
        Ok(self)
    }

    /// Every key inside an entry names a living entry; counts who uses which event.
    fn check_names(mut self) -> Result<Self, RegistryError> {
        let dangling = |what, index, missing| RegistryError::Dangling { what, index, missing };
        let has_bo = |key| self.bos.get(key).is_some();
        for (key, queue) in self.queues.iter() {
            if !queue.state.bos.all().all(has_bo) {
                return Err(dangling("queue", key.index(), "buffer object"));
            }
            if !queue.state.signals().all(|signal| self.signals.get(signal).is_some()) {
                return Err(dangling("queue", key.index(), "signal"));
            }
        }
        for (key, executable) in self.executables.iter() {
            if !has_bo(executable.image) {
                return Err(dangling("executable", key.index(), "buffer object"));
            }
        }
        for (map, mapped) in self.maps.iter() {
            if !has_bo(mapped.state.range) || !has_bo(mapped.state.memory) {
                return Err(dangling("mapping", map.index(), "buffer object"));
            }
        }
        self.maps.check(&self.bos).map_err(|(map, fault)| RegistryError::Mapping { map, fault })?;
        for (key, signal) in self.signals.iter() {
            let SignalState { page, slot, .. } = signal.state;
            if !has_bo(page) {
                return Err(dangling("signal", key.index(), "buffer object"));
            }
            let is_alone =
                self.bos.get(page).is_some_and(|page| page.state.role == state::BoRole::SharedSignal);
            if !is_alone && !self.slots.claim(page, slot) {
                return Err(RegistryError::Slot { signal: key, page, slot });
            }
            if let Some(event) = signal.state.event {
                let Some(event) = self.events.get_mut(event) else {
                    return Err(dangling("signal", key.index(), "event"));
                };
                event.users += 1;
            }
        }
        Ok(self)
    }
}

impl Persist for Registry {
    type State = RegistryState;
    type Args = ();
    type Error = RegistryError;

    /// Queues must be drained or suspended for their indices to mean anything.
    fn save(&self) -> RegistryState {
        RegistryState {
            window: self.arena.window(),
            bos: self.bos.save(),
            events: self.events.save(),
            signals: self.signals.save(),
            queues: self.queues.save(),
            executables: self.executables.save(),
            maps: self.maps.save(),
            svm: self.svm.save(),
            fixtures: self.fixtures.clone(),
            numbers: DriverNumbers {
                events: self.events.iter().map(|(key, event)| (key, event.id)).collect(),
                queues: self.queues.iter().map(|(key, queue)| (key, queue.numbers)).collect(),
            },
        }
    }

    /// The registry has no kernel-side and no live part.
    fn restore((): (), state: &RegistryState) -> Result<Self, RegistryError> {
        let table = |table| move |source| RegistryError::Table { table, source };
        let mut registry = Registry {
            arena: Arena::new(state.window),
            bos: Table::restore((), &state.bos).map_err(table("buffer objects"))?,
            events: Table::restore((), &state.events).map_err(table("events"))?,
            signals: Table::restore((), &state.signals).map_err(table("signals"))?,
            queues: Table::restore((), &state.queues).map_err(table("queues"))?,
            executables: Table::restore((), &state.executables).map_err(table("executables"))?,
            maps: Maps::restore((), &state.maps).map_err(table("mappings"))?,
            svm: SvmRanges::restore((), &state.svm)?,
            tally: Tally::default(),
            fixtures: state.fixtures.clone(),
            slots: SignalSlots::default(),
            retired: Vec::new(),
        };
        for (&key, &id) in &state.numbers.events {
            if let Some(event) = registry.events.get_mut(key) {
                event.id = id;
                event.live.id.store(id, Ordering::Relaxed);
            }
        }
        for (&key, &numbers) in &state.numbers.queues {
            if let Some(queue) = registry.queues.get_mut(key) {
                queue.numbers = numbers;
            }
        }
        registry.claim_addresses()?.check_names()
    }
}
