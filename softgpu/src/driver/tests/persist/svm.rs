// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory in saved states: what came of save areas, and values that no process can have.

use kfd::sys::*;
use serde_json::Value;

use super::super::queues::BASE;
use super::super::svm::{ACCESS, NO_ACCESS, PAGE, get, give, new, queue_with_range, set, unchanged};
use super::round_trip::{RANGES, busy};
use super::*;
use crate::driver::KernelModel;
use crate::driver::ledger::Resource;
use crate::persist::Part;
use crate::sysfs::GpuModel;

fn ready() -> Client {
    let client = Client::with_svm("gfx1100*2");
    client.acquire(0);
    client.acquire(1);
    client
}

/// A client with a queue whose save area is a range: address and bytes of the area, and the queue.
fn with_queue() -> (Client, u64, u64, u32) {
    let client = ready();
    let (mut args, bytes) = queue_with_range(&client, BASE, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED);
    let queue = client.create(&mut args).unwrap();
    (client, args.ctx_save_restore_address, bytes, queue)
}

/// Saves, restores, and saves the restored process, which must have the same state.
fn again(client: &Client) -> Client {
    let (state, memories) = save(client);
    let after = restore(client, &state, &memories).unwrap();
    assert_eq!(after.process.save().unwrap().0, state);
    after.process.resume().unwrap();
    after
}

fn lose_access(client: &Client, va: u64, bytes: u64) {
    set(client, va, bytes / PAGE, &[(NO_ACCESS, client.id(0))], unchanged(bytes)).unwrap();
}

#[test]
fn save_area_stays_mapped_for_its_queue_alone() {
    let (client, area, bytes, queue) = with_queue();
    lose_access(&client, area, bytes);
    let after = again(&client);
    assert_eq!(after.hardware.running.lock().len(), 1);
    after.hardware.take();
    lose_access(&after, area, bytes);
    assert_eq!(after.hardware.take(), []);
    after.destroy(queue).unwrap();
    // Nobody has taken it from the GPU yet.
    let after = again(&after);
    after.hardware.take();
    lose_access(&after, area, bytes);
    assert_eq!(after.hardware.take(), [Step::Unmap { gpu: 0, va: area, bytes }]);
}

#[test]
fn range_where_a_save_area_was_is_no_part_of_it() {
    let (client, area, bytes, queue) = with_queue();
    // The last page goes, and a range begins there that ends behind the area.
    let last = area + bytes - PAGE;
    client.process.svm_unmapped(last, PAGE).unwrap();
    give(&client, last, 2, 0);
    let after = again(&client);
    assert_eq!(after.hardware.running.lock().len(), 0, "evicted for good");
    after.hardware.take();
    lose_access(&after, last, 2 * PAGE);
    assert_eq!(after.hardware.take(), [Step::Unmap { gpu: 0, va: last, bytes: 2 * PAGE }]);
    after.destroy(queue).unwrap();
    again(&after);
}

#[test]
fn restored_process_knows_its_kernel_whatever_the_machines_is() {
    let client = ready();
    give(&client, RANGES, 1, 1);
    let (state, memories) = save(&client);
    let plain: Arc<[GpuModel]> = GpuModel::parse_spec("gfx1100*2").unwrap().into();
    let without = Client::under(KernelModel::V7_3, Arc::clone(&plain), ledger_of(&plain));
    let after = restore(&without, &state, &memories).unwrap();
    assert_eq!(get(&after, RANGES, 1, &[(ACCESS, client.id(1))]), Ok(vec![(ACCESS, client.id(1))]));
    let (state, memories) = save(&without);
    let after = restore(&client, &state, &memories).unwrap();
    assert_eq!(set(&after, RANGES, 1, &[], new(PAGE)), Err(nix::errno::Errno::EPERM));
}

#[test]
fn values_that_no_range_can_have_are_refused() {
    let before = busy(KernelModel::V7_3);
    let (state, memories) = save(&before.client);
    let tree = serde_json::to_value(&state).unwrap();
    let ranges = tree["ranges"].as_array().unwrap();
    let at = |start: u64| ranges.iter().position(|range| range["start"] == start).unwrap();
    let (first, bare) = (at(RANGES), at(RANGES + 6 * PAGE));
    let area = ranges.iter().position(|range| range["queues"] == 1).unwrap();
    let ranged = tree["queues"].as_array().unwrap().iter().position(|queue| queue["in_svm"] == true).unwrap();
    let ledger = ledger_of(&before.client.gpus);
    let with = |pointer: &str, value: Value| {
        let mut changed = tree.clone();
        *changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let state = serde_json::from_value(changed).unwrap();
        let restored = restore_with(&before.client, &ledger, &state, &memories).map(drop);
        assert!(restored.is_err(), "{pointer}");
        assert_eq!(ledger.used(Resource::System), 0, "{pointer}");
        ledger.clear(0).unwrap();
        restored.unwrap_err()
    };
    let of_first = |field: &str| format!("/ranges/{first}/{field}");
    let is_damage = |error: PersistError, wanted: Part| match error {
        PersistError::Damaged { part, .. } => assert_eq!(part, wanted),
        other => panic!("{other}"),
    };
    for (field, value) in [
        ("start", 0),
        ("start", RANGES + 1),
        ("start", RANGES + 4096),
        ("start", u64::MAX - 4095),
        ("bytes", 0),
        ("bytes", 4095),
        ("bytes", 8192),
        ("attributes/preferred", 77),
        ("attributes/prefetch", 77),
        ("attributes/granularity", 64),
        ("attributes/access", 4),
        ("attributes/in_place", 1),
        ("attributes/in_place", 2),
        ("mapped", 0),
        ("mapped", 4 | 1),
        ("mapped", 2),
        ("queues", 1),
    ] {
        is_damage(with(&of_first(field), value.into()), Part::Range);
    }
    is_damage(with(&of_first("memory"), Value::Null), Part::Range);
    is_damage(with(&format!("/ranges/{bare}/mapped"), 1.into()), Part::Range);
    is_damage(with(&format!("/ranges/{area}/queues"), 2.into()), Part::Range);
    // Outside of the memory, or in none.
    for (field, value) in [("memory/offset", 1u64), ("memory/offset", 1 << 40), ("memory/memory", 999)] {
        is_damage(with(&of_first(field), value.into()), Part::Memory);
    }
    is_damage(with("/has_svm", false.into()), Part::Range);
    is_damage(with(&format!("/queues/{ranged}/in_svm"), false.into()), Part::Queue);
    let other = (ranged + 1) % 2;
    is_damage(with(&format!("/queues/{other}/in_svm"), true.into()), Part::Queue);
}

#[test]
fn range_that_the_hardware_does_not_map_leaves_nothing() {
    let client = ready();
    give(&client, RANGES, 2, 0);
    let (state, memories) = save(&client);
    let ledger = ledger_of(&client.gpus);
    let spare = ledger.claim(9).unwrap();
    let left = ledger.capacity(Resource::System) - PAGE;
    spare.reserve(Resource::System, left).unwrap();
    match restore_with(&client, &ledger, &state, &memories) {
        Err(PersistError::Exhausted { resource: Resource::System, amount }) => assert_eq!(amount, 2 * PAGE),
        other => panic!("{:?}", other.map(drop)),
    }
    spare.release(Resource::System, left);
    assert_eq!(ledger.used(Resource::System), 0);
    let hardware = Arc::new(client.hardware.heir());
    hardware.refuse_map.store(true, std::sync::atomic::Ordering::Relaxed);
    let options = ProcessOptions {
        gpus: Arc::clone(&client.gpus),
        hardware: hardware.clone(),
        slot: ledger.claim(3).unwrap(),
        kernel: KernelModel::V7_3,
        pid: PID,
    };
    match KfdProcess::restore(options, &state, &memories) {
        Err(PersistError::Map { gpu: 0, va: RANGES, .. }) => {}
        other => panic!("{:?}", other.map(drop)),
    }
    assert_eq!(ledger.used(Resource::System), 0);
}
