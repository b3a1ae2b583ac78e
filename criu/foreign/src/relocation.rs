// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a tree that its softgpud belongs to, moved into a softgpud outside of the tree, which CRIU does not dump.
//!
//! In a container everything is in the tree, below process 1. A process that enters the namespaces of a container from outside has
//! no parent there, and a parent outside adopts it when its own ends (exit.c `find_new_reaper`): it is never below process 1.
//!
//! INVARIANT: before the old softgpud ends, another one of the same program, in the same place, has read all states. What can fail
//! afterwards is a lack of memory or descriptors. If this process is killed between the two, the device is lost.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use kfd::linux::{memfd, pidfd_kill, poll};
use kfd::transport::gate::{GATE_NAME, Gate};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::poll::{PollFd, PollFlags};

use crate::broker::Broker;
use crate::description::Programs;
use crate::device::Start;
use crate::error::{ForeignError, system};
use crate::executors::Executor;
use crate::processes::Task;
use crate::restoring::restore_client;
use crate::run::Run;

/// How long a killed process may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is looked whether a process is reaped.
const LOOK: Duration = Duration::from_millis(1);
/// What is said of the device of a client that cannot be moved.
const NOT_MOVED: &str = "cannot be moved out of the tree";

/// Where the new softgpud is to be.
#[derive(Debug)]
pub struct Relocation<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its programs, by the names that they have where the tree is.
    pub programs: &'a Programs,
    /// A pidfd of the tree's root.
    pub root: BorrowedFd<'a>,
    /// All processes of the tree, the root first.
    pub tasks: &'a [Task],
}

/// The paused device of one client, taken out of its executor.
#[derive(Debug)]
struct Taken {
    task: Task,
    state: File,
    /// All memories of the state: name, and the memory.
    memories: Vec<(String, OwnedFd)>,
}

impl Taken {
    /// The client's gate.
    fn gate(&self) -> Result<Gate, ForeignError> {
        let prefix = format!("{GATE_NAME}:");
        let memory = self.memories.iter().find(|(name, _)| name.starts_with(&prefix));
        let (_, memory) = memory.ok_or_else(|| ForeignError::NotDescribed { name: prefix.clone() })?;
        Gate::map(memory.as_fd()).map_err(system("map the gate of a client"))
    }
}

impl Relocation<'_> {
    /// Moves the paused devices of these executors, which may share memory, into a new softgpud; the old one, which is that of
    /// `broker`, ends. Answers the new executors, which are paused.
    ///
    /// # Errors
    /// Why not; the devices resume, but for [`ForeignError::LostInMove`].
    pub fn carry_out(
        &self,
        broker: &mut Broker,
        mut executors: Vec<Executor>,
    ) -> Result<Vec<Executor>, ForeignError> {
        let environment = environment(broker.pid());
        let taken = executors.iter_mut().map(|executor| self.take(executor));
        let taken = taken.collect::<Result<Vec<_>, _>>()?;
        self.rehearse(&environment, &taken)?;
        taken.iter().try_for_each(|taken| self.keep_closed(taken))?;
        // Their connections are open until they have ended: an executor whose controller goes resumes.
        end_all(broker, &executors)?;
        drop(executors);
        let moved = self.take_over(broker, &environment, &taken);
        moved.map_err(|error| {
            // Without a device their calls fail; behind closed gates they would wait for ever.
            for gate in taken.iter().filter_map(|taken| taken.gate().ok()) {
                gate.open();
            }
            ForeignError::LostInMove(Box::new(error))
        })
    }

    /// Starts the new softgpud under the name of the one that has ended, and gives it the devices.
    fn take_over(
        &self,
        broker: &mut Broker,
        environment: &[(OsString, OsString)],
        taken: &[Taken],
    ) -> Result<Vec<Executor>, ForeignError> {
        *broker = self.start(&self.run.socket, environment, true)?;
        // As the one before did.
        broker.hold()?;
        let restored = taken.iter().map(|taken| self.restore(broker, taken));
        let restored = restored.collect::<Result<Vec<_>, _>>()?;
        if let Some(root) = self.tasks.first() {
            broker.stay(root.client)?;
        }
        Ok(restored)
    }

    fn task(&self, client: i32) -> Result<Task, ForeignError> {
        let task = self.tasks.iter().find(|task| task.client == client).copied();
        task.ok_or(ForeignError::NoTask { client, root: self.tasks.first().map_or(0, |task| task.pid) })
    }

    fn take(&self, executor: &mut Executor) -> Result<Taken, ForeignError> {
        let task = self.task(executor.client)?;
        let failed = ForeignError::of(task.pid, NOT_MOVED);
        let state = executor.state().map_err(&failed)?;
        let names: Vec<String> = state.memories.iter().map(|memory| memory.name.clone()).collect();
        let fds = executor.memories(&names).map_err(&failed)?;
        let file = memfd("stasis-state", 0, SealFlag::empty()).map(File::from);
        let mut file = file.map_err(system("keep the state of a device"))?;
        let kept = file.write_all(&state.bytes).and_then(|()| file.rewind());
        kept.map_err(system("keep the state of a device"))?;
        Ok(Taken { task, state: file, memories: names.into_iter().zip(fds).collect() })
    }

    /// Has the client wait for as long as this process lives: its executor ends, and the client would go on without a device.
    fn keep_closed(&self, taken: &Taken) -> Result<(), ForeignError> {
        // In a pid namespace of its own it does not see this process.
        let own = if self.programs.joined { 0 } else { std::process::id() };
        taken.gate()?.close(own);
        Ok(())
    }

    /// Makes sure that a new softgpud starts there and can read all states.
    fn rehearse(&self, environment: &[(OsString, OsString)], all: &[Taken]) -> Result<(), ForeignError> {
        let socket = format!("{}.next", self.run.socket);
        let mut broker = self.start(&socket, environment, false)?;
        let mut executors = Vec::new();
        let mut read = || {
            for taken in all {
                let failed = ForeignError::of(taken.task.pid, NOT_MOVED);
                broker.start_executor(taken.task.client).map_err(|error| failed(error.into()))?;
                let connected = Executor::connect_new(&socket, taken.task.client, self.programs.owner.0);
                executors.push(connected.map_err(&failed)?);
                let last = executors.last_mut();
                last.map(|executor| executor.take(&rewound(&taken.state)?)).transpose().map_err(&failed)?;
            }
            Ok(())
        };
        let outcome = read();
        // They wait for more, and their clients live on.
        let ended = end_all(&broker, &executors);
        outcome.and(ended)
    }

    fn start(
        &self,
        socket: &str,
        environment: &[(OsString, OsString)],
        removes: bool,
    ) -> Result<Broker, ForeignError> {
        let root = self.tasks.first().map(|task| (self.root, task.pid));
        let start = Start { run: self.run, programs: self.programs, root, environment: Some(environment) };
        start.serve(socket, removes)
    }

    fn restore(&self, broker: &mut Broker, taken: &Taken) -> Result<Executor, ForeignError> {
        let failed = ForeignError::of(taken.task.pid, NOT_MOVED);
        let memory = |name: &str| {
            let found = taken.memories.iter().find(|(known, _)| known == name);
            let (_, fd) = found.ok_or_else(|| ForeignError::NotDescribed { name: name.to_owned() })?;
            // Those that the client does not have are looked up by nobody.
            Ok((true, fd.try_clone().map_err(system("duplicate a descriptor"))?))
        };
        let (socket, user) = (&self.run.socket, self.programs.owner.0);
        restore_client(broker, socket, user, &taken.task, &rewound(&taken.state)?, memory).map_err(failed)
    }
}

fn rewound(file: &File) -> Result<File, ForeignError> {
    let opened = file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
    opened.map_err(system("read the state of a device"))
}

/// The environment of a process, with which another one of its program is started.
fn environment(pid: i32) -> Vec<(OsString, OsString)> {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let entries = text.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        let (name, value) = entry.split_at(at);
        Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value.get(1..)?).to_owned()))
    });
    entries.collect()
}

/// Ends a softgpud: its executors first, so that it reaps them. Those of a broker that has ended before would be below process 1 of
/// their pid namespace, and so in the tree.
fn end_all(broker: &Broker, executors: &[Executor]) -> Result<(), ForeignError> {
    let found = || system("find the processes of softgpud");
    let of_executors =
        executors.iter().map(Executor::process).collect::<Result<Vec<_>, _>>().map_err(found())?;
    let of_broker = broker.process().map_err(found())?;
    end(&of_executors)?;
    let until = Instant::now() + ENDING;
    let pids = || executors.iter().filter_map(Executor::pid);
    while pids().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    end(&[of_broker])
}

/// Ends processes, and waits until they have ended.
fn end(processes: &[OwnedFd]) -> Result<(), ForeignError> {
    for process in processes {
        match pidfd_kill(process.as_fd()) {
            Err(Errno::ESRCH) => {}
            killed => killed.map_err(system("end the softgpud in the tree"))?,
        }
    }
    let until = Instant::now() + ENDING;
    for process in processes {
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let left = until.saturating_duration_since(Instant::now());
        let ended = poll(&mut fds, Some(left)).unwrap_or(0) > 0;
        if !ended {
            return Err(system("wait for the end of the softgpud in the tree")(Errno::ETIMEDOUT));
        }
    }
    Ok(())
}
