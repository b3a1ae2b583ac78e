// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry's state as an image's metadata has it, in every format so far.
//!
//! An event's entry and a queue's have the driver's numbers among their fields; in memory these stand apart
//! ([`DriverNumbers`]).

use serde::{Deserialize, Serialize};

use super::access::MapState;
use super::arena::Window;
use super::key::{Key, TableState};
use super::state::{
    BoState, DriverNumbers, EventState, ExecutableState, Fixtures, QueueNumbers, QueueState, RegistryState,
    SignalState,
};
use super::svm::SvmRangeState;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct EventWire {
    #[serde(flatten)]
    state: EventState,
    id: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct QueueWire {
    #[serde(flatten)]
    state: QueueState,
    queue_id: u32,
    doorbell_offset: u32,
}

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RegistryWire {
    window: Window,
    bos: TableState<BoState>,
    /// In order of creation where that decides their ids.
    events: TableState<EventWire>,
    signals: TableState<SignalState>,
    queues: TableState<QueueWire>,
    executables: TableState<ExecutableState>,
    /// Images from before there were any have none.
    #[serde(default)]
    maps: TableState<MapState>,
    /// Images from before format 1.4 have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    svm: Vec<SvmRangeState>,
    fixtures: Fixtures,
}

/// A table whose entries are made of others, with their keys.
fn map<S, T>(table: TableState<S>, mut entry: impl FnMut(Key<T>, S) -> T) -> TableState<T> {
    let TableState { entries, generations } = table;
    // An index without generation has no key; whoever restores the table refuses it.
    let generation = |index: u32| generations.get(index as usize).copied().unwrap_or(0);
    let entries = entries
        .into_iter()
        .map(|(index, state)| (index, entry(Key::from_raw(index, generation(index)), state)))
        .collect();
    TableState { entries, generations }
}

impl From<RegistryWire> for RegistryState {
    fn from(wire: RegistryWire) -> Self {
        let RegistryWire { window, bos, events, signals, queues, executables, maps, svm, fixtures } = wire;
        let mut numbers = DriverNumbers::default();
        let events = map(events, |key, EventWire { state, id }| {
            numbers.events.insert(key, id);
            state
        });
        let queues = map(queues, |key, QueueWire { state, queue_id, doorbell_offset }| {
            numbers.queues.insert(key, QueueNumbers { id: queue_id, doorbell_offset });
            state
        });
        RegistryState { window, bos, events, signals, queues, executables, maps, svm, fixtures, numbers }
    }
}

impl From<RegistryState> for RegistryWire {
    fn from(state: RegistryState) -> Self {
        let RegistryState { window, bos, events, signals, queues, executables, maps, svm, fixtures, numbers } =
            state;
        let event = |key: Key<EventWire>, state| {
            let key = Key::from_raw(key.index(), key.generation());
            EventWire { state, id: numbers.events.get(&key).copied().unwrap_or(0) }
        };
        let queue = |key: Key<QueueWire>, state| {
            let key = Key::from_raw(key.index(), key.generation());
            let QueueNumbers { id, doorbell_offset } = numbers.queues.get(&key).copied().unwrap_or_default();
            QueueWire { state, queue_id: id, doorbell_offset }
        };
        let (events, queues) = (map(events, event), map(queues, queue));
        RegistryWire { window, bos, events, signals, queues, executables, maps, svm, fixtures }
    }
}
