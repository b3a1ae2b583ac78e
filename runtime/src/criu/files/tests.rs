// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever is done to the files of a checkpoint is found, by name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::super::directory::tests::manifest;
use super::super::directory::{TreeMember, prepare};
use super::super::hashed_json;
use super::super::layout::{LAYOUT, TREE_LAYOUT};
use super::*;
use crate::checkpoint::CheckpointReport;
use crate::image::CHUNK_BYTES;

/// A checkpoint of a tree whose second process has a runtime, as it is when CRIU's images are whole.
fn pending(temporary: &tempfile::TempDir) -> PathBuf {
    let directory = prepare(&temporary.path().join("c")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(directory.join(name), bytes).unwrap();
    fs::create_dir(directory.join("stasis-8")).unwrap();
    fs::create_dir(directory.join("criu").join(NO_PLUGINS)).unwrap();
    write("runtime-0.img", &vec![3; FRONT as usize + 10]);
    write("stasis-8/runtime-0.img", &[4; 100]);
    write("criu/inventory.img", b"inventory");
    write("criu/empty.img", b"");
    write("criu/pages-1.img", &vec![5; CHUNK_BYTES as usize + 1]);
    write("criu/commit.sh", b"#!/bin/sh");
    write("criu/dump.log", b"said");
    let report = CheckpointReport::default();
    let member = TreeMember { pid: 8, directory: "stasis-8".into(), executable: None, report };
    Manifest { layout: TREE_LAYOUT, members: vec![member], ..manifest() }.write_pending(&directory).unwrap();
    directory
}

fn sealed(temporary: &tempfile::TempDir) -> PathBuf {
    let directory = pending(temporary);
    seal(&directory).unwrap();
    fs::rename(directory.join(PENDING_FILE), directory.join(MANIFEST_FILE)).unwrap();
    directory
}

fn check(directory: &Path) -> Result<CheckedFiles, ManifestError> {
    let opened = OpenDirectory::open(directory, Trust::of_caller())?;
    Manifest::read_in(&opened)?.check_files(&opened, true, &|_| ())
}

fn refused(directory: &Path) -> String {
    check(directory).unwrap_err().to_string()
}

#[test]
fn all_files_are_listed_and_what_comes_later_is_not_missed() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = sealed(&temporary);
    let manifest = Manifest::read(&directory).unwrap();
    let names: Vec<_> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    let criu = ["criu/commit.sh", "criu/empty.img", "criu/inventory.img", "criu/pages-1.img"];
    assert_eq!(names, [&criu[..], &["runtime-0.img", "stasis-8/runtime-0.img"]].concat());
    assert_eq!(manifest.layout, SEALED_LAYOUT);
    let inventory = manifest.files.iter().find(|file| file.path == "criu/inventory.img").unwrap();
    assert_eq!(inventory.blake3, blake3::hash(b"inventory").to_string());
    // CRIU's statistics and the log of a restore; a user's notes.
    for name in ["criu/stats-dump", "criu/restore.log", "notes", "criu/notes"] {
        fs::write(directory.join(name), "later").unwrap();
    }
    let checked = check(&directory).unwrap();
    assert_eq!((checked.files, checked.hashed), (6, true));
    assert_eq!(checked.bytes, manifest.listed_bytes());
}

#[test]
fn every_changed_file_is_named() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = sealed(&temporary);
    for file in Manifest::read(&directory).unwrap().files {
        let path = directory.join(&file.path);
        let bytes = fs::read(&path).unwrap();
        let said = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let text = refused(&directory);
            assert!(text.contains(&file.path) && text.contains(what), "{}: {text}", file.path);
        };
        for at in [0, bytes.len() / 2, bytes.len().saturating_sub(1)] {
            // Of an image of ours the front; the rest is checked when it is read.
            if at < bytes.len() && (at < FRONT as usize || file.path.starts_with("criu/")) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 0x10;
                said(&flipped, "other bytes");
            }
        }
        if !bytes.is_empty() {
            said(&bytes[..bytes.len() - 1], &format!("{} bytes, not {}", bytes.len() - 1, bytes.len()));
        }
        said(&[&bytes[..], b"x"].concat(), "bytes, not");
        fs::remove_file(&path).unwrap();
        assert!(refused(&directory).contains(&format!("{} is missing", file.path)));
        fs::write(&path, &bytes).unwrap();
        check(&directory).unwrap();
    }
}

#[test]
fn every_flipped_bit_of_the_manifest_is_found() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = sealed(&temporary);
    let path = directory.join(MANIFEST_FILE);
    let text = fs::read(&path).unwrap();
    for bit in 0..text.len() * 8 {
        let mut other = text.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        let error = Manifest::parse(&other, &path).unwrap_err();
        assert!(error.to_string().contains("manifest.json"), "bit {bit}: {error}");
    }
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(refused(&directory).contains("manifest.json"));
    // Nor does it pass for one of an earlier layout, which lists nothing.
    let earlier = String::from_utf8(text).unwrap().replace("\"layout\": 3", "\"layout\": 2");
    assert!(matches!(Manifest::parse(earlier.as_bytes(), &path), Err(ManifestError::Damaged { .. })));
}

#[test]
fn what_was_added_is_refused_if_criu_could_read_it() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = sealed(&temporary);
    let path = |name: &str| directory.join(name);
    fs::write(path("criu/core-9.img"), "").unwrap();
    assert!(refused(&directory).contains("criu/core-9.img was added later"));
    fs::remove_file(path("criu/core-9.img")).unwrap();
    fs::write(path("criu/no-plugins/evil.so"), "").unwrap();
    assert!(refused(&directory).contains("no-plugins/evil.so is a file"));
    fs::remove_file(path("criu/no-plugins/evil.so")).unwrap();
    symlink("/tmp", path("criu/parent")).unwrap();
    assert!(refused(&directory).contains("criu/parent is a symbolic link"));
    fs::remove_file(path("criu/parent")).unwrap();
    // CRIU would write to what it names.
    symlink("/etc/passwd", path("criu/restore.log")).unwrap();
    assert!(refused(&directory).contains("criu/restore.log is a symbolic link"));
    fs::remove_file(path("criu/restore.log")).unwrap();
    check(&directory).unwrap();
}

#[test]
fn what_is_no_file_is_refused_at_once_with_hashes_or_without() {
    let temporary = tempfile::tempdir().unwrap();
    for layout in [LAYOUT, SEALED_LAYOUT] {
        let _ = fs::remove_dir_all(temporary.path().join("c"));
        let directory = sealed(&temporary);
        if layout == LAYOUT {
            manifest().write_pending(&directory).unwrap();
            fs::rename(directory.join(PENDING_FILE), directory.join(MANIFEST_FILE)).unwrap();
        }
        for name in ["criu/pages-1.img", "criu/inventory.img", "criu/dump.log", MANIFEST_FILE] {
            let path = directory.join(name);
            let bytes = fs::read(&path).unwrap();
            let refused_as = |found: &str| {
                let text = refused(&directory);
                assert!(text.contains(name) && text.contains(found), "layout {layout}, {name}: {text}");
                fs::remove_dir(&path).or_else(|_| fs::remove_file(&path)).unwrap();
            };
            fs::remove_file(&path).unwrap();
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            refused_as("a FIFO");
            symlink("/dev/zero", &path).unwrap();
            refused_as("a symbolic link");
            fs::create_dir(&path).unwrap();
            refused_as("a directory");
            fs::write(&path, bytes).unwrap();
        }
        check(&directory).unwrap();
    }
}

#[test]
fn hostile_manifests_are_refused_though_their_hash_is_right() {
    let path = Path::new("/c/manifest.json");
    let file = |name: &str| ListedFile { path: name.into(), bytes: 1, blake3: "0".repeat(64) };
    let good = Manifest { layout: SEALED_LAYOUT, files: vec![file("criu/a.img")], ..manifest() };
    let parse = |manifest: &Manifest| Manifest::parse(&hashed_json::encode(manifest).unwrap(), path);
    parse(&good).unwrap();
    for name in ["../a", "/etc/passwd", "criu/../a", "criu//a", "a/b/c", "", ".", "criu/..", "a\0b"] {
        let error = parse(&Manifest { files: vec![file(name)], ..good.clone() }).unwrap_err();
        assert!(matches!(error, ManifestError::ImageName { .. }), "{name:?}: {error}");
    }
    for pid in [0, 1, -1, i32::MIN] {
        let error = parse(&Manifest { pid, ..good.clone() }).unwrap_err();
        assert!(matches!(error, ManifestError::Pid { pid: found, .. } if found == pid), "{error}");
    }
    let member = |pid, directory: &str| {
        let report = CheckpointReport { image_bytes: u64::MAX, ..CheckpointReport::default() };
        TreeMember { pid, directory: directory.into(), executable: None, report }
    };
    let twice = [
        Manifest { files: vec![file("criu/a.img"), file("criu/a.img")], ..good.clone() },
        Manifest { images: vec!["a.img".into(), "a.img".into()], ..good.clone() },
        Manifest { members: vec![member(8, "a"), member(8, "b")], ..good.clone() },
        Manifest { members: vec![member(8, "a"), member(9, "a")], ..good.clone() },
    ];
    for manifest in twice {
        let error = parse(&manifest).unwrap_err();
        assert!(matches!(error, ManifestError::Twice { .. }), "{error}");
    }
    // Numbers that no checkpoint has are no reason to fail where they mean nothing.
    let absurd = parse(&Manifest { members: vec![member(8, "a"), member(9, "b")], ..good }).unwrap();
    assert_eq!(absurd.listed_bytes(), 1);
    for text in [&b"["[..], b"", b"null", b"{}", &[b'['; 1 << 20], br#"{"layout": 1, "layout": 1}"#] {
        assert!(matches!(Manifest::parse(text, path), Err(ManifestError::Parse { .. })));
    }
}

#[test]
fn endless_and_oversized_manifests_are_not_read() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = sealed(&temporary);
    let file = fs::File::create(directory.join(MANIFEST_FILE)).unwrap();
    file.set_len(1 << 40).unwrap();
    let text = refused(&directory);
    assert!(text.contains("manifest.json") && text.contains("16777216"), "{text}");
}

/// Written by the last version before files were listed: of one process, and of a tree with two runtimes.
#[test]
fn golden_manifests_of_earlier_layouts_are_read_and_list_nothing() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/criu/golden");
    for (layout, images) in
        [(1, &["runtime-0.img"][..]), (2, &["stasis-16001/runtime-0.img", "stasis-16010/runtime-0.img"])]
    {
        let path = golden.join(format!("manifest-{layout}.json"));
        let manifest = Manifest::parse(&fs::read(&path).unwrap(), &path).unwrap();
        assert_eq!((manifest.layout, manifest.pid, manifest.is_sealed()), (layout, 16001, false));
        assert_eq!(manifest.image_names().collect::<Vec<_>>(), images);
        assert_eq!(manifest.executable.unwrap().path, Path::new("/opt/app/counter-worker"));
        assert_eq!(manifest.report.content_bytes, 9_568_256);
    }
}
