// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker process that computes without end and checks its results, and the operations of a test on it.
//!
//! INVARIANT: the worker (`src/bin/counter-worker.rs`) compares every value with its own computation on the CPU, and
//! ends with `done` only if all were right; so a test that sees `done` needs no comparison with another run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::{criu, detached, program};

/// TIMEOUT: how long anything that is to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One worker, with its own directory and (on the software device) its own device. It ends with its handle.
#[derive(Debug)]
pub struct Worker {
    directory: TempDir,
    child: Child,
    instance: String,
}

impl Worker {
    /// Starts a worker with these arguments and waits for its first round.
    ///
    /// # Panics
    /// When it does not start to work.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_program(&program("counter-worker"), arguments)
    }

    /// The same with a copy of the program.
    ///
    /// # Panics
    /// When it does not start to work.
    #[must_use]
    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let stop = directory.path().join("stop");
        let worker = Self::launch(program, directory, &[&["--until", text(&stop)], arguments].concat());
        worker.wait_rounds(1);
        worker
    }

    /// Starts any program with these arguments, its log in `directory`, and waits for nothing.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn launch(program: &Path, directory: TempDir, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("worker-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let child = detached(directory.path())
            .arg(program)
            .args(arguments)
            .env("STASIS_SOFTGPU_INSTANCE", &instance)
            .spawn()
            .expect("setsid (util-linux)");
        Self { directory, child, instance }
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// What it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The number of its rounds, all of them correct.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        let log = self.log();
        log.lines().filter_map(|line| line.strip_prefix("round ")?.parse().ok()).next_back().unwrap_or(0)
    }

    /// Whether it exists and is not a zombie.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        is_alive(self.pid())
    }

    /// Waits until it has done `more` rounds from now on.
    ///
    /// # Panics
    /// When it ends or stands still.
    pub fn wait_rounds(&self, more: u64) {
        let (start, deadline) = (self.rounds(), Instant::now() + PATIENCE);
        while self.rounds() < start + more {
            assert!(self.is_alive(), "the worker ended: {}", self.log());
            assert!(Instant::now() < deadline, "the worker stands still: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Has it end, and checks that it found no wrong value.
    ///
    /// # Panics
    /// When it did not.
    pub fn finish(mut self) {
        fs::write(self.path("stop"), "").expect("the stop file");
        wait_until("the worker's end", || !self.is_alive());
        let _ = self.child.try_wait();
        assert!(self.log().lines().any(|line| line == "done"), "{}", self.log());
    }

    /// Runs `stasis` with these arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn stasis(&self, arguments: &[&str]) -> Output {
        stasis(arguments, &criu())
    }

    /// `stasis checkpoint` into the directory `name` of the worker's.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn checkpoint(&self, name: &str, more: &[&str]) -> Output {
        self.checkpoint_with(&criu(), name, more)
    }

    /// The same with another CRIU.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn checkpoint_with(&self, criu: &Path, name: &str, more: &[&str]) -> Output {
        let (pid, directory) = (self.pid().to_string(), self.path(name));
        let mut arguments = vec!["checkpoint", "--json", &pid, text(&directory)];
        arguments.extend(more);
        stasis(&arguments, criu)
    }

    /// Freezes it into `name` and reaps it.
    ///
    /// # Panics
    /// When it is not frozen, or not gone.
    pub fn freeze(&mut self, name: &str) -> serde_json::Value {
        let outcome = succeeded(&self.checkpoint(name, &[]));
        self.bury();
        outcome
    }

    /// Waits for the end of a worker that is a child of the test. Returns its exit status if it was not killed.
    ///
    /// # Panics
    /// When it does not end.
    pub fn status(&mut self) -> Option<i32> {
        wait_until("the worker's end", || !self.is_alive());
        self.child.wait().expect("a child").code()
    }

    /// Waits until it has ended and its pid is free.
    ///
    /// # Panics
    /// When it is not.
    pub fn bury(&mut self) {
        // Before its first restore it is a child of the test: its zombie would keep the pid.
        let _ = self.child.wait();
        wait_until("the end of the frozen process", || !Path::new(&format!("/proc/{}", self.pid())).exists());
    }

    /// `stasis restore` from `name`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn restore(&self, name: &str) -> Output {
        self.stasis(&["restore", "--json", text(&self.path(name))])
    }

    /// Pids of its software device: broker and executors.
    #[must_use]
    pub fn devices(&self) -> Vec<i32> {
        devices(&self.instance)
    }

    /// Pids of the processes that keep its render files while it is checkpointed.
    #[must_use]
    pub fn keepers(&self) -> Vec<i32> {
        keepers_of(self.pid())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        kill(self.pid());
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After a restore it is not a child of the test any more; no other process has this pid while the test has the
        // worker's log.
        let ours = fs::read_link(format!("/proc/{}/fd/1", self.pid()));
        if ours.is_ok_and(|log| log == self.path("log")) {
            self.kill();
        }
        let _ = self.child.wait();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

/// Runs `stasis` with these arguments and this CRIU; a restored process keeps the device that it had.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn stasis(arguments: &[&str], criu: &Path) -> Output {
    let mut command = Command::new(program("stasis"));
    command.args(arguments).env("STASIS_CRIU", criu).env_remove("STASIS_DEVICE").output().expect("stasis")
}

/// What a program that succeeded printed as JSON.
///
/// # Panics
/// When it failed or printed something else.
pub fn succeeded(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", errors_of_criu(&said));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The lines of CRIU's log beside the reason that `stasis` took from it; the log is removed with a failed test.
fn errors_of_criu(said: &str) -> String {
    let log = said.split_once("the whole log is ").map(|(_, path)| path.trim());
    let text = log.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains("Error") || line.contains("Warn"))
        .map(|l| format!("{l}\n"))
        .collect()
}

/// What a program that failed said.
///
/// # Panics
/// When it succeeded.
#[must_use]
pub fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for something to become true.
///
/// # Panics
/// When it does not.
pub fn wait_until(what: &str, mut held: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !held() {
        assert!(Instant::now() < deadline, "{what} did not happen within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z")
}

/// The parent of a process.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// Processor time of a process in clock ticks.
#[must_use]
pub fn ticks(pid: i32) -> u64 {
    let fields = stat(pid).unwrap_or_default();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

/// The fields of /proc/PID/stat after the parenthesised name; the first is the state.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// What the descriptors of a process are, as `/proc` names them.
#[must_use]
pub fn open_files(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

/// Pids of the software device of this instance: its broker, known by its arguments, and the broker's executors.
#[must_use]
pub fn devices(instance: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let serves = |pid: &i32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        arguments.contains("softgpud") && arguments.contains(&format!(".{instance}\0"))
    };
    let brokers: Vec<i32> = pids.iter().copied().filter(serves).collect();
    let is_executor = |pid: &i32| {
        let parent = stat(*pid).and_then(|fields| fields.get(1)?.parse::<i32>().ok());
        parent.is_some_and(|parent| brokers.contains(&parent)) && has_client(*pid)
    };
    let executors = pids.iter().copied().filter(is_executor);
    executors.chain(brokers.iter().copied()).collect()
}

/// Whether an executor has a client: its broker may have one ready for a client to come.
#[must_use]
pub fn has_client(executor: i32) -> bool {
    fs::read_to_string(format!("/proc/{executor}/comm")).is_ok_and(|name| name.starts_with("client "))
}

/// Pids of the keepers of a process's render files: known by their name, and by the pidfd that they have of it.
#[must_use]
pub fn keepers_of(owner: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_keeper(*pid) && is_alive(*pid) && watches(*pid, owner)).collect()
}

/// Whether a process, ended or not, is a keeper.
#[must_use]
pub fn is_keeper(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "stasis-keeper")
}

/// Whether a process has a pidfd of another.
fn watches(pid: i32, other: i32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let line = format!("Pid:\t{other}");
    texts.any(|text| text.lines().any(|found| found == line))
}

/// Sends SIGKILL.
pub fn kill(pid: i32) {
    send(pid, Signal::SIGKILL);
}

fn send(pid: i32, signal: Signal) {
    // kill(2) takes 0 and negative numbers for groups.
    if pid > 0 {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Stopped processes, which continue when this value is dropped.
#[derive(Debug)]
pub struct Stopped(Vec<i32>);

impl Stopped {
    /// Stops processes (SIGSTOP), each when the one before has stopped: one that has started another waits until that executes its
    /// program (vfork), and does not stop before.
    ///
    /// # Panics
    /// When there are none, or one does not stop.
    #[must_use]
    pub fn stop(pids: Vec<i32>) -> Self {
        assert!(!pids.is_empty(), "nothing to stop");
        let stopped = Self(pids);
        let begun = Instant::now();
        for pid in &stopped.0 {
            send(*pid, Signal::SIGSTOP);
            while !is_stopped(*pid) {
                let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let all = &stopped.0;
                assert!(begun.elapsed() < PATIENCE, "process {pid} of {all:?} does not stop: {}", status());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        stopped
    }
}

/// Whether every thread of a process is stopped, or has ended: the signal reaches them one after another, and one that still runs can
/// begin a request, which has no deadline from then on.
fn is_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let text = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        text.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['T', 'Z', 'X']))
    })
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| send(*pid, Signal::SIGCONT));
    }
}
