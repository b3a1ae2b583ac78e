// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that go through a store or over a stream, and what is left when something on the way fails.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;
use stasis_tests::clients::with_clients;
use stasis_tests::foreign::{Program, bury, tree_of};
use stasis_tests::gpu::Numbers;
use stasis_tests::sample::{seed, setting};
use stasis_tests::stepper::{Act, walk};
use stasis_tests::worker::{Worker, kill, refused, stasis, succeeded, wait_until};
use stasis_tests::{criu, program};

/// Points of a command at which it is killed, unless more are asked for.
const SAMPLE: u64 = 6;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn number(outcome: &Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

fn run(arguments: &[&str]) -> Value {
    succeeded(&stasis(arguments, &criu()))
}

/// Freezes a worker into a store; it is gone then.
fn freeze(worker: &mut Worker, store: &Path, name: &str, more: &[&str]) -> Value {
    let pid = worker.pid().to_string();
    let outcome = run(&[&["checkpoint", "--json", &pid, name, "--store", text(store)], more].concat());
    worker.bury();
    outcome
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

fn key(directory: &Path) -> PathBuf {
    let path = directory.join("key");
    fs::write(&path, [7; 32]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// `stasis` at work beside the test, and what it has restored in namespaces of its own; it ends with this.
struct Started(Option<Child>);

impl Started {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn ended(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn started(arguments: &[&str]) -> Started {
    let mut command = Command::new(program("stasis"));
    command.args(arguments).env("STASIS_CRIU", criu()).env_remove("STASIS_DEVICE");
    Started(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
}

#[test]
fn generations_in_a_store_cost_what_changed_and_come_back() {
    let mut worker = Worker::start(&[]);
    let store = worker.path("store");
    let mut bytes = Vec::new();
    for generation in 0..3 {
        let name = format!("generation-{generation}");
        let outcome = freeze(&mut worker, &store, &name, &["--compress", "zstd"]);
        bytes.push(number(&outcome["delivered"], "new_bytes"));
        assert_eq!(outcome["delivered"]["name"], name.as_str());
        assert!(is_empty(&store.join("staging")));
        run(&["restore", "--json", "--store", text(&store), &name]);
        assert!(is_empty(&store.join("staging")));
        worker.wait_rounds(2);
    }
    assert!(bytes[1] < bytes[0] && bytes[2] < bytes[0], "{bytes:?}");
    let listed = run(&["store", "list", text(&store), "--json"]);
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 3);
    // Of all but the last nothing is needed.
    for generation in 0..2 {
        run(&["store", "remove", text(&store), &format!("generation-{generation}"), "--json"]);
    }
    assert!(number(&run(&["store", "collect", text(&store), "--json"]), "removed") > 0);
    assert!(number(&run(&["store", "verify", text(&store), "--json"]), "chunks") > 0);
    worker.kill();
    run(&["restore", "--json", "--store", text(&store), "generation-2"]);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn damaged_store_brings_nothing_back_and_a_mended_one_does() {
    let mut worker = Worker::start(&[]);
    let store = worker.path("store");
    let taken = freeze(&mut worker, &store, "it", &[]);
    assert!(number(&taken["delivered"], "new_chunks") > 0);
    let other = Worker::start(&[]);
    let pid = other.pid().to_string();
    let again = refused(&stasis(&["checkpoint", &pid, "it", "--store", text(&store)], &criu()));
    assert!(again.contains("has a checkpoint \"it\""), "{again}");
    other.wait_rounds(1);
    other.finish();
    let shelves = fs::read_dir(store.join("packs")).unwrap();
    let objects: Vec<PathBuf> = shelves
        .flat_map(|shelf| fs::read_dir(shelf.unwrap().path()).unwrap())
        .map(|o| o.unwrap().path())
        .collect();
    let longest = objects.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let whole = fs::read(longest).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    fs::write(longest, damaged).unwrap();
    let restore = ["restore", "--json", "--store", text(&store), "it"];
    let said = refused(&stasis(&restore, &criu()));
    assert!(said.contains("The object of chunk") && said.contains("is damaged"), "{said}");
    assert!(!worker.is_alive());
    fs::write(longest, whole).unwrap();
    run(&restore);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn process_moves_while_it_runs_and_says_how_long_it_stood_still() {
    let worker = Worker::start(&[]);
    let socket = worker.path("socket");
    moves(worker, &format!("unix:{}", text(&socket)));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    moves(Worker::start(&[]), &format!("tcp://{free}"));
}

/// Has a worker move while it runs, over a stream at `address`.
fn moves(mut worker: Worker, address: &str) {
    let key = key(&worker.path(""));
    let (from, to) = (worker.path("from"), worker.path("to"));
    let receiving = started(&["restore", "--json", "--from", address, "--key-file", text(&key), text(&to)]);
    let pid = worker.pid().to_string();
    let mut arguments = vec!["checkpoint", "--json", "--pre-copy", &pid, text(&from), "--to", address];
    arguments.extend(["--key-file", text(&key), "--compress", "lz4"]);
    let sent = run(&arguments);
    // It is restored with its pid, which its zombie has until then.
    worker.bury();
    let restored = succeeded(&receiving.ended());
    assert!(
        restored["stopped_ms"].as_f64().unwrap() >= restored["restore_ms"].as_f64().unwrap(),
        "{restored}"
    );
    // What was copied before was sent before.
    let delivered = &sent["delivered"];
    assert!(number(delivered, "sent_bytes") < number(delivered, "file_bytes") / 2, "{sent}");
    assert!(!from.exists() && !worker.path("socket").exists() && to.join("manifest.json").exists());
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn pipe_carries_a_process() {
    let mut worker = Worker::start(&[]);
    let (stream, from, to) = (worker.path("stream"), worker.path("from"), worker.path("to"));
    let mut checkpoint = Command::new(program("stasis"));
    checkpoint.args(["checkpoint", "--json", &worker.pid().to_string(), text(&from), "--to", "-"]);
    checkpoint.env("STASIS_CRIU", criu()).stdout(File::create(&stream).unwrap()).stderr(Stdio::piped());
    let output = checkpoint.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("\"delivered\""), "{said}");
    worker.bury();
    // Nobody has said that it arrived.
    assert!(from.join("manifest.json").exists());
    let mut restore = Command::new(program("stasis"));
    restore.args(["restore", "--json", "--from", "-", text(&to)]).env("STASIS_CRIU", criu());
    restore.env_remove("STASIS_DEVICE");
    succeeded(&restore.stdin(File::open(&stream).unwrap()).output().unwrap());
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn process_is_not_stopped_before_there_is_a_receiver() {
    let worker = Worker::start(&[]);
    let (from, pid) = (worker.path("from"), worker.pid().to_string());
    let address = format!("unix:{}", text(&worker.path("nobody")));
    for (address, reason) in [("tcp://127.0.0.1:9", "--key-file"), (&*address, "no receiver was reached")] {
        let said =
            refused(&stasis(&["checkpoint", &pid, text(&from), "--to", address, "--wait-ms", "1"], &criu()));
        assert!(said.contains(reason), "{said}");
        assert!(worker.is_alive() && !from.exists());
        worker.wait_rounds(1);
    }
    worker.finish();
}

#[test]
fn process_whose_receiver_goes_away_is_complete_where_it_was() {
    let mut worker = Worker::start(&[]);
    let (from, pid, socket) = (worker.path("from"), worker.pid().to_string(), worker.path("socket"));
    let listener = UnixListener::bind(&socket).unwrap();
    let address = format!("unix:{}", text(&socket));
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut alive = [0];
            // A greeting, and zeros for the proof, since there is no key.
            let mut greeting = [0; 16 + 32 + 32];
            greeting[..9].copy_from_slice(b"STASISSR\x01");
            stream.write_all(&greeting).unwrap();
            stream.read_exact(&mut [0; 16 + 32 + 32]).unwrap();
            // Accepted; then the index's first byte comes.
            stream.write_all(&[7]).unwrap();
            while stream.read_exact(&mut alive).is_ok() && alive == [7] {}
            fs::remove_file(&socket).unwrap();
        });
        let arguments = ["checkpoint", &pid, text(&from), "--to", &address, "--wait-ms", "1"];
        refused(&stasis(&arguments, &criu()))
    });
    assert!(said.contains("is complete in") && said.contains("stasis send"), "{said}");
    worker.bury();
    succeeded(&worker.restore("from"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn copies_from_a_store_run_beside_their_original() {
    let worker = Worker::start(&[]);
    let store = worker.path("store");
    let pid = worker.pid().to_string();
    run(&["checkpoint", "--json", "--leave-running", &pid, "it", "--store", text(&store)]);
    worker.wait_rounds(1);
    let mut copy = started(&["restore", "--store", text(&store), "it", "--beside"]);
    let mut said = BufReader::new(copy.child().stdout.take().unwrap()).lines().map(Result::unwrap);
    let restored = said.next().unwrap_or_default();
    assert!(restored.contains("runs again"), "{restored}");
    wait_until("the end of the restore", || is_empty(&store.join("staging")));
    worker.wait_rounds(1);
    // Both look for the same file, which is there as long as the worker's handle.
    fs::write(worker.path("stop"), "").unwrap();
    assert!(said.any(|end| end.starts_with("The copy ended")));
    assert!(copy.ended().status.success());
    worker.finish();
}

#[test]
fn session_of_two_trees_goes_through_a_store_and_over_a_stream() {
    let (mut one, mut other) = (Worker::start(&[]), Worker::start(&[]));
    let (store, pids) = (one.path("store"), [one.pid().to_string(), other.pid().to_string()]);
    let freeze = ["checkpoint", "--json", &pids[0], "--session", &pids[1], "both", "--store", text(&store)];
    run(&freeze);
    [&mut one, &mut other].into_iter().for_each(Worker::bury);
    run(&["restore", "--json", "--store", text(&store), "both"]);
    assert!(is_empty(&store.join("staging")));
    [&one, &other].into_iter().for_each(|worker| worker.wait_rounds(1));
    let (from, to) = (one.path("from"), one.path("to"));
    let address = format!("unix:{}", text(&one.path("socket")));
    let receiving = started(&["restore", "--json", "--from", &address, text(&to)]);
    let more = [
        "checkpoint",
        "--json",
        "--pre-copy",
        &pids[0],
        "--session",
        &pids[1],
        text(&from),
        "--to",
        &address,
    ];
    run(&more);
    succeeded(&receiving.ended());
    assert!(!from.exists());
    for worker in [one, other] {
        worker.wait_rounds(1);
        worker.finish();
    }
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let worker = Worker::start(&[]);
    let (key, pid, from) = (key(&worker.path("")), worker.pid().to_string(), worker.path("from"));
    for more in [&["--key-file", text(&key)][..], &["--compress", "zstd"], &["--trust-network"]] {
        let said = refused(&stasis(&[&["checkpoint", &pid, text(&from)], more].concat(), &criu()));
        assert!(said.contains("--store and --to"), "{said}");
    }
    let said = refused(&stasis(&["restore", text(&from), "--key-file", text(&key)], &criu()));
    assert!(said.contains("--store and --from"), "{said}");
    assert!(!from.exists());
    worker.finish();
}

#[test]
fn program_under_stasis_run_goes_through_a_store() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        let (store, tree) = (program.path("store"), tree_of(program.pid()));
        let pid = program.pid().to_string();
        let mut freeze = program.command(&["checkpoint", "--json", &pid, "it", "--store", text(&store)]);
        let outcome = succeeded(&freeze.output().unwrap());
        tree.into_iter().for_each(bury);
        program.wait_run();
        assert!(number(&outcome["delivered"], "new_bytes") > 0, "{outcome}");
        let mut restore = program.command(&["restore", "--json", "--store", text(&store), "it"]);
        succeeded(&restore.output().unwrap());
        program.goes_on("round ", 2);
        program.stop("PASS rounds");
    });
}

/// Kills a command at some of its system calls; `check` says whether all is as it has to be then.
fn killed_anywhere(arguments: &[&str], mut prepare: impl FnMut(), mut check: impl FnMut()) {
    let points = setting("STASIS_KILL_POINTS").unwrap_or(SAMPLE);
    let command = || {
        let mut command = Command::new(program("stasis"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    // This process has no agent that would be walked.
    let own = std::process::id().cast_signed();
    prepare();
    let whole = walk(&mut command(), own, &mut |_| Act::Step);
    assert_eq!(whole.succeeded, Some(true));
    let drawn = Numbers(seed()).map(u64::from).take(points as usize);
    for at in drawn.map(|drawn| drawn % whole.stops) {
        prepare();
        walk(&mut command(), own, &mut |stop| {
            if stop.number == at {
                kill(stop.thread);
                return Act::LetGo;
            }
            Act::Step
        });
        println!("killed at {at} of {}", whole.stops);
        check();
    }
}

#[test]
fn store_is_whole_wherever_an_addition_or_a_collection_is_killed() {
    let mut worker = Worker::start(&[]);
    let (store, directory) = (worker.path("store"), worker.path("c"));
    worker.freeze("c");
    let add = ["store", "add", text(&store), text(&directory), "it", "--json"];
    let whole = || {
        // What is in it is in it whole; what is not can be added.
        if !store.exists() {
            return;
        }
        let is_there = store.join("checkpoints/it").exists();
        assert!(store.join("stasis-store.json").exists() || !is_there);
        if !is_there {
            run(&add);
        }
        let verified = run(&["store", "verify", text(&store), "--json"]);
        run(&["store", "collect", text(&store), "--json"]);
        assert_eq!(run(&["store", "verify", text(&store), "--json"]), verified);
        assert!(is_empty(&store.join("incoming")));
    };
    let remove = || drop(fs::remove_dir_all(&store));
    killed_anywhere(&add, remove, whole);
    remove();
    run(&add);
    let garbage = || {
        let other = worker.path("other");
        if !other.exists() {
            fs::create_dir(&other).unwrap();
        }
        fs::write(
            store.join("packs").read_dir().unwrap().next().unwrap().unwrap().path().join("0".repeat(64)),
            "",
        )
        .unwrap();
    };
    killed_anywhere(&["store", "collect", text(&store), "--json"], garbage, whole);
    let back = worker.path("back");
    let fetch = ["store", "fetch", text(&store), "it", text(&back), "--json"];
    let gone = || drop(fs::remove_dir_all(&back));
    killed_anywhere(&fetch, gone, || {
        if !back.exists() {
            run(&fetch);
        }
        run(&["inspect", "--verify", "--json", text(&back)]);
    });
    gone();
    run(&["restore", "--json", "--store", text(&store), "it"]);
    worker.wait_rounds(2);
    worker.finish();
}
