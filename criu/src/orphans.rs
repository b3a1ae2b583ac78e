// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends what a killed CRIU leaves behind: half-restored tasks that keep their pids, the script that would still commit,
//! stopped children.
//!
//! INVARIANT: between [`Orphans::adopt`] and [`Orphans::end`] this process starts nothing but CRIU, and guards that have ended before;
//! so every new child is CRIU's.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// TIMEOUT: how long killed processes may take to end. A killed process waits only for the kernel: for a page that is
/// read from disk, for its memory to be freed.
const BURIAL: Duration = Duration::from_secs(20);
/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Processes that lose their parents while CRIU is at work.
#[derive(Debug)]
pub struct Orphans {
    /// Children that were there before.
    own: Vec<Pid>,
}

impl Orphans {
    /// Has orphans of what this process starts become its children (PR_SET_CHILD_SUBREAPER) instead of init's.
    ///
    /// # Errors
    /// The system's answer; Linux 3.4 and newer do not refuse.
    pub fn adopt() -> io::Result<Self> {
        set_child_subreaper(true)?;
        Ok(Self { own: children() })
    }

    /// Kills every new child, and theirs in turn, until there is none. Those that are still there after
    /// [`BURIAL`] are logged.
    pub fn end(self) {
        let deadline = Instant::now() + BURIAL;
        loop {
            let orphans: Vec<Pid> = children().into_iter().filter(|pid| !self.own.contains(pid)).collect();
            if orphans.is_empty() {
                return;
            }
            // All are killed before the first is waited for: a process that another one traces cannot be reaped before
            // the tracer has ended.
            for orphan in &orphans {
                let _ = kill(*orphan, Signal::SIGKILL);
            }
            // The children of an orphan become children of this process when the orphan has ended.
            let has_reaped = orphans.iter().filter(|orphan| reap(**orphan)).count() > 0;
            if Instant::now() >= deadline {
                tracing::error!(target: "criu", ?orphans, "processes that CRIU left do not end");
                return;
            }
            if !has_reaped {
                thread::sleep(LOOK);
            }
        }
    }
}

/// Reaps a child if it has ended; whether one was reaped.
fn reap(child: Pid) -> bool {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::StillAlive) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
}

/// Children of this process by any of its threads.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    // kill(2) and waitpid(2) take 0 and negative numbers for groups; the kernel lists none.
    let pids = |list: String| -> Vec<Pid> {
        let numbers = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        numbers.filter(|pid| *pid > 0).map(Pid::from_raw).collect()
    };
    lists.flat_map(pids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn orphans_end_with_all_they_started() {
        let mut own = Command::new("sleep").arg("1000").spawn().unwrap();
        let orphans = Orphans::adopt().unwrap();
        // The child and the grandchild of the shell outlive it; the shell prints the grandchild's pid.
        let script = "sleep 1000 & sh -c 'sleep 1000 & echo $!; wait' & sleep 0.2";
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let output = fs::File::create(&log).unwrap();
        let status = Command::new("sh").args(["-c", script]).stdout(output).status().unwrap();
        assert!(status.success());
        let deadline = Instant::now() + Duration::from_secs(60);
        let grandchild = loop {
            if let Ok(pid) = fs::read_to_string(&log).unwrap().trim().parse::<i32>() {
                break pid;
            }
            assert!(Instant::now() < deadline, "no grandchild");
        };
        orphans.end();
        assert!(!fs::exists(format!("/proc/{grandchild}")).unwrap());
        assert!(own.try_wait().unwrap().is_none(), "what was there before is none of CRIU's");
        own.kill().unwrap();
        own.wait().unwrap();
    }
}
