// SPDX-License-Identifier: MIT OR Apache-2.0
//! Save and restore of a registry that holds one of everything.

use std::sync::Arc;

use queues::target::Target;

use super::state::*;
use super::*;
use crate::context::registry::arena::Window;
use crate::context::registry::arena::{PAGE, WINDOW_BASE};
use crate::context::registry::maps::{MapFault, Maps};

fn bo(role: BoRole, bytes: u64) -> BoState {
    BoState {
        kind: BoKind::Gtt,
        role,
        bytes,
        va: 0,
        flags: 0xd600_0002,
        agent: AgentIndex(0),
        mapped: vec![AgentIndex(0)],
        for_copies: Vec::new(),
        cpu_mapped: true,
        sharing: None,
        label: None,
    }
}

fn one_of_each() -> Registry {
    let mut registry = Registry::new(Window { base: WINDOW_BASE, bytes: 1 << 30 });
    let mut add = |role, bytes| registry.add_bo(bo(role, bytes)).unwrap();
    let (user, gone, page, image) = (
        add(BoRole::User, 1 << 20),
        add(BoRole::User, 4096),
        add(BoRole::Signals, 4096),
        add(BoRole::Image, 8192),
    );
    let bos = QueueBos {
        ring: add(BoRole::Ring, 4096),
        page: add(BoRole::QueuePage, 4096),
        eop: Some(add(BoRole::Eop, 4096)),
        save_area: Some(add(BoRole::SaveArea, 0x2c0_2000)),
        kernargs: Some(add(BoRole::Kernargs, 1 << 19)),
        scratch: Some(add(BoRole::Scratch, 3 << 20)),
        hostcall: Some(add(BoRole::Hostcall, 1 << 16)),
    };
    registry.remove_bo(gone).unwrap();
    let event = registry
        .events
        .insert(Event { id: 1, ..Event::new(EventState { kind: EventKind::Signal, auto_reset: true }) });
    let signal = registry
        .signals
        .insert(Signal { state: SignalState { page, slot: 3, event: Some(event) }, live: None });
    let inactive = registry
        .signals
        .insert(Signal { state: SignalState { page, slot: 4, event: Some(event) }, live: None });
    let doorbell = registry
        .signals
        .insert(Signal { state: SignalState { page, slot: 5, event: Some(event) }, live: None });
    registry.queues.insert(Queue {
        state: QueueState {
            agent: AgentIndex(0),
            kind: QueueKind::Aql,
            ring_bytes: 4096,
            priority: 7,
            percentage: 100,
            suspended: false,
            cu_mask: Vec::new(),
            bos,
            kernarg_slot_bytes: 4096,
            scratch_lane_bytes: 16,
            exceptions: signal,
            inactive: Some(inactive),
            hostcall_doorbell: Some(doorbell),
            bias: 128,
            write_index: 150,
            waiting: Vec::new(),
            internal: false,
        },
        numbers: QueueNumbers { id: 0, doorbell_offset: 8 },
        created: false,
        live: None,
    });
    registry.executables.insert(Executable {
        agent: AgentIndex(0),
        code_object: Arc::from(&b"ELF"[..]),
        image,
        program: None,
    });
    let dmabuf = DmabufId { device: 7, inode: 4711 };
    registry.bos.get_mut(user).unwrap().state.sharing =
        Some(Sharing { dmabuf, origin: Origin::Exported, home: None });
    let cut = |role, kind| BoState {
        role,
        kind,
        mapped: Vec::new(),
        cpu_mapped: role == BoRole::Physical,
        ..bo(role, 1 << 20)
    };
    let range = registry.add_aligned_bo(cut(BoRole::Range, BoKind::Reserved), 1 << 20).unwrap();
    let memory = registry.add_bo(cut(BoRole::Physical, BoKind::Vram)).unwrap();
    let va = registry.bos.get(range).unwrap().state.va;
    for (page, offset, access) in [(3, 0, vec![]), (0, 1, vec![(AgentIndex(0), Access::Read)])] {
        let place =
            MapState { range, va: va + page * PAGE, bytes: PAGE, memory, offset: offset * PAGE, access };
        registry.maps.insert(place).unwrap();
    }
    registry.fixtures.wake = Some(event);
    registry
}

/// For a stateful type: what is saved is restored, and a change shows in what is saved.
macro_rules! persist_tests {
    ($name:ident, $type:ty, $make:expr, $change:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn save_restore_save_is_equal_and_a_change_shows() {
                let made: $type = $make;
                let state = made.save();
                let mut copy = <$type>::restore((), &state).unwrap();
                assert_eq!(copy.save(), state);
                let change: fn(&mut $type) = $change;
                change(&mut copy);
                assert_ne!(copy.save(), state);
            }
        }
    };
}

/// The first entry of a table of [`one_of_each`].
fn first<T: Persist<Args = (), Error = std::convert::Infallible>>(
    table: impl FnOnce(Registry) -> Table<T>,
) -> T {
    let table = table(one_of_each());
    let (_, entry) = table.iter().next().unwrap();
    T::restore((), &entry.save()).unwrap()
}

persist_tests!(buffer_object, Bo, first(|registry| registry.bos), |bo| bo.state.bytes += PAGE);
persist_tests!(event, Event, first(|registry| registry.events), |event| event.state.auto_reset = false);
persist_tests!(signal, Signal, first(|registry| registry.signals), |signal| signal.state.slot += 1);
persist_tests!(queue, Queue, first(|registry| registry.queues), |queue| queue.state.suspended = true);
persist_tests!(executable, Executable, first(|registry| registry.executables), |executable| {
    executable.code_object = Arc::from(&b"other"[..]);
});
persist_tests!(mappings, Maps, one_of_each().maps, |maps| {
    let (first, _) = maps.iter().next().unwrap();
    maps.remove(first).unwrap();
});
persist_tests!(registry, Registry, one_of_each(), |registry| {
    registry.events.iter_mut().for_each(|(_, event)| event.id += 1);
});

#[test]
fn numbers_of_the_driver_stand_in_an_image_where_they_always_did() {
    let json = serde_json::to_value(one_of_each().save()).unwrap();
    assert_eq!(json["events"]["entries"][0][1]["id"], 1);
    assert_eq!(json["queues"]["entries"][0][1]["doorbell_offset"], 8);
    assert_eq!(json["queues"]["entries"][0][1]["parked"], false);
    assert!(json.get("numbers").is_none());
}

#[test]
fn save_restore_save_is_equal() {
    let registry = one_of_each();
    let state = registry.save();
    let copy = Registry::restore((), &state).unwrap();
    assert_eq!(copy.save(), state);
    assert_eq!(copy.arena, registry.arena);
    let bytes = serde_json::to_vec(&state).unwrap();
    assert_eq!(serde_json::from_slice::<RegistryState>(&bytes).unwrap(), state);
    assert_eq!(state.maps.entries.len(), 2);
}

#[test]
fn image_without_inactive_signals_is_understood() {
    let state = one_of_each().save();
    let mut json = serde_json::to_value(&state).unwrap();
    let queue = &mut json["queues"]["entries"][0][1];
    assert!(queue.as_object_mut().unwrap().remove("inactive").is_some());
    let old: RegistryState = serde_json::from_value(json).unwrap();
    assert_eq!(old.queues.entries[0].1.inactive, None);
    Registry::restore((), &old).unwrap();
}

#[test]
fn image_of_a_time_without_host_calls_is_understood() {
    let state = one_of_each().save();
    let mut json = serde_json::to_value(&state).unwrap();
    let queue = json["queues"]["entries"][0][1].as_object_mut().unwrap();
    assert!(queue.remove("hostcall_doorbell").is_some());
    assert!(queue["bos"].as_object_mut().unwrap().remove("hostcall").is_some());
    let old: RegistryState = serde_json::from_value(json).unwrap();
    let queue = &old.queues.entries[0].1;
    assert_eq!((queue.hostcall_doorbell, queue.bos.hostcall), (None, None));
    Registry::restore((), &old).unwrap();
}

#[test]
fn image_of_a_time_without_sharing_is_understood() {
    let state = one_of_each().save();
    let mut json = serde_json::to_value(&state).unwrap();
    json["exports"] = serde_json::json!({ "entries": [], "generations": [] });
    assert!(json["bos"]["entries"][0][1].as_object_mut().unwrap().remove("sharing").is_some());
    let old: RegistryState = serde_json::from_value(json).unwrap();
    assert!(old.bos.entries.iter().all(|(_, bo)| bo.sharing.is_none()));
    Registry::restore((), &old).unwrap();
}

#[test]
fn save_after_a_change_differs() {
    let mut registry = one_of_each();
    let before = registry.save();
    registry.add_bo(bo(BoRole::User, 4096)).unwrap();
    assert_ne!(registry.save(), before);
    let before = registry.save();
    let (map, _) = registry.maps.iter().next().unwrap();
    registry.maps.get_mut(map).unwrap().state.set_access(AgentIndex(1), Access::ReadWrite);
    let granted = registry.save();
    assert_ne!(granted, before);
    registry.maps.remove(map).unwrap();
    assert_ne!(registry.save(), granted);
}

#[test]
fn restore_rejects_overlap_and_dangling_keys() {
    let good = one_of_each().save();
    let mut overlap = good.clone();
    overlap.bos.entries[1].1.va = overlap.bos.entries[0].1.va;
    assert!(matches!(Registry::restore((), &overlap), Err(RegistryError::Address { .. })));
    let mut outside = good.clone();
    outside.bos.entries[0].1.va = 0;
    assert!(matches!(Registry::restore((), &outside), Err(RegistryError::Address { .. })));
    for stale in [0, 1, 2] {
        let mut no_signal = good.clone();
        let queue = &mut no_signal.queues.entries[0].1;
        match stale {
            0 => queue.exceptions = Key::from_raw(0, 9),
            1 => queue.inactive = Some(Key::from_raw(1, 9)),
            _ => queue.hostcall_doorbell = Some(Key::from_raw(2, 9)),
        }
        let error = Registry::restore((), &no_signal).unwrap_err();
        assert_eq!(error, RegistryError::Dangling { what: "queue", index: 0, missing: "signal" });
    }
    let mut no_event = good;
    no_event.events.entries.clear();
    assert!(matches!(
        Registry::restore((), &no_event),
        Err(RegistryError::Dangling { missing: "event", .. })
    ));
}

#[test]
fn image_without_mappings_is_understood() {
    let mut json = serde_json::to_value(one_of_each().save()).unwrap();
    assert!(json.as_object_mut().unwrap().remove("maps").is_some());
    let old: RegistryState = serde_json::from_value(json).unwrap();
    assert!(Registry::restore((), &old).unwrap().maps.is_empty());
}

/// What is done to good mappings, by index.
type Change<'a> = &'a dyn Fn(&mut [(u32, MapState)]);

#[test]
fn restore_rejects_mappings_that_cannot_be() {
    let good = one_of_each().save();
    let fault = |change: Change<'_>| {
        let mut bad = good.clone();
        change(&mut bad.maps.entries);
        Registry::restore((), &bad).unwrap_err()
    };
    let map = Key::from_raw(0, 0);
    let of = |fault| RegistryError::Mapping { map, fault };
    assert_eq!(fault(&|maps| maps[0].1.bytes = 0), of(MapFault::Pages));
    assert_eq!(fault(&|maps| maps[0].1.offset += 1), of(MapFault::Pages));
    assert_eq!(fault(&|maps| maps[0].1.va += 1 << 20), of(MapFault::Range));
    assert_eq!(fault(&|maps| maps[0].1.range = maps[0].1.memory), of(MapFault::Range));
    assert_eq!(fault(&|maps| maps[0].1.offset = 1 << 20), of(MapFault::Memory));
    assert_eq!(fault(&|maps| maps[0].1.offset = !(PAGE - 1)), of(MapFault::Memory));
    assert_eq!(fault(&|maps| maps[0].1.memory = maps[0].1.range), of(MapFault::Memory));
    assert_eq!(fault(&|maps| maps[1].1.bytes = 4 * PAGE), of(MapFault::Overlap));
    assert!(matches!(
        fault(&|maps| maps[1].1.va = maps[0].1.va),
        RegistryError::Mapping { fault: MapFault::Overlap, .. }
    ));
    assert_eq!(fault(&|maps| maps[0].1.access = vec![(AgentIndex(0), Access::None)]), of(MapFault::Access));
    let twice = vec![(AgentIndex(1), Access::Read), (AgentIndex(1), Access::Read)];
    assert_eq!(fault(&|maps| maps[0].1.access = twice.clone()), of(MapFault::Access));
    for stale in [0, 1] {
        let error = fault(&|maps| match stale {
            0 => maps[1].1.range = Key::from_raw(0, 9),
            _ => maps[1].1.memory = Key::from_raw(0, 9),
        });
        assert_eq!(error, RegistryError::Dangling { what: "mapping", index: 1, missing: "buffer object" });
    }
}

#[test]
fn bo_use_names_the_holder() {
    let registry = one_of_each();
    let (queue, ring) = registry.queues.iter().map(|(k, q)| (k, q.state.bos.ring)).next().unwrap();
    assert_eq!(registry.bo_use(ring), Some(BoUse::Queue(queue)));
    let (executable, image) = registry.executables.iter().map(|(k, e)| (k, e.image)).next().unwrap();
    assert_eq!(registry.bo_use(image), Some(BoUse::Executable(executable)));
    let (map, mapping) = registry.maps.iter().next().unwrap();
    let (range, memory) = (mapping.state.range, mapping.state.memory);
    assert_eq!(
        (registry.bo_use(range), registry.bo_use(memory)),
        (Some(BoUse::Mapping(map)), Some(BoUse::Mapping(map)))
    );
    let user = registry.bos.iter().find(|(_, bo)| bo.state.role == BoRole::User).unwrap().0;
    assert_eq!(registry.bo_use(user), None);
}

#[test]
fn executable_at_finds_the_image_of_a_pc() {
    let registry = one_of_each();
    let (key, image) = registry.executables.iter().map(|(k, e)| (k, e.image)).next().unwrap();
    let va = registry.bos.get(image).unwrap().state.va;
    let (found, _, base) = registry.executable_at(va + 8191).unwrap();
    assert_eq!((found, base), (key, va));
    assert!(registry.executable_at(va + 8192).is_none());
}

#[test]
fn only_queues_of_waves_have_end_of_pipe_areas_and_on_gfx942_only_those_of_pm4() {
    let has = |name| {
        let target = Target::by_name(name).unwrap();
        [QueueKind::Aql, QueueKind::Pm4, QueueKind::Sdma { engine: None }].map(|kind| kind.has_eop(target))
    };
    assert_eq!(has("gfx1100"), [true, true, false]);
    assert_eq!(has("gfx942"), [false, true, false]);
}
