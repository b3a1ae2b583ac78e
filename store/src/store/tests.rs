// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks are kept once, come back as they were, and are never lost while a checkpoint has them.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::fixture::{files, noise, write};
use crate::key::Key;
use crate::{Checkpoint, Compression, Progress};

const NOBODY: Progress<'static> = &|_, _| ();

/// Cut as a store does it.
fn open(directory: &Path) -> Checkpoint {
    Checkpoint::open(directory, Trust::of_caller(), Grain::Bytes(CHUNK_BYTES), NOBODY).unwrap()
}

fn create(path: &Path, codec: Codec) -> Store {
    Store::create(path, codec, Trust::of_caller(), None).unwrap()
}

fn codecs() -> [Codec; 4] {
    let sealed = |compression| Codec { compression, key: Some(Key::new(&[5; 32])) };
    let plain = |compression| Codec { compression, key: None };
    [plain(Compression::None), plain(Compression::Lz4), plain(Compression::Zstd), sealed(Compression::Zstd)]
}

fn objects(store: &Store) -> u64 {
    let shelves = fs::read_dir(store.path.join(CHUNKS)).unwrap();
    shelves.map(|shelf| fs::read_dir(shelf.unwrap().path()).unwrap().count() as u64).sum()
}

#[test]
fn checkpoints_come_back_byte_for_byte_whatever_the_codec() {
    for (n, codec) in codecs().into_iter().enumerate() {
        let temporary = tempfile::tempdir().unwrap();
        let buffers = [noise(3 << 20, 1), b"the same ".repeat(100_000), vec![0; 1 << 20]];
        let checkpoint = open(&write(&temporary.path().join("c"), &buffers, &noise(200_000, 2)));
        let store = create(&temporary.path().join("store"), codec);
        let added = store.add("first", &checkpoint, NOBODY).unwrap();
        // The index is kept in chunks, too.
        let pieces = store.pieces("first").unwrap();
        let all = added.chunks + pieces.len() as u64;
        assert_eq!((added.new_chunks, added.file_bytes), (all, checkpoint.index().file_bytes()));
        assert_eq!(added.new_bytes < added.chunk_bytes, n > 0, "{added:?}");
        let back = store.fetch("first", &temporary.path().join("back"), NOBODY).unwrap();
        assert_eq!(files(&back), files(checkpoint.path()));
        assert_eq!(store.verify(NOBODY).unwrap().0, all);
        // Nothing of a sealed store tells what is in it.
        let text: Vec<u8> = files(&store.path).into_values().flatten().collect();
        let has = |words: &[u8]| text.windows(words.len()).any(|window| window == words);
        assert_eq!(has(b"registers"), store.codec.key.is_none());
        let name = store.codec.name(&checkpoint.index().chunks[0].hash);
        assert!(store.object_path(&name).exists());
        assert_eq!(name == checkpoint.index().chunks[0].hash, store.codec.key.is_none());
    }
}

#[test]
fn second_of_two_that_are_nearly_the_same_costs_what_differs() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let mut pages = noise(4 << 20, 2);
    let buffers = vec![noise(20 << 20, 1)];
    let first = open(&write(&temporary.path().join("first"), &buffers, &pages));
    let one = store.add("first", &first, NOBODY).unwrap();
    pages.splice(1 << 20..1 << 20, noise(4096, 9));
    let second = open(&write(&temporary.path().join("second"), &buffers, &pages));
    let two = store.add("second", &second, NOBODY).unwrap();
    assert!(two.new_bytes * 20 < one.new_bytes, "{one:?} {two:?}");
    let listed = store.list().unwrap();
    assert_eq!(listed.iter().map(|kept| kept.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert!(listed.iter().all(|kept| kept.own_bytes > 0 && kept.own_bytes < 1 << 20), "{listed:?}");
}

#[test]
fn names_are_given_once_and_are_no_paths() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let checkpoint = open(&write(&temporary.path().join("c"), &[noise(5000, 1)], b"pages"));
    store.add("a.b-c_9", &checkpoint, NOBODY).unwrap();
    assert!(matches!(store.add("a.b-c_9", &checkpoint, NOBODY), Err(StoreError::Exists { .. })));
    for name in ["", ".", "..", ".hidden", "a/b", "../x", "a b", "-x", "a\n", &"x".repeat(129)] {
        assert!(matches!(store.add(name, &checkpoint, NOBODY), Err(StoreError::Name { .. })), "{name}");
        assert!(store.fetch(name, &temporary.path().join("to"), NOBODY).is_err());
        assert!(store.remove(name).is_err());
    }
    let error = store.fetch("other", &temporary.path().join("to"), NOBODY).unwrap_err().to_string();
    assert!(error.contains("it has a.b-c_9"), "{error}");
}

#[test]
fn damaged_objects_are_named_and_nothing_comes_of_them() {
    let temporary = tempfile::tempdir().unwrap();
    for (n, codec) in codecs().into_iter().enumerate() {
        let store = create(&temporary.path().join(format!("store-{n}")), codec);
        let checkpoint =
            open(&write(&temporary.path().join(format!("c-{n}")), &[noise(3 << 20, 1)], b"pages"));
        store.add("it", &checkpoint, NOBODY).unwrap();
        let longest = checkpoint.index().chunks.iter().max_by_key(|chunk| chunk.bytes).unwrap();
        let path = store.object_path(&store.codec.name(&longest.hash));
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[1000] ^= 4;
        let to = temporary.path().join(format!("to-{n}"));
        for bytes in [Some(&damaged[..]), Some(&whole[..whole.len() - 1]), Some(b""), None] {
            match bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert!(matches!(store.verify(NOBODY), Err(StoreError::Object { .. })));
            assert!(matches!(store.fetch("it", &to, NOBODY), Err(StoreError::Object { .. })));
            assert!(!to.exists());
        }
        // What was there already is used.
        fs::write(&path, &whole).unwrap();
        assert_eq!(files(&store.fetch("it", &to, NOBODY).unwrap()), files(checkpoint.path()));
    }
}

#[test]
fn file_that_was_changed_is_not_added() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let directory = write(&temporary.path().join("c"), &[noise(3 << 20, 1)], b"pages");
    let checkpoint = open(&directory);
    let image = directory.join("runtime-0.img");
    let mut bytes = fs::read(&image).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&image, bytes).unwrap();
    let error = store.add("it", &checkpoint, NOBODY).unwrap_err();
    assert!(
        matches!(error, StoreError::Changed { .. }) && error.to_string().contains("runtime-0.img"),
        "{error}"
    );
    assert_eq!(
        (store.names().unwrap().len(), fs::read_dir(store.path.join(INCOMING)).unwrap().count()),
        (0, 0)
    );
}

#[test]
fn collection_is_refused_when_an_index_cannot_be_read() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    for name in ["one", "two"] {
        let directory =
            write(&temporary.path().join(name), &[noise(5000, name.len() as u64)], name.as_bytes());
        store.add(name, &open(&directory), NOBODY).unwrap();
    }
    let before = objects(&store);
    let place = store.place_of("two");
    let whole = fs::read(&place).unwrap();
    for damaged in [&whole[..whole.len() - 1], b"", b"STASISIX"] {
        fs::write(&place, damaged).unwrap();
        store.collect().unwrap_err();
        assert_eq!(objects(&store), before);
    }
    fs::write(&place, &whole).unwrap();
    assert_eq!(store.collect().unwrap().removed, 0);
}

#[test]
fn collection_waits_for_whoever_adds_and_clears_what_ended_in_between() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let left = store.path.join(INCOMING).join("1-0");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("ab"), "half of an object").unwrap();
    fs::write(store.path.join(CHUNKS).join("stray"), "no shelf").unwrap();
    let lock = store.lock(FlockArg::LockShared).unwrap();
    let (path, started) = (store.path.clone(), std::time::Instant::now());
    let collecting = std::thread::spawn(move || {
        let store = Store::open(&path, Codec::default(), Trust::of_caller()).unwrap();
        store.collect().unwrap()
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
fn staging_directories_go_unless_somebody_works_there_or_the_store_lacks_what_is_in_them() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let stage = |kind| store.stage(kind).unwrap();
    drop(stage(StagingKind::In));
    assert_eq!(fs::read_dir(store.path.join(STAGING)).unwrap().count(), 0);
    let at_work = stage(StagingKind::Out);
    let (complete, incomplete, fetched) =
        (stage(StagingKind::In), stage(StagingKind::In), stage(StagingKind::Out));
    let [complete, incomplete, fetched] = [complete, incomplete, fetched].map(|staging| {
        let place = staging.checkpoint();
        staging.keep();
        place
    });
    write(&complete, &[noise(5000, 1)], b"pages");
    fs::create_dir(&incomplete).unwrap();
    write(&fetched, &[noise(5000, 1)], b"pages");
    store.collect().unwrap();
    assert!(complete.join("manifest.json").exists() && at_work.checkpoint().parent().unwrap().exists());
    assert!(!incomplete.exists() && !fetched.exists());
    store.add("it", &open(&complete), NOBODY).unwrap();
}

#[test]
fn object_that_is_damaged_is_written_again_by_whoever_adds_it() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let checkpoint = open(&write(&temporary.path().join("c"), &[noise(100_000, 1)], b"pages"));
    store.add("first", &checkpoint, NOBODY).unwrap();
    let all = store.verify(NOBODY).unwrap();
    for damage in [&b""[..], b"\0other"] {
        fs::write(store.object_path(&store.codec.name(&checkpoint.index().chunks[0].hash)), damage).unwrap();
        assert!(store.verify(NOBODY).is_err());
        let again = store.add(&format!("again-{}", damage.len()), &checkpoint, NOBODY).unwrap();
        assert_eq!(again.new_chunks, 1);
        assert_eq!(store.verify(NOBODY).unwrap(), all);
    }
}

#[test]
fn several_who_add_and_collect_at_the_same_time_lose_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("store");
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (path, temporary) = (&path, &temporary);
            scope.spawn(move || {
                // All make it, if it is not there.
                let store = create(path, Codec::default());
                for round in 0..6 {
                    let name = format!("{worker}-{round}");
                    let directory = temporary.path().join(&name);
                    let checkpoint =
                        open(&write(&directory, &[noise(9000, round), noise(9000, 100 + worker)], b"pages"));
                    store.add(&name, &checkpoint, NOBODY).unwrap();
                    if round % 2 == 0 {
                        store.remove(&name).unwrap();
                    }
                    store.collect().unwrap();
                }
            });
        }
    });
    let store = create(&path, Codec::default());
    assert_eq!(store.names().unwrap().len(), 12);
    store.verify(NOBODY).unwrap();
    for name in store.names().unwrap() {
        let back = store.fetch(&name, &temporary.path().join(format!("back-{name}")), NOBODY).unwrap();
        assert_eq!(files(&back), files(&temporary.path().join(&name)));
    }
}

#[test]
fn store_that_somebody_was_killed_in_making_is_made_and_links_lead_nowhere() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("store");
    fs::create_dir(&path).unwrap();
    for directory in [CHUNKS, INCOMING, "incoming/1-0"] {
        DirBuilder::new().mode(0o700).create(path.join(directory)).unwrap();
    }
    fs::write(path.join("incoming/1-0/pending"), "half a mark").unwrap();
    let store = create(&path, Codec::default());
    store.collect().unwrap();
    let elsewhere = temporary.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("mine"), "").unwrap();
    for directory in DIRECTORIES {
        let place = path.join(directory);
        fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &place).unwrap();
        let error = Store::open(&path, Codec::default(), Trust::of_caller()).unwrap_err();
        assert!(matches!(error, StoreError::Manifest(_)), "{error}");
        fs::remove_file(&place).unwrap();
        DirBuilder::new().mode(0o700).create(&place).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.join("new"), path.join("locks")).unwrap();
    fs::rename(path.join("locks"), path.join(LOCK_FILE)).unwrap();
    assert!(store.collect().is_err() && !elsewhere.join("new").exists());
    assert!(elsewhere.join("mine").exists());
}

#[test]
fn directory_that_is_no_store_and_other_keys_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let sealed = |byte| Codec { key: Some(Key::new(&[byte; 32])), ..Codec::default() };
    let open = |codec| Store::open(&path, codec, Trust::of_caller());
    assert!(matches!(open(Codec::default()), Err(StoreError::NotAStore { .. })));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("mine"), "").unwrap();
    assert!(matches!(
        Store::create(&path, Codec::default(), Trust::Anyone, None),
        Err(StoreError::NotAStore { .. })
    ));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    fs::remove_file(path.join("mine")).unwrap();
    create(&path, sealed(1));
    open(sealed(1)).unwrap();
    for codec in [sealed(2), Codec::default()] {
        assert!(matches!(open(codec), Err(StoreError::OtherKey(_))));
    }
    fs::write(path.join(MARK_FILE), "{\"version\": 2, \"chunk_bytes\": 65536}").unwrap();
    assert!(open(sealed(1)).unwrap_err().to_string().contains("version is 2"));
}

#[test]
fn checkpoints_of_strangers_are_not_taken() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let store = create(&path, Codec::default());
    store.add("it", &open(&write(&temporary.path().join("c"), &[noise(5000, 1)], b"pages")), NOBODY).unwrap();
    let stranger = Trust::Users(vec![nix::unistd::geteuid().as_raw() + 1]);
    let error = Store::open(&path, Codec::default(), stranger);
    assert!(matches!(error, Err(StoreError::Manifest(_))), "{error:?}");
}

#[test]
fn store_keeps_the_length_of_chunks_that_it_was_made_with() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let made = |bytes| Store::create(&path, Codec::default(), Trust::of_caller(), bytes);
    assert!(made(Some(3000)).unwrap_err().to_string().contains("3000 bytes are not possible"));
    assert!(!path.exists());
    assert_eq!(made(Some(8192)).unwrap().grain(), Grain::Bytes(8192));
    assert_eq!(made(None).unwrap().grain(), Grain::Bytes(8192));
    assert!(made(Some(4096)).unwrap_err().to_string().contains("8192"));
    // A buffer of which a few bytes differ costs little, wherever they are.
    let store = made(None).unwrap();
    let mut buffer = noise(4 << 20, 1);
    let cut = |name: &str, buffer: &[u8]| {
        let directory = write(&temporary.path().join(name), &[buffer.to_vec()], b"pages");
        Checkpoint::open(&directory, Trust::of_caller(), store.grain(), NOBODY).unwrap()
    };
    store.add("one", &cut("one", &buffer), NOBODY).unwrap();
    buffer[1 << 20] ^= 1;
    let added = store.add("other", &cut("other", &buffer), NOBODY).unwrap();
    assert!(added.new_bytes < 200 << 10, "{added:?}");
    assert_eq!(
        files(&store.fetch("one", &temporary.path().join("back"), NOBODY).unwrap()),
        files(&temporary.path().join("one"))
    );
}

/// What is done with a store.
#[derive(Clone, Debug)]
enum Act {
    Add(u8, u8),
    Remove(u8),
    Collect,
    /// An addition that ended before its end.
    Leave(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..4_u8, 0..6_u8).prop_map(|(name, contents)| Act::Add(name, contents)),
        (0..4_u8).prop_map(Act::Remove),
        Just(Act::Collect),
        (0..6_u8).prop_map(Act::Leave),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// Whatever is added, removed and collected in whatever order: what the store says that it has is there, byte for byte, and after
    /// a collection nothing else.
    #[test]
    fn what_a_checkpoint_has_is_never_collected(acts in proptest::collection::vec(act(), 1..16)) {
        let temporary = tempfile::tempdir().unwrap();
        let store = create(&temporary.path().join("store"), Codec::default());
        let contents = |n: u8| {
            let directory = temporary.path().join(format!("contents-{n}"));
            if !directory.exists() {
                // Each has a buffer in common with the next.
                let buffers = [noise(5000, n.into()), noise(5000, u64::from(n) + 1)];
                write(&directory, &buffers, &noise(1000, 100 + u64::from(n)));
            }
            open(&directory)
        };
        let mut model: BTreeMap<String, u8> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Add(name, n) => {
                    let name = format!("name-{name}");
                    let added = store.add(&name, &contents(n), NOBODY);
                    prop_assert_eq!(added.is_ok(), !model.contains_key(&name));
                    model.entry(name).or_insert(n);
                }
                Act::Remove(name) => {
                    let name = format!("name-{name}");
                    prop_assert_eq!(store.remove(&name).is_ok(), model.remove(&name).is_some());
                }
                Act::Leave(n) => {
                    store.add("left", &contents(n), NOBODY).unwrap();
                    fs::remove_file(store.place_of("left")).unwrap();
                }
                Act::Collect => {
                    store.collect().unwrap();
                    let mut wanted = HashSet::new();
                    for (name, n) in &model {
                        wanted.extend(contents(*n).index().chunks.clone());
                        wanted.extend(store.pieces(name).unwrap());
                    }
                    prop_assert_eq!(objects(&store), wanted.len() as u64);
                }
            }
            prop_assert_eq!(store.names().unwrap(), model.keys().cloned().collect::<Vec<_>>());
        }
        for (name, n) in &model {
            let back = store.fetch(name, &temporary.path().join(format!("back-{name}")), NOBODY).unwrap();
            prop_assert_eq!(files(&back), files(contents(*n).path()));
        }
    }
}
