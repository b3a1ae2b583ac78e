// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that add to a bucket and collect it, end anywhere, and are taken for dead when they are not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stasis::criu::Trust;

use super::memory::{Fate, Memory};
use super::{BucketBackend, COLLECTION};
use crate::backend::Backend;
use crate::cut::Grain;
use crate::error::StoreError;
use crate::fixture::{files, noise, write};
use crate::object::Codec;
use crate::pack::PackName;
use crate::store::tests::in_bucket;
use crate::{Checkpoint, CollectOptions, Progress, Store};

const NOBODY: Progress<'static> = &|_, _| ();
const ABANDON: CollectOptions = CollectOptions { abandon: true };

fn backend(memory: &Memory, patience: Duration) -> BucketBackend {
    BucketBackend { patience, ..BucketBackend::new(Box::new(memory.clone()), "/nowhere".into()) }
}

/// Of a test that does not wait.
fn hasty(memory: &Memory) -> BucketBackend {
    backend(memory, Duration::ZERO)
}

fn name() -> PackName {
    PackName::new().unwrap()
}

#[test]
fn name_belongs_to_whoever_reserves_it_until_it_is_given_up_or_committed() {
    let memory = Memory::new();
    let (one, other) = (hasty(&memory), hasty(&memory));
    let adding = one.add("it").unwrap();
    let Err(StoreError::Adding { by, .. }) = other.add("it").map(drop) else { panic!("reserved twice") };
    assert!(by.starts_with(&format!("process {} of ", std::process::id())), "{by}");
    assert!(matches!(other.check_free("it"), Err(StoreError::Adding { .. })));
    assert!(matches!(other.remove("it"), Err(StoreError::Adding { .. })));
    assert!(other.entry("it").unwrap().is_none());
    drop(adding);
    let adding = other.add("it").unwrap();
    adding.commit(b"entry").unwrap();
    assert!(matches!(one.add("it").map(drop), Err(StoreError::Exists { .. })));
    assert_eq!(one.entry("it").unwrap().unwrap(), b"entry");
    assert!(one.remove("it").unwrap() && !one.remove("it").unwrap());
    drop(one.add("it").unwrap());
    assert!(one.names().unwrap().is_empty());
}

#[test]
fn server_that_looks_at_no_condition_is_refused() {
    let memory = Memory::new();
    hasty(&memory).make(b"mark").unwrap();
    drop(hasty(&memory).add("it").unwrap());
    memory.contents.lock().unwrap().ignores_conditions = true;
    assert!(matches!(hasty(&memory).add("it").map(drop), Err(StoreError::Unconditional { .. })));
    // It says the same as before.
    assert_eq!(hasty(&memory).mark().unwrap().unwrap().trim_ascii_end(), b"mark");
    assert!(hasty(&memory).names().unwrap().is_empty());
}

#[test]
fn collection_waits_for_additions_and_additions_for_its_decision() {
    let memory = Memory::new();
    let (one, other) = (hasty(&memory), hasty(&memory));
    let adding = one.add("it").unwrap();
    assert!(matches!(other.collect(false).map(drop), Err(StoreError::Adding { .. })));
    adding.commit(b"entry").unwrap();
    let mut collecting = other.collect(false).unwrap();
    assert!(matches!(one.add("more").map(drop), Err(StoreError::Collecting { .. })));
    assert!(matches!(one.collect(false).map(drop), Err(StoreError::Collecting { .. })));
    // Nobody is hindered while it removes what it has decided to.
    collecting.remove(&[]).unwrap();
    let adding = one.add("more").unwrap();
    drop(collecting);
    adding.commit(b"entry").unwrap();
    drop(one.collect(false).unwrap());
    let patient = backend(&memory, Duration::from_secs(60));
    let collecting = one.collect(false).unwrap();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| patient.add("third").map(drop));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!adding.is_finished());
        drop(collecting);
        adding.join().unwrap().unwrap();
    });
}

#[test]
fn addition_that_was_taken_for_dead_does_not_commit() {
    let memory = Memory::new();
    let (one, other) = (hasty(&memory), hasty(&memory));
    let adding = one.add("it").unwrap();
    adding.write(name(), b"pack").unwrap();
    let mut collecting = other.collect(true).unwrap();
    let packs: Vec<PackName> = other.packs().unwrap().into_iter().map(|(pack, _)| pack).collect();
    assert_eq!(packs.len(), 1);
    collecting.remove(&packs).unwrap();
    drop(collecting);
    // Somebody else has the name meanwhile, and keeps it.
    let third = one.add("it").unwrap();
    assert!(matches!(adding.commit(b"entry"), Err(StoreError::Superseded { .. })));
    third.commit(b"other").unwrap();
    assert_eq!(other.entry("it").unwrap().unwrap(), b"other");
}

#[test]
fn collection_that_was_taken_for_dead_neither_replaces_nor_removes() {
    let memory = Memory::new();
    let (one, other) = (hasty(&memory), hasty(&memory));
    let entry = [&crate::entry::MAGIC[..], &[7; 100]].concat();
    one.add("it").unwrap().commit(&entry).unwrap();
    let mut stale = one.collect(false).unwrap();
    let own = name();
    stale.write(own, b"pack").unwrap();
    let mut collecting = other.collect(true).unwrap();
    // What the other one sees stays as it is.
    let seen = other.entry("it").unwrap().unwrap();
    assert!(!stale.replace("it", &entry, b"replaced").unwrap());
    assert_eq!(other.entry("it").unwrap().unwrap(), seen);
    collecting.remove(&[own]).unwrap();
    assert!(matches!(stale.remove(&[own]), Err(StoreError::Superseded { .. })));
    drop(stale);
    // It has not said that nobody collects.
    let contents = |key: &str| memory.contents.lock().unwrap().objects[key].0.clone();
    assert!(String::from_utf8(contents(COLLECTION)).unwrap().starts_with(r#"{"removing""#));
    drop(collecting);
    assert!(String::from_utf8(contents(COLLECTION)).unwrap().starts_with(r#"{"idle""#));
}

/// The entry of some checkpoint.
fn entry(fill: u8) -> Vec<u8> {
    [&crate::entry::MAGIC[..], &[fill; 100]].concat()
}

#[test]
fn checkpoint_that_was_added_while_another_one_was_removed_stays() {
    let memory = Memory::new();
    hasty(&memory).add("it").unwrap().commit(&entry(1)).unwrap();
    let shared = memory.clone();
    // A first attempt has removed it, and somebody has added another one, when the second comes.
    let late = memory.seen(move |kind, key| {
        if kind == "put" {
            shared.contents.lock().unwrap().objects.insert(key.into(), (entry(2), 9));
        }
        Fate::Done
    });
    assert!(hasty(&late).remove("it").unwrap());
    assert_eq!(hasty(&memory).entry("it").unwrap().unwrap(), entry(2));
    // One that a collection has replaced is still the same.
    let renumbered = crate::entry::Entry::renumbered(&entry(2)).unwrap().unwrap();
    let (shared, made) = (memory.clone(), AtomicU64::new(0));
    let late = memory.seen(move |kind, key| {
        if kind == "put" && made.fetch_add(1, Ordering::Relaxed) == 0 {
            shared.contents.lock().unwrap().objects.insert(key.into(), (renumbered.clone(), 9));
        }
        Fate::Done
    });
    assert!(hasty(&late).remove("it").unwrap());
    assert!(hasty(&memory).entry("it").unwrap().is_none());
}

#[test]
fn commit_whose_answer_was_lost_is_found_to_be_done() {
    let memory = Memory::new();
    let lost = memory.seen(|kind, key| match (kind, key) {
        ("put", "checkpoints/it") => Fate::Unanswered,
        _ => Fate::Done,
    });
    let (own, other) = (hasty(&memory), hasty(&lost));
    // Also the reservation's answer is lost: nothing is known of it.
    assert!(matches!(other.add("it").map(drop), Err(StoreError::Remote { .. })));
    drop(own.collect(true).unwrap());
    let calls = AtomicU64::new(0);
    let lost = memory.seen(move |kind, key| match (kind, key) {
        ("put", "checkpoints/it") if calls.fetch_add(1, Ordering::Relaxed) > 1 => Fate::Unanswered,
        _ => Fate::Done,
    });
    hasty(&lost).add("it").unwrap().commit(&entry(1)).unwrap();
    assert_eq!(own.entry("it").unwrap().unwrap(), entry(1));
}

#[test]
fn collection_that_could_not_take_over_all_of_another_one_says_so() {
    let memory = Memory::new();
    let (one, other) = (hasty(&memory), hasty(&memory));
    one.add("it").unwrap().commit(&entry(1)).unwrap();
    let stale = one.collect(false).unwrap();
    let broken = memory.seen(|kind, key| match (kind, key) {
        ("put", "checkpoints/it") => Fate::Lost,
        _ => Fate::Done,
    });
    assert!(matches!(hasty(&broken).collect(true).map(drop), Err(StoreError::Remote { .. })));
    // The first one could still replace the entry: the next has to make sure that it does not.
    assert!(matches!(other.collect(false).map(drop), Err(StoreError::Collecting { .. })));
    drop(other.collect(true).unwrap());
    assert!(!stale.replace("it", &entry(1), &entry(2)).unwrap());
    drop(other.collect(false).unwrap());
}

fn checkpoint(directory: &Path, seed: u64) -> Checkpoint {
    if !directory.exists() {
        write(directory, &[noise(60_000, seed), noise(60_000, seed + 1)], &noise(1000, seed));
    }
    Checkpoint::open(directory, Trust::of_caller(), Grain::Bytes(1 << 14), NOBODY).unwrap()
}

/// What has to hold whatever has happened: all that the store says that it has is there, byte for byte.
fn check(store: &Store, temporary: &Path, contents: &BTreeMap<String, u64>) {
    for name in store.names().unwrap() {
        let to = temporary.join("to");
        match store.fetch(&name, &to, NOBODY) {
            Ok(back) => {
                let from = temporary.join(format!("c-{}", contents[&name]));
                assert_eq!(files(&back), files(&from), "{name}");
                std::fs::remove_dir_all(back).unwrap();
            }
            // It was reserved only.
            Err(StoreError::Missing { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    store.verify(NOBODY).unwrap();
}

/// A process that adds, removes and collects, whose n-th request from now is its last one.
fn killed_at(memory: &Memory, request: u64, is_answered: bool) -> Memory {
    let made = AtomicU64::new(0);
    memory.seen(move |_, _| match made.fetch_add(1, Ordering::Relaxed) {
        n if n < request => Fate::Done,
        // The last one has its effect, or not.
        n if n == request && is_answered => Fate::Unanswered,
        _ => Fate::Lost,
    })
}

#[test]
fn process_that_ends_at_any_request_leaves_a_store_that_is_whole() {
    let temporary = tempfile::tempdir().unwrap();
    let staging = temporary.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    let [base, more, last] = [0, 1, 2].map(|n| checkpoint(&temporary.path().join(format!("c-{n}")), n));
    let contents: BTreeMap<String, u64> =
        [("base", 0), ("more", 1), ("last", 2)].map(|(n, c)| (n.to_owned(), c)).into();
    let (mut request, mut ends) = (0, 0);
    loop {
        for is_answered in [false, true] {
            let memory = Memory::new();
            let store = in_bucket(&memory, &staging, Codec::default());
            store.add("base", &base, NOBODY).unwrap();
            let store_of = |memory: &Memory| Store::on_memory(memory, &staging);
            let killed = killed_at(&memory, request, is_answered);
            let work = || -> Result<(), StoreError> {
                let own = store_of(&killed)?;
                own.add("more", &more, NOBODY)?;
                own.remove("base")?;
                own.collect(CollectOptions::default())?;
                own.add("last", &last, NOBODY)?;
                Ok(())
            };
            let is_done = work().is_ok();
            check(&store, temporary.path(), &contents);
            // Whoever comes next goes on, and what was left is gone then.
            store.collect(ABANDON).unwrap();
            check(&store, temporary.path(), &contents);
            for (name, n) in [("more", &more), ("last", &last)] {
                if store.check_free(name).is_ok() {
                    store.add(name, n, NOBODY).unwrap();
                }
            }
            check(&store, temporary.path(), &contents);
            assert_eq!(store.collect(CollectOptions::default()).unwrap().removed, 0);
            if is_done {
                assert!(ends > 60, "{ends}");
                return;
            }
            ends += 1;
        }
        request += 1;
    }
}

/// How long a request waits, by a seed and its number: long enough that others make theirs in between.
fn pause(seed: u64, number: u64) -> Duration {
    let drawn = blake3::hash(&[seed.to_le_bytes(), number.to_le_bytes()].concat());
    Duration::from_micros(if drawn.as_bytes()[0] < 40 { u64::from(drawn.as_bytes()[1]) * 8 } else { 0 })
}

#[test]
fn processes_that_take_each_other_for_dead_at_any_moment_lose_no_checkpoint() {
    let trials = std::env::var("STASIS_BUCKET_TRIALS").ok().and_then(|n| n.parse().ok()).unwrap_or(12_u64);
    let temporary = tempfile::tempdir().unwrap();
    let staging = temporary.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    for n in 0..6 {
        checkpoint(&temporary.path().join(format!("c-{n}")), n);
    }
    let mut superseded = 0;
    for seed in 0..trials {
        let memory = Memory::new();
        let store = in_bucket(&memory, &staging, Codec::default());
        let contents: Mutex<BTreeMap<String, u64>> = Mutex::default();
        let committed: Mutex<Vec<String>> = Mutex::default();
        std::thread::scope(|scope| {
            for worker in 0..3_u64 {
                let (temporary, staging, memory) = (temporary.path(), &staging, &memory);
                let (contents, committed) = (&contents, &committed);
                scope.spawn(move || {
                    let made = AtomicU64::new(0);
                    let seen = memory.seen(move |_, _| {
                        std::thread::sleep(pause(seed * 3 + worker, made.fetch_add(1, Ordering::Relaxed)));
                        Fate::Done
                    });
                    let own = Store::on_memory(&seen, staging).unwrap();
                    for round in 0..3_u64 {
                        let number = (seed + worker + round) % 6;
                        let name = format!("{worker}-{round}");
                        contents.lock().unwrap().insert(name.clone(), number);
                        let from = checkpoint(&temporary.join(format!("c-{number}")), number);
                        match own.add(&name, &from, NOBODY) {
                            Ok(_) => committed.lock().unwrap().push(name.clone()),
                            Err(StoreError::Superseded { .. }) => {}
                            Err(error) => panic!("{name}: {error}"),
                        }
                        let is_kept = committed.lock().unwrap().contains(&name);
                        if round == 0 && is_kept {
                            committed.lock().unwrap().retain(|kept| *kept != name);
                            own.remove(&name).unwrap();
                        }
                        match own.collect(ABANDON) {
                            Ok(_) | Err(StoreError::Superseded { .. }) => {}
                            Err(error) => panic!("{worker}: {error}"),
                        }
                    }
                });
            }
        });
        superseded += 9 - 3 - committed.lock().unwrap().len();
        let names = store.names().unwrap();
        for name in committed.lock().unwrap().iter() {
            assert!(names.contains(name), "seed {seed}: {name} of {names:?}");
        }
        check(&store, temporary.path(), &contents.lock().unwrap());
        store.collect(ABANDON).unwrap();
        check(&store, temporary.path(), &contents.lock().unwrap());
    }
    // Otherwise they did not meet.
    assert!(superseded > 0);
}
