// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run that processes of a tree belong to, and where its softgpud is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kfd::linux::pidfd_open;
use kfd::transport::control::ControlError;
use nix::unistd::Pid;
use stasis_criu_foreign::{
    Broker, Executor, ForeignError, Programs, REPORT_FILE, Relocation, Run, RunDirectory, RunDirectoryError,
    Task, gate_of, members, owner,
};
use thiserror::Error;

use crate::network::{NetworkError, within};
use crate::process::proc_directory;

/// The namespaces by which softgpud is in a container, or not.
const KINDS: [&str; 3] = ["pid", "mnt", "net"];

/// Why a tree of a run cannot be dumped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum RunError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    #[error("Processes {0} and {1} have devices of two `stasis run`, which are not dumped together")]
    Two(i32, i32),
    #[error(
        "The softgpud of process {client} (process {softgpud}; 0: not to be seen) is neither in the namespaces of criu nor in those \
         of process {root}, the root of the tree"
    )]
    Elsewhere { client: i32, softgpud: i32, root: i32 },
    #[error(
        "Process {root} is in a user namespace of its own: the softgpud of such a container cannot be moved out of it"
    )]
    UserNamespace { root: i32 },
    #[error(
        "The softgpud in the tree (process {softgpud}) serves process {client} of its pid namespace, too, which is not in the tree"
    )]
    Outsider { softgpud: i32, client: i32 },
    #[error("Cannot look at process {pid}")]
    Look {
        pid: i32,
        #[source]
        source: io::Error,
    },
}

/// For a process that cannot be looked at.
fn look(pid: i32) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Look { pid, source }
}

/// A tree some of whose processes have a device of a run.
#[derive(Debug)]
pub(super) struct Tree {
    /// Its root.
    pub root: i32,
    pub run: Run,
    pub broker: Broker,
    /// The run's clients that are in the tree.
    pub clients: Vec<Task>,
    /// Pids of its other clients.
    pub others: Vec<i32>,
    pub programs: Programs,
    /// Whether softgpud is one of the processes of the tree.
    is_inside: bool,
}

impl Tree {
    /// The tree below `root`, if processes of it have a device.
    pub fn find(root: i32) -> Result<Option<Self>, RunError> {
        let members = members(root);
        // A run, and a process that belongs to it.
        let mut runs = BTreeMap::new();
        members.iter().filter_map(|pid| Some((Run::of(*pid)?, *pid))).for_each(|(run, pid)| {
            runs.entry(run).or_insert(pid);
        });
        let mut found: Option<Self> = None;
        let is_of_run = !runs.is_empty();
        for (run, member) in runs {
            let Some(tree) = Self::of(root, &members, run, member)? else { continue };
            if let (Some(one), Some(other)) = (found.as_ref().and_then(Self::first), tree.first()) {
                return Err(RunError::Two(one, other));
            }
            found = Some(tree);
        }
        // That another process than the clients has one is seen when the tree is saved.
        if found.is_none()
            && is_of_run
            && let Some(gate) = gate_of(&members)?
        {
            return Err(ForeignError::Lost { root, gate }.into());
        }
        Ok(found)
    }

    fn first(&self) -> Option<i32> {
        self.clients.first().map(|task| task.pid)
    }

    fn of(root: i32, members: &[i32], run: Run, member: i32) -> Result<Option<Self>, RunError> {
        let owner = owner(member)?;
        let mut broker = match within(member, || Broker::connect(&run.socket, owner.0))? {
            // Its softgpud is gone, or is none that takes orders.
            Err(ControlError::Nobody { .. }) => return Ok(None),
            connected => connected?,
        };
        let softgpud = broker.pid();
        let elsewhere = || RunError::Elsewhere { client: member, softgpud, root };
        let namespaces = |pid: i32| namespaces(pid).map_err(look(pid));
        if softgpud <= 0 {
            return Err(elsewhere());
        }
        let theirs = namespaces(softgpud)?;
        let joined = theirs != namespaces(std::process::id().cast_signed())?;
        if joined && theirs != namespaces(root)? {
            return Err(elsewhere());
        }
        let user = |pid: i32| namespace(pid, "user").map_err(look(pid));
        if joined && user(root)? != user(std::process::id().cast_signed())? {
            return Err(RunError::UserNamespace { root });
        }
        let (clients, others) = sort(&Task::tree(root, joined), &mut broker)?;
        if clients.is_empty() {
            return Ok(None);
        }
        let others = seen_here(others, joined, softgpud);
        let programs = Programs {
            softgpud: program(softgpud).map_err(look(softgpud))?,
            library: library(root, &run, joined)?,
            owner,
            joined,
        };
        let is_inside = members.contains(&softgpud);
        Ok(Some(Self { root, others, run, broker, clients, programs, is_inside }))
    }

    /// Has no process connect that has no device yet, and looks again which have one.
    pub fn hold(&mut self) -> Result<(), RunError> {
        self.broker.hold()?;
        let softgpud = self.broker.pid();
        let (clients, others) = sort(&self.tasks(), &mut self.broker)?;
        self.clients = clients;
        self.others = seen_here(others, self.programs.joined, softgpud);
        let other = self.others.first();
        match other {
            Some(client) if self.is_inside => Err(RunError::Outsider { softgpud, client: *client }),
            _ => Ok(()),
        }
    }

    /// All processes of the tree, the root first.
    pub fn tasks(&self) -> Vec<Task> {
        Task::tree(self.root, self.programs.joined)
    }

    /// A connection to the executor of each client.
    pub fn connect(&self) -> Result<Vec<Executor>, RunError> {
        let (socket, user) = (&self.run.socket, self.programs.owner.0);
        let connect = || {
            let one = |task: &Task| Executor::connect(socket, task.client, user);
            self.clients.iter().map(one).collect::<Result<Vec<_>, _>>()
        };
        Ok(within(self.root, connect)??)
    }

    /// If softgpud is in the tree: moves it out. Answers the processes that have ended.
    pub fn move_out(&mut self, executors: &mut Vec<Executor>) -> Result<Vec<i32>, RunError> {
        if !self.is_inside {
            return Ok(Vec::new());
        }
        let root = open(self.root)?;
        let ended: Vec<i32> =
            std::iter::once(self.broker.pid()).chain(executors.iter().filter_map(Executor::pid)).collect();
        let (tasks, old) = (self.tasks(), std::mem::take(executors));
        let relocation =
            Relocation { run: &self.run, programs: &self.programs, root: root.as_fd(), tasks: &tasks };
        let broker = &mut self.broker;
        let moved = within(self.root, || relocation.carry_out(broker, old))??;
        *executors = moved;
        self.is_inside = false;
        // CRIU takes the contents of a file along that has no name any more.
        let directory = RunDirectory::of_machine(self.run.directory.as_ref())?;
        let opened = directory.open(self.programs.joined.then_some(self.root), self.programs.owner.0);
        let _ = opened.and_then(|opened| opened.remove(REPORT_FILE));
        Ok(ended)
    }
}

/// The clients of a broker: those in the tree, and the numbers of the others.
fn sort(tasks: &[Task], broker: &mut Broker) -> Result<(Vec<Task>, Vec<i32>), RunError> {
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for client in broker.clients()? {
        match tasks.iter().find(|task| task.client == client) {
            Some(task) => ours.push(*task),
            None => others.push(client),
        }
    }
    Ok((ours, others))
}

fn namespaces(pid: i32) -> io::Result<Vec<PathBuf>> {
    KINDS.iter().map(|kind| namespace(pid, kind)).collect()
}

fn namespace(pid: i32, kind: &str) -> io::Result<PathBuf> {
    fs::read_link(proc_directory(pid).join("ns").join(kind))
}

/// The pids here of clients that are not in the tree, by their numbers in the pid namespace of softgpud.
fn seen_here(clients: Vec<i32>, joined: bool, softgpud: i32) -> Vec<i32> {
    match joined {
        true => clients.into_iter().filter_map(|client| named(client, softgpud)).collect(),
        false => clients,
    }
}

/// The pid here of the process that has a number in the pid namespace of another one.
fn named(number: i32, like: i32) -> Option<i32> {
    let namespace = |pid: i32| fs::read_link(proc_directory(pid).join("ns/pid")).ok();
    let wanted = namespace(like);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| Task::of(*pid, true).is_ok_and(|task| task.own == number) && namespace(*pid) == wanted)
}

/// The program of a process, by its name where the process is; of one that was replaced, the new one.
fn program(pid: i32) -> io::Result<PathBuf> {
    let link = fs::read_link(proc_directory(pid).join("exe"))?;
    Ok(match link.to_str().and_then(|name| name.strip_suffix(" (deleted)")) {
        Some(name) => name.into(),
        None => link,
    })
}

/// What the run's processes load, by its name where they are.
fn library(root: i32, run: &Run, joined: bool) -> Result<PathBuf, RunError> {
    let link = RunDirectory::of_machine(run.directory.as_ref())?.library();
    // Only a restore needs it, and says so.
    Ok(fs::read_link(seen(root, &link, joined)).unwrap_or_default())
}

/// A path that the processes of the tree use, as it is seen from here.
fn seen(root: i32, path: &Path, joined: bool) -> PathBuf {
    match (joined, path.strip_prefix("/")) {
        (true, Ok(below)) => proc_directory(root).join("root").join(below),
        _ => path.to_owned(),
    }
}

/// A pidfd of a process.
pub(super) fn open(pid: i32) -> Result<OwnedFd, RunError> {
    pidfd_open(Pid::from_raw(pid)).map_err(|errno| look(pid)(errno.into()))
}
