// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is restored of a tree while its tasks are stopped: memory that CRIU has not carried, and the devices.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use stasis::criu::OpenDirectory;

use crate::broker::Broker;
use crate::contents;
use crate::description::{CONTENTS_FILE, Description, Memory, Place};
use crate::error::{ForeignError, system};
use crate::executors::Executor;
use crate::processes::Task;
use crate::tasks::{Held, clock_offset};

/// What is said of the device of a client that is not back.
const NOT_BACK: &str = "is not restored";

/// Gives each client of a checkpoint its device back, in new executors of `broker`, whose softgpud belongs to `user`. `tasks` are
/// all processes of the tree, the root first. The devices go on; the tasks are stopped still.
///
/// # Errors
/// Why not. No device goes on then.
pub fn restore(
    broker: &mut Broker,
    user: u32,
    opened: &OpenDirectory,
    tasks: &[Task],
    description: &Description,
) -> Result<(), ForeignError> {
    let root = tasks.first().map_or(0, |task| task.pid);
    let pids: Vec<i32> = tasks.iter().map(|task| task.pid).collect();
    let held = Held::by(&pids)?;
    if let Some(first) = tasks.first() {
        broker.stay(first.client)?;
    }
    let known: BTreeMap<&str, &Memory> =
        description.memories.iter().map(|memory| (memory.name.as_str(), memory)).collect();
    let made = Made::all(&held, description, opened)?;
    let mut executors = Vec::new();
    for client in &description.clients {
        let task = tasks.iter().find(|task| task.own == client.pid);
        let task = task.ok_or(ForeignError::NoTask { client: client.pid, root })?;
        let state = opened.file(&client.state)?;
        let restored = restore_client(broker, &description.run.socket, user, task, &state, |name| {
            let known =
                known.get(name).ok_or_else(|| ForeignError::NotDescribed { name: name.to_owned() })?;
            Ok((!matches!(known.place, Place::Here(_)), made.get(&held, known)?))
        });
        executors.push(restored.map_err(ForeignError::of(task.pid, NOT_BACK))?);
    }
    // When all are whole: they may share memory.
    executors.iter_mut().try_for_each(Executor::resume)
}

/// Restores the device of one client from its state, paused; `memory` says of each memory whether the client has it, and opens it.
pub(crate) fn restore_client(
    broker: &mut Broker,
    run: &str,
    user: u32,
    task: &Task,
    state: &File,
    memory: impl Fn(&str) -> Result<(bool, OwnedFd), ForeignError>,
) -> Result<Executor, ForeignError> {
    broker.start_executor(task.client)?;
    let mut executor = Executor::connect_new(run, task.client, user)?;
    let mut given = Vec::new();
    for wanted in executor.take(state)? {
        let (of_client, fd) = memory(&wanted.name)?;
        given.push((wanted.name, of_client, fd));
    }
    executor.give(given)?;
    executor.restore(clock_offset(task.pid))?;
    Ok(executor)
}

/// Memory whose bytes CRIU has not carried, by name.
#[derive(Debug)]
struct Made(BTreeMap<String, OwnedFd>);

impl Made {
    /// Makes what no task has, finds the rest, and fills all.
    fn all(held: &Held, description: &Description, opened: &OpenDirectory) -> Result<Self, ForeignError> {
        let (mut memories, mut targets) = (BTreeMap::new(), Vec::new());
        for memory in &description.memories {
            let fd = match &memory.place {
                Place::Task => continue,
                Place::Beside(_) => restored(held, memory)?,
                Place::Here(_) => contents::make(memory)?,
            };
            targets.push((File::from(duplicate(&fd)?), memory, memory.extents()));
            memories.insert(memory.name.clone(), fd);
        }
        if targets.iter().any(|(.., extents)| !extents.is_empty()) {
            contents::fill(&targets, &opened.file(CONTENTS_FILE)?)?;
        }
        Ok(Self(memories))
    }

    /// A descriptor of a memory.
    fn get(&self, held: &Held, memory: &Memory) -> Result<OwnedFd, ForeignError> {
        match self.0.get(&memory.name) {
            Some(made) => duplicate(made),
            None => restored(held, memory),
        }
    }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, ForeignError> {
    fd.try_clone().map_err(system("duplicate a descriptor"))
}

/// A memory that a task has.
fn restored(held: &Held, memory: &Memory) -> Result<OwnedFd, ForeignError> {
    let name = &memory.name;
    held.open(name)?.ok_or_else(|| ForeignError::NotRestored { name: name.clone() })
}
