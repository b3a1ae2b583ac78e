// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders that race each other, and restores that are killed and tried again: the second waits for the first, and the
//! final report is true.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stasis::checkpoint::{CallError, CheckpointOrder, Done, Request, State, call};
use stasis_tests::gpu::Gpu;
use stasis_tests::worker::{Worker, is_alive, refused, succeeded, wait_until};
use stasis_tests::{criu, program};

const PATIENCE: Duration = Duration::from_secs(120);

fn resume() -> Request {
    Request::Resume { directory: None, admission: None }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A running `stasis restore` of a directory.
fn begin(directory: &Path) -> Child {
    let mut command = Command::new(program("stasis"));
    command.arg("restore").arg(directory).env("STASIS_CRIU", criu());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn children(pid: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Two workers that are frozen as one session.
fn session(name: &str) -> (Worker, Worker, PathBuf) {
    let (mut one, mut other) = (Worker::start(&["--threads", "2"]), Worker::start(&[]));
    let directory = one.path(name);
    let (pid, with) = (one.pid().to_string(), other.pid().to_string());
    succeeded(&one.stasis(&["checkpoint", "--json", &pid, text(&directory), "--session", &with]));
    one.bury();
    other.bury();
    (one, other, directory)
}

fn go_on(workers: [Worker; 2]) {
    for worker in workers {
        worker.wait_rounds(2);
        worker.finish();
    }
}

#[test]
fn orders_to_resume_that_come_together_all_succeed() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&(0..1 << 20).collect::<Vec<u32>>());
    let own = std::process::id().cast_signed();
    for _ in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let order = CheckpointOrder::into_directory(directory.path().to_owned());
        call(own, &Request::Checkpoint(order), PATIENCE).unwrap();
        std::thread::scope(|scope| {
            let resumes: Vec<_> = (0..8).map(|_| scope.spawn(|| call(own, &resume(), PATIENCE))).collect();
            for resumed in resumes {
                let (state, done) = resumed.join().unwrap().unwrap();
                assert!(state == State::Running && matches!(done, Done::Running(_)), "{done:?}");
            }
        });
    }
    assert_eq!(stasis_tests::gpu::values::<u32>(&buffer), (0..1 << 20).collect::<Vec<_>>());
}

#[test]
fn restore_and_orders_that_race_it_all_succeed() {
    let mut worker = Worker::start(&["--threads", "2"]);
    let pid = worker.pid();
    for generation in 0..3 {
        let name = format!("generation-{generation}");
        worker.freeze(&name);
        let restored = AtomicBool::new(false);
        let (output, refusals) = std::thread::scope(|scope| {
            let racing = || {
                let mut refusals = Vec::new();
                while !restored.load(Ordering::Relaxed) {
                    match call(pid, &resume(), PATIENCE) {
                        Err(error @ CallError::Refused { .. }) => refusals.push(error.to_string()),
                        // It does not exist yet.
                        _ => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                refusals
            };
            let racers = [scope.spawn(racing), scope.spawn(racing)];
            let output = worker.restore(&name);
            restored.store(true, Ordering::Relaxed);
            (output, racers.map(|racer| racer.join().unwrap()).concat())
        });
        succeeded(&output);
        assert_eq!(refusals, [""; 0]);
        worker.wait_rounds(2);
    }
    worker.finish();
}

#[test]
fn checkpoint_whose_process_somebody_resumes_says_what_is_true() {
    let worker = Worker::start(&["--threads", "2"]);
    let program = program("stasis");
    let resume = format!("{} resume {} >/dev/null", program.display(), worker.pid());
    let real = criu();
    // Before CRIU starts, which then finds a device; and while the checkpoint itself resumes the process.
    let before = format!("{resume}\nexec {} \"$@\"", real.display());
    let meanwhile = format!("for n in 1 2 3 4 5 6; do {resume} & done; sleep 0.01; exit 1");
    for (number, act) in [before, meanwhile.clone(), meanwhile].into_iter().enumerate() {
        let script = worker.path(&format!("criu-{number}"));
        let act = format!("#!/bin/sh\n[ \"$1\" = --version ] && exec {} --version\n{act}\n", real.display());
        fs::write(&script, act).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let name = format!("images-{number}");
        let error = refused(&worker.checkpoint_with(&script, &name, &[]));
        assert!(error.contains("was not frozen and runs on unharmed"), "{error}");
        for left in ["manifest.pending", "manifest.json", "runtime-0.img"] {
            assert!(!worker.path(&name).join(left).exists(), "{left} is left: {error}");
        }
        worker.wait_rounds(2);
    }
    worker.finish();
}

#[test]
fn session_of_which_a_part_runs_already_is_restored_whole() {
    let (one, other, directory) = session("images");
    succeeded(&one.stasis(&["restore", "--json", text(&directory.join(one.pid().to_string()))]));
    one.wait_rounds(1);
    let rounds = one.rounds();
    let outcome = succeeded(&one.stasis(&["restore", "--json", text(&directory)]));
    assert_eq!(outcome["trees"].as_array().unwrap().len(), 2, "{outcome}");
    assert!(one.rounds() >= rounds, "what ran was not set back");
    go_on([one, other]);
}

#[test]
fn session_whose_restore_is_killed_is_restored_by_the_next_at_once() {
    let (one, other, directory) = session("images");
    let mut first = begin(&directory);
    wait_until("the restores of the trees", || children(first.id()).len() == 2);
    first.kill().unwrap();
    let outcome = succeeded(&one.stasis(&["restore", "--json", text(&directory)]));
    assert_eq!(outcome["trees"].as_array().unwrap().len(), 2, "{outcome}");
    first.wait().unwrap();
    go_on([one, other]);
}

/// Whether a restore says that there is nothing left to do.
fn is_back_already(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("was restored from this checkpoint before, and runs")
}

#[test]
fn restore_that_is_killed_is_waited_for_by_the_next() {
    let mut worker = Worker::start(&["--threads", "2"]);
    worker.freeze("images");
    let mut first = begin(&worker.path("images"));
    wait_until("its CRIU", || !children(first.id()).is_empty());
    first.kill().unwrap();
    first.wait().unwrap();
    let output = worker.restore("images");
    // Its CRIU is not killed with it, and may have finished by then.
    assert!(output.status.success() || is_back_already(&output), "{output:?}");
    worker.wait_rounds(2);
    let again = worker.restore("images");
    assert!(!again.status.success() && is_back_already(&again), "{again:?}");
    assert!(is_alive(worker.pid()));
    // Another process with the pid is not taken for the restored one.
    succeeded(&worker.checkpoint("later", &["--leave-running"]));
    let error = refused(&worker.restore("later"));
    assert!(error.contains("exists; the checkpoint needs its pid back"), "{error}");
    worker.finish();
}

#[test]
fn copy_that_nobody_will_wake_is_named_by_status() {
    let mut worker = Worker::start(&["--threads", "2"]);
    worker.freeze("images");
    // Plain CRIU, killed when all tasks are made and none was resumed.
    let script = worker.path("kill-criu");
    fs::write(&script, "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-restore ] || exit 0\nkill -9 $PPID\n")
        .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut restore = Command::new(criu());
    restore.args(["restore", "-d", "-o", "killed.log", "-D"]).arg(worker.path("images/criu"));
    restore.arg("--action-script").arg(&script).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(!restore.status().unwrap().success());
    assert!(is_alive(worker.pid()));
    let error = refused(&worker.stasis(&["status", &worker.pid().to_string()]));
    assert!(error.contains("all its threads sleep in a futex"), "{error}");
    worker.kill();
    wait_until("its end", || !Path::new(&format!("/proc/{}", worker.pid())).exists());
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}
