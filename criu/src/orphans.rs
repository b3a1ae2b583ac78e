// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a CRIU that was killed leaves behind: half-restored tasks that keep their pids, the script that would still
//! commit, children stopped for ever.
//!
//! INVARIANT: between [`Orphans::adopt`] and [`Orphans::end`] this process starts nothing but CRIU; so every child that
//! is new by then is CRIU's.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// TIMEOUT: how long processes may take to end that were killed. A kill waits for no one but the kernel: a disk that a
/// page is read from, a process's memory that is given back.
const BURIAL: Duration = Duration::from_secs(20);
/// How often it is looked whether they have.
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
        set_child_subreaper(Some(getpid()))?;
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
            // All of them before the first is waited for: what another of them traces cannot be reaped before that
            // other has ended.
            for orphan in &orphans {
                let _ = kill_process(*orphan, Signal::KILL);
            }
            // What they have started is ours once they have ended.
            let reap =
                |orphan: &Pid| rustix::io::retry_on_intr(|| waitpid(Some(*orphan), WaitOptions::NOHANG));
            let has_reaped = orphans.iter().filter(|orphan| matches!(reap(orphan), Ok(Some(_)))).count() > 0;
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

/// Children of this process by any of its threads.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| -> Vec<Pid> {
        list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
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
        // Its child and grandchild outlive it; the grandchild's pid is what it prints.
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
