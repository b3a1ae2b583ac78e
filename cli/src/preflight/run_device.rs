// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a `stasis run`: which processes of the tree have it, which executor holds the state of each, and what of that
//! stands in the way of a checkpoint.
//!
//! INVARIANT: nothing is paused. Who has which memory is seen by the descriptors of tasks and executors.

use std::collections::HashSet;
use std::fmt;

use kfd::transport::beside::{is_stored_beside, name_of_memfd};
use kfd::transport::run::SOCKET_VARIABLE;
use serde::Serialize;

use super::device_memory::is_device_memory;
use super::finding::{Finding, Severity};
use super::scene::Scene;
use super::shared;
use super::tree::{Descriptor, FileId, Process};

/// What a run says of the processes of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunDevice {
    /// Its devices, as softgpud names them.
    pub devices: String,
    /// The abstract socket of its softgpud.
    pub socket: String,
    /// Processes of the tree that have a device.
    pub clients: Vec<RunClient>,
    /// Processes of the run that have a device and are not in the tree.
    #[serde(skip)]
    pub others: Vec<RunClient>,
}

/// A process that has a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunClient {
    /// The process.
    pub pid: i32,
    /// Its executor, if that could be connected to.
    pub executor: Option<i32>,
    /// What the device does.
    pub state: DeviceState,
    /// Its queues, if the executor answered.
    pub queues: Option<u32>,
}

/// What the device of a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// Its queues may run.
    Running,
    /// A controller has paused it: its gate is closed.
    Paused,
    /// Its executor does not answer, and its gate is open or cannot be seen.
    Busy,
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Busy => "busy",
        })
    }
}

/// A run's device with what its executors have open.
#[derive(Debug)]
pub struct Executors {
    pub device: RunDevice,
    /// Of the tree's clients.
    own: Vec<Descriptor>,
    /// Of the other clients, each with its client.
    others: Vec<(i32, Vec<Descriptor>)>,
    /// Clients whose executors may not be looked at.
    hidden: Vec<i32>,
}

impl Executors {
    /// Looks at the executors.
    pub fn read(device: RunDevice) -> Self {
        let mut hidden = Vec::new();
        let mut open = |client: &RunClient| {
            let read = client.executor.and_then(|executor| Process::read(executor).ok()?.fds.ok());
            if read.is_none() {
                hidden.push(client.pid);
            }
            read.unwrap_or_default()
        };
        let own = device.clients.iter().flat_map(&mut open).collect();
        let others = device.others.iter().map(|client| (client.pid, open(client))).collect();
        Self { device, own, others, hidden }
    }

    /// Device memory that the clients of the tree have at their executors.
    pub(super) fn memory(&self) -> impl Iterator<Item = &Descriptor> {
        self.own.iter().filter(|fd| is_device_memory(&fd.link))
    }

    /// Device memory that clients outside the tree have at their executors, each with its client.
    pub(super) fn memory_of_others(&self) -> impl Iterator<Item = (FileId, i32)> {
        let of = |(client, fds): &'_ (i32, Vec<Descriptor>)| {
            let client = *client;
            fds.iter()
                .filter(|fd| is_device_memory(&fd.link))
                .map(move |fd| (fd.file.id, client))
                .collect::<Vec<_>>()
        };
        self.others.iter().flat_map(of)
    }

    /// Whether an executor of the tree's clients has a socket.
    pub(super) fn has_socket(&self, inode: u32) -> bool {
        let link = format!("socket:[{inode}]");
        self.own.iter().any(|fd| fd.link == link)
    }

    /// Bytes of the device's memory that no task has, about.
    pub(super) fn stored_bytes(&self, tree: &[Process]) -> u64 {
        let mut seen: HashSet<FileId> = tree
            .iter()
            .flat_map(|process| {
                let mapped =
                    process.mappings().iter().filter(|mapping| mapping.shared).map(|mapping| mapping.id);
                process.descriptors().iter().map(|fd| fd.file.id).chain(mapped)
            })
            .collect();
        let stored = self.own.iter().filter(|fd| is_saved(&fd.link) && seen.insert(fd.file.id));
        stored.map(|fd| fd.file.allocated).sum()
    }
}

/// Whether memory of this name belongs to a client's device, as a checkpoint saves it.
fn is_saved(link: &str) -> bool {
    let own = link.strip_prefix("/memfd:softgpu");
    let is_own = own.is_some_and(|rest| !rest.starts_with(":ledger") && !rest.starts_with("-state"));
    is_own || link.starts_with("/memfd:stasis-userptr:")
}

/// Bytes of the device's memory that tasks have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskBytes {
    /// CRIU carries them.
    pub carried: u64,
    /// CRIU leaves them out.
    pub beside: u64,
}

/// Bytes of the device's memory that tasks have.
pub(super) fn task_bytes(tree: &[Process]) -> TaskBytes {
    let mut bytes = TaskBytes::default();
    for piece in shared::pieces(tree, is_saved).values() {
        let Some(file) = &piece.file else { continue };
        let is_beside = name_of_memfd(&piece.name).is_some_and(|name| is_stored_beside(name, file.bytes));
        *(if is_beside { &mut bytes.beside } else { &mut bytes.carried }) += file.allocated;
    }
    bytes
}

/// Whether the environment of a process names a run.
pub fn names_a_run(pid: i32) -> bool {
    stasis_criu_foreign::Environment::of(pid)
        .is_some_and(|environment| environment.value(SOCKET_VARIABLE).is_some())
}

/// Judges the device of a run.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let Some(executors) = scene.executors else { return };
    for client in &executors.device.clients {
        found.extend(state(client));
    }
    for pid in &executors.hidden {
        found.push(
            Finding::new(Severity::Note, *pid, "device", "held by an executor that may not be looked at")
                .why("what its memory takes, and whether others share it, cannot be seen without the rights of root"),
        );
    }
    let locked = scene.tree.iter().find_map(|process| {
        let fd = process.descriptors().iter().find(|fd| fd.field("lock").is_some())?;
        Some((process, fd))
    });
    found.extend(locked.map(|(process, fd)| {
        Finding::new(Severity::Note, process.pid, fd.place(), fd.link.as_str())
            .why("a lock is held on it; `stasis checkpoint` gives CRIU --file-locks for programs under `stasis run`")
            .remedy("nothing, but nobody else may hold the lock at the restore")
    }));
}

fn state(client: &RunClient) -> Option<Finding> {
    let finding = |severity, what: &str| Finding::new(severity, client.pid, "device", what);
    match client.state {
        DeviceState::Running => None,
        DeviceState::Paused => Some(
            finding(Severity::Refused, "paused already")
                .why("another command is at work on a checkpoint of it")
                .remedy("wait for that command, or end it: the device goes on then (stasis cancel)"),
        ),
        DeviceState::Busy => Some(
            finding(Severity::Warning, "not answering")
                .why("another command may be at work on it, or its executor has no time; a checkpoint waits for it")
                .remedy("try again"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::dump_flags::DumpFlags;
    use super::super::privileges::Own;
    use stasis_criu_foreign::Mapping;

    use super::super::tree::{File, Stat};
    use super::*;

    fn fd(inode: u64, link: &str, info: &str) -> Descriptor {
        let bytes = inode << 12;
        let file = File { id: (1, inode), mode: 0o100_600, links: 0, device: 0, bytes, allocated: bytes };
        Descriptor { number: 5, link: link.into(), file, info: info.into() }
    }

    fn process(fds: Vec<Descriptor>, maps: Vec<Mapping>) -> Process {
        Process {
            pid: 7,
            name: "made-up".into(),
            status: String::new(),
            stat: Stat { state: 'S', session: 7, terminal: 0 },
            fds: Ok(fds),
            maps: Ok(maps),
            mounts: Vec::new(),
            runtime: None,
        }
    }

    fn client(pid: i32, state: DeviceState) -> RunClient {
        RunClient { pid, executor: None, state, queues: Some(1) }
    }

    fn executors(own: Vec<Descriptor>, others: Vec<(i32, Vec<Descriptor>)>) -> Executors {
        let device = RunDevice {
            devices: "gfx1100".into(),
            socket: "stasis-softgpud.0.made-up".into(),
            clients: vec![client(7, DeviceState::Running)],
            others: others.iter().map(|(pid, _)| client(*pid, DeviceState::Running)).collect(),
        };
        Executors { device, own, others, hidden: Vec::new() }
    }

    fn judged(tree: &[Process], executors: &Executors) -> Vec<Finding> {
        let own = Own { uid: 0, capabilities: u64::MAX, ptrace_scope: 0, criu: Ok("/criu".into()) };
        let flags = DumpFlags { file_locks: true, ..DumpFlags::default() };
        let scene =
            Scene { tree, flags: &flags, own: &own, session: &HashSet::new(), executors: Some(executors) };
        let mut found = Vec::new();
        judge(&scene, &mut found);
        super::super::device_memory::judge(&scene, &mut found);
        super::super::descriptors::judge(&scene, &mut found);
        found
    }

    #[test]
    fn memory_of_the_device_in_tasks_is_no_obstacle() {
        let names = [
            "softgpu:vram:7840:1",
            "softgpu:file:2",
            "softgpu:gate:3",
            "softgpu-doorbells:4",
            "stasis-userptr:5",
        ];
        let fds =
            names.iter().zip(1..).map(|(name, inode)| fd(inode, &format!("/memfd:{name} (deleted)"), ""));
        let fds: Vec<_> = fds.collect();
        assert_eq!(judged(&[process(fds.clone(), Vec::new())], &executors(fds, Vec::new())), []);
    }

    #[test]
    fn memory_that_a_client_outside_the_tree_has_is_refused_by_name() {
        let shared = fd(9, "/memfd:softgpu:vram:7840:ab (deleted)", "");
        let ledger = fd(8, "/memfd:softgpu:ledger:1 (deleted)", "");
        let all = executors(vec![shared.clone(), ledger.clone()], vec![(30, vec![shared, ledger])]);
        let found = judged(&[process(Vec::new(), Vec::new())], &all);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].severity == Severity::Refused && found[0].what.contains("softgpu:vram"),
            "{found:?}"
        );
        assert!(found[0].why.contains("process 30"), "{found:?}");
        assert!(!found[0].remedy.contains("--session"), "{found:?}");
    }

    #[test]
    fn paused_and_silent_devices_are_told() {
        let mut all = executors(Vec::new(), Vec::new());
        let tree = [process(Vec::new(), Vec::new())];
        for (state, severity) in
            [(DeviceState::Paused, Severity::Refused), (DeviceState::Busy, Severity::Warning)]
        {
            all.device.clients = vec![client(7, state)];
            let found = judged(&tree, &all);
            assert_eq!((found.len(), found[0].severity, found[0].place.as_str()), (1, severity, "device"));
        }
    }

    #[test]
    fn locks_are_noted_only() {
        let held = fd(6, "/srv/db", "flags:\t0100000\nlock:\t1: POSIX  ADVISORY  WRITE 12 fe:00:17 0 EOF\n");
        let held = Descriptor { file: File { links: 1, ..held.file }, ..held };
        let found = judged(&[process(vec![held], Vec::new())], &executors(Vec::new(), Vec::new()));
        assert!(found.len() == 1 && found[0].severity == Severity::Note, "{found:?}");
    }

    #[test]
    fn bytes_are_those_of_tasks_and_those_beside() {
        let in_task = fd(2, "/memfd:softgpu:vram:7840:2 (deleted)", "");
        let mapped = fd(4, "/memfd:softgpu:gtt:7840:4 (deleted)", "");
        let beside = fd(16, "/memfd:softgpu:vram:7840:16 (deleted)", "");
        let ledger = fd(32, "/memfd:softgpu:ledger:1 (deleted)", "");
        let mapping = Mapping {
            name: mapped.link.clone(),
            shared: true,
            id: (1, 4),
            range: "1000-2000".into(),
            writable: true,
        };
        let tree = [process(vec![in_task.clone()], vec![mapping])];
        let all = executors(vec![in_task, mapped, beside.clone(), beside, ledger], Vec::new());
        assert_eq!(all.stored_bytes(&tree), 16 << 12);
        // What is only mapped is not seen by its descriptor in a process that is made up.
        assert_eq!(task_bytes(&tree), TaskBytes { carried: 2 << 12, beside: 0 });
        let tree = [process(vec![fd(64, "/memfd:softgpu:vram:7840:64 (deleted)", "")], Vec::new())];
        assert_eq!(task_bytes(&tree), TaskBytes { carried: 0, beside: 64 << 12 });
    }

    #[test]
    fn sockets_of_executors_are_known() {
        let all = executors(vec![fd(77, "socket:[77]", "")], Vec::new());
        assert!(all.has_socket(77) && !all.has_socket(7));
        assert!(!names_a_run(i32::MAX));
    }
}
