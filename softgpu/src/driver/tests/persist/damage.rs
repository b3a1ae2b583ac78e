// SPDX-License-Identifier: MIT OR Apache-2.0
//! States that no process had: each is refused, or makes a process that can do everything a process can.

use std::collections::HashMap;

use kfd::sys::*;
use serde_json::Value;

use super::super::queues::BASE;
use super::round_trip::{Busy, busy};
use super::*;
use crate::driver::KernelModel;
use crate::driver::ledger::Resource;
use crate::persist::Part;

/// A machine on which states are tried, and how many were accepted.
struct Trial {
    busy: Busy,
    memories: Memories,
    state: ProcessState,
    ledger: Ledger,
    accepted: usize,
    refused: usize,
}

impl Trial {
    fn new() -> Self {
        let busy = busy(KernelModel::V7_3);
        let (state, memories) = save(&busy.client);
        let ledger = ledger_of(&busy.client.gpus);
        Self { busy, memories, state, ledger, accepted: 0, refused: 0 }
    }

    fn restore(&self, state: &ProcessState) -> Result<Client, PersistError> {
        restore_with(&self.busy.client, &self.ledger, state, &self.memories)
    }

    /// Restores the state; a process that comes out of it is used.
    fn run(&mut self, state: &ProcessState) {
        match self.restore(state) {
            Ok(client) => {
                self.accepted += 1;
                let again = client.process.save().unwrap().0;
                // What was saved is in the order of the numbers, so that it comes back as the same.
                use_up(&client);
                drop(client);
                self.ledger.clear(0).unwrap();
                let twin = self.restore(&again).unwrap();
                assert_eq!(twin.process.save().unwrap().0, again);
                drop(twin);
            }
            Err(_) => {
                self.refused += 1;
                let left = [Resource::Vram(0), Resource::Queues(0), Resource::System, Resource::Ttm];
                assert_eq!(left.map(|resource| self.ledger.used(resource)), [0; 4]);
            }
        }
        self.ledger.clear(0).unwrap();
    }
}

/// Makes one more of everything and takes all away.
fn use_up(client: &Client) {
    let process = &client.process;
    let _ = process.resume();
    process.pause(soon()).unwrap();
    process.saved_waves();
    let _ = process.resume();
    process.open("/dev/dri/renderD128").unwrap();
    let event = client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    let _ = client.wait(&[(event, 0), (1, 3)], false, 0).result;
    process.lose_queues(1);
    if let Ok(handle) = client.alloc(0, BASE + 0x2_0000_0000, 4096, GTT) {
        let _ = client.map(handle, 0);
    }
    let (queues, ranges, buffers) = {
        let state = process.state.lock();
        let queues: Vec<u32> = state.queues.iter().map(|(id, _)| id).collect();
        let of = |(gpu, pdd): (usize, &crate::driver::process::Pdd)| {
            let of_gpu = pdd.bos.iter().map(|(index, bo)| (gpu, index, bo.mapped, bo.mmap_offset));
            of_gpu.collect::<Vec<_>>()
        };
        let ranges: Vec<(u64, u64)> = state.svm.iter().map(|(start, range)| (start, range.end)).collect();
        (queues, ranges, state.pdds.iter().enumerate().flat_map(of).collect::<Vec<_>>())
    };
    queues.into_iter().for_each(|id| assert_eq!(client.destroy(id), Ok(0)));
    for (start, end) in ranges {
        let unchanged = vec![crate::driver::UserPages::Unchanged { bytes: end - start }];
        let _ = client.svm(KFD_IOCTL_SVM_OP_SET_ATTR, (start, end - start), &mut [], unchanged);
    }
    process.svm_unmapped(0, 1 << 47).unwrap();
    for (gpu, index, mapped, offset) in buffers {
        let handle = u64::from(process.user_id(gpu)) << 32 | u64::from(index);
        let files = process.open_files();
        files.iter().for_each(|file| drop(process.mmap(file, 4096, offset)));
        for gpu in (0..2).filter(|gpu| mapped & 1 << gpu != 0) {
            let _ = client.unmap_list(handle, &[client.id(gpu)], 0);
        }
        let _ = client.free(handle);
    }
}

/// Where a value is in a tree.
type Path = Vec<String>;

/// All numbers, truth values and lists of a tree.
fn walk(value: &Value, path: &Path, found: &mut Vec<Path>) {
    let mut below = |step: String, value: &Value| {
        let mut path = path.clone();
        path.push(step);
        walk(value, &path, found);
    };
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| below(at.to_string(), item));
            found.push(path.clone());
        }
        Value::Object(fields) => fields.iter().for_each(|(name, field)| below(name.clone(), field)),
        Value::Number(_) | Value::Bool(_) | Value::Null => found.push(path.clone()),
        Value::String(_) => {}
    }
}

fn at<'a>(tree: &'a mut Value, path: &Path) -> &'a mut Value {
    let pointer: String = path.iter().map(|step| format!("/{step}")).collect();
    tree.pointer_mut(&pointer).unwrap()
}

/// What is tried in place of a value.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![Value::Bool(!flag)],
        Value::Null => vec![0.into(), 1.into(), u64::MAX.into()],
        Value::Number(number) => {
            let number = number.as_u64().unwrap();
            let near = [number.wrapping_add(1), number.wrapping_sub(1), number ^ 4096];
            let far = [0, u64::from(u32::MAX), u64::MAX - 4095];
            near.into_iter().chain(far).map(Value::from).collect()
        }
        Value::Array(items) => {
            let without = |at: usize| Value::Array([&items[..at], &items[at + 1..]].concat());
            let mut lists = vec![Value::Array(Vec::new())];
            if let (Some(first), Some(last)) = (items.first(), items.last()) {
                lists.extend([without(0), without(items.len() - 1)]);
                let twice = |item: &Value| Value::Array([&items[..], std::slice::from_ref(item)].concat());
                lists.extend([
                    twice(first),
                    twice(last),
                    Value::Array(items.iter().rev().cloned().collect()),
                ]);
            }
            lists
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_number_is_checked() {
    let mut trial = Trial::new();
    // The descriptors are left alone: they are many numbers.
    let mut state = trial.state.clone();
    let descriptors: HashMap<u32, _> =
        state.descriptors_mut().map(|(id, parts)| (id, std::mem::take(parts))).collect();
    let whole = |mut state: ProcessState| {
        for (id, parts) in state.descriptors_mut() {
            *parts = descriptors.get(&id).cloned().unwrap_or_default();
        }
        state
    };
    let tree = serde_json::to_value(&state).unwrap();
    let mut paths = Vec::new();
    walk(&tree, &Vec::new(), &mut paths);
    for (number, path) in paths.iter().enumerate() {
        let mut changed = tree.clone();
        let others = others(at(&mut changed, path));
        // A third of them at each place, other ones at the next.
        for other in others.into_iter().skip(number % 3).step_by(3) {
            *at(&mut changed, path) = other;
            // What does not fit its type is refused before.
            if let Ok(state) = serde_json::from_value::<ProcessState>(changed.clone()) {
                trial.run(&whole(state));
            }
        }
    }
    assert!(paths.len() > 500, "{} places", paths.len());
    assert!(trial.refused > 300 && trial.accepted > 100, "{} {}", trial.refused, trial.accepted);
}

#[test]
fn bytes_that_changed_on_the_way_do_no_harm() {
    let mut trial = Trial::new();
    // Short descriptors leave more to change.
    let mut brief = trial.state.clone();
    brief.descriptors_mut().flat_map(|(_, parts)| parts).for_each(|part| part.truncate(16));
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % end as u64).unwrap()
    };
    for state in [trial.state.clone(), brief] {
        let bytes = postcard::to_stdvec(&state).unwrap();
        for _ in 0..600 {
            let mut changed = bytes.clone();
            for _ in 0..=draw(3) {
                let place = draw(changed.len());
                match draw(4) {
                    0 => changed.truncate(place + 1),
                    1 => changed[place] = 0xff,
                    _ => changed[place] ^= 1 << draw(8),
                }
            }
            if let Ok(state) = postcard::from_bytes::<ProcessState>(&changed) {
                trial.run(&state);
            }
        }
    }
    assert!(trial.refused > 50, "{} {}", trial.refused, trial.accepted);
}

#[test]
fn errors_name_what_is_wrong() {
    let trial = Trial::new();
    let tree = serde_json::to_value(&trial.state).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut changed = tree.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        trial.restore(&serde_json::from_value(changed).unwrap()).map(drop).unwrap_err()
    };
    let damaged = |error: PersistError| match error {
        PersistError::Damaged { part, .. } => part,
        other => panic!("{other}"),
    };
    assert_eq!(damaged(with("/backings/0/runs/0/memory", 999.into())), Part::Memory);
    assert_eq!(damaged(with("/backings/0/bytes", 1.into())), Part::Backing);
    assert_eq!(damaged(with("/files/0/id", 0.into())), Part::File);
    assert_eq!(damaged(with("/gpus/0/buffers/1/backing", 0.into())), Part::Buffer);
    assert_eq!(damaged(with("/gpus/0/render", Value::Null)), Part::Gpu);
    assert_eq!(damaged(with("/handles/0/file", 1.into())), Part::Handle);
    assert_eq!(damaged(with("/contexts/0/slot", 5000.into())), Part::Context);
    assert_eq!(damaged(with("/queues/0/properties/ring_bytes", 3.into())), Part::Queue);
    assert_eq!(damaged(with("/ranges/0/start", 1.into())), Part::Range);
    assert_eq!(damaged(with("/events/0/id", 5000.into())), Part::Event);
    assert_eq!(damaged(with("/event_page/Client/handle", 5.into())), Part::EventPage);
    assert_eq!(damaged(with("/opened", u64::MAX.into())), Part::Counter);
    // Two buffers at one address.
    let va = tree.pointer("/gpus/0/buffers/0/va").unwrap().clone();
    assert!(matches!(with("/gpus/0/buffers/1/va", va), PersistError::Map { gpu: 0, .. }));
    let memories = tree["memories"].as_array().unwrap();
    let page = memories.iter().position(|memory| memory["bytes"] == 32768).unwrap();
    let error = with(&format!("/memories/{page}/name"), "other".into());
    assert_eq!(error.to_string(), "The memory \"other\" of 32768 bytes was not given");
    let error = with(&format!("/memories/{page}/bytes"), 4096.into());
    assert!(matches!(error, PersistError::MemorySize { bytes: 4096, found: 32768, .. }), "{error}");
}
