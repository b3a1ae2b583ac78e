// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is collected, what is written again, and what is not relied upon.

use super::*;

#[test]
fn collection_is_refused_when_an_entry_cannot_be_read() {
    let temporary = tempfile::tempdir().unwrap();
    for (n, tested) in stores(temporary.path(), &Codec::default()).into_iter().enumerate() {
        let store = &tested.store;
        for name in ["one", "two"] {
            let directory = temporary.path().join(format!("{name}-{n}"));
            write(&directory, &[noise(5000, name.len() as u64)], name.as_bytes());
            store.add(name, &open(&directory), NOBODY).unwrap();
        }
        let before = tested.packs();
        let key = format!("{CHECKPOINTS}/two");
        let whole = tested.objects()[&key].clone();
        for damaged in [&whole[..whole.len() - 1], b"S", b"STASISI2", b"STASISIX"] {
            tested.set(&key, Some(damaged));
            store.collect(CollectOptions::default()).unwrap_err();
            assert_eq!(tested.packs(), before);
        }
        tested.set(&key, Some(&whole));
        assert_eq!(collect(store).removed, 0);
        assert_eq!(tested.packs(), before);
    }
}

#[test]
fn collection_waits_for_whoever_adds_and_clears_what_ended_in_between() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("store");
    let store = create(&path, Codec::default());
    let left = path.join(INCOMING).join("1-0");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("ab"), "half of an object").unwrap();
    fs::write(path.join(PACKS).join("stray"), "no shelf").unwrap();
    let lock = store.backend.share().unwrap();
    let (own, started) = (path.clone(), std::time::Instant::now());
    let collecting = std::thread::spawn(move || {
        collect(&Store::open(&place(&own), Codec::default(), Trust::of_caller()).unwrap())
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!collecting.is_finished() && left.exists());
    drop(lock);
    let collected = collecting.join().unwrap();
    assert!(started.elapsed().as_millis() >= 50);
    assert_eq!((collected.removed, collected.removed_bytes), (1, 17));
    assert!(!left.exists());
}

#[test]
fn chunk_that_is_damaged_is_written_again_by_whoever_adds_it() {
    let temporary = tempfile::tempdir().unwrap();
    let [tested, _] = stores(temporary.path(), &Codec::default());
    let store = &tested.store;
    let checkpoint = open(&write(&temporary.path().join("c"), &[noise(100_000, 1)], b"pages"));
    store.add("first", &checkpoint, NOBODY).unwrap();
    store.verify(NOBODY).unwrap();
    for n in 0..2 {
        let (key, offset, _) = tested.longest("first");
        let mut damaged = tested.objects()[&key].clone();
        damaged[offset + 5] ^= 1;
        tested.set(&key, Some(&damaged));
        assert!(store.verify(NOBODY).is_err());
        let again = store.add(&format!("again-{n}"), &checkpoint, NOBODY).unwrap();
        // The chunk, and where it is.
        assert_eq!(again.new_chunks, 2);
        // A collection has the first use it, too.
        collect(store);
        store.verify(NOBODY).unwrap();
        assert_eq!(tested.packs(), needed(store));
        let back = store.fetch("first", &temporary.path().join(format!("back-{n}")), NOBODY).unwrap();
        assert_eq!(files(&back), files(checkpoint.path()));
    }
}

#[test]
fn packs_of_which_little_is_needed_are_written_again() {
    let temporary = tempfile::tempdir().unwrap();
    for (n, tested) in stores(temporary.path(), &codecs()[3]).into_iter().enumerate() {
        let store = &tested.store;
        let made = |name: &str, buffers: &[Vec<u8>]| {
            let directory = write(&temporary.path().join(format!("{name}-{n}")), buffers, b"pages");
            let checkpoint = open(&directory);
            store.add(name, &checkpoint, NOBODY).unwrap();
            checkpoint
        };
        made("all", &[noise(3 << 20, 1), noise(1 << 20, 2)]);
        let part = made("part", &[noise(1 << 20, 2)]);
        let more = made("more", &[noise(1 << 20, 2), noise(1 << 20, 3)]);
        // Of a store that needs all nothing is moved.
        assert_eq!(collect(store), Collected { left: tested.packs().len() as u64, ..collect(store) });
        let before = tested.packs();
        store.remove("all").unwrap();
        let collected = collect(store);
        let noise = 1 << 20;
        assert!((noise / 4 * 3..noise / 4 * 5).contains(&collected.rewritten_bytes), "{collected:?}");
        assert!(collected.removed >= 2 && collected.removed_bytes > 3 * noise, "{collected:?}");
        assert!(collected.left_bytes < 2 * noise + (200 << 10), "{collected:?}");
        assert_eq!(tested.packs(), needed(store));
        assert!(!tested.packs().iter().all(|pack| before.contains(pack)));
        for (name, checkpoint) in [("part", &part), ("more", &more)] {
            let back = store.fetch(name, &temporary.path().join(format!("back-{name}-{n}")), NOBODY).unwrap();
            assert_eq!(files(&back), files(checkpoint.path()));
        }
        // It is settled then.
        let again = collect(store);
        assert_eq!((again.removed, again.rewritten_bytes), (0, 0), "{again:?}");
    }
}

#[test]
fn packs_that_a_bucket_has_lost_are_not_relied_upon() {
    let temporary = tempfile::tempdir().unwrap();
    let [_, tested] = stores(temporary.path(), &Codec::default());
    let checkpoint = open(&write(&temporary.path().join("c"), &[noise(1 << 20, 1)], b"pages"));
    tested.store.add("one", &checkpoint, NOBODY).unwrap();
    let (key, ..) = tested.longest("one");
    for (n, left) in [Some(100), None].into_iter().enumerate() {
        let bytes = tested.objects().remove(&key).unwrap_or_default();
        tested.set(&key, left.map(|left| &bytes[..left]));
        let name = format!("other-{n}");
        tested.store.add(&name, &checkpoint, NOBODY).unwrap();
        let back = tested.store.fetch(&name, &temporary.path().join(&name), NOBODY).unwrap();
        assert_eq!(files(&back), files(checkpoint.path()));
    }
}

#[test]
fn damaged_pack_of_which_little_is_needed_keeps_no_other_one_from_being_collected() {
    let temporary = tempfile::tempdir().unwrap();
    for (n, tested) in stores(temporary.path(), &Codec::default()).into_iter().enumerate() {
        let store = &tested.store;
        let add = |name: &str, buffers: &[Vec<u8>]| {
            let checkpoint = open(&write(&temporary.path().join(format!("{name}-{n}")), buffers, b"pages"));
            store.add(name, &checkpoint, NOBODY).unwrap();
        };
        for (all, part, seed) in [("all-1", "part-1", 1), ("all-2", "part-2", 10)] {
            add(all, &[noise(3 << 20, seed), noise(1 << 20, seed + 1)]);
            add(part, &[noise(1 << 20, seed + 1)]);
        }
        let (key, offset, _) = tested.longest("part-1");
        let mut damaged = tested.objects()[&key].clone();
        damaged[offset + 9] ^= 1;
        tested.set(&key, Some(&damaged));
        store.remove("all-1").unwrap();
        store.remove("all-2").unwrap();
        let collected = collect(store);
        assert!(collected.rewritten_bytes > 3 << 18 && collected.rewritten_bytes < 5 << 18, "{collected:?}");
        assert!(tested.packs().contains(&key));
        store.fetch("part-2", &temporary.path().join(format!("back-{n}")), NOBODY).unwrap();
        store.fetch("part-1", &temporary.path().join(format!("bad-{n}")), NOBODY).unwrap_err();
    }
}

#[test]
fn copies_of_two_who_added_at_the_same_time_become_one() {
    let temporary = tempfile::tempdir().unwrap();
    let [tested, _] = stores(temporary.path(), &Codec::default());
    let checkpoint = open(&write(&temporary.path().join("c"), &[noise(1 << 20, 1)], b"pages"));
    tested.store.add("one", &checkpoint, NOBODY).unwrap();
    // The second does not see the first.
    let entry = format!("{CHECKPOINTS}/one");
    let bytes = tested.objects()[&entry].clone();
    tested.set(&entry, None);
    tested.store.add("two", &checkpoint, NOBODY).unwrap();
    tested.set(&entry, Some(&bytes));
    let collected = collect(&tested.store);
    assert!(collected.removed_bytes > 1 << 20 && collected.left_bytes < 3 << 19, "{collected:?}");
    for name in ["one", "two"] {
        let back = tested.store.fetch(name, &temporary.path().join(name), NOBODY).unwrap();
        assert_eq!(files(&back), files(checkpoint.path()));
    }
}
