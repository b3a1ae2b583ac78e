// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is saved of a tree while its tasks are frozen: the states of its executors, and the memory of the device that CRIU does
//! not carry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kfd::transport::beside::LeftOut;
use kfd::transport::gate::GATE_NAME;

use crate::contents::Plan;
use crate::description::{
    self, CONTENTS_FILE, Client, Description, Memory, Place, Programs, VERSION, state_file,
};
use crate::error::{ForeignError, system};
use crate::executors::{Executor, Paused};
use crate::processes::Task;
use crate::run::Run;
use crate::tasks::Held;

/// What was saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Bytes of memory that CRIU does not carry.
    pub stored_bytes: u64,
    /// The names of the files that were written.
    pub files: Vec<String>,
}

/// What is saved, and where.
#[derive(Debug)]
pub struct Saving<'a> {
    /// The run.
    pub run: &'a Run,
    /// All processes of the tree, the root first; they are frozen.
    pub tasks: &'a [Task],
    /// Pids of the run's clients that are not in the tree.
    pub others: &'a [i32],
    /// Where the files go. None of a name that is written may be there.
    pub directory: &'a Path,
    /// Memory that is not among CRIU's images.
    pub left_out: BTreeSet<LeftOut>,
    /// For a restore by CRIU alone.
    pub programs: Option<Programs>,
}

impl Saving<'_> {
    /// Saves everything, of executors that have been paused all the time; `paused` is what their pauses found.
    ///
    /// # Errors
    /// Why not. Files that were written stay.
    pub fn save(self, executors: &mut [Executor], paused: &[Paused]) -> Result<Saved, ForeignError> {
        let root = self.tasks.first().map_or(0, |task| task.pid);
        let pids: Vec<i32> = self.tasks.iter().map(|task| task.pid).collect();
        let held = Held::by(&pids)?;
        let elsewhere = self.held_elsewhere();
        let mut clients = Vec::new();
        let mut files = Vec::new();
        let mut memories: BTreeMap<String, Memory> = BTreeMap::new();
        let mut plan = Plan::default();
        for (executor, paused) in executors.iter_mut().zip(paused) {
            let client = executor.client;
            let task = self.tasks.iter().find(|task| task.client == client);
            let task = task.ok_or(ForeignError::NoTask { client, root })?;
            let state = executor.state()?;
            let name = state_file(task.own);
            let path = self.directory.join(&name);
            fs::write(&path, &state.bytes).map_err(system(format!("write {}", path.display())))?;
            files.push(name.clone());
            let Paused { queues, waves, waits } = *paused;
            clients.push(Client { pid: task.own, state: name, queues, waves, waits });
            let mut no_task_has = Vec::new();
            for memory in state.memories {
                if memories.contains_key(&memory.name) {
                    continue;
                }
                if let Some((other, _)) = elsewhere.iter().find(|(_, held)| held.has(&memory.name)) {
                    let (client, other) = (task.pid, *other);
                    return Err(ForeignError::Shared { client, memory: memory.name, other, root });
                }
                if held.has(&memory.name) {
                    let known = Memory { name: memory.name.clone(), bytes: memory.bytes, place: Place::Task };
                    memories.insert(memory.name, known);
                } else {
                    no_task_has.push(memory);
                }
            }
            let names: Vec<String> = no_task_has.iter().map(|memory| memory.name.clone()).collect();
            for (memory, fd) in no_task_has.into_iter().zip(executor.memories(&names)?) {
                let looked = plan.append(fd, memory.bytes);
                let place = looked.map_err(system(format!("look at the memory {:?}", memory.name)))?;
                let known =
                    Memory { name: memory.name.clone(), bytes: memory.bytes, place: Place::Here(place) };
                memories.insert(memory.name, known);
            }
        }
        // Also memory that tasks have mapped still and the device has no longer.
        for LeftOut { inode, name } in &self.left_out {
            let memory = beside(&held, &mut plan, *inode, name)?;
            memories.insert(name.clone(), memory);
        }
        // A process has its gate mapped as long as it has a device.
        let gate_prefix = format!("{GATE_NAME}:");
        let mut gates = held.beginning(&gate_prefix);
        if let Some(gate) = gates.find(|gate| !memories.contains_key(*gate)) {
            return Err(ForeignError::Lost { root, gate: gate.to_owned() });
        }
        let stored_bytes = plan.write(&self.directory.join(CONTENTS_FILE))?;
        if stored_bytes > 0 {
            files.push(CONTENTS_FILE.to_owned());
        }
        let description = Description {
            version: VERSION,
            run: self.run.clone(),
            processes: self.tasks.iter().map(|task| task.own).collect(),
            clients,
            memories: memories.into_values().collect(),
            programs: self.programs,
        };
        let path = self.directory.join(description::FILE);
        let text = serde_json::to_vec(&description).map_err(ForeignError::Encode)?;
        fs::write(&path, text).map_err(system(format!("write {}", path.display())))?;
        files.push(description::FILE.to_owned());
        // What was saved is of one moment only if none has resumed meanwhile.
        executors.iter_mut().try_for_each(Executor::confirm)?;
        Ok(Saved { stored_bytes, files })
    }

    /// What processes have that are not in the tree, of all of its run.
    fn held_elsewhere(&self) -> Vec<(i32, Held)> {
        let held = self.others.iter().map(|pid| Held::by(&[*pid]).map(|held| (*pid, held)));
        // One that has ended meanwhile holds nothing.
        held.filter_map(Result::ok).collect()
    }
}

/// Memory that tasks have and CRIU has left out.
fn beside(held: &Held, plan: &mut Plan, inode: u64, name: &str) -> Result<Memory, ForeignError> {
    let failed = || system(format!("store the memory {name:?}, which CRIU left out; try --self-contained"));
    let fd = held.open(name)?.ok_or_else(|| ForeignError::LeftOut { name: name.to_owned() })?;
    let found = fd.try_clone().and_then(|fd| File::from(fd).metadata()).map_err(failed())?;
    // It is found by its name again.
    if found.ino() != inode {
        return Err(ForeignError::TwoOfOneName { name: name.to_owned() });
    }
    let bytes = found.len();
    let place = Place::Beside(plan.append(fd, bytes).map_err(failed())?);
    Ok(Memory { name: name.to_owned(), bytes, place })
}
