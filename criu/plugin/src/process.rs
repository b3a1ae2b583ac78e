// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes are ours: those that listen on an agent's socket named after themselves.
//!
//! INVARIANT: whether a process is ours is read in `/proc`; only one that is ours is ever spoken to. Sockets of the
//! abstract namespace belong to a network namespace, and the name has the pid as the process itself knows it, so both
//! are looked up for each process: containers are no exception.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use stasis::checkpoint::protocol::socket_name;

/// A process with an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// As CRIU, that is `/proc`, knows it.
    pub pid: i32,
    /// As it knows itself: in the innermost pid namespace.
    pub own_pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// It lives in another network namespace than CRIU.
    pub is_elsewhere: bool,
}

/// The pids, as their owners know them, of agents that listen, for each network namespace looked at.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    known: HashMap<PathBuf, HashSet<i32>>,
}

/// What `/proc/PID/status` says of identity.
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
                // One number a namespace, innermost last.
                "NSpid" => identity.own_pid = values.next_back().and_then(|pid| pid.parse().ok()),
                // Real, effective, saved, for files.
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

/// Pids of agents among the sockets that `/proc/net/unix` lists.
fn agents_among(sockets: &str) -> HashSet<i32> {
    // Num RefCount Protocol Flags Type St Inode Path; a connection that was accepted has the listener's name, too, but
    // not its flag (`__SO_ACCEPTCON`).
    const LISTENS: &str = "00010000";
    let name_without_pid = socket_name(0);
    let prefix = String::from_utf8_lossy(&name_without_pid);
    let prefix = prefix.trim_end_matches('0');
    let fields = sockets.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(3) == Some(&LISTENS))
        .filter_map(|fields| fields.get(7)?.strip_prefix('@')?.strip_prefix(prefix)?.parse().ok())
        .collect()
}

impl Listeners {
    /// The process behind `pid`, if it has an agent. One that is gone, or that we may not look at, has none.
    pub fn find(&mut self, pid: i32) -> Option<Process> {
        let directory = proc_directory(pid);
        let identity = Identity::parse(&fs::read_to_string(directory.join("status")).ok()?);
        let namespace = fs::read_link(directory.join("ns/net")).ok()?;
        let own_namespace = fs::read_link("/proc/thread-self/ns/net").ok();
        let is_elsewhere = own_namespace.is_some_and(|own| own != namespace);
        let own_pid = identity.own_pid?;
        let is_ours = self.in_namespace(namespace, &directory)?.contains(&own_pid);
        is_ours.then_some(Process { pid, own_pid, uid: identity.uid?, gid: identity.gid?, is_elsewhere })
    }

    fn in_namespace(&mut self, namespace: PathBuf, of: &Path) -> Option<&HashSet<i32>> {
        Some(match self.known.entry(namespace) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                unknown.insert(agents_among(&fs::read_to_string(of.join("net/unix")).ok()?))
            }
        })
    }

    /// Whether any agent is to be seen from here.
    pub fn any(&mut self) -> bool {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).any(|pid| {
            let directory = proc_directory(pid);
            let namespace = fs::read_link(directory.join("ns/net")).ok();
            namespace.and_then(|n| self.in_namespace(n, &directory)).is_some_and(|agents| !agents.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn status_gives_the_innermost_pid_and_effective_ids() {
        let status = "Name:\tx: y\nPid:\t300\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nNSpid:\t300\t40\t7\n";
        assert_eq!(Identity::parse(status), Identity { own_pid: Some(7), uid: Some(2), gid: Some(6) });
        assert_eq!(Identity::parse("garbage\nUid:\n"), Identity::default());
    }

    #[test]
    fn only_listening_agents_count() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 00000002 00000000 00010000 0005 01 101 @stasis-agent.12\n\
             0: 00000003 00000000 00000000 0005 03 102 @stasis-agent.13\n\
             0: 00000002 00000000 00010000 0001 01 103 /run/stasis-agent.14\n\
             0: 00000002 00000000 00010000 0005 01 104 @stasis-agent.x\n\
             0: 00000002 00000000 00010000 0005 01 105\n\
             0: 00000002 00000000 00010000 0005 01 106 @stasis-agent.10\n";
        assert_eq!(agents_among(sockets), HashSet::from([12, 10]));
    }

    #[test]
    fn process_is_ours_while_it_listens() {
        let own = std::process::id().cast_signed();
        assert_eq!(Listeners::default().find(own), None);
        let address = SocketAddr::from_abstract_name(socket_name(own)).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let _connected = UnixStream::connect_addr(&address).unwrap();
        let found = Listeners::default().find(own).unwrap();
        assert_eq!((found.pid, found.own_pid, found.is_elsewhere), (own, own, false));
        assert!(Listeners::default().any());
        drop(listener);
        assert_eq!(Listeners::default().find(own), None);
        assert_eq!(Listeners::default().find(i32::MAX), None);
    }
}
