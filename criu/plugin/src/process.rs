// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds processes with an agent: they have the agent's inbox among their descriptors.
//!
//! INVARIANT: whether a process has an agent is read in `/proc`, and no other process gets an order. Namespaces make no
//! difference: processes of containers are found too.

use std::fs;
use std::path::{Path, PathBuf};

use stasis::checkpoint::contact::Contact;

/// A process with an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The pid in CRIU's pid namespace, which is also the one of `/proc`.
    pub pid: i32,
    /// The pid in the process's innermost pid namespace.
    pub own_pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The pids and users in `/proc/PID/status`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Identity {
    own_pid: Option<i32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Identity {
    fn parse(status: &str) -> Self {
        let mut identity = Self::default();
        for line in status.lines() {
            let Some((key, values)) = line.split_once(':') else { continue };
            let mut values = values.split_ascii_whitespace();
            match key {
                // One pid for each namespace, innermost last.
                "NSpid" => identity.own_pid = values.next_back().and_then(|pid| pid.parse().ok()),
                // The real, effective, saved and file system id.
                "Uid" => identity.uid = values.nth(1).and_then(|id| id.parse().ok()),
                "Gid" => identity.gid = values.nth(1).and_then(|id| id.parse().ok()),
                _ => {}
            }
        }
        identity
    }
}

/// The directory of a process.
pub(crate) fn proc_directory(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The process behind `pid`, if it has an agent. A process that has ended, or that may not be looked at, counts as one
/// without an agent.
pub(crate) fn find(pid: i32) -> Option<Process> {
    let directory = proc_directory(pid);
    Contact::find(pid).ok().flatten()?;
    let identity = Identity::parse(&fs::read_to_string(directory.join("status")).ok()?);
    let (own_pid, uid, gid) = (identity.own_pid?, identity.uid?, identity.gid?);
    Some(Process { pid, own_pid, uid, gid })
}

/// Whether any visible process has an agent.
pub(crate) fn is_any() -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.into_iter().any(|pid| matches!(Contact::find(pid), Ok(Some(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    use stasis::checkpoint::Inbox;

    #[test]
    fn status_gives_the_innermost_pid_and_effective_ids() {
        let status = "Name:\tx: y\nPid:\t300\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nNSpid:\t300\t40\t7\n";
        assert_eq!(Identity::parse(status), Identity { own_pid: Some(7), uid: Some(2), gid: Some(6) });
        assert_eq!(Identity::parse("garbage\nUid:\n"), Identity::default());
    }

    #[test]
    fn process_is_ours_while_it_has_an_inbox() {
        let own = std::process::id().cast_signed();
        assert_eq!(find(own), None);
        let inbox = Inbox::make().unwrap();
        let found = find(own).unwrap();
        assert_eq!((found.pid, found.own_pid), (own, own));
        assert!(is_any());
        drop(inbox);
        assert_eq!(find(own), None);
        assert_eq!(find(i32::MAX), None);
    }
}
