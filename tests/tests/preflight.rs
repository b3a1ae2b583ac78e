// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis preflight`: CRIU refuses what preflight refuses, and dumps what preflight accepts; preflight changes
//! nothing.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use stasis::checkpoint::{CheckpointOrder, Request, State, call};
use stasis_tests::culprit::Culprit;
use stasis_tests::worker::{Worker, refused, stasis, succeeded, wait_until};
use stasis_tests::{criu, program};

/// The findings of a severity.
fn findings<'v>(report: &'v Value, severity: &str) -> Vec<&'v Value> {
    let all = report["findings"].as_array().unwrap();
    all.iter().filter(|finding| finding["severity"] == severity).collect()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The things that preflight refuses, with exit status 1; there may be no other finding.
fn refusals(output: &Output) -> Vec<Value> {
    let report = report(output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["possible"], false);
    let found: Vec<Value> = findings(&report, "refused").into_iter().cloned().collect();
    assert!(!found.is_empty(), "{report:#}");
    found
}

fn passes(output: &Output) -> Value {
    let report = report(output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["possible"], findings(&report, "refused").len()), (&Value::Bool(true), 0));
    report
}

/// Preflight names the resource and no other; CRIU refuses the same process, and both accept it with the option
/// `lifted`.
fn refused_like_criu(thing: &str, argument: Option<&str>, what: &str, lifted: Option<&str>) {
    let Some(culprit) = Culprit::start(thing, argument) else { return };
    for finding in refusals(&culprit.preflight(&[])) {
        let text = |key: &str| finding[key].as_str().unwrap().to_owned();
        let named = format!("{}: {} {}", text("place"), text("what"), text("why"));
        assert!(named.contains(what), "{named}");
        assert_ne!(text("remedy"), "", "{named}");
        assert_eq!(finding["pid"], culprit.pid);
    }
    let log = culprit.dump("images", &[]).expect_err("CRIU dumps what preflight refuses");
    assert!(log.contains("Error"), "{log}");
    if let Some(option) = lifted {
        passes(&culprit.preflight(&[&format!("--criu-arg={option}")]));
        culprit.dump("lifted", &[option]).unwrap();
    }
}

/// Preflight finds nothing, and CRIU dumps the process.
fn passes_like_criu(thing: &str) {
    let Some(culprit) = Culprit::start(thing, None) else { return };
    passes(&culprit.preflight(&[]));
    culprit.dump("images", &[]).unwrap();
}

macro_rules! refused {
    ($($test:ident: $thing:literal $(($argument:literal))?, $what:literal $(, $lifted:literal)?;)*) => {$(
        #[test]
        fn $test() {
            let (argument, lifted) = ([$($argument)?].first().copied(), [$($lifted)?].first().copied());
            refused_like_criu($thing, argument, $what, lifted);
        }
    )*};
}

refused! {
    io_uring_is_refused: "io-uring", "fd 3: anon_inode:[io_uring]";
    userfaultfd_is_refused: "userfaultfd", "fd 3: anon_inode:[userfaultfd]";
    perf_event_is_refused: "perf-event", "anon_inode:[perf_event]";
    secret_memory_is_refused: "secret-memory", "/secretmem";
    system_v_memory_is_refused: "system-v", "/SYSV";
    vsock_is_refused: "vsock", "family 40";
    mptcp_is_refused: "mptcp", "MPTCP";
    message_queue_is_refused: "message-queue", "mount";
    bpf_map_is_refused: "bpf-map", "bpf-map";
    pidfd_of_a_stranger_is_refused: "pidfd", "pidfd";
    tun_is_refused: "device"("/dev/net/tun"), "/dev/net/tun";
    fuse_is_refused: "device"("/dev/fuse"), "/dev/fuse";
    traced_process_is_refused: "traced", "traced by process";
    lock_is_refused_unless_told: "lock", "FLOCK", "--file-locks";
    large_deleted_file_is_refused_unless_told: "large-deleted-file", "(deleted)", "--ghost-limit=8M";
    file_with_another_name_is_refused_unless_told: "renamed-file", "(deleted)", "--link-remap";
    tcp_connection_is_refused_unless_told: "tcp-connection", "a TCP connection 127.0.0.1", "--tcp-close";
}

macro_rules! passes {
    ($($test:ident: $thing:literal;)*) => {$(
        #[test]
        fn $test() {
            passes_like_criu($thing);
        }
    )*};
}

passes! {
    process_with_nothing_passes: "nothing";
    memfd_of_its_own_passes: "memfd";
    mapped_memfd_of_its_own_passes: "mapped-memfd";
    small_deleted_file_passes: "small-deleted-file";
    unix_pair_of_its_own_passes: "unix-pair";
    tcp_listener_passes: "tcp-listener";
    unbound_socket_passes: "unbound";
    netlink_socket_passes: "netlink";
}

#[test]
fn ordinary_devices_pass() {
    for device in ["/dev/zero", "/dev/full", "/dev/urandom", "/dev/ptmx"] {
        let culprit = Culprit::start("device", Some(device)).unwrap();
        passes(&culprit.preflight(&[]));
        culprit.dump("images", &[]).unwrap();
    }
}

#[test]
fn tcp_flags_lift_the_refusal() {
    let culprit = Culprit::start("tcp-connection", None).unwrap();
    passes(&culprit.preflight(&["--tcp-close"]));
    passes(&culprit.preflight(&["--tcp-established"]));
    let both = culprit.preflight(&["--tcp-close", "--tcp-established"]);
    assert_eq!(both.status.code(), Some(2), "clap's word for usage");
}

#[test]
fn connection_nobody_has_accepted_is_refused() {
    let culprit = Culprit::start("tcp-waiting", None).unwrap();
    let found = refusals(&culprit.preflight(&[]));
    assert!(found[0]["why"].as_str().unwrap().contains("wait to be accepted"), "{found:?}");
    culprit.dump("images", &[]).unwrap_err();
    passes(&culprit.preflight(&["--criu-arg=--skip-in-flight"]));
}

#[test]
fn unix_stream_to_a_stranger_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("stranger");
    let listener = UnixListener::bind(&address).unwrap();
    let culprit = Culprit::start("unix-stream", address.to_str()).unwrap();
    let _other_end = listener.accept().unwrap();
    let found = refusals(&culprit.preflight(&["--criu-arg=--ext-unix-sk"]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0]["what"].as_str().unwrap().contains(address.to_str().unwrap()), "{found:?}");
    culprit.dump("images", &["--ext-unix-sk"]).unwrap_err();
}

#[test]
fn unix_datagrams_to_a_stranger_are_refused_unless_told() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("stranger");
    let _stranger = UnixDatagram::bind(&address).unwrap();
    refused_like_criu("unix-datagram", address.to_str(), "datagram", Some("--ext-unix-sk"));
}

#[test]
fn memory_shared_with_a_stranger_is_refused_where_criu_is_silent() {
    for thing in ["memfd", "mapped-memfd"] {
        let culprit = Culprit::start(thing, None).unwrap();
        let memory = memory_of(culprit.pid);
        let stranger = OpenOptions::new().read(true).write(true).open(&memory).unwrap();
        let found = refusals(&culprit.preflight(&[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0]["what"].as_str().unwrap().contains("/memfd:shared"), "{found:?}");
        let own = format!("shared with process {}", std::process::id());
        assert!(found[0]["why"].as_str().unwrap().contains(&own), "{found:?}");
        // CRIU makes a copy here without a message, which is why preflight looks for it.
        culprit.dump("images", &[]).unwrap();
        drop(stranger);
        passes(&culprit.preflight(&[]));
    }
}

/// The memfd of a process, by a descriptor or by its mapping.
fn memory_of(pid: i32) -> PathBuf {
    let entries = ["fd", "map_files"].map(|kind| fs::read_dir(format!("/proc/{pid}/{kind}")).unwrap());
    let mut paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:shared"))
    };
    paths.find(is_memory).unwrap()
}

#[test]
fn children_are_looked_at_too() {
    let culprit = Culprit::start("child", Some("io-uring")).unwrap();
    let mut found = Vec::new();
    wait_until("the child's io_uring", || {
        found = findings(&report(&culprit.preflight(&[])), "refused").into_iter().cloned().collect();
        !found.is_empty()
    });
    assert_ne!(found[0]["pid"], culprit.pid);
    assert!(found[0]["what"].as_str().unwrap().contains("io_uring"), "{found:?}");
    culprit.dump("images", &[]).unwrap_err();
}

#[test]
fn process_that_leads_no_session_is_refused_unless_told() {
    let directory = tempfile::tempdir().unwrap();
    let log = OpenOptions::new().create(true).append(true).open(directory.path().join("log")).unwrap();
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", "\"$0\" nothing & wait"]).arg(program("culprit"));
    let culprit = Culprit::run(directory, log, &mut command, "nothing").unwrap();
    let found = refusals(&culprit.preflight(&[]));
    assert!(found[0]["remedy"].as_str().unwrap().contains("setsid"), "{found:?}");
    culprit.dump("images", &[]).unwrap_err();
    passes(&culprit.preflight(&["--criu-arg=--shell-job"]));
    culprit.dump("lifted", &["--shell-job"]).unwrap();
}

#[test]
fn log_without_append_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let log = File::create(directory.path().join("log")).unwrap();
    let culprit = Culprit::start_in(directory, log, "nothing", None).unwrap();
    let report = passes(&culprit.preflight(&[]));
    let warned: Vec<_> = findings(&report, "warning");
    let places: Vec<_> = warned.iter().map(|w| w["place"].as_str().unwrap()).collect();
    assert!(places.contains(&"fd 1"), "{report:#}");
    assert!(warned[0]["why"].as_str().unwrap().contains("O_APPEND"), "{report:#}");
}

#[test]
fn deleted_executable_that_is_too_large_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let copy = home.path().join("culprit");
    fs::copy(program("culprit"), &copy).unwrap();
    // Larger than CRIU's limit of 1 MiB however it was built.
    OpenOptions::new().append(true).open(&copy).unwrap().write_all(&[0xa5; 2 << 20]).unwrap();
    let log = OpenOptions::new().create(true).append(true).open(home.path().join("log")).unwrap();
    let mut command = Command::new("setsid");
    command.arg(&copy).arg("nothing");
    let culprit = Culprit::run(home, log, &mut command, "nothing").unwrap();
    fs::remove_file(&copy).unwrap();
    let found = refusals(&culprit.preflight(&[]));
    assert!(found[0]["what"].as_str().unwrap().contains("culprit (deleted)"), "{found:?}");
    culprit.dump("images", &[]).unwrap_err();
    passes(&culprit.preflight(&["--criu-arg=--ghost-limit", "--criu-arg=256M"]));
    culprit.dump("lifted", &["--ghost-limit", "256M"]).unwrap();
}

#[test]
fn prose_ends_with_the_verdict() {
    let culprit = Culprit::start("lock", None).unwrap();
    let pid = culprit.pid.to_string();
    let output = stasis(&["preflight", &pid], &criu());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.ends_with(&format!("Process {pid} cannot be checkpointed: 1 thing stands in the way\n")),
        "{text}"
    );
    assert!(text.contains("--file-locks"), "{text}");
    let output = stasis(&["preflight", &pid, "--file-locks"], &criu());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().next_back().unwrap().contains("can be checkpointed"), "{text}");
    let missing = stasis(&["preflight", &pid, "--file-locks"], "/nowhere/criu".as_ref());
    assert!(String::from_utf8(missing.stdout).unwrap().contains("/nowhere/criu"));
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn nobody_is_an_error() {
    let error = refused(&stasis(&["preflight", "2147483"], &criu()));
    assert!(error.contains("There is no process 2147483"), "{error}");
}

#[test]
fn clean_worker_passes_with_the_sizes_of_its_checkpoint() {
    let worker = Worker::start(&["--threads", "3"]);
    let pid = worker.pid().to_string();
    // Each thread makes its queue and buffers in its own time.
    let objects = || {
        report(&worker.stasis(&["preflight", "--json", &pid]))["processes"][0]["runtime"]["objects"].clone()
    };
    wait_until("three queues", || objects()["queue_count"] == 3);
    worker.wait_rounds(2);
    let report = passes(&worker.stasis(&["preflight", "--json", &pid]));
    let runtime = &report["processes"][0]["runtime"];
    assert_eq!(
        (&runtime["state"], runtime["agents"].as_array().unwrap().len()),
        (&Value::from("running"), 1)
    );
    assert_eq!(runtime["objects"]["queues"].as_array().unwrap().len(), 3);
    assert_eq!(runtime["objects"]["shared"], 0);
    assert!(report["memory_bytes"].as_u64().unwrap() > 1 << 20);
    let outcome = succeeded(&worker.checkpoint("images", &["--leave-running"]));
    assert_eq!(report["buffer_bytes"], outcome["content_bytes"]);
    let estimate = runtime["objects"]["image_bytes"].as_u64().unwrap();
    assert!(outcome["image_bytes"].as_u64().unwrap() <= estimate, "{outcome} {report:#}");
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn checkpoint_looks_first_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("stranger");
    let listener = UnixListener::bind(&address).unwrap();
    let worker = Worker::start(&["--io-uring", "--connect", address.to_str().unwrap()]);
    let _other_end = listener.accept().unwrap();
    let pid = worker.pid().to_string();
    let found = refusals(&worker.stasis(&["preflight", "--json", &pid]));
    assert_eq!(found.len(), 2, "{found:?}");
    let error = refused(&worker.checkpoint("images", &[]));
    assert!(error.contains("was not touched") && error.contains("2 things stand in the way"), "{error}");
    assert!(error.contains("io_uring") && error.contains("fd ") && error.contains("Unix stream"), "{error}");
    assert!(error.contains("--no-preflight"), "{error}");
    assert!(!worker.path("images").exists(), "the process or its directory was touched");
    let (state, _) = call(worker.pid(), &Request::Status, Duration::from_secs(10)).unwrap();
    assert_eq!(state, State::Running);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn status_tells_what_the_runtime_has() {
    let worker = Worker::start(&[]);
    let pid = worker.pid().to_string();
    let status = succeeded(&worker.stasis(&["status", "--json", &pid]));
    assert_eq!((&status["state"], &status["last_error"]), (&Value::from("running"), &Value::Null));
    assert!(status["runtime"]["objects"]["saved_bytes"].as_u64().unwrap() > 6 << 20, "{status:#}");
    let prose = worker.stasis(&["status", &pid]);
    let text = String::from_utf8(prose.stdout).unwrap();
    assert!(text.starts_with("running\n") && text.contains("queue") && text.contains("GPU-"), "{text}");
    worker.finish();
}

#[test]
fn checkpointed_process_is_refused_and_said_to_be() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    fs::create_dir(&directory).unwrap();
    let order = Request::Checkpoint(CheckpointOrder {
        lease_ms: 60_000,
        ..CheckpointOrder::into_directory(directory)
    });
    call(worker.pid(), &order, Duration::from_secs(30)).unwrap();
    let pid = worker.pid().to_string();
    let found = refusals(&worker.stasis(&["preflight", "--json", &pid]));
    assert!(found[0]["what"].as_str().unwrap().contains("checkpointed already"), "{found:?}");
    let status = succeeded(&worker.stasis(&["status", "--json", &pid]));
    assert_eq!(status["runtime"]["objects"]["preempt"], "unknown");
    succeeded(&worker.stasis(&["status", "--json", &pid]));
    call(worker.pid(), &Request::Resume { directory: None, admission: None }, Duration::from_secs(30))
        .unwrap();
    worker.finish();
}
