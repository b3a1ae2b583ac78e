// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are not as they were written, and directories that others can write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use proptest::prelude::*;
use tempfile::TempDir;

use super::file::{FileError, MAX_FILE};
use super::*;

const KEY: Key = Key([0xA5; Key::BYTES]);

fn generated() -> Generated {
    Generated {
        code: (0..200).map(|k| (k * 7) as u8).collect(),
        pool: vec![1, 0x8000_0000, u32::MAX],
        heads: vec![(0, 16), (3, 80), (9, 199)],
        steps: 10,
    }
}

/// A store, with one file in it.
struct Setup {
    directory: TempDir,
    store: Store,
}

impl Setup {
    fn new() -> Setup {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(named(&directory.path().join("code")).unwrap());
        store.save(&KEY, &generated());
        assert_eq!(store.saved(), 1);
        Setup { directory, store }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("code")
    }

    fn file(&self) -> PathBuf {
        self.path().join(KEY.to_string())
    }

    fn age(&self, name: &str, age: Duration) {
        let file = fs::File::options().write(true).open(self.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
}

#[test]
fn saved_code_is_found_and_others_cannot_read_or_write_it() {
    let setup = Setup::new();
    assert_eq!(setup.store.load(&KEY), Some(generated()));
    assert_eq!(setup.store.load(&Key([1; 32])), None);
    assert_eq!(setup.store.found(), 1);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!([mode(setup.path()), mode(setup.file())], [0o700, 0o600]);
    assert_eq!(fs::read_dir(setup.path()).unwrap().count(), 1);
}

#[test]
fn no_descriptor_and_no_mapping_stays() {
    let setup = Setup::new();
    assert!(setup.store.load(&KEY).is_some());
    let path = setup.path();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    assert_eq!(open.filter(|name| name.starts_with(&path)).count(), 0);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(path.to_str().unwrap()));
}

#[test]
fn use_is_noted_in_the_files_time() {
    let setup = Setup::new();
    setup.age(&KEY.to_string(), Duration::from_secs(1000));
    assert!(setup.store.load(&KEY).is_some());
    let used = fs::metadata(setup.file()).unwrap().modified().unwrap();
    assert!(used.elapsed().unwrap() < Duration::from_secs(500));
}

#[test]
fn altered_file_is_removed() {
    let setup = Setup::new();
    let mut bytes = fs::read(setup.file()).unwrap();
    bytes[100] ^= 1;
    fs::write(setup.file(), bytes).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(!setup.file().exists());
}

#[test]
fn file_of_another_key_is_removed() {
    let setup = Setup::new();
    let other = Key([1; 32]);
    fs::rename(setup.file(), setup.path().join(other.to_string())).unwrap();
    assert_eq!(setup.store.load(&other), None);
    assert_eq!(fs::read_dir(setup.path()).unwrap().count(), 0);
}

#[test]
fn what_is_no_regular_file_of_this_user_alone_is_not_used() {
    let setup = Setup::new();
    let real = setup.directory.path().join("elsewhere");
    fs::rename(setup.file(), &real).unwrap();
    // A link to a right file.
    symlink(&real, setup.file()).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(
        setup.file().symlink_metadata().is_err() && real.exists(),
        "the link is removed, and nothing else"
    );
    // A pipe, which nobody writes to.
    mkfifo(&setup.file(), Mode::S_IRWXU).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(!setup.file().exists());
    // Others may write it.
    fs::copy(&real, setup.file()).unwrap();
    fs::set_permissions(setup.file(), Permissions::from_mode(0o620)).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(!setup.file().exists());
    // Longer than any file that is written.
    fs::File::create(setup.file()).unwrap().set_len(MAX_FILE as u64 + 1).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(!setup.file().exists());
    fs::create_dir(setup.file()).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert_eq!(setup.store.found(), 0);
}

#[test]
fn directory_that_others_can_write_is_not_used() {
    let setup = Setup::new();
    for mode in [0o770, 0o702] {
        fs::set_permissions(setup.path(), Permissions::from_mode(mode)).unwrap();
        setup.store.save(&Key([2; 32]), &generated());
        assert_eq!(setup.store.load(&KEY), None, "{mode:o}");
    }
    fs::set_permissions(setup.path(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(setup.store.saved(), 1);
    assert!(setup.store.load(&KEY).is_some());
    // Nor is a link to one that nobody else can write.
    let link = setup.directory.path().join("link");
    symlink(setup.path(), &link).unwrap();
    assert_eq!(Store::in_directory(&link).unwrap().load(&KEY), None);
}

#[test]
fn what_belongs_to_others_is_neither_used_nor_removed() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let setup = Setup::new();
    std::os::unix::fs::chown(setup.file(), Some(1), None).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    assert!(setup.file().exists());
    std::os::unix::fs::chown(setup.file(), Some(0), None).unwrap();
    std::os::unix::fs::chown(setup.path(), Some(1), None).unwrap();
    assert_eq!(setup.store.load(&KEY), None);
    setup.store.save(&Key([2; 32]), &generated());
    assert_eq!(setup.store.saved(), 1);
    // Another user's home is left alone.
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(home.path(), Some(1), None).unwrap();
    let variable = |name| (name == "HOME").then(|| home.path().into());
    Store::at(place(variable).unwrap()).save(&KEY, &generated());
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn files_that_were_not_used_for_longest_are_removed() {
    let setup = Setup::new();
    let bytes = fs::metadata(setup.file()).unwrap().len();
    let keys: Vec<Key> = (0..8).map(|k| Key([k; 32])).collect();
    for (k, key) in keys.iter().enumerate() {
        setup.store.save(key, &generated());
        setup.age(&key.to_string(), Duration::from_secs(1000 * (8 - k as u64)));
    }
    for name in ["new-1-2", "new-3-4", "mine"] {
        fs::write(setup.path().join(name), "x").unwrap();
    }
    setup.age("new-1-2", Duration::from_secs(7200));
    // The one that is used is not among the oldest any more.
    assert!(setup.store.load(&keys[0]).is_some());
    setup.store.place.trim(8 * bytes, is_key).unwrap();
    let kept: Vec<bool> = keys.iter().map(|key| setup.path().join(key.to_string()).exists()).collect();
    assert_eq!(kept, [true, false, false, false, true, true, true, true]);
    assert!(setup.file().exists());
    let there = ["new-1-2", "new-3-4", "mine"].map(|name| setup.path().join(name).exists());
    assert_eq!(there, [false, true, true], "nothing that is not known to be abandoned");
}

#[test]
fn size_of_all_files_is_bounded() {
    let mut setup = Setup::new();
    let bytes = fs::metadata(setup.file()).unwrap().len();
    (setup.store.limit, setup.store.until_trim) = (32 * bytes, AtomicU64::new(0));
    for k in 0..200 {
        setup.store.save(&Key([k; 32]), &generated());
    }
    let count = fs::read_dir(setup.path()).unwrap().count();
    assert!((20..=36).contains(&count), "{count}");
}

#[test]
fn several_write_and_read_at_once() {
    let setup = Setup::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    setup.store.save(&KEY, &generated());
                    assert_eq!(setup.store.load(&KEY), Some(generated()));
                }
            });
        }
    });
    assert_eq!(fs::read_dir(setup.path()).unwrap().count(), 1);
}

#[test]
fn environment_says_where() {
    let with = |set: &[(&'static str, &str)]| {
        let set: Vec<_> = set.iter().map(|&(name, value)| (name, OsString::from(value))).collect();
        place(move |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.clone()))
    };
    let at = |base: &str, is_own, below: &[&str]| {
        Some(Place { base: base.into(), is_own, below: below.iter().map(OsString::from).collect() })
    };
    let home = ("HOME", "/home/a");
    assert_eq!(with(&[home]), at("/home/a", true, &[".cache", "stasis", "code"]));
    assert_eq!(with(&[home, ("SOFTGPU_CACHE", "")]), with(&[home]));
    assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/x")]), at("/x", true, &["stasis", "code"]));
    assert_eq!(with(&[home, ("XDG_CACHE_HOME", "x")]), with(&[home]));
    assert_eq!(with(&[home, ("SOFTGPU_CACHE", "/tmp/a")]), at("/tmp", false, &["a"]));
    for none in
        [&[] as &[_], &[("HOME", "a")], &[home, ("SOFTGPU_CACHE", "off")], &[home, ("SOFTGPU_CACHE", "a")]]
    {
        assert_eq!(with(none), None);
    }
}

#[test]
fn store_that_cannot_be_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::in_directory(&home.path().join("not/there")).unwrap();
    store.save(&KEY, &generated());
    assert_eq!((store.load(&KEY), store.saved()), (None, 0));
    fs::write(home.path().join("file"), "").unwrap();
    let store = Store::in_directory(&home.path().join("file")).unwrap();
    store.save(&KEY, &generated());
    assert_eq!((store.load(&KEY), store.saved()), (None, 0));
    assert!(home.path().join("file").exists());
}

proptest! {
    #[test]
    fn generated_code_is_read_as_it_was_written(
        code in proptest::collection::vec(any::<u8>(), 2..400),
        pool in proptest::collection::vec(any::<u32>(), 0..50),
        heads in proptest::collection::btree_set(0u32..100, 0..20),
    ) {
        let heads = heads.iter().map(|&step| (step, 1 + step % (code.len() as u32 - 1))).collect();
        let generated = Generated { code, pool, heads, steps: 100 };
        let bytes = generated.encode(&KEY).unwrap();
        prop_assert_eq!(Generated::parse(&bytes, &KEY), Ok(generated));
        prop_assert_eq!(Generated::parse(&bytes, &Key([1; 32])), Err(FileError::Key));
    }

    #[test]
    fn altered_bytes_are_not_code(at in any::<prop::sample::Index>(), with in 1u8..) {
        let mut bytes = generated().encode(&KEY).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        prop_assert!(Generated::parse(&bytes, &KEY).is_err());
    }

    #[test]
    fn shorter_and_longer_files_are_not_code(cut in any::<prop::sample::Index>(), more in 1usize..100) {
        let bytes = generated().encode(&KEY).unwrap();
        prop_assert!(Generated::parse(&bytes[..cut.index(bytes.len())], &KEY).is_err());
        let longer = [bytes, vec![0; more]].concat();
        prop_assert!(Generated::parse(&longer, &KEY).is_err());
    }

    /// As by somebody who knows the format, hash and all.
    #[test]
    fn numbers_that_do_not_fit_are_refused(at in 0usize..10, value in any::<u32>(), small in 0u32..300) {
        for value in [value, small] {
            let mut bytes = generated().encode(&KEY).unwrap();
            bytes.truncate(bytes.len() - 32);
            bytes[40 + 4 * at..][..4].copy_from_slice(&value.to_le_bytes());
            bytes.extend(*blake3::hash(&bytes).as_bytes());
            if let Ok(read) = Generated::parse(&bytes, &KEY) {
                let code = read.code.len() as u32;
                prop_assert!(read.heads.iter().all(|&(step, offset)| step < read.steps && (1..code).contains(&offset)));
                prop_assert!(read.heads.windows(2).all(|pair| pair[0].0 < pair[1].0));
            }
        }
    }
}
