// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process tree below a root, and the tasks that CRIU holds, as `/proc` shows them.

use std::collections::HashSet;
use std::fs;

use crate::process::proc_directory;

/// The children of a process, of all its threads. CRIU finds them in the same place (`CONFIG_PROC_CHILDREN`).
fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(proc_directory(pid).join("task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A root and all its descendants, parents first.
pub(crate) fn members(root: i32) -> Vec<i32> {
    let (mut members, mut seen) = (vec![root], HashSet::from([root]));
    let mut next = 0;
    while let Some(&pid) = members.get(next) {
        // A pid that is reused during the walk must not make the walk a circle.
        members.extend(children(pid).into_iter().filter(|child| seen.insert(*child)));
        next += 1;
    }
    members
}

/// The processes this one traces: in a hook after the freeze, the tree that is dumped.
pub(crate) fn traced() -> Vec<i32> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let status = fs::read_to_string(proc_directory(*pid).join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() == own)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    #[test]
    fn members_are_found_through_any_thread_and_depth() {
        let script = "sleep 1000 & (sleep 1000 & echo; wait) & wait";
        let started = std::thread::spawn(|| {
            let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
            // The shell prints a line when its grandchild has started.
            shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            shell
        });
        let mut shell = started.join().unwrap();
        let found = members(shell.id().cast_signed());
        for pid in found.iter().rev() {
            kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        // The shell, its sleep, its subshell and that one's sleep.
        assert_eq!((found[0], found.len()), (shell.id().cast_signed(), 4));
        assert!(traced().is_empty());
    }
}
