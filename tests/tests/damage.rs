// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any damage to the files of a checkpoint is found before CRIU reads them, and named.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use stasis_tests::images::files;
use stasis_tests::worker::{Worker, refused, succeeded};
use stasis_tests::{criu, program};

fn inspect(worker: &Worker, name: &str) -> Output {
    worker.stasis(&["inspect", "--json", "--verify", worker.path(name).to_str().unwrap()])
}

/// Checks that a checkpoint is neither restored nor reported as good. Returns the error.
fn refused_by_both(worker: &Worker, path: &Path) -> String {
    let name = path.file_name().unwrap().to_str().unwrap();
    let said = [refused(&worker.restore("images")), refused(&inspect(worker, "images"))];
    for said in &said {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(!worker.is_alive(), "{name}: CRIU was started");
    assert!(!worker.path("images/criu/restore.log").exists(), "{name}: CRIU was started");
    said.concat()
}

#[test]
fn flipped_bit_of_any_file_is_found_before_criu_is_started() {
    let mut worker = Worker::start(&["--threads", "2"]);
    worker.freeze("images");
    let files = files(&worker.path("images"));
    for wanted in ["manifest.json", "runtime-0.img", "criu/pages-1.img", "criu/inventory.img"] {
        assert!(files.contains(&worker.path("images").join(wanted)), "{files:?}");
    }
    let mut flips = 0;
    for path in &files {
        let whole = fs::read(path).unwrap();
        let last = whole.len() - 1;
        let in_second_page = 4096 + 17;
        let places =
            if last > in_second_page { vec![0, in_second_page, last / 2, last] } else { vec![last / 2] };
        for at in places {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(path, bytes).unwrap();
            refused_by_both(&worker, path);
            flips += 1;
        }
        fs::write(path, whole).unwrap();
    }
    println!("{flips} flips in {} files", files.len());
    let inspected = succeeded(&inspect(&worker, "images"));
    // The manifest's list does not have the manifest itself.
    assert_eq!(inspected["verified"]["files"], files.len() - 1);
    let bytes: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let manifest = fs::metadata(worker.path("images/manifest.json")).unwrap().len();
    assert_eq!(inspected["verified"]["bytes"], bytes - manifest);
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn truncated_missing_added_and_other_than_files_are_refused() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let path = |name: &str| worker.path("images").join(name);
    for name in ["criu/pages-1.img", "criu/inventory.img", "runtime-0.img", "manifest.json"] {
        let whole = fs::read(path(name)).unwrap();
        fs::write(path(name), &whole[..whole.len() / 2]).unwrap();
        refused_by_both(&worker, &path(name));
        fs::remove_file(path(name)).unwrap();
        refused_by_both(&worker, &path(name));
        symlink("/dev/zero", path(name)).unwrap();
        assert!(refused_by_both(&worker, &path(name)).contains("a symbolic link"));
        fs::remove_file(path(name)).unwrap();
        assert!(Command::new("mkfifo").arg(path(name)).status().unwrap().success());
        assert!(refused_by_both(&worker, &path(name)).contains("a FIFO"));
        fs::remove_file(path(name)).unwrap();
        fs::write(path(name), whole).unwrap();
    }
    for name in ["criu/core-1.img", "criu/no-plugins/plugin.so", "runtime-1.img"] {
        fs::write(path(name), "").unwrap();
        refused_by_both(&worker, &path(name));
        fs::remove_file(path(name)).unwrap();
    }
    symlink("/tmp", path("criu/parent")).unwrap();
    refused_by_both(&worker, &path("criu/parent"));
    fs::remove_file(path("criu/parent")).unwrap();
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn program_that_is_no_file_is_refused_and_waited_for_by_nobody() {
    if stasis_tests::gpu::skip_on_kernel_driver("it copies softgpud") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    for name in ["counter-worker", "softgpud"] {
        fs::copy(program(name), home.path().join(name)).unwrap();
    }
    let (path, away) = (home.path().join("counter-worker"), home.path().join("away"));
    let mut worker = Worker::start_program(&path, &[]);
    worker.freeze("images");
    fs::rename(&path, &away).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(refused(&worker.restore("images")).contains("counter-worker is a FIFO"));
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert!(refused(&worker.restore("images")).contains("counter-worker is a device"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refused(&worker.restore("images")).contains("counter-worker is a directory"));
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn impatient_restore_compares_no_hashes() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    // CRIU does not read it.
    let path = worker.path("images/criu/commit.sh");
    let mut text = fs::read(&path).unwrap();
    text[3] ^= 1;
    fs::write(&path, text).unwrap();
    assert!(refused(&worker.restore("images")).contains("commit.sh has other bytes"));
    let directory = worker.path("images");
    succeeded(&worker.stasis(&["restore", "--json", "--no-verify", directory.to_str().unwrap()]));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn checkpoint_of_an_earlier_layout_is_restored_with_a_warning() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let path = worker.path("images/manifest.json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let fields = manifest.as_object_mut().unwrap();
    assert_eq!(fields.insert("layout".to_owned(), 1.into()), Some(3.into()));
    assert!(fields.remove("files").is_some() && fields.remove("blake3").is_some());
    fs::write(&path, manifest.to_string()).unwrap();
    // CRIU's images cannot be FIFOs either.
    assert!(Command::new("mkfifo").arg(worker.path("images/criu/x.img")).status().unwrap().success());
    assert!(refused(&worker.restore("images")).contains("x.img is a FIFO"));
    fs::remove_file(worker.path("images/criu/x.img")).unwrap();
    let output = worker.restore("images");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    succeeded(&output);
    assert!(said.contains("Warning: ") && said.contains("layout 1") && said.contains("not known"), "{said}");
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn files_that_cannot_be_listed_make_no_checkpoint_and_the_process_runs_on() {
    let worker = Worker::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    // CRIU, after a FIFO was put among its images.
    let script = directory.path().join("criu-script");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {criu} --version\n\
         for word; do [ \"$before\" = --images-dir ] && mkfifo \"$word/x.img\"; before=$word; done\n\
         exec {criu} \"$@\"\n",
        criu = criu().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let error = refused(&worker.checkpoint_with(&script, "images", &[]));
    assert!(error.contains("runs on unharmed") && error.contains("x.img is a FIFO"), "{error}");
    for name in ["manifest.json", "manifest.pending", "runtime-0.img"] {
        assert!(!worker.path("images").join(name).exists(), "{name}: {error}");
    }
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn restore_with_little_memory_ends_with_a_word_and_no_panic() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    // With less the dynamic linker has no room for the program's own data.
    for kibibytes in [1500, 2000, 3000, 4500, 6000, 9000, 12_000] {
        let output = Command::new("prlimit")
            .arg(format!("--data={}", kibibytes << 10))
            .arg(program("stasis"))
            .arg("restore")
            .arg(worker.path("images"))
            .env("STASIS_CRIU", criu())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The limit applies to CRIU's memory, too: it cannot restore the process.
        assert_eq!(output.status.code(), Some(1), "{kibibytes} KiB: {said}");
        assert!(said.starts_with("Error: ") && !said.contains("panicked"), "{kibibytes} KiB: {said}");
        assert!(!worker.is_alive());
    }
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}
