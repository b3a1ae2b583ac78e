// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes themselves: sessions, tracers, zombies, filters, capabilities, namespaces.

use std::io;

use super::finding::{Finding, Severity};
use super::privileges::{CAP_SETPCAP, CAP_SYS_ADMIN, full_bounding_set};
use super::scene::Scene;
use super::tree::{Process, same_namespace};

/// Namespaces CRIU recreates when they are not its own. (The time namespace it makes itself.)
const NAMESPACES: [&str; 6] = ["pid", "mnt", "net", "ipc", "uts", "user"];

/// Judges every process of the tree.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let root = scene.root();
    found.extend(session(scene, root));
    found.extend(namespaces(root));
    for process in scene.tree {
        let is_root = process.pid == root.pid;
        if process.stat.state == 'Z' {
            found.push(zombie(process, is_root));
            continue;
        }
        found.extend(led_from_outside(process));
        found.extend(unreadable(process));
        found.extend(traced(process));
        if scene.flags.unprivileged {
            found.extend(unprivileged(scene, process));
        }
    }
}

fn of(severity: Severity, process: &Process, what: impl Into<String>) -> Finding {
    Finding::new(severity, process.pid, "process", what)
}

fn session(scene: &Scene<'_>, root: &Process) -> Option<Finding> {
    if root.stat.session == 0 {
        return None;
    }
    if root.stat.terminal != 0 {
        let (major, minor) = terminal(root.stat.terminal);
        return Some(
            of(Severity::Note, root, format!("in the session of a terminal ({major}:{minor})"))
                .why("`stasis checkpoint` gives CRIU --shell-job for it; the restore needs a terminal, too")
                .remedy("start it with setsid and its output in a file to be free of terminals"),
        );
    }
    (root.stat.session != root.pid && !scene.flags.shell_job).then(|| {
        of(Severity::Refused, root, format!("in session {}, which it does not lead", root.stat.session))
            .why("CRIU takes a whole session or none")
            .remedy("start it with setsid, or --criu-arg=--shell-job here and at restore")
    })
}

/// The kernel gives 0 for a leader that this pid namespace does not have.
fn led_from_outside(process: &Process) -> Option<Finding> {
    (process.stat.session == 0).then(|| {
        of(Severity::Refused, process, "in a session whose leader is outside of its pid namespace")
            .why("CRIU dumps no task of such a session, with --shell-job neither")
            .remedy("start the program with setsid")
    })
}

/// `tty_nr`: minor in bits 31-20 and 7-0, major in bits 15-8.
fn terminal(number: i32) -> (u32, u32) {
    let bits = number.cast_unsigned();
    (bits >> 8 & 0xff, bits & 0xff | bits >> 12 & 0xf_ff00)
}

fn namespaces(root: &Process) -> Option<Finding> {
    let pid = root.pid.to_string();
    let others: Vec<_> = NAMESPACES.into_iter().filter(|kind| !same_namespace("self", &pid, kind)).collect();
    (!others.is_empty()).then(|| {
        of(Severity::Warning, root, format!("in other namespaces than stasis: {}", others.join(", ")))
            .why("CRIU dumps them with it, if the process is the first of its pid namespace and CRIU is root")
            .remedy("run stasis inside the container, or let the container's runtime do the checkpoint")
    })
}

fn zombie(process: &Process, is_root: bool) -> Finding {
    if is_root {
        of(Severity::Refused, process, "a zombie").why("it has ended").remedy("have its parent reap it")
    } else {
        of(Severity::Note, process, "a zombie").why("it has ended; the restored tree has it, too")
    }
}

fn unreadable(process: &Process) -> Option<Finding> {
    let kind = process.fds.as_ref().err().or(process.maps.as_ref().err())?;
    // A process that ended meanwhile has nothing left to look at.
    (*kind == io::ErrorKind::PermissionDenied).then(|| {
        let uid = process.field("Uid").and_then(|ids| ids.split_ascii_whitespace().next()).unwrap_or("?");
        of(Severity::Refused, process, format!("of user {uid} and may not be looked at"))
            .why("CRIU could not look at it either")
            .remedy("run as that user or as root")
    })
}

fn traced(process: &Process) -> Option<Finding> {
    let tracer = process.field("TracerPid").filter(|tracer| *tracer != "0")?;
    Some(
        of(Severity::Refused, process, format!("traced by process {tracer}"))
            .why("a process has one tracer, and CRIU has to be it")
            .remedy("detach the debugger"),
    )
}

fn unprivileged(scene: &Scene<'_>, process: &Process) -> Vec<Finding> {
    let mut found = Vec::new();
    if process.field("Seccomp") == Some("2") && !scene.own.has(CAP_SYS_ADMIN) {
        found.push(
            of(Severity::Refused, process, "under a seccomp filter")
                .why("CRIU has to suspend the filter, which takes CAP_SYS_ADMIN")
                .remedy("run with CAP_SYS_ADMIN, or without the filter"),
        );
    }
    let limited = process.capabilities("CapBnd") != full_bounding_set();
    if limited && process.field("NoNewPrivs") != Some("1") && !scene.own.has(CAP_SETPCAP) {
        found.push(
            of(Severity::Warning, process, "without some capability in its bounding set")
                .why("an unprivileged restore ends in a crash there: dropping a capability takes CAP_SETPCAP")
                .remedy("give the restore CAP_SETPCAP, or start the program with no_new_privs (setpriv)"),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_numbers_are_taken_apart() {
        assert_eq!(terminal(34816), (136, 0));
        assert_eq!(terminal(34823), (136, 7));
        assert_eq!(terminal(1025), (4, 1));
        assert_eq!(terminal(0x0010_8800), (136, 256));
    }
}
