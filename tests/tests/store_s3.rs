// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints in a bucket, of a server that others wrote: over lines that break, of commands that are killed, beside each other.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stasis_tests::s3::{BadLine, S3Server, run_at, stasis_at};
use stasis_tests::sample::setting;
use stasis_tests::worker::{Worker, refused, succeeded};

const STORE: &str = "s3://bucket/jobs/train";
/// Times at which a command is killed, unless STASIS_BUCKET_TRIALS asks for more.
const KILLS: u64 = 6;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn number(outcome: &Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

fn key(worker: &Worker) -> PathBuf {
    let path = worker.path("key");
    fs::write(&path, [7; 32]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// What a command says that succeeds.
fn run(address: SocketAddr, worker: &Worker, arguments: &[&str]) -> Value {
    succeeded(&run_at(address, &worker.path("staging"), arguments))
}

/// What a command says that fails.
fn fail(address: SocketAddr, worker: &Worker, arguments: &[&str]) -> String {
    refused(&run_at(address, &worker.path("staging"), arguments))
}

/// A checkpoint of the worker, which runs on, in its directory `name`.
fn checkpoint(worker: &Worker, name: &str) -> PathBuf {
    succeeded(&worker.checkpoint(name, &["--leave-running"]));
    worker.path(name)
}

/// The hashes of all files of a directory that a checkpoint needs.
fn files(directory: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        match path.is_dir() {
            true => all.extend(files(&path).into_iter().map(|(below, hash)| (name.join(below), hash))),
            false => drop(all.insert(name, blake3::hash(&fs::read(&path).unwrap()))),
        }
    }
    // What only CRIU's dump and restore say of themselves.
    all.retain(|path, _| path.extension().is_none_or(|end| end != "log") && !path.ends_with("stats-dump"));
    all
}

#[test]
fn process_goes_through_a_bucket_and_generations_cost_what_changed() {
    let server = S3Server::start();
    let mut worker = Worker::start(&[]);
    let (key, at) = (key(&worker), server.address());
    let sealed = ["--key-file", text(&key)];
    let mut bytes = Vec::new();
    for generation in 0..2 {
        let (pid, name) = (worker.pid().to_string(), format!("generation-{generation}"));
        let freeze = ["checkpoint", "--json", &pid, &name, "--store", STORE, "--compress", "lz4"];
        let frozen = run(at, &worker, &[&freeze[..], &sealed].concat());
        worker.bury();
        assert_eq!(frozen["delivered"]["store"], STORE);
        bytes.push(number(&frozen["delivered"], "new_bytes"));
        run(at, &worker, &[&["restore", "--json", "--store", STORE, &name][..], &sealed].concat());
        worker.wait_rounds(2);
    }
    assert!(bytes[1] * 2 < bytes[0], "{bytes:?}");
    let act = |words: &[&str]| run(at, &worker, &[&["store"], words, &["--json"], &sealed].concat());
    assert_eq!(act(&["list", STORE])["checkpoints"].as_array().unwrap().len(), 2);
    act(&["remove", STORE, "generation-0"]);
    assert!(number(&act(&["collect", STORE]), "removed") > 0);
    assert!(number(&act(&["verify", STORE]), "chunks") > 0);
    // Nothing is left where it was on its way.
    let staging = fs::read_dir(worker.path("staging")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(staging).unwrap().count(), 0);
    worker.kill();
    run(at, &worker, &[&["restore", "--json", "--store", STORE, "generation-1"][..], &sealed].concat());
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn what_nobody_has_sealed_is_fetched_by_those_who_trust_everybody() {
    let server = S3Server::start();
    let worker = Worker::start(&[]);
    let (at, directory) = (server.address(), checkpoint(&worker, "c"));
    run(at, &worker, &["store", "add", STORE, text(&directory), "it", "--json"]);
    let to = worker.path("to");
    let fetch = ["store", "fetch", STORE, "it", text(&to)];
    for words in [&fetch[..], &["restore", "--store", STORE, "it"]] {
        let said = fail(at, &worker, words);
        assert!(
            said.contains("--key-file") && said.contains("--trust-owner") && said.contains(STORE),
            "{said}"
        );
    }
    assert!(!to.exists());
    run(at, &worker, &[&fetch[..], &["--trust-owner", "--json"]].concat());
    assert_eq!(files(&to), files(&directory));
    let key = key(&worker);
    let said = fail(at, &worker, &[&fetch[..], &["--key-file", text(&key)]].concat());
    assert!(said.contains("without a key"), "{said}");
    worker.finish();
}

#[test]
fn bucket_at_the_end_of_a_bad_line_gives_back_what_it_was_given() {
    let server = S3Server::start();
    let worker = Worker::start(&[]);
    let directory = checkpoint(&worker, "c");
    let line = BadLine::to(server.address(), 14 << 20, 1);
    run(
        line.address(),
        &worker,
        &["store", "add", STORE, text(&directory), "it", "--json", "--compress", "zstd"],
    );
    for n in 0..3 {
        let to = worker.path(&format!("to-{n}"));
        run(line.address(), &worker, &["store", "fetch", STORE, "it", text(&to), "--trust-owner", "--json"]);
        assert_eq!(files(&to), files(&directory));
    }
    run(line.address(), &worker, &["store", "verify", STORE, "--json"]);
    assert!(line.broken() > 0);
    worker.finish();
}

#[test]
fn checkpoint_that_the_bucket_does_not_get_is_complete_where_it_was_written() {
    let server = S3Server::start();
    let mut worker = Worker::start(&[]);
    let pid = worker.pid().to_string();
    let line = BadLine::to(server.address(), 0, 1);
    let freeze = ["checkpoint", "--json", &pid, "it", "--store", STORE];
    // Nobody is stopped for a bucket that is none.
    let said = fail(line.address(), &worker, &["checkpoint", &pid, "it", "--store", "s3://other/x"]);
    assert!(said.contains("NoSuchBucket"), "{said}");
    worker.wait_rounds(1);
    // From the moment on when the dump begins, no more is let through.
    let staging = worker.path("staging");
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let dumping = || {
                let own = fs::read_dir(&staging).ok()?.next()?.ok()?.path();
                let command = fs::read_dir(own).ok()?.next()?.ok()?.path();
                command.join("checkpoint/criu").exists().then_some(())
            };
            while dumping().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            line.set_down(true);
        });
        fail(line.address(), &worker, &freeze)
    });
    worker.bury();
    let (_, rest) = said.split_once("The checkpoint is complete in ").unwrap_or_else(|| panic!("{said}"));
    let place = rest.split_once(", and is not in the store").unwrap().0.to_owned();
    assert!(said.contains(&format!("stasis store add {STORE} {place} it")), "{said}");
    line.set_down(false);
    // It is not removed by a collection, and can be added.
    run(line.address(), &worker, &["store", "collect", "--abandon", STORE, "--json"]);
    run(line.address(), &worker, &["store", "add", STORE, &place, "it", "--json"]);
    run(line.address(), &worker, &["restore", "--json", "--store", STORE, "it", "--trust-owner"]);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn commands_that_are_killed_leave_a_bucket_that_is_whole() {
    let server = S3Server::start();
    let worker = Worker::start(&[]);
    let (at, staging) = (server.address(), worker.path("staging"));
    let one = checkpoint(&worker, "one");
    worker.wait_rounds(1);
    let other = checkpoint(&worker, "other");
    run(at, &worker, &["store", "add", STORE, text(&one), "one", "--json"]);
    let kills = setting("STASIS_BUCKET_TRIALS").unwrap_or(KILLS);
    let mut killed = 0;
    for trial in 0..kills {
        let name = format!("trial-{trial}");
        let mut adding = stasis_at(at, &staging, &["store", "add", STORE, text(&other), &name]);
        let mut adding = adding.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // An addition takes some hundreds of milliseconds.
        thread::sleep(Duration::from_millis(trial * 7919 % 400));
        adding.kill().unwrap();
        let is_added = adding.wait().unwrap().success();
        killed += u64::from(!is_added);
        let mut collecting = stasis_at(at, &staging, &["store", "collect", "--abandon", STORE]);
        let mut collecting = collecting.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(trial * 104_729 % 200));
        collecting.kill().unwrap();
        collecting.wait().unwrap();
        run(at, &worker, &["store", "verify", STORE, "--json"]);
        run(at, &worker, &["store", "collect", "--abandon", STORE, "--json"]);
        let listed = run(at, &worker, &["store", "list", STORE, "--json"])["checkpoints"].clone();
        let has = |name: &str| listed.as_array().unwrap().iter().any(|kept| kept["name"] == name);
        assert!(has("one") && (has(&name) || !is_added), "{listed}");
        if has(&name) {
            run(at, &worker, &["store", "remove", STORE, &name, "--json"]);
        }
    }
    assert!(killed > 0);
    run(at, &worker, &["store", "add", STORE, text(&other), "other", "--json"]);
    for (name, directory) in [("one", &one), ("other", &other)] {
        let to = worker.path(&format!("to-{name}"));
        run(at, &worker, &["store", "fetch", STORE, name, text(&to), "--trust-owner", "--json"]);
        assert_eq!(files(&to), files(directory));
    }
    worker.finish();
}

#[test]
fn several_who_add_and_one_who_collects_do_not_hinder_each_other() {
    let server = S3Server::start();
    let worker = Worker::start(&[]);
    let (at, directory) = (server.address(), checkpoint(&worker, "c"));
    thread::scope(|scope| {
        for n in 0..3 {
            let (worker, directory) = (&worker, &directory);
            scope.spawn(move || {
                // All make the store, if it is not there.
                let name = format!("own-{n}");
                run(at, worker, &["store", "add", STORE, text(directory), &name, "--json"]);
                run(at, worker, &["store", "collect", STORE, "--json"]);
                let to = worker.path(&name);
                run(at, worker, &["store", "fetch", STORE, &name, text(&to), "--trust-owner", "--json"]);
                assert_eq!(files(&to), files(directory));
            });
        }
    });
    // What each of them has written by itself is there once.
    let collected = run(at, &worker, &["store", "collect", STORE, "--json"]);
    let listed = run(at, &worker, &["store", "list", STORE, "--json"]);
    let chunks = number(&listed["checkpoints"][0], "chunk_bytes");
    assert!(number(&collected, "left_bytes") < chunks * 11 / 10, "{collected} {listed}");
    worker.finish();
}
