// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories are made whole or not at all, and what an attempt has left is used only if it is right.

use super::*;
use crate::Checkpoint;
use crate::fixture::{files, noise, open as cut, write, write_upon};

fn place(assembly: &Assembly, checkpoint: &Checkpoint, chunks: &[usize]) {
    for &n in chunks {
        assembly.place(n, &checkpoint.read(n).unwrap()).unwrap();
    }
}

fn checkpoint(directory: &Path) -> Checkpoint {
    let pages = [noise(100 << 10, 1), vec![0; 300 << 10], noise(5000, 2)].concat();
    cut(&write(directory, &[noise(5 << 20, 3), vec![0; 1 << 20], noise(4097, 4)], &pages))
}

#[test]
fn directory_is_made_again_byte_for_byte() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let to = temporary.path().join("to");
    let assembly = Assembly::begin(&to, checkpoint.index().clone()).unwrap();
    assert!(!to.exists());
    place(&assembly, &checkpoint, &assembly.missing());
    assert_eq!(assembly.commit().unwrap(), to);
    assert_eq!(files(&to), files(checkpoint.path()));
    assert!(to.join("criu/no-plugins").is_dir() && !to.join("criu/dump.log").exists());
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o700);
    assert!(!temporary.path().join("to.partial").exists());
    // Again: it is a checkpoint like the first.
    assert_eq!(cut(&to).index(), checkpoint.index());
}

#[test]
fn other_bytes_than_those_of_the_chunk_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let assembly = Assembly::begin(&temporary.path().join("to"), checkpoint.index().clone()).unwrap();
    let mut bytes = checkpoint.read(0).unwrap();
    bytes[0] ^= 1;
    assert!(matches!(assembly.place(0, &bytes), Err(StoreError::Object { .. })));
    assert!(assembly.missing().contains(&0));
}

#[test]
fn attempt_that_ended_is_gone_on_with_and_its_damage_found() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let to = temporary.path().join("to");
    let index = checkpoint.index();
    let assembly = Assembly::begin(&to, index.clone()).unwrap();
    let all = assembly.missing();
    let half = &all[..all.len() / 2];
    place(&assembly, &checkpoint, half);
    // Meanwhile nobody else can.
    assert!(matches!(Assembly::begin(&to, index.clone()), Err(StoreError::Busy { .. })));
    drop(assembly);
    let partial = temporary.path().join("to.partial");
    fs::write(partial.join("criu/inventory.img"), "not of this checkpoint").unwrap();
    fs::create_dir(partial.join("other")).unwrap();
    // The first chunk is damaged, and where zeros are to be there is something else.
    let (file, offset) = index.places()[half[0]][0];
    let damage = |file: usize, offset| {
        let path = partial.join(&index.files[file].path);
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"damage", offset).unwrap();
    };
    damage(file, offset);
    let pages = index.files.iter().position(|file| file.path.ends_with("pages-1.img")).unwrap();
    damage(pages, 300 << 10);
    let assembly = Assembly::begin(&to, index.clone()).unwrap();
    let missing = assembly.missing();
    assert!(missing.contains(&half[0]), "{missing:?}");
    // The second damage is in zeros, or in a chunk that ends with some.
    assert!(missing.len() <= all.len() - half.len() + 2, "{missing:?} of {}", all.len());
    place(&assembly, &checkpoint, &missing);
    let to = assembly.commit().unwrap();
    assert_eq!(files(&to), files(checkpoint.path()));
}

#[test]
fn directories_of_others_and_full_ones_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let begin = |name: &str| Assembly::begin(&temporary.path().join(name), checkpoint.index().clone());
    assert!(matches!(begin("from"), Err(StoreError::NotEmpty { .. })));
    fs::create_dir(temporary.path().join("to.partial")).unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(temporary.path().join("to.partial"), open_to_all).unwrap();
    assert!(begin("to").unwrap_err().to_string().contains("0777"));
    std::os::unix::fs::symlink(temporary.path().join("from"), temporary.path().join("link.partial")).unwrap();
    assert!(begin("link").is_err());
    // What came before the name was given.
    fs::create_dir(temporary.path().join("late")).unwrap();
    let assembly = begin("late").unwrap();
    place(&assembly, &checkpoint, &assembly.missing());
    fs::write(temporary.path().join("late/mine"), "").unwrap();
    assert!(matches!(assembly.commit(), Err(StoreError::NotEmpty { .. })));
    assert!(temporary.path().join("late/mine").exists() && temporary.path().join("late.partial").exists());
}

#[test]
fn index_of_the_next_checkpoint_finds_files_under_their_new_names() {
    let temporary = tempfile::tempdir().unwrap();
    let buffers = vec![noise(9 << 20, 3), noise(4097, 4)];
    let first = write(&temporary.path().join("first"), &buffers, b"pages");
    let mut later = buffers.clone();
    later[0][5 << 20] ^= 1;
    let second = cut(&write_upon(&temporary.path().join("second"), &later, b"pages", Some(&first)));
    let first = cut(&first);
    let to = temporary.path().join("to");
    let assembly = Assembly::begin(&to, first.index().clone()).unwrap();
    place(&assembly, &first, &assembly.missing());
    let assembly = assembly.turn_to(second.index().clone()).unwrap();
    let missing: u64 = assembly.missing().iter().map(|n| second.index().chunks[*n].bytes).sum();
    // The chunk that changed, tables and the manifest.
    assert!((2 << 20..3 << 20).contains(&missing), "{missing}");
    place(&assembly, &second, &assembly.missing());
    assert_eq!(files(&assembly.commit().unwrap()), files(second.path()));
}

#[test]
fn several_files_with_the_same_contents_turn_into_more() {
    let temporary = tempfile::tempdir().unwrap();
    let index = |paths: &[&str]| {
        let file =
            |path: &&str| crate::IndexedFile { path: (*path).into(), bytes: 5, parts: vec![Part::Chunk(0)] };
        let mut index = ChunkIndex::new();
        index.files = paths.iter().map(file).collect();
        index.chunks = vec![ChunkName::of(b"bytes")];
        index
    };
    let assembly = Assembly::begin(&temporary.path().join("to/"), index(&["a", "b"])).unwrap();
    assembly.place(0, b"bytes").unwrap();
    let assembly = assembly.turn_to(index(&["b", "c", "d"])).unwrap();
    if !assembly.missing().is_empty() {
        assembly.place(0, b"bytes").unwrap();
    }
    let to = assembly.commit().unwrap();
    let names = ["b", "c", "d"];
    assert_eq!(files(&to), names.iter().map(|name| ((*name).into(), b"bytes".to_vec())).collect());
}

#[test]
fn directory_beside_it_that_is_a_users_is_not_cleared() {
    let temporary = tempfile::tempdir().unwrap();
    let partial = temporary.path().join("to.partial");
    make_directory(&partial).unwrap();
    fs::write(partial.join("mine"), "").unwrap();
    let mut index = ChunkIndex::new();
    let begin = |index: &ChunkIndex| Assembly::begin(&temporary.path().join("to"), index.clone());
    assert!(matches!(begin(&index), Err(StoreError::NotPartial { .. })));
    assert!(partial.join("mine").exists());
    fs::remove_file(partial.join("mine")).unwrap();
    // Nor is a disk filled for what has no room.
    index.chunks = vec![ChunkName { bytes: 1 << 21, ..ChunkName::of(b"x") }];
    index.files =
        vec![crate::IndexedFile { path: "a".into(), bytes: 1 << 43, parts: vec![Part::Chunk(0); 1 << 22] }];
    assert!(matches!(begin(&index), Err(StoreError::NoRoom { .. })));
    std::os::unix::fs::symlink(temporary.path(), temporary.path().join("link")).unwrap();
    let error = Assembly::begin(&temporary.path().join("link"), ChunkIndex::new()).unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { .. }), "{error}");
}
