// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keepers of a process's render files: killed, impersonated or not available. A checkpointed process resumes on
//! its device as long as one keeper lives; a process that cannot leave its files with keepers is not checkpointed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stasis::checkpoint::{CallError, CheckpointOrder, Mode, Request, State, call, call_with};
use stasis_tests::criu;
use stasis_tests::gpu::{on_a_future_kernel, skip_on_kernel_driver};
use stasis_tests::worker::{Worker, is_alive, kill, succeeded, wait_until};

const SOON: Duration = Duration::from_secs(120);

fn status(worker: &Worker) -> State {
    call(worker.pid(), &Request::Status, SOON).unwrap().0
}

fn resume(worker: &Worker) -> Result<State, CallError> {
    call(worker.pid(), &Request::Resume { directory: None, admission: None }, SOON).map(|(state, _)| state)
}

/// An order that ends neither with its controller nor after a short time.
fn order(directory: PathBuf) -> CheckpointOrder {
    CheckpointOrder {
        lease_ms: 3_600_000,
        deadline_ms: 60_000,
        outlives_controller: true,
        ..CheckpointOrder::into_directory(directory)
    }
}

fn checkpoint(worker: &Worker, order: &CheckpointOrder) -> Result<State, CallError> {
    call(worker.pid(), &Request::Checkpoint(order.clone()), SOON).map(|(state, _)| state)
}

fn kill_and_wait(pid: i32) {
    kill(pid);
    wait_until("the end of a keeper", || !is_alive(pid));
}

#[test]
fn process_comes_back_when_either_keeper_is_killed_in_every_mode() {
    on_a_future_kernel();
    let worker = Worker::start(&["--threads", "2"]);
    let usual = order(worker.path("images"));
    fs::create_dir(&usual.directory).unwrap();
    let modes = [
        usual.clone(),
        CheckpointOrder { mode: Mode::Preempt, ..usual.clone() },
        CheckpointOrder { self_contained: true, ..usual },
    ];
    for order in &modes {
        for killed in 0..2 {
            assert_eq!(checkpoint(&worker, order).unwrap(), State::Checkpointed);
            let keepers = worker.keepers();
            assert_eq!(keepers.len(), 2, "{order:?}");
            kill_and_wait(keepers[killed]);
            assert_eq!(resume(&worker).unwrap(), State::Running, "{order:?}, keeper {killed}");
            wait_until("the end of the other keeper", || worker.keepers().is_empty());
            worker.wait_rounds(2);
        }
    }
    worker.finish();
}

#[test]
fn keepers_end_with_the_process_that_they_keep_files_for() {
    let mut worker = Worker::start(&[]);
    let order = order(worker.path("images"));
    fs::create_dir(&order.directory).unwrap();
    checkpoint(&worker, &order).unwrap();
    let keepers = worker.keepers();
    assert_eq!(keepers.len(), 2);
    worker.kill();
    wait_until("the end of the keepers", || !keepers.iter().any(|pid| is_alive(*pid)));
}

/// A CRIU before whose work one keeper of `pid` is killed, or all are.
fn criu_after_a_killing(directory: &Path, pid: i32, all: bool) -> PathBuf {
    let path = directory.join("criu");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {criu} --version\n\
         for task in /proc/[0-9]*; do\n\
         [ \"$(cat $task/comm 2>/dev/null)\" = stasis-keeper ] || continue\n\
         grep -qsx 'Pid:\t{pid}' $task/fdinfo/* || continue\n\
         kill -9 ${{task#/proc/}}; echo >> {killed}; {next}\n\
         done\n\
         exec {criu} \"$@\"\n",
        criu = criu().display(),
        killed = directory.join("killed").display(),
        next = if all { "continue" } else { "break" },
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn process_that_is_left_running_comes_back_when_keepers_are_killed_while_criu_works() {
    on_a_future_kernel();
    let worker = Worker::start(&["--threads", "2"]);
    for (mode, more) in
        [("drain", &[][..]), ("preempt", &["--preempt"]), ("contained", &["--self-contained"])]
    {
        for all in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let criu = criu_after_a_killing(directory.path(), worker.pid(), all);
            let options = [&["--leave-running"], more].concat();
            succeeded(&worker.checkpoint_with(&criu, &format!("{mode}-{all}"), &options));
            let killed = fs::read_to_string(directory.path().join("killed")).unwrap().len();
            assert_eq!(killed, 1 + usize::from(all), "{mode}: keepers that were killed");
            worker.wait_rounds(2);
        }
    }
    worker.finish();
}

#[test]
fn files_that_the_controller_holds_bring_back_a_process_without_keepers() {
    on_a_future_kernel();
    let worker = Worker::start(&["--threads", "2"]);
    let order = CheckpointOrder { hold_files: true, ..order(worker.path("images")) };
    fs::create_dir(&order.directory).unwrap();
    for mode in [Mode::Drain, Mode::Preempt] {
        let order = Request::Checkpoint(CheckpointOrder { mode, ..order.clone() });
        let (state, _, files) = call_with(worker.pid(), &order, &[], SOON).unwrap();
        // One render file, and the image.
        assert_eq!((state, files.len()), (State::Checkpointed, 2));
        worker.keepers().into_iter().for_each(kill_and_wait);
        let error = resume(&worker).unwrap_err();
        assert!(matches!(error, CallError::Refused { state: State::Checkpointed, .. }), "{error}");
        // The files of another process are useless and do no harm.
        let request = Request::Resume { directory: None, admission: None };
        let null = fs::File::open("/dev/null").unwrap();
        let error = call_with(worker.pid(), &request, &[null.as_fd()], SOON).unwrap_err();
        assert!(matches!(error, CallError::Refused { state: State::Checkpointed, .. }), "{error}");
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let (state, ..) = call_with(worker.pid(), &request, &files, SOON).unwrap();
        assert_eq!(state, State::Running);
        worker.wait_rounds(2);
    }
    worker.finish();
}

/// What `stasis status` says of the worker.
fn said(worker: &Worker) -> String {
    let output = worker.stasis(&["status", &worker.pid().to_string()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn process_that_nobody_can_help_says_so_and_makes_no_further_attempt() {
    let worker = Worker::start(&["--threads", "2"]);
    let order = CheckpointOrder { lease_ms: 15_000, ..order(worker.path("images")) };
    fs::create_dir(&order.directory).unwrap();
    checkpoint(&worker, &order).unwrap();
    worker.keepers().into_iter().for_each(kill_and_wait);
    wait_until("the end of the lease", || said(&worker).contains("is stranded"));
    let first = said(&worker);
    assert!(first.contains("criu dump -t") && first.contains("is gone"), "{first}");
    // No further attempt follows: each would start a device.
    worker.devices().into_iter().for_each(kill);
    wait_until("the end of its device", || worker.devices().is_empty());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((status(&worker), worker.devices()), (State::Checkpointed, Vec::new()));
    // On another device these files do not matter, and an order to resume there does not report them.
    assert_eq!(resume(&worker).unwrap(), State::Running);
    worker.wait_rounds(2);
    worker.finish();
}

/// A controller that is killed, with all keepers, after CRIU has detached from a process whose checkpoint is complete.
fn strand(worker: &Worker, more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let criu = directory.path().join("criu");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {criu} --version\n{criu} \"$@\" || exit 1\n\
         for task in /proc/[0-9]*; do\n\
         [ \"$(cat $task/comm 2>/dev/null)\" = stasis-keeper ] || continue\n\
         grep -qsx 'Pid:\t{pid}' $task/fdinfo/* && kill -9 ${{task#/proc/}}\n\
         done\n\
         kill -9 $PPID\n",
        criu = stasis_tests::criu().display(),
        pid = worker.pid(),
    );
    fs::write(&criu, text).unwrap();
    fs::set_permissions(&criu, fs::Permissions::from_mode(0o755)).unwrap();
    let options = [&["--leave-running", "--stranded-ms", "1000"], more].concat();
    let output = worker.checkpoint_with(&criu, "images", &options);
    assert!(!output.status.success(), "the controller was not killed: {output:?}");
    assert!(worker.path("images/manifest.json").exists(), "the checkpoint is not complete");
}

#[test]
fn stranded_process_waits_beside_its_checkpoint_by_default() {
    let mut worker = Worker::start(&["--threads", "2"]);
    strand(&worker, &[]);
    wait_until("the process to be stranded", || said(&worker).contains("is stranded"));
    let text = said(&worker);
    assert!(text.contains("is whole: end it and `stasis restore"), "{text}");
    std::thread::sleep(Duration::from_secs(3));
    assert!(worker.is_alive());
    worker.kill();
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn stranded_process_exits_when_told_to_and_its_checkpoint_takes_its_place() {
    let mut worker = Worker::start(&["--threads", "2"]);
    strand(&worker, &["--on-stranded", "exit"]);
    assert_eq!(worker.status(), Some(75), "{}", worker.log());
    worker.bury();
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

/// A process of another user that holds names in the abstract namespace, until it is dropped.
struct Squatter(Child);

impl Squatter {
    fn new(names: &[String]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("ignored: only root can become another user");
            return None;
        }
        let script = format!(
            "import socket, sys, time\nheld = []\nfor name in {names:?}:\n s = socket.socket(socket.AF_UNIX, \
             socket.SOCK_SEQPACKET)\n s.bind('\\0' + name)\n s.listen(8)\n held.append(s)\nprint('ready', flush=True)\n\
             time.sleep(1000)\n"
        );
        let child = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", &script])
            .env("PATH", "/usr/bin:/bin")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut squatter = Self(child);
        let mut line = String::new();
        let output = squatter.0.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        if line != "ready\n" {
            println!("ignored: no python3 for another user");
            return None;
        }
        Some(squatter)
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn names_that_another_user_has_taken_are_not_in_the_way() {
    let worker = Worker::start(&["--threads", "2"]);
    let taken = (0..20).map(|number| format!("stasis-keeper.{}.{number}", worker.pid())).collect::<Vec<_>>();
    let Some(_squatter) = Squatter::new(&taken) else { return };
    for name in ["first", "second"] {
        succeeded(&worker.checkpoint(name, &["--leave-running"]));
        worker.wait_rounds(2);
    }
    worker.finish();
}

/// A control group that limits how many processes there may be in it.
struct Limited(PathBuf);

impl Limited {
    /// A group with `pid` in it; without control groups prints the reason.
    fn around(pid: i32) -> Option<Self> {
        let name = format!("stasis-test-{}", std::process::id());
        let places = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|root| Path::new(root).join(&name));
        let made = places.into_iter().find(|place| {
            fs::create_dir(place).is_ok() && {
                let limits = place.join("pids.max").exists();
                limits || fs::remove_dir(place).is_err()
            }
        });
        let group = made.map(Self);
        let moved = group.filter(|group| fs::write(group.0.join("cgroup.procs"), pid.to_string()).is_ok());
        if moved.is_none() {
            println!("ignored: no control group that limits processes can be made");
        }
        moved
    }

    fn current(&self) -> u64 {
        fs::read_to_string(self.0.join("pids.current")).unwrap().trim().parse().unwrap()
    }

    fn limit(&self, limit: &str) {
        fs::write(self.0.join("pids.max"), limit).unwrap();
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn process_whose_keepers_cannot_be_forked_runs_on_and_can_be_checkpointed_later() {
    if skip_on_kernel_driver("it counts the processes of the worker's control group") {
        return;
    }
    let worker = Worker::start(&["--threads", "2"]);
    let Some(group) = Limited::around(worker.pid()) else { return };
    let order = order(worker.path("images"));
    fs::create_dir(&order.directory).unwrap();
    let mut refusals = Vec::new();
    for more in 0.. {
        assert!(more < 20, "{refusals:?}");
        group.limit(&(group.current() + more).to_string());
        let outcome = checkpoint(&worker, &order);
        let Err(error) = outcome else { break };
        assert!(matches!(&error, CallError::Refused { .. }), "{more}: {error}");
        refusals.push(error.to_string());
        // The event thread has to be started again within the same limit.
        wait_until("the way back", || status(&worker) == State::Running);
        assert!(worker.keepers().is_empty(), "{more}: a keeper is left after: {error}");
        worker.wait_rounds(2);
    }
    println!("{refusals:#?}");
    let forks = refusals.iter().filter(|refusal| refusal.contains("pids.max")).count();
    assert!(forks >= 1, "{refusals:?}");
    assert_eq!(status(&worker), State::Checkpointed);
    group.limit("max");
    assert_eq!(resume(&worker).unwrap(), State::Running);
    worker.wait_rounds(2);
    worker.finish();
    wait_until("the end of the control group", || fs::remove_dir(&group.0).is_ok());
}
