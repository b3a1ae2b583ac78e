// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets: connections that leave the tree, and kinds of sockets CRIU does not know.
//!
//! INVARIANT: the tables are read only if the tree has sockets, and a copy of a descriptor is taken only of a socket
//! that is in no table.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsFd;

use kfd::linux::{pidfd_getfd, pidfd_open, socket_domain, socket_protocol};
use nix::libc;
use nix::unistd::Pid;
use queues::words::words;

use super::diag::{self, CLOSE, LISTEN, TcpSocket, UnixSocket};
use super::finding::{Finding, Severity};
use super::privileges::CAP_NET_ADMIN;
use super::scene::Scene;
use super::tree::{Descriptor, Process, same_namespace};

/// Types of Unix sockets.
const DATAGRAM: u8 = 2;
/// What softgpud's sockets are bound to; a process of ours closes its connections at a checkpoint.
const DEVICE_SOCKET: &str = "@stasis-softgpud.";
/// How the names of sockets begin at which controllers wait for agents.
const CONTROLLER_SOCKET: &str = "@stasis-order.";
/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;
/// Tables of /proc/PID/net that show sockets which CRIU dumps as they are, and the column of their inodes.
const HARMLESS: [(&str, usize); 10] = [
    ("udp", 9),
    ("udp6", 9),
    ("udplite", 9),
    ("udplite6", 9),
    ("raw", 9),
    ("raw6", 9),
    ("icmp", 9),
    ("icmp6", 9),
    ("netlink", 9),
    ("packet", 8),
];

/// A socket of the tree, where it was first seen.
struct Held<'t> {
    process: &'t Process,
    fd: &'t Descriptor,
    inode: u64,
}

impl Held<'_> {
    fn finding(&self, severity: Severity, what: impl Into<String>) -> Finding {
        Finding::new(severity, self.process.pid, self.fd.place(), what)
    }
}

fn held(tree: &[Process]) -> Vec<Held<'_>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for process in tree {
        for fd in process.descriptors() {
            let number = fd.link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if let Some(inode) = number.and_then(|number| number.parse().ok())
                && seen.insert(inode)
            {
                all.push(Held { process, fd, inode });
            }
        }
    }
    all
}

/// Judges all sockets of the tree.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let held = held(scene.tree);
    let Some(first) = held.first() else { return };
    let pid = scene.root().pid.to_string();
    if !same_namespace("self", &pid, "net") {
        let finding = first.finding(Severity::Warning, format!("one of {} sockets", held.len()));
        found
            .push(finding.why("the process is in another network namespace: its connections cannot be seen"));
        return;
    }
    let unix = match diag::unix_sockets() {
        Ok(sockets) => sockets,
        Err(error) => {
            let finding = first.finding(Severity::Warning, format!("one of {} sockets", held.len()));
            found.push(finding.why(format!("the kernel does not show Unix sockets: {error}")));
            HashMap::new()
        }
    };
    let (unix_held, others): (Vec<_>, Vec<_>) = held.iter().partition(|held| in_table(&unix, held).is_some());
    let inside: HashSet<u32> = unix_held
        .iter()
        // CAST: inodes of sockets are 32 bits in the kernel's own tables.
        .flat_map(|held| {
            in_table(&unix, held)
                .into_iter()
                .flat_map(|s| s.waiting.iter().copied())
                .chain([words(held.inode)[0]])
        })
        .collect();
    for held in unix_held {
        let Some(socket) = in_table(&unix, held) else { continue };
        found.extend(unix_socket(scene, held, socket, &inside, &unix));
    }
    if !others.is_empty() {
        internet(scene, &others, found);
    }
}

fn in_table<'u>(unix: &'u HashMap<u32, UnixSocket>, held: &Held<'_>) -> Option<&'u UnixSocket> {
    unix.get(&u32::try_from(held.inode).ok()?)
}

fn unix_socket(
    scene: &Scene<'_>,
    held: &Held<'_>,
    socket: &UnixSocket,
    inside: &HashSet<u32>,
    unix: &HashMap<u32, UnixSocket>,
) -> Option<Finding> {
    if socket.peer == 0 || inside.contains(&socket.peer) {
        return None;
    }
    let name = unix.get(&socket.peer).map_or("", |peer| peer.name.as_str());
    // The agent hangs up on whoever is connected before the process can be frozen.
    let is_agents = name.starts_with(CONTROLLER_SOCKET);
    if held.process.is_ours() && (is_agents || name.starts_with(DEVICE_SOCKET)) {
        return None;
    }
    if let Some(executors) = scene.executors {
        // A call under way; the client has no connection between calls, and a pause ends the calls.
        if name.strip_prefix('@') == Some(executors.device.socket.as_str()) {
            return None;
        }
        if executors.has_socket(socket.peer) {
            return Some(
                held.finding(Severity::Refused, "a stream of the driver's events (SMI_EVENTS)")
                    .why("its other end is at the executor, and CRIU cannot dump half of a connection")
                    .remedy("close it before the checkpoint"),
            );
        }
    }
    let kind = match socket.kind {
        1 => "stream",
        DATAGRAM => "datagram",
        _ => "seqpacket",
    };
    let to = if name.is_empty() { format!("socket {}", socket.peer) } else { name.to_owned() };
    let finding = held.finding(Severity::Refused, format!("a Unix {kind} socket connected to {to}"));
    if socket.kind == DATAGRAM {
        return (!scene.flags.ext_unix_sk).then(|| {
            finding
                .why("its peer is not in the tree")
                .remedy("--criu-arg=--ext-unix-sk, or close it before the checkpoint")
        });
    }
    Some(
        finding
            .why("its peer is not in the tree, and CRIU cannot dump half of a connection")
            .remedy("close it before the checkpoint, or checkpoint a common parent of both"),
    )
}

/// TCP by /proc; what is in no table is asked itself.
fn internet(scene: &Scene<'_>, held: &[&Held<'_>], found: &mut Vec<Finding>) {
    let net = format!("/proc/{}/net", scene.root().pid);
    let table = |name: &str| fs::read_to_string(format!("{net}/{name}")).unwrap_or_default();
    let mut tcp = diag::tcp_sockets(&table("tcp"));
    tcp.extend(diag::tcp_sockets(&table("tcp6")));
    let mut harmless = HashSet::new();
    if held.iter().any(|held| !tcp.contains_key(&held.inode)) {
        for (name, column) in HARMLESS {
            let table = table(name);
            let inodes = table
                .lines()
                .skip(1)
                .filter_map(|line| line.split_ascii_whitespace().nth(column)?.parse::<u64>().ok());
            harmless.extend(inodes);
        }
    }
    for held in held {
        match tcp.get(&held.inode) {
            Some(socket) => found.extend(tcp_socket(scene, held, socket)),
            None if harmless.contains(&held.inode) => {}
            None => found.extend(unlisted(held)),
        }
    }
}

fn tcp_socket(scene: &Scene<'_>, held: &Held<'_>, socket: &TcpSocket) -> Option<Finding> {
    let flags = scene.flags;
    if socket.state == LISTEN {
        let finding = held.finding(Severity::Refused, format!("a TCP listener on {}", socket.local));
        return (socket.waiting > 0 && !flags.skip_in_flight).then(|| {
            finding
                .why(format!("{} connections wait to be accepted", socket.waiting))
                .remedy("try again, or --criu-arg=--skip-in-flight to drop them")
        });
    }
    if socket.state == CLOSE || flags.tcp_close {
        return None;
    }
    let finding =
        held.finding(Severity::Refused, format!("a TCP connection {} to {}", socket.local, socket.remote));
    if !flags.tcp_established {
        return Some(
            finding
                .why("CRIU keeps or closes connections only if flags")
                .remedy("--tcp-established keeps it, --tcp-close ends it"),
        );
    }
    (flags.unprivileged && !scene.own.has(CAP_NET_ADMIN)).then(|| {
        finding.why("keeping a connection takes CAP_NET_ADMIN").remedy("add the capability, or --tcp-close")
    })
}

/// A socket in no table: one that is not bound yet, or of a family without a table. It says itself what it is.
fn unlisted(held: &Held<'_>) -> Option<Finding> {
    let copy = pidfd_open(Pid::from_raw(held.process.pid))
        .and_then(|process| pidfd_getfd(process.as_fd(), held.fd.number));
    let Ok(copy) = copy else {
        let finding = held.finding(Severity::Warning, held.fd.link.as_str());
        return Some(finding.why("it is in none of the kernel's tables and may not be asked what it is"));
    };
    let family = socket_domain(copy.as_fd()).ok()?;
    let protocol = socket_protocol(copy.as_fd()).unwrap_or(0);
    if protocol == MPTCP {
        return Some(
            held.finding(Severity::Refused, "an MPTCP socket")
                .why("CRIU does not know this protocol")
                .remedy("use TCP (Go programs: GODEBUG=multipathtcp=0)"),
        );
    }
    let known = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];
    (!known.contains(&family)).then(|| {
        held.finding(Severity::Refused, format!("a socket of family {family}"))
            .why("CRIU does not know this family")
            .remedy("close it before the checkpoint")
    })
}
