// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy that nobody will ever wake: CRIU lets the threads that it has made go by a futex in their memory, and if it was
//! killed before that they wait for ever.

use std::fs;

/// The number of futex(2), as `/proc/PID/task/TID/syscall` has it.
#[cfg(target_arch = "x86_64")]
const FUTEX: &str = "202";
#[cfg(not(target_arch = "x86_64"))]
const FUTEX: &str = "98";

/// Whether every thread of a process sleeps in a futex. One with an agent that runs never does: its agent polls.
pub(super) fn is_stalled(pid: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut calls = tasks.flatten().map(|task| fs::read_to_string(task.path().join("syscall"))).peekable();
    calls.peek().is_some()
        && calls.all(|call| call.is_ok_and(|call| call.split_ascii_whitespace().next() == Some(FUTEX)))
}

/// What is to be done about it.
pub(super) fn explain(pid: i32) -> String {
    format!(
        "Process {pid} does not wake up: all its threads sleep in a futex. If `criu restore` was killed while it made this \
         process nobody else can wake it: end it (kill -9 {pid}), and restore it again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    fn python(script: &str) -> Child {
        Command::new("python3").args(["-c", script]).spawn().expect("python3")
    }

    #[test]
    fn process_whose_threads_all_sleep_in_a_futex_is_stalled() {
        let sleep = "import threading, time\nlock = threading.Lock()\nlock.acquire()\n";
        let mut stalled =
            python(&format!("{sleep}threading.Thread(target=lock.acquire).start()\nlock.acquire()"));
        let mut awake =
            python(&format!("{sleep}threading.Thread(target=lock.acquire).start()\ntime.sleep(1000)"));
        let threads = |child: &Child| fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
        let deadline = Instant::now() + Duration::from_secs(60);
        while threads(&stalled) < 2 || threads(&awake) < 2 || !is_stalled(stalled.id().cast_signed()) {
            assert!(Instant::now() < deadline, "its threads are awake");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_stalled(awake.id().cast_signed()), "one of its threads waits for time");
        for child in [&mut stalled, &mut awake] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!is_stalled(i32::MAX));
    }
}
