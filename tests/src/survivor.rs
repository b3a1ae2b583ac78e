// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker that was disturbed, and the check that nothing is lost: either the worker lives and computes correctly, or
//! it computes correctly after a restore from its newest complete checkpoint.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::worker::{Worker, is_alive, is_keeper, succeeded, wait_until};
use crate::{criu, program};

/// TIMEOUT: how long a worker may take to go on: long enough for any lease or retry on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a worker survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It ran on by itself.
    Lived,
    /// Restored from the checkpoint that was being taken, or from which it was being restored.
    Newest,
    /// Restored from the checkpoint before.
    Before,
}

/// A worker with the name of its newest complete checkpoint.
#[derive(Debug)]
pub struct Survivor {
    worker: Worker,
    newest: Option<String>,
    count: u32,
    /// Rounds in so many bytes of its log: a soak would read it whole for each of ten thousand restores.
    counted: Cell<(usize, u64)>,
}

impl Survivor {
    /// Starts a worker. This process becomes the parent that reaps restored workers.
    ///
    /// # Panics
    /// When it does not start to work.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
        Self { worker: Worker::start(arguments), newest: None, count: 0, counted: Cell::default() }
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// A name for the next checkpoint's directory; directories older than the newest complete one are removed.
    pub fn next_name(&mut self) -> String {
        let newest = self.newest.as_deref();
        for entry in fs::read_dir(self.worker.path("")).expect("the worker's directory").flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with("checkpoint-") && Some(name) != newest) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        self.count += 1;
        format!("checkpoint-{}", self.count)
    }

    /// Takes a good checkpoint and lets the worker run on.
    ///
    /// # Panics
    /// When it does not come about.
    pub fn checkpoint(&mut self) {
        let name = self.next_name();
        succeeded(&self.worker.checkpoint(&name, &["--leave-running"]));
        self.newest = Some(name);
    }

    /// Freezes the worker, which ends.
    ///
    /// # Panics
    /// When it is not.
    pub fn freeze(&mut self) -> String {
        let name = self.next_name();
        succeeded(&self.worker.checkpoint(&name, &[]));
        wait_until("the end of the frozen process", || !self.worker.is_alive());
        self.bury();
        self.newest = Some(name.clone());
        name
    }

    /// Restores it from its newest checkpoint.
    ///
    /// # Panics
    /// When it does not come back and go on.
    pub fn restore(&mut self) {
        let name = self.newest.clone().expect("a complete checkpoint");
        self.bury();
        let lines = self.lines();
        succeeded(&self.worker.restore(&name));
        assert!(self.goes_on(lines), "restored, it stands still or ends: {}", self.said());
    }

    /// `stasis checkpoint` of it into `name`, or `stasis restore` from there.
    #[must_use]
    pub fn command(&self, verb: &str, name: &str, more: &[&str]) -> Command {
        let mut command = Command::new(program("stasis"));
        command.arg(verb).args(more);
        if verb == "checkpoint" {
            command.arg(self.worker.pid().to_string());
        }
        command.arg(self.worker.path(name)).env("STASIS_CRIU", criu());
        command
    }

    /// The rounds that it has printed, before and after restores.
    #[must_use]
    pub fn lines(&self) -> usize {
        let (rounds, at) = self.counted.get();
        let mut more = Vec::new();
        let log = File::open(self.worker.path("log")).and_then(|mut log| {
            log.seek(SeekFrom::Start(at))?;
            log.read_to_end(&mut more)
        });
        log.expect("the worker's log");
        let whole = more.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines = more[..whole].split(|byte| *byte == b'\n');
        let rounds = rounds + lines.filter(|line| line.starts_with(b"round ")).count();
        self.counted.set((rounds, at + whole as u64));
        rounds
    }

    /// Whether it does two more rounds than it had when there were `lines`; no if it ends first.
    ///
    /// # Panics
    /// When it neither goes on nor ends.
    pub fn goes_on(&self, lines: usize) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.lines() < lines + 2 {
            if !self.worker.is_alive() {
                return false;
            }
            assert!(Instant::now() < deadline, "it neither goes on nor ends: {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Checks that it survived a disturbance while `name` was written or read.
    ///
    /// # Panics
    /// When it neither lives nor can be restored.
    pub fn recover(&mut self, name: &str) -> Outcome {
        if self.worker.path(name).join("manifest.json").exists() {
            self.newest = Some(name.to_owned());
        }
        if self.goes_on(self.lines()) {
            return Outcome::Lived;
        }
        self.restore();
        if self.newest.as_deref() == Some(name) { Outcome::Newest } else { Outcome::Before }
    }

    /// Has it end, and checks that it found no wrong value.
    ///
    /// # Panics
    /// When it did not.
    pub fn finish(self) {
        self.worker.finish();
    }

    /// Reaps its zombie, so that its pid is free.
    ///
    /// # Panics
    /// When it lives, or somebody else has its pid.
    pub fn bury(&self) {
        let pid = self.worker.pid();
        assert!(!is_alive(pid), "it lives: {}", self.said());
        wait_until("the burial", || {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            !fs::exists(format!("/proc/{pid}")).unwrap_or(true)
        });
        reap_keepers();
    }

    /// The end of its log, and what the system and its agent report, for a failed test.
    fn said(&self) -> String {
        let (log, pid) = (self.worker.log(), self.worker.pid());
        let lines: Vec<&str> = log.lines().collect();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let status: Vec<&str> =
            status.lines().filter(|l| l.starts_with("State") || l.starts_with("Tracer")).collect();
        let agent = self.worker.stasis(&["status", &pid.to_string()]);
        let [said, failed] = [&agent.stdout, &agent.stderr].map(|text| String::from_utf8_lossy(text));
        format!(
            "{}\n{}\n{said}{failed}",
            lines[lines.len().saturating_sub(5)..].join("\n"),
            status.join("\n")
        )
    }
}

/// Reaps the keepers that have ended: orphans of the worker, two of each of its lives. Ten thousand generations would leave
/// more than there are pids, and every look through `/proc` would take longer.
fn reap_keepers() {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for list in tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()) {
        for pid in list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
            if is_keeper(pid) {
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
    }
}
