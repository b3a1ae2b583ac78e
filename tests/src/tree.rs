// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process tree to freeze: workers that check their results, and other processes between them.
//!
//! INVARIANT: the shell at the root ends after the workers and then prints a line; the line shows that every process of
//! the tree has survived.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::worker::{is_alive, kill, wait_until};
use crate::{detached, program};

/// A shell with workers and a sleep, in a session of their own. The shell ends after the workers.
#[derive(Debug)]
pub struct Tree {
    directory: TempDir,
    shell: Child,
    /// The shell and all below it.
    pub members: Vec<i32>,
    workers: usize,
}

/// All processes below one.
///
/// # Panics
/// When `/proc` has no numbers.
#[must_use]
pub fn descendants(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = list.split_ascii_whitespace().map(|pid| pid.parse().unwrap());
    children.flat_map(|child: i32| std::iter::once(child).chain(descendants(child))).collect()
}

impl Tree {
    /// Starts a worker with each of these lists of arguments, the shell by way of `wrapper`.
    ///
    /// # Panics
    /// When they do not start to work.
    #[must_use]
    pub fn start(workers: &[&str], wrapper: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // This process becomes the parent of what CRIU kills, so zombies are reaped even if process 1 here does not
        // reap.
        set_child_subreaper(true).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let here = directory.path().display();
        let (worker, number) = (program("counter-worker"), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut script = String::from("sleep 1000 & bystander=$!\n");
        for (n, arguments) in workers.iter().enumerate() {
            script.push_str(&format!(
                "STASIS_SOFTGPU_INSTANCE=tree-{}-{number}-{n} '{}' --until '{here}/stop' {arguments} >> '{here}/log-{n}' 2>&1 &\n\
                 workers=\"$workers $!\"\n",
                std::process::id(),
                worker.display(),
            ));
        }
        script.push_str("wait $workers; kill $bystander; echo the shell is done\n");
        fs::write(directory.path().join("script"), script).unwrap();
        let mut command = detached(directory.path());
        let shell = command.args(wrapper).arg("sh").arg(directory.path().join("script")).spawn().unwrap();
        let mut tree = Self { directory, shell, members: Vec::new(), workers: workers.len() };
        tree.wait_rounds(1);
        tree.members = vec![tree.root()];
        tree.members.extend(descendants(tree.root()));
        assert!(tree.members.len() >= workers.len() + 2, "{:?}", tree.members);
        tree
    }

    /// The shell.
    #[must_use]
    pub fn root(&self) -> i32 {
        self.shell.id().cast_signed()
    }

    /// The processes with a runtime.
    #[must_use]
    pub fn worker_pids(&self) -> Vec<i32> {
        let is_worker = |pid: &i32| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            program.file_name().is_some_and(|name| name == "counter-worker")
        };
        self.members.iter().copied().filter(is_worker).collect()
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a worker has printed.
    #[must_use]
    pub fn log(&self, worker: usize) -> String {
        fs::read_to_string(self.path(&format!("log-{worker}"))).unwrap_or_default()
    }

    /// The rounds of a worker, all of them correct.
    #[must_use]
    pub fn rounds(&self, worker: usize) -> u64 {
        let log = self.log(worker);
        log.lines().filter_map(|line| line.strip_prefix("round ")?.parse().ok()).next_back().unwrap_or(0)
    }

    /// Waits until every worker has done more rounds.
    ///
    /// # Panics
    /// When one does not.
    pub fn wait_rounds(&self, more: u64) {
        for worker in 0..self.workers {
            let start = self.rounds(worker);
            wait_until("the workers' rounds", || {
                assert!(is_alive(self.root()), "{}", self.log(worker));
                self.rounds(worker) >= start + more
            });
        }
    }

    /// Waits until nothing has the pids any more.
    ///
    /// # Panics
    /// When something has.
    pub fn bury(&mut self) {
        let _ = self.shell.wait();
        for pid in &self.members {
            wait_until("the end of the frozen tree", || {
                let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
                !Path::new(&format!("/proc/{pid}")).exists()
            });
        }
    }

    /// Lets all run to their end, and checks that all values were right.
    ///
    /// # Panics
    /// When it was not.
    pub fn goes_on(self) {
        self.wait_rounds(3);
        fs::write(self.path("stop"), "").unwrap();
        wait_until("the shell's end", || {
            let _ = waitpid(Pid::from_raw(self.root()), Some(WaitPidFlag::WNOHANG));
            !is_alive(self.root())
        });
        for worker in 0..self.workers {
            assert!(self.log(worker).lines().any(|line| line == "done"), "{}", self.log(worker));
        }
        let log = fs::read_to_string(self.path("log")).unwrap();
        assert!(log.contains("the shell is done"), "{log}");
    }

    /// The directories of contents among the images.
    ///
    /// # Panics
    /// When there are no images.
    #[must_use]
    pub fn contents(&self, images: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(images)).unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                // Without the directory of the rendezvous.
                name.strip_prefix("stasis-").is_some_and(|pid| pid.parse::<i32>().is_ok())
            })
            .collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // No other process has these pids as long as the test has the shell's log.
        let ours = fs::read_link(format!("/proc/{}/fd/1", self.root()));
        if ours.is_ok_and(|log| log == self.path("log")) {
            self.members.iter().for_each(|pid| kill(*pid));
        }
        let _ = self.shell.wait();
    }
}
