// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a tree: their numbers, owners and environments, as `/proc` shows them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::error::{ForeignError, system};

/// A process of a tree, by its numbers in three pid namespaces, which may be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its pid here, which is also the one of `/proc`.
    pub pid: i32,
    /// Its pid where the run's softgpud is.
    pub client: i32,
    /// Its pid in its own, innermost namespace: the one that a restore gives back.
    pub own: i32,
}

impl Task {
    /// A process of this pid namespace, whose softgpud is here, too.
    #[must_use]
    pub fn here(pid: i32) -> Self {
        Self { pid, client: pid, own: pid }
    }

    /// A process that may be in a pid namespace of its own, in which its softgpud is, too, if `is_joined`.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(pid: i32, is_joined: bool) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        // One number for each namespace, the innermost last.
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let own = numbers.and_then(|numbers| numbers.split_whitespace().next_back()?.parse().ok());
        let own = own.unwrap_or(pid);
        Ok(Self { pid, client: if is_joined { own } else { pid }, own })
    }
}

impl Task {
    /// All processes of a tree, the root first, as [`Task::of`] knows them. One that has ended meanwhile is no part of it any more.
    #[must_use]
    pub fn tree(root: i32, is_joined: bool) -> Vec<Self> {
        members(root).into_iter().filter_map(|pid| Self::of(pid, is_joined).ok()).collect()
    }
}

/// The pids of `root` and all its descendants, parents first.
#[must_use]
pub fn members(root: i32) -> Vec<i32> {
    let (mut all, mut seen) = (vec![root], HashSet::from([root]));
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        // A pid used again while we look must not lead in a circle.
        all.extend(children(pid).into_iter().filter(|child| seen.insert(*child)));
        next += 1;
    }
    all
}

/// The children of all threads of a process. CRIU finds them in the same place (`CONFIG_PROC_CHILDREN`).
fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// User and group of a process.
///
/// # Errors
/// When it has ended.
pub fn owner(pid: i32) -> Result<(u32, u32), ForeignError> {
    let found = fs::metadata(format!("/proc/{pid}"));
    let found = found.map_err(system(format!("find process {pid}")))?;
    Ok((found.uid(), found.gid()))
}

/// The variables, as `/proc/PID/environ` has them.
#[derive(Debug)]
pub struct Environment(Vec<u8>);

impl Environment {
    /// That of a process; `None` if it cannot be read.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        fs::read(format!("/proc/{pid}/environ")).ok().map(Self)
    }

    #[cfg(test)]
    pub(crate) fn of_text(text: Vec<u8>) -> Self {
        Self(text)
    }

    /// The value of a variable.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

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
    }

    #[test]
    fn process_of_this_namespace_has_one_number() {
        let own = std::process::id().cast_signed();
        assert_eq!(Task::of(own, false).unwrap().pid, own);
        assert_eq!(Task::of(own, false).unwrap().client, own);
        let joined = Task::of(own, true).unwrap();
        assert_eq!(joined.client, joined.own);
        assert!(Task::of(i32::MAX, true).is_err());
    }
}
