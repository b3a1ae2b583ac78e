// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several processes in one checkpoint: a tree with several runtimes, and independent trees in one session.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stasis::checkpoint::{Request, State, call};
use stasis_tests::tree::Tree;
use stasis_tests::worker::{Worker, refused, stasis, succeeded, wait_until};
use stasis_tests::{criu, program};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn run(words: &[&str]) -> Output {
    stasis(words, &criu())
}

fn checkpoint(pid: i32, directory: &Path, more: &[&str]) -> Output {
    let (pid, directory) = (pid.to_string(), text(directory));
    run(&[&["checkpoint", "--json", &pid, &directory], more].concat())
}

fn restore(directory: &Path) -> Output {
    run(&["restore", "--json", &text(directory)])
}

/// The pids that a report lists.
fn pids(report: &serde_json::Value) -> Vec<i64> {
    report["processes"].as_array().unwrap().iter().map(|row| row["pid"].as_i64().unwrap()).collect()
}

fn numbers(pids: &[i32]) -> Vec<i64> {
    pids.iter().map(|pid| i64::from(*pid)).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Everything below a directory that is a file.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let below = entries.map(|entry| entry.unwrap().path());
    below.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn state(pid: i32) -> Option<State> {
    call(pid, &Request::Status, std::time::Duration::from_secs(10)).ok().map(|(state, _)| state)
}

#[test]
fn tree_of_three_is_left_running_then_frozen_moved_and_restored() {
    let mut tree = Tree::start(&["", "--threads 2", ""], &[]);
    let workers = tree.worker_pids();
    assert_eq!(workers.len(), 3);
    let report = succeeded(&checkpoint(tree.root(), &tree.path("left"), &["--leave-running"]));
    assert_eq!(pids(&report), numbers(&workers));
    tree.wait_rounds(2);

    let report = succeeded(&checkpoint(tree.root(), &tree.path("images"), &[]));
    assert_eq!(pids(&report), numbers(&workers));
    let own: u64 = report["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["content_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(report["content_bytes"].as_u64(), Some(own));
    tree.bury();
    let mut expected: Vec<_> = workers.iter().map(|pid| format!("stasis-{pid}")).collect();
    expected.extend(["criu", "manifest.json", "session"].map(str::to_owned));
    expected.sort();
    assert_eq!(names(&tree.path("images")), expected);
    let mode = fs::metadata(tree.path("images/session")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let inspected = succeeded(&run(&["inspect", "--json", &text(&tree.path("images"))]));
    assert_eq!(inspected["images"].as_array().unwrap().len(), 3);

    fs::rename(tree.path("images"), tree.path("moved")).unwrap();
    let report = succeeded(&restore(&tree.path("moved")));
    assert_eq!(pids(&report), numbers(&workers));
    tree.goes_on();
}

#[test]
fn tree_with_one_runtime_below_its_root_needs_no_session() {
    let mut tree = Tree::start(&[""], &[]);
    let worker = tree.worker_pids()[0];
    succeeded(&checkpoint(tree.root(), &tree.path("images"), &[]));
    tree.bury();
    assert_eq!(names(&tree.path("images")), ["criu", "manifest.json", &format!("stasis-{worker}")]);
    succeeded(&restore(&tree.path("images")));
    tree.goes_on();
}

#[test]
fn member_that_fails_brings_all_back() {
    let tree = Tree::start(&["", "--io-uring", ""], &[]);
    let error = refused(&checkpoint(tree.root(), &tree.path("images"), &["--no-preflight"]));
    assert!(error.contains("io_uring") && error.contains("run on unharmed"), "{error}");
    assert!(!tree.path("images").exists(), "{:?}", files(&tree.path("images")));
    for pid in tree.worker_pids() {
        assert_eq!(state(pid), Some(State::Running));
    }
    let error =
        refused(&checkpoint(tree.root(), &tree.path("images"), &["--no-preflight", "--self-contained"]));
    assert!(error.contains("--self-contained"), "{error}");
    tree.goes_on();
}

#[test]
fn session_of_two_trees_is_restored_in_any_order_and_at_once() {
    let (mut one, mut other) = (Worker::start(&[]), Worker::start(&["--threads", "2"]));
    let freeze = |one: &Worker, other: &Worker, name: &str, more: &[&str]| {
        let (directory, second) = (one.path(name), other.pid().to_string());
        let arguments = [&["--session", &second], more].concat();
        let report = succeeded(&checkpoint(one.pid(), &directory, &arguments));
        assert_eq!(pids(&report), numbers(&[one.pid(), other.pid()]));
        let mut expected = vec![one.pid().to_string(), other.pid().to_string()];
        expected.extend(["session", "session.json"].map(str::to_owned));
        expected.sort();
        assert_eq!(names(&directory), expected);
        directory
    };
    freeze(&one, &other, "left", &["--leave-running"]);
    one.wait_rounds(2);
    other.wait_rounds(2);
    for (generation, first) in ["first", "second", "third"].into_iter().zip([Some(0), Some(1), None]) {
        let directory = freeze(&one, &other, generation, &[]);
        one.bury();
        other.bury();
        let trees = [one.pid(), other.pid()].map(|pid| directory.join(pid.to_string()));
        match first {
            Some(first) => {
                succeeded(&restore(&trees[first]));
                [&one, &other][first].wait_rounds(2);
                succeeded(&restore(&trees[1 - first]));
            }
            None => {
                let report = succeeded(&restore(&directory));
                assert_eq!(report["trees"].as_array().unwrap().len(), 2);
            }
        }
        one.wait_rounds(2);
        other.wait_rounds(2);
    }
    one.finish();
    other.finish();
}

#[test]
fn session_whose_second_dump_fails_leaves_both_running_and_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (one, other) = (Worker::start(&[]), Worker::start(&["--connect", &text(&socket)]));
    // CRIU cannot dump one end of it.
    let _connection = listener.accept().unwrap();
    let images = directory.path().join("images");
    let second = other.pid().to_string();
    let arguments = ["--no-preflight", "--session", &second];
    let error = refused(&checkpoint(one.pid(), &images, &arguments));
    assert!(error.contains(&format!("tree of process {second} cannot be dumped")), "{error}");
    assert!(error.contains("run on unharmed"), "{error}");
    let left = files(&images);
    assert!(!left.is_empty() && left.iter().all(|path| path.ends_with("criu/dump.log")), "{left:?}");
    for worker in [one, other] {
        assert_eq!(state(worker.pid()), Some(State::Running));
        worker.wait_rounds(3);
        worker.finish();
    }
}

#[test]
fn session_whose_controller_is_killed_between_two_dumps_runs_on() {
    let (one, other) = (Worker::start(&[]), Worker::start(&[]));
    let (images, second) = (one.path("images"), other.pid().to_string());
    let (script, go) = (one.path("criu-script"), one.path("go"));
    // The second dump begins only when it may, and then fails.
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {criu} --version\n[ \"$3\" = {second} ] || exec {criu} \"$@\"\n\
         until [ -e '{go}' ]; do sleep 0.05; done\nexit 1\n",
        criu = criu().display(),
        go = go.display(),
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program("stasis"));
    command.args(["checkpoint", &one.pid().to_string(), &self::text(&images), "--session", &second]);
    let mut controller = command.env("STASIS_CRIU", &script).stdout(Stdio::null()).spawn().unwrap();
    let first = images.join(one.pid().to_string());
    wait_until("the first tree to wait for the second", || first.join("criu/prepared").exists());
    assert!(!first.join("manifest.json").exists());
    controller.kill().unwrap();
    controller.wait().unwrap();
    one.wait_rounds(3);
    other.wait_rounds(3);
    assert!(!first.join("manifest.json").exists());
    fs::write(&go, "").unwrap();
    one.finish();
    other.finish();
}

#[test]
fn session_is_restored_beside_its_living_originals() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can make namespaces here");
        return;
    }
    let (one, other) = (Worker::start(&[]), Worker::start(&[]));
    let (images, second) = (one.path("images"), other.pid().to_string());
    succeeded(&checkpoint(one.pid(), &images, &["--session", &second, "--leave-running"]));
    let mut command = Command::new(program("stasis"));
    command.args(["restore", "--beside", &text(&images)]).env("STASIS_CRIU", criu());
    let copies = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let copies = std::thread::spawn(move || copies.wait_with_output().unwrap());
    // A copy goes on from the round of its original at the checkpoint.
    let counts_back = |worker: &Worker| {
        let log = worker.log();
        let rounds = log.lines().filter_map(|line| line.strip_prefix("round ")?.parse::<u64>().ok());
        rounds.collect::<Vec<_>>().windows(2).any(|pair| pair[1] < pair[0])
    };
    wait_until("rounds of both copies", || {
        copies.is_finished() || [&one, &other].into_iter().all(counts_back)
    });
    let logs = [one.path("log"), other.path("log")];
    let done = || logs.iter().all(|log| fs::read_to_string(log).unwrap().matches("done").count() == 2);
    fs::write(one.path("stop"), "").unwrap();
    fs::write(other.path("stop"), "").unwrap();
    let output = copies.join().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.matches("The copy of process").count(), 2, "{said}");
    wait_until("all four to be done", done);
    one.finish();
    other.finish();
}

#[test]
fn process_is_in_one_tree() {
    let tree = Tree::start(&["", ""], &[]);
    let worker = tree.worker_pids()[0].to_string();
    for second in [&worker, &tree.root().to_string()] {
        let error = refused(&checkpoint(tree.root(), &tree.path("images"), &["--session", second]));
        assert!(error.contains("is in the tree of process"), "{error}");
    }
    assert!(!tree.path("images").exists());
    wait_until("the tree to be as it was", || {
        tree.worker_pids().iter().all(|pid| state(*pid) == Some(State::Running))
    });
    tree.goes_on();
}
