// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch over CRIU: processes that end while CRIU works on them, a CRIU that does not end, a command that is
//! interrupted or killed. Commands end in bounded time, nothing of CRIU is left, and what the commands report about the
//! process is true.
//!
//! Moments are drawn with STASIS_SEED; STASIS_KILL_POINTS=N tries N of each kind.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use stasis_tests::sample::{numbers_of, setting};
use stasis_tests::survivor::{Outcome, Survivor};
use stasis_tests::tree::{Tree, descendants};
use stasis_tests::worker::{Worker, is_alive, kill, refused, succeeded, wait_until};
use stasis_tests::{criu, program};

/// TIMEOUT: how long a command that ends by itself may take; a command that hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Moments of one kind.
fn moments(kind: u64) -> impl Iterator<Item = u64> {
    numbers_of(kind).map(u64::from).take(setting("STASIS_KILL_POINTS").unwrap_or(4))
}

/// A `stasis` at work.
struct Job {
    child: Child,
    directory: tempfile::TempDir,
}

impl Job {
    fn start(command: &mut Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let command = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        let child = command.env_remove("STASIS_DEVICE").spawn().unwrap();
        Self { child, directory }
    }

    fn stasis(criu: &Path, words: &[&str]) -> Self {
        Self::start(Command::new(program("stasis")).args(words).env("STASIS_CRIU", criu))
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// What it said, once it has ended.
    fn end(mut self) -> Output {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= deadline {
                let below = descendants(self.pid());
                self.child.kill().unwrap();
                panic!("stasis hangs, over {below:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |name: &str| fs::read(self.directory.path().join(name)).unwrap();
        Output { status, stdout: text("out"), stderr: text("err") }
    }
}

/// A script that stands in for CRIU.
fn stand_in(directory: &Path, name: &str, script: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A CRIU that never ends, nor does a process that it starts.
struct Endless {
    home: tempfile::TempDir,
    criu: PathBuf,
}

impl Endless {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let script = format!(
            "[ \"$1\" = --version ] && exec {} --version\ntrap '' INT TERM HUP\nsetsid sleep 1000 &\n\
             echo $$ $! > {pids}.new\nmv {pids}.new {pids}\nwhile :; do sleep 1; done",
            criu().display(),
            pids = home.path().join("pids").display()
        );
        let criu = stand_in(home.path(), "endless-criu", &script);
        Self { home, criu }
    }

    fn checkpoint(&self, pid: i32, images: &Path) -> Job {
        Job::stasis(&self.criu, &["checkpoint", &pid.to_string(), text(images)])
    }

    /// The pids, once it works.
    fn pids(&self) -> Vec<i32> {
        let pids = self.home.path().join("pids");
        wait_until("the start of CRIU", || pids.exists());
        fs::read_to_string(&pids).unwrap().split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

/// A CRIU before whose start a file of the images is truncated, after the file was checked.
fn truncating_criu(directory: &Path, file: &Path, length: usize) -> PathBuf {
    let (criu, file) = (criu().display().to_string(), file.display());
    let script = format!("[ \"$1\" = restore ] && truncate -s {length} {file}\nexec {criu} \"$@\"");
    stand_in(directory, &format!("truncating-criu-{length}"), &script)
}

fn assert_gone(pids: &[i32]) {
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "what CRIU started lives: {pids:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn target_that_is_killed_while_criu_hangs_is_named_though_nobody_reaps_it() {
    let worker = Worker::start(&["--threads", "2"]);
    let (endless, images) = (Endless::new(), worker.path("images"));
    let job = endless.checkpoint(worker.pid(), &images);
    let pids = endless.pids();
    // It stays a zombie until the end of the test.
    kill(worker.pid());
    let error = refused(&job.end());
    let named = format!("Process {} was not frozen: it has ended (killed by signal 9)", worker.pid());
    assert!(error.contains(&named) && !error.contains("resume"), "{error}");
    assert!(error.contains("criu dump failed because process"), "{error}");
    assert_gone(&pids);
    assert!(!images.join("manifest.json").exists() && !images.join("runtime-0.img").exists());
}

#[test]
fn process_of_a_tree_that_is_killed_while_criu_hangs_is_named_and_the_others_run_on() {
    let tree = Tree::start(&["", "--threads 2"], &[]);
    let (endless, images) = (Endless::new(), tree.path("images"));
    let job = endless.checkpoint(tree.root(), &images);
    let pids = endless.pids();
    let [one, other] = tree.worker_pids()[..] else { panic!("two workers") };
    kill(one);
    let error = refused(&job.end());
    assert!(error.contains(&format!("because process {one} ended")), "{error}");
    assert!(error.contains(&format!("Process {one} was not frozen: it has ended")), "{error}");
    assert!(error.contains(&format!("Process {other} was not frozen and runs on unharmed")), "{error}");
    assert_gone(&pids);
    let rounds = tree.rounds(1);
    wait_until("more rounds of the other", || tree.rounds(1) > rounds + 2);
}

#[test]
fn dump_that_does_not_end_is_ended_at_its_deadline_and_the_process_runs_on() {
    let worker = Worker::start(&["--threads", "2"]);
    let (endless, images) = (Endless::new(), worker.path("images"));
    let words = ["checkpoint", "--criu-deadline-ms", "300", &worker.pid().to_string(), text(&images)];
    let error = refused(&Job::stasis(&endless.criu, &words).end());
    assert!(error.contains("criu dump was ended after 300 ms, its deadline"), "{error}");
    assert!(error.contains("runs on unharmed"), "{error}");
    assert_gone(&endless.pids());
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn interrupted_dump_is_ended_and_the_process_runs_on() {
    let worker = Worker::start(&["--threads", "2"]);
    let (endless, images) = (Endless::new(), worker.path("images"));
    let job = endless.checkpoint(worker.pid(), &images);
    let pids = endless.pids();
    job.signal(Signal::SIGINT);
    let error = refused(&job.end());
    assert!(error.contains("got SIGINT") && error.contains("runs on unharmed"), "{error}");
    assert_gone(&pids);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn restore_that_does_not_end_is_ended_at_its_deadline_or_interrupted() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let (endless, images) = (Endless::new(), worker.path("images"));
    let words = ["restore", "--deadline-ms", "300", text(&images)];
    let error = refused(&Job::stasis(&endless.criu, &words).end());
    assert!(error.contains("criu restore was ended after 300 ms, its deadline"), "{error}");
    assert_gone(&endless.pids());
    let endless = Endless::new();
    let job = Job::stasis(&endless.criu, &["restore", text(&images)]);
    let started = endless.pids();
    job.signal(Signal::SIGTERM);
    let error = refused(&job.end());
    assert!(error.contains("criu restore was ended") && error.contains("SIGTERM"), "{error}");
    assert_gone(&started);
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn nothing_is_left_of_a_restore_whose_command_guard_or_both_are_killed() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let images = worker.path("images");
    for kills_command in [true, false] {
        let endless = Endless::new();
        let job = Job::stasis(&endless.criu, &["restore", text(&images)]);
        let started = endless.pids();
        if kills_command {
            job.signal(Signal::SIGKILL);
            assert!(!job.end().status.success());
        } else {
            kill(descendants(job.pid())[0]);
            let error = refused(&job.end());
            assert!(error.contains("guard of the restore ended without a verdict"), "{error}");
        }
        wait_until("the end of what CRIU started", || started.iter().all(|pid| !is_alive(*pid)));
    }
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn truncated_pages_do_not_hang_a_restore_and_its_pid_is_free_again() {
    let mut worker = Worker::start(&["--threads", "2"]);
    worker.freeze("images");
    let images = worker.path("images");
    // The contents of memory; what the agent's memfd holds has a file of its own.
    let files = fs::read_dir(images.join("criu")).unwrap().map(|entry| entry.unwrap().path());
    let is_pages = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("pages-");
    let pages = files.filter(is_pages).max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let whole = fs::read(&pages).unwrap();
    let home = tempfile::tempdir().unwrap();
    for length in [4096, whole.len() / 2] {
        let truncating = truncating_criu(home.path(), &pages, length);
        let words = ["restore", "--deadline-ms", "4000", text(&images)];
        let error = refused(&Job::stasis(&truncating, &words).end());
        println!("{length} of {} bytes: {}", whole.len(), error.lines().next().unwrap_or_default());
        assert!(error.contains("criu restore"), "{error}");
        assert!(!Path::new(&format!("/proc/{}", worker.pid())).exists(), "its pid is not free: {error}");
        fs::write(&pages, &whole).unwrap();
    }
    // After the command was killed, the next command can follow at once.
    let job = Job::stasis(&truncating_criu(home.path(), &pages, 4096), &["restore", text(&images)]);
    wait_until("the half-restored process", || worker.is_alive());
    job.signal(Signal::SIGKILL);
    let _ = job.end();
    fs::write(&pages, &whole).unwrap();
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

/// Whether a process is traced, as by CRIU when it has seized it.
fn is_traced(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

fn wait_micros(micros: u64) {
    std::thread::sleep(Duration::from_micros(micros));
}

#[test]
fn target_killed_in_the_middle_of_a_dump_is_named_and_the_checkpoint_before_restores() {
    let mut survivor = Survivor::start(&["--threads", "2"]);
    survivor.checkpoint();
    for (index, drawn) in moments(1).enumerate() {
        let name = survivor.next_name();
        let more: &[&str] = if index % 2 == 0 { &[] } else { &["--leave-running"] };
        let pid = survivor.worker().pid();
        let job = Job::start(&mut survivor.command("checkpoint", &name, more));
        wait_until("CRIU", || is_traced(pid) || !is_alive(job.pid()));
        wait_micros(drawn % 60_000);
        kill(pid);
        let output = job.end();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("killed {} us into the dump: {} {said}", drawn % 60_000, output.status);
        if !output.status.success() {
            assert!(said.contains("ended") && !said.contains("stasis resume"), "{said}");
        }
        // Complete or not, the command reports the true state of the images.
        let complete = survivor.worker().path(&name).join("manifest.json").exists();
        assert!(complete || !output.status.success(), "{said}");
        let outcome = survivor.recover(&name);
        assert_eq!(outcome == Outcome::Newest, complete, "{outcome:?} {said}");
    }
    survivor.finish();
}

#[test]
fn target_killed_in_the_middle_of_a_restore_does_not_run_again_by_any_account() {
    let mut survivor = Survivor::start(&["--threads", "2"]);
    for drawn in moments(2) {
        let name = survivor.freeze();
        let pid = survivor.worker().pid();
        let job = Job::start(&mut survivor.command("restore", &name, &[]));
        wait_until("the restored process", || Path::new(&format!("/proc/{pid}")).exists());
        wait_micros(drawn % 150_000);
        // The process ends before the command looks at it.
        job.signal(Signal::SIGSTOP);
        let had_said = fs::metadata(job.directory.path().join("out")).unwrap().len() > 0;
        kill(pid);
        wait_until("the end of the process", || !is_alive(pid));
        job.signal(Signal::SIGCONT);
        let output = job.end();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("killed {} us into the restore: {} {said}", drawn % 150_000, output.status);
        if !had_said {
            assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            assert!(said.contains("ended") || said.contains("criu restore failed"), "{said}");
            assert!(!said.contains("stasis resume"), "{said}");
        }
        survivor.restore();
    }
    survivor.finish();
}

/// A CRIU that restores, then runs a command before it ends with success.
fn criu_that_restores_and(directory: &Path, act: &str) -> PathBuf {
    let script = format!("{} \"$@\" || exit\n[ \"$1\" = restore ] || exit 0\n{act}", criu().display());
    stand_in(directory, "acting-criu", &script)
}

#[test]
fn process_that_is_killed_once_restored_is_said_to_have_ended() {
    let mut survivor = Survivor::start(&["--threads", "2"]);
    let name = survivor.freeze();
    let (pid, home) = (survivor.worker().pid(), tempfile::tempdir().unwrap());
    // Before the process is asked, while it rebuilds its device, and about when it has finished.
    for delay in [None, Some("0.03"), Some("0.2")] {
        let act = match delay {
            None => format!("kill -9 {pid}"),
            Some(delay) => format!("(sleep {delay}; kill -9 {pid}) &"),
        };
        let criu = criu_that_restores_and(home.path(), &act);
        let job = Job::start(survivor.command("restore", &name, &[]).env("STASIS_CRIU", &criu));
        let output = job.end();
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{act}: {} {out}{error}", output.status);
        // At a late moment the process may already have run.
        if delay.is_none() || !output.status.success() {
            let named = format!("Restored, processes have ended: {pid} (killed by signal 9)");
            assert!(!output.status.success() && error.contains(&named), "{out}{error}");
            assert!(error.contains("can be restored again") && !error.contains("resume"), "{error}");
        }
        wait_until("its end", || !is_alive(pid));
        survivor.bury();
    }
    survivor.restore();
    survivor.finish();
}

#[test]
fn controller_and_criu_killed_in_the_middle_of_a_restore_leave_all_or_nothing() {
    let mut survivor = Survivor::start(&["--threads", "2"]);
    for (index, drawn) in moments(3).enumerate() {
        let name = survivor.freeze();
        let job = Job::start(&mut survivor.command("restore", &name, &[]));
        let (controller, mut below) = (job.pid(), Vec::new());
        wait_until("CRIU", || {
            below = descendants(controller);
            below.len() >= 2 || !is_alive(controller)
        });
        wait_micros(drawn % 150_000);
        // The guard is the first below it, CRIU the next.
        let (guard, criu) = (below.first().copied(), below.get(1).copied());
        let victims = match index % 4 {
            0 => [Some(controller), criu],
            1 => [criu, Some(controller)],
            2 => [guard, criu],
            _ => [Some(controller), None],
        };
        victims.into_iter().flatten().for_each(kill);
        let _ = job.end();
        wait_until("the end of the guard", || guard.is_none_or(|guard| !is_alive(guard)));
        println!("killed {victims:?} {} us into the restore", drawn % 150_000);
        survivor.recover(&name);
    }
    survivor.finish();
}
