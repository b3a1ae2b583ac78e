// SPDX-License-Identifier: MIT OR Apache-2.0
//! Containers whose program is under `stasis run` and knows nothing of checkpoints, with its softgpud in the container.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use stasis_tests::container::{Bundle, Container, Podman, fill_root, rounds, wait_for_the_end_of};
use stasis_tests::plain_criu::at_post_dump;
use stasis_tests::tree::descendants;
use stasis_tests::worker::{is_alive, wait_until};

const IMAGE: &str = "localhost/foreign:1";
const PROGRAMS: [&str; 3] = ["counter-worker", "stasis", "libstasis_kfd.so"];
/// A worker has an agent of ours, too; under `stasis run` nobody asks it.
const RUN: [&str; 8] =
    ["/app/stasis", "run", "--", "/app/counter-worker", "--until", "/out/stop", "--threads", "2"];

/// A host that has the image.
fn host() -> Podman {
    let host = Podman::new();
    let root = host.path("root");
    fill_root(&root, &PROGRAMS);
    host.import(&root, IMAGE);
    host
}

/// Has the worker end; it prints `done` only if every value was right.
fn finishes(container: &Container<'_>, shared: &Path) {
    fs::write(shared.join("stop"), "").unwrap();
    assert_eq!(container.wait(), 0, "{}", container.log());
    let log = container.log();
    assert!(log.lines().any(|line| line == "done"), "{log}");
}

#[test]
fn container_of_a_run_is_archived_removed_and_goes_on_on_another_host() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    let mut container = host.start("run", IMAGE, shared.path(), "", &RUN);
    for generation in ["first", "second"] {
        container.wait_rounds(2);
        let processes = container.processes();
        let archive = shared.path().join(format!("{generation}.tar.gz"));
        container.checkpoint(&archive, &["--compress", "gzip"]);
        wait_for_the_end_of(&processes);
        assert!(!container.is_running());
        container.remove();
        host.start_over(IMAGE);
        container = host.restore(&archive, generation);
    }
    container.wait_rounds(3);
    finishes(&container, shared.path());
    let log = container.log();
    assert!(rounds(&log).iter().copied().eq(1..=rounds(&log).len() as u64), "{log}");
}

#[test]
fn container_of_a_run_that_is_left_running_goes_on_and_so_does_its_copy() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    let container = host.start("run", IMAGE, shared.path(), "", &RUN);
    let archive = shared.path().join("run.tar.gz");
    // The second time its softgpud is outside of the tree already.
    for _ in 0..2 {
        container.wait_rounds(2);
        container.checkpoint(&archive, &["--leave-running"]);
    }
    container.wait_rounds(2);
    let copy = host.restore(&archive, "copy");
    copy.wait_rounds(2);
    finishes(&container, shared.path());
    finishes(&copy, shared.path());
}

#[test]
fn container_of_a_run_whose_checkpoint_fails_runs_on() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    let veto = at_post_dump(shared.path(), "touch \"$(dirname \"$0\")/vetoed\"; exit 3");
    let settings = format!("action-script {}\n", veto.display());
    let container = host.start("run", IMAGE, shared.path(), &settings, &RUN);
    container.wait_rounds(2);
    let first = container.pid();
    let outcome = container.try_checkpoint(&shared.path().join("run.tar.gz"), &[]);
    assert!(!outcome.status.success() && shared.path().join("vetoed").exists(), "{outcome:?}");
    container.wait_rounds(3);
    assert_eq!(container.pid(), first);
    finishes(&container, shared.path());
}

/// The softgpud processes in the pid namespace of a process.
fn devices_of(pid: i32) -> Vec<i32> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let is_softgpud = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.file_name().is_some_and(|name| name == "softgpud")
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_softgpud).filter(|other| namespace(*other) == namespace(pid)).collect()
}

/// A line of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

#[test]
fn bundle_of_a_run_goes_on_and_its_softgpud_ends_with_it() {
    let shared = tempfile::tempdir().unwrap();
    let bundle = Bundle::new(&PROGRAMS, shared.path(), &RUN);
    let log = bundle.path("log");
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let wait_rounds = |more| {
        let start = rounds(&text()).len();
        wait_until("rounds of a worker in a bundle", || rounds(&text()).len() >= start + more);
    };
    bundle.start(&["run"], &log);
    wait_rounds(2);
    let first = bundle.pid().unwrap();
    let processes: Vec<i32> = std::iter::once(first).chain(descendants(first)).collect();
    let (images, work) = (bundle.path("images"), bundle.path("work"));
    let paths = ["--image-path", images.to_str().unwrap(), "--work-path", work.to_str().unwrap()];
    let outcome = bundle.runc(&["checkpoint"]).args(paths).arg(bundle.id()).output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}: {}", bundle.criu_logs());
    wait_for_the_end_of(&processes);
    bundle.start(&[&["restore"], &paths[..]].concat(), &log);
    wait_rounds(3);
    let first = bundle.pid().unwrap();
    assert!(is_alive(first));
    // Its softgpud is in the container's namespaces, below no process of it, and has no capability that the container has not.
    let devices = devices_of(first);
    assert_eq!(devices.len(), 2, "a broker and an executor: {devices:?}");
    let below = descendants(first);
    for device in &devices {
        assert!(!below.contains(device), "{device} is below {first}: {below:?}");
        assert_eq!(field(*device, "CapBnd:"), field(first, "CapBnd:"));
        assert_eq!(field(*device, "NoNewPrivs:"), "1");
    }
    fs::write(shared.path().join("stop"), "").unwrap();
    wait_until("the worker's last word", || text().lines().any(|line| line == "done"));
    wait_until("the end of the container", || !is_alive(first));
    wait_until("the end of its softgpud", || devices.iter().all(|pid| !is_alive(*pid)));
}
