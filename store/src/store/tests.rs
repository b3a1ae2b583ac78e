// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks are kept once, come back as they were, and are never lost while a checkpoint has them; in directories and in buckets.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::read::Opened;
use super::*;
use crate::backend::bucket::memory::Memory;
use crate::backend::{CHECKPOINTS, PACKS};
use crate::fixture::{files, noise, write};
use crate::key::Key;
use crate::object::Kind;
use crate::pack::{Location, PackName};
use crate::{Checkpoint, ChunkName, Compression, Progress};

mod collection;

const NOBODY: Progress<'static> = &|_, _| ();
const INCOMING: &str = "incoming";
const STAGING: &str = "staging";
const LOCK_FILE: &str = "lock";

/// Cut as a store does it.
fn open(directory: &Path) -> Checkpoint {
    Checkpoint::open(directory, Trust::of_caller(), Grain::Bytes(CHUNK_BYTES), NOBODY).unwrap()
}

fn place(path: &Path) -> StorePlace {
    StorePlace::Directory(path.into())
}

fn create(path: &Path, codec: Codec) -> Store {
    Store::create(&place(path), codec, Trust::of_caller(), None).unwrap()
}

/// A store in a bucket, as one process sees it.
pub(crate) fn in_bucket(memory: &Memory, staging: &Path, codec: Codec) -> Store {
    let backend = BucketBackend::new(Box::new(memory.clone()), staging.into());
    backend.make(&Mark::of(&codec, CHUNK_BYTES).text()).unwrap();
    Store::on(Box::new(backend), codec).unwrap()
}

impl Store {
    /// The store that is in a bucket, without a key.
    pub(crate) fn on_memory(memory: &Memory, staging: &Path) -> Result<Self, StoreError> {
        Self::on(Box::new(BucketBackend::new(Box::new(memory.clone()), staging.into())), Codec::default())
    }
}

/// A store to test, and its files or objects.
struct Tested {
    store: Store,
    path: PathBuf,
    memory: Option<Memory>,
}

/// One in a directory, and one in a bucket.
fn stores(temporary: &Path, codec: &Codec) -> [Tested; 2] {
    let n = fs::read_dir(temporary).unwrap().count();
    let (path, memory) = (temporary.join(format!("store-{n}")), Memory::new());
    let staging = temporary.join(format!("staging-{n}"));
    fs::create_dir(&staging).unwrap();
    [
        Tested { store: create(&path, codec.clone()), path: path.clone(), memory: None },
        Tested { store: in_bucket(&memory, &staging, codec.clone()), path, memory: Some(memory) },
    ]
}

impl Tested {
    /// By key.
    fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        match &self.memory {
            Some(memory) => {
                let contents = memory.contents.lock().unwrap();
                contents.objects.iter().map(|(key, (bytes, _))| (key.clone(), bytes.clone())).collect()
            }
            None => files(&self.path)
                .into_iter()
                .map(|(path, bytes)| (path.to_str().unwrap().into(), bytes))
                .collect(),
        }
    }

    fn packs(&self) -> Vec<String> {
        self.objects().into_keys().filter(|key| key.starts_with(PACKS)).collect()
    }

    /// Writes, or removes, a file or an object.
    fn set(&self, key: &str, bytes: Option<&[u8]>) {
        match (&self.memory, bytes) {
            (Some(memory), Some(bytes)) => {
                memory.contents.lock().unwrap().objects.insert(key.into(), (bytes.into(), 0));
            }
            (Some(memory), None) => drop(memory.contents.lock().unwrap().objects.remove(key)),
            (None, Some(bytes)) => fs::write(self.path.join(key), bytes).unwrap(),
            (None, None) => fs::remove_file(self.path.join(key)).unwrap(),
        }
    }

    /// Where the longest chunk of a checkpoint is: the pack's key, offset and length.
    fn longest(&self, name: &str) -> (String, usize, usize) {
        let opened = self.store.opened(name).unwrap();
        let longest = opened.chunks().max_by_key(|placed| placed.chunk.bytes).unwrap();
        let Location::Pack { pack, offset, bytes } = longest.location else { panic!("{longest:?}") };
        (key_of(pack), offset as usize, bytes as usize)
    }
}

fn key_of(pack: PackName) -> String {
    format!("{PACKS}/{}/{pack}", &pack.to_string()[..2])
}

fn collect(store: &Store) -> Collected {
    store.collect(CollectOptions::default()).unwrap()
}

/// The packs that the checkpoints of a store need.
fn needed(store: &Store) -> Vec<String> {
    let mut keys = HashSet::new();
    let take = |_, opened: Opened| {
        keys.extend(opened.all().filter_map(|placed| match placed.location {
            Location::Pack { pack, .. } => Some(key_of(pack)),
            Location::File => None,
        }));
        Ok(())
    };
    store.each(take).unwrap();
    let mut keys: Vec<String> = keys.into_iter().collect();
    keys.sort();
    keys
}

fn codecs() -> [Codec; 4] {
    let sealed = |compression| Codec { compression, key: Some(Key::new(&[5; 32])) };
    let plain = |compression| Codec { compression, key: None };
    [plain(Compression::None), plain(Compression::Lz4), plain(Compression::Zstd), sealed(Compression::Zstd)]
}

#[test]
fn checkpoints_come_back_byte_for_byte_whatever_the_codec() {
    for (n, codec) in codecs().into_iter().enumerate() {
        let temporary = tempfile::tempdir().unwrap();
        let buffers = [noise(3 << 20, 1), b"the same ".repeat(100_000), vec![0; 1 << 20]];
        let checkpoint = open(&write(&temporary.path().join("c"), &buffers, &noise(200_000, 2)));
        for (m, tested) in stores(temporary.path(), &codec).into_iter().enumerate() {
            let store = &tested.store;
            let added = store.add("first", &checkpoint, NOBODY).unwrap();
            // The index is kept in chunks, too.
            let opened = store.opened("first").unwrap();
            let all = added.chunks + opened.entry.pieces().count() as u64;
            assert_eq!((added.new_chunks, added.file_bytes), (all, checkpoint.index().file_bytes()));
            assert_eq!(added.new_bytes < added.chunk_bytes, n > 0, "{added:?}");
            let back = store.fetch("first", &temporary.path().join(format!("back-{m}")), NOBODY).unwrap();
            assert_eq!(files(&back), files(checkpoint.path()));
            assert_eq!(store.verify(NOBODY).unwrap().0, all);
            // One for the chunks, and one for each of the two texts.
            assert_eq!(tested.packs().len(), 3);
            assert_eq!(tested.packs(), needed(store));
            // Nothing of a sealed store tells what is in it.
            let text: Vec<u8> = tested.objects().into_values().flatten().collect();
            let has = |words: &[u8]| text.windows(words.len()).any(|window| window == words);
            assert_eq!(has(b"registers"), store.codec.key.is_none());
        }
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
fn damaged_packs_are_named_and_nothing_comes_of_them() {
    let temporary = tempfile::tempdir().unwrap();
    for (n, codec) in codecs().into_iter().enumerate() {
        let checkpoint =
            open(&write(&temporary.path().join(format!("c-{n}")), &[noise(3 << 20, 1)], b"pages"));
        for (m, tested) in stores(temporary.path(), &codec).into_iter().enumerate() {
            let store = &tested.store;
            store.add("it", &checkpoint, NOBODY).unwrap();
            let (key, offset, length) = tested.longest("it");
            let whole = tested.objects()[&key].clone();
            let mut damaged = whole.clone();
            damaged[offset + length / 2] ^= 4;
            let to = temporary.path().join(format!("to-{n}-{m}"));
            for bytes in [Some(&damaged[..]), Some(&whole[..offset + length - 1]), Some(b""), None] {
                tested.set(&key, bytes);
                let is_named = |error| matches!(error, StoreError::Object { .. } | StoreError::Pack { .. });
                assert!(is_named(store.verify(NOBODY).unwrap_err()));
                assert!(is_named(store.fetch("it", &to, NOBODY).unwrap_err()));
                assert!(!to.exists());
            }
            // What was there already is used.
            tested.set(&key, Some(&whole));
            assert_eq!(files(&store.fetch("it", &to, NOBODY).unwrap()), files(checkpoint.path()));
        }
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
        (
            store.names().unwrap().len(),
            fs::read_dir(temporary.path().join("store").join(INCOMING)).unwrap().count()
        ),
        (0, 0)
    );
}

#[test]
fn staging_directories_go_unless_somebody_works_there_or_the_store_lacks_what_is_in_them() {
    let temporary = tempfile::tempdir().unwrap();
    let store = create(&temporary.path().join("store"), Codec::default());
    let stage = |kind| store.stage(kind).unwrap();
    drop(stage(StagingKind::In));
    assert_eq!(fs::read_dir(temporary.path().join("store").join(STAGING)).unwrap().count(), 0);
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
    collect(&store);
    assert!(complete.join("manifest.json").exists() && at_work.checkpoint().parent().unwrap().exists());
    assert!(!incomplete.exists() && !fetched.exists());
    store.add("it", &open(&complete), NOBODY).unwrap();
}

#[test]
fn store_of_the_first_version_is_read_and_added_to() {
    let temporary = tempfile::tempdir().unwrap();
    for codec in codecs() {
        let path = temporary.path().join(format!("{:?}-{}", codec.compression, codec.key.is_some()));
        let checkpoint = open(&write(&path.join("c"), &[noise(1 << 20, 1)], b"pages"));
        let store = path.join("store");
        for directory in ["chunks", CHECKPOINTS, INCOMING, STAGING] {
            DirBuilder::new().recursive(true).mode(0o700).create(store.join(directory)).unwrap();
        }
        let object = |chunk: &ChunkName, bytes: &[u8]| {
            let name = blake3::Hash::from(codec.name(&chunk.hash)).to_hex();
            let shelf = store.join("chunks").join(&name[..2]);
            fs::create_dir_all(&shelf).unwrap();
            fs::write(shelf.join(name.as_str()), codec.encode(Kind::Chunk, chunk, bytes)).unwrap();
        };
        for (n, chunk) in checkpoint.index().chunks.iter().enumerate() {
            object(chunk, &checkpoint.read(n).unwrap());
        }
        let text = add::IndexText::cut(checkpoint.text(), Grain::Bytes(CHUNK_BYTES));
        for (n, piece) in text.pieces.iter().enumerate() {
            object(piece, text.piece(n));
        }
        object(&ChunkName::of(b"nobody's"), b"nobody's");
        let list = serde_json::to_vec(&text.pieces).unwrap();
        let (kind, chunk) = (Kind::Index("old"), ChunkName::of(&list));
        let name = codec.name_of(kind, &chunk.hash);
        let entry =
            [b"STASISIX", &name[..], &chunk.bytes.to_le_bytes(), &codec.encode(kind, &chunk, &list)].concat();
        fs::write(store.join(CHECKPOINTS).join("old"), entry).unwrap();
        let mark = Mark { version: VERSION_1, ..Mark::of(&codec, CHUNK_BYTES) };
        fs::write(store.join(MARK_FILE), mark.text()).unwrap();

        let opened = || Store::open(&place(&store), codec.clone(), Trust::of_caller()).unwrap();
        assert_eq!(
            files(&opened().fetch("old", &path.join("back"), NOBODY).unwrap()),
            files(checkpoint.path())
        );
        assert_eq!(collect(&opened()).removed, 1);
        let all = checkpoint.index().chunks.len() + text.pieces.len();
        assert_eq!(opened().verify(NOBODY).unwrap().0, all as u64);
        // Packs have nothing of the files, which stay as long as they are needed.
        let added = opened().add("new", &checkpoint, NOBODY).unwrap();
        assert!(added.new_chunks > all as u64);
        assert_eq!((opened().version, opened().list().unwrap().len()), (VERSION, 2));
        assert_eq!(collect(&opened()).removed, 0);
        opened().remove("old").unwrap();
        assert_eq!(collect(&opened()).removed, all as u64);
        let back = opened().fetch("new", &path.join("new"), NOBODY).unwrap();
        assert_eq!(files(&back), files(checkpoint.path()));
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
                    collect(&store);
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
    for directory in [PACKS, INCOMING, "incoming/1-0"] {
        DirBuilder::new().mode(0o700).create(path.join(directory)).unwrap();
    }
    fs::write(path.join("incoming/1-0/pending"), "half a mark").unwrap();
    let store = create(&path, Codec::default());
    collect(&store);
    let elsewhere = temporary.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("mine"), "").unwrap();
    for directory in [PACKS, CHECKPOINTS, INCOMING, STAGING] {
        let own = path.join(directory);
        fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &own).unwrap();
        let error = Store::open(&place(&path), Codec::default(), Trust::of_caller()).unwrap_err();
        assert!(matches!(error, StoreError::Manifest(_)), "{error}");
        fs::remove_file(&own).unwrap();
        DirBuilder::new().mode(0o700).create(&own).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.join("new"), path.join("locks")).unwrap();
    fs::rename(path.join("locks"), path.join(LOCK_FILE)).unwrap();
    assert!(store.collect(CollectOptions::default()).is_err() && !elsewhere.join("new").exists());
    assert!(elsewhere.join("mine").exists());
}

#[test]
fn directory_that_is_no_store_and_other_keys_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let sealed = |byte| Codec { key: Some(Key::new(&[byte; 32])), ..Codec::default() };
    let open = |codec| Store::open(&place(&path), codec, Trust::of_caller());
    assert!(matches!(open(Codec::default()), Err(StoreError::NotAStore { .. })));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("mine"), "").unwrap();
    assert!(matches!(
        Store::create(&place(&path), Codec::default(), Trust::Anyone, None),
        Err(StoreError::NotAStore { .. })
    ));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    fs::remove_file(path.join("mine")).unwrap();
    create(&path, sealed(1));
    open(sealed(1)).unwrap();
    for codec in [sealed(2), Codec::default()] {
        assert!(matches!(open(codec), Err(StoreError::OtherKey(_))));
    }
    fs::write(path.join(MARK_FILE), "{\"version\": 3, \"chunk_bytes\": 65536}").unwrap();
    assert!(open(sealed(1)).unwrap_err().to_string().contains("version is 3"));
}

#[test]
fn checkpoints_of_strangers_are_not_taken() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let store = create(&path, Codec::default());
    store.add("it", &open(&write(&temporary.path().join("c"), &[noise(5000, 1)], b"pages")), NOBODY).unwrap();
    let stranger = Trust::Users(vec![nix::unistd::geteuid().as_raw() + 1]);
    let error = Store::open(&place(&path), Codec::default(), stranger);
    assert!(matches!(error, Err(StoreError::Manifest(_))), "{error:?}");
}

#[test]
fn store_keeps_the_length_of_chunks_that_it_was_made_with() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("s");
    let made = |bytes| Store::create(&place(&path), Codec::default(), Trust::of_caller(), bytes);
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
        let contents = |n: u8| {
            let directory = temporary.path().join(format!("contents-{n}"));
            if !directory.exists() {
                // Each has a buffer in common with the next.
                let buffers = [noise(5000, n.into()), noise(5000, u64::from(n) + 1)];
                write(&directory, &buffers, &noise(1000, 100 + u64::from(n)));
            }
            open(&directory)
        };
        for (m, tested) in stores(temporary.path(), &Codec::default()).into_iter().enumerate() {
            let store = &tested.store;
            let mut model: BTreeMap<String, u8> = BTreeMap::new();
            for act in &acts {
                match act {
                    Act::Add(name, n) => {
                        let name = format!("name-{name}");
                        let added = store.add(&name, &contents(*n), NOBODY);
                        prop_assert_eq!(added.is_ok(), !model.contains_key(&name));
                        model.entry(name).or_insert(*n);
                    }
                    Act::Remove(name) => {
                        let name = format!("name-{name}");
                        prop_assert_eq!(store.remove(&name).is_ok(), model.remove(&name).is_some());
                    }
                    Act::Leave(n) => {
                        store.add("left", &contents(*n), NOBODY).unwrap();
                        tested.set(&format!("{CHECKPOINTS}/left"), None);
                    }
                    Act::Collect => {
                        collect(store);
                        prop_assert_eq!(tested.packs(), needed(store));
                        prop_assert_eq!(collect(store).rewritten_bytes, 0);
                    }
                }
                prop_assert_eq!(store.names().unwrap(), model.keys().cloned().collect::<Vec<_>>());
            }
            for (name, n) in &model {
                let back = store.fetch(name, &temporary.path().join(format!("back-{name}-{m}")), NOBODY).unwrap();
                prop_assert_eq!(files(&back), files(contents(*n).path()));
            }
        }
    }
}
