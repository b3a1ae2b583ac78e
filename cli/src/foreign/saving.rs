// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is saved of a tree while its tasks are frozen and CRIU's images complete: the states of its executors, and the memory of
//! the device that CRIU does not carry.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Error, Result, bail, ensure};
use kfd::transport::beside::LeftOut;
use kfd::transport::gate::GATE_NAME;
use stasis_criu::BeforeCommit;

use super::clients::Tree;
use super::contents::Plan;
use super::description::{self, CONTENTS_FILE, Client, Description, Memory, Place, state_file};
use super::executors::{Executor, Paused};
use super::left_out::Report;
use super::tasks::Held;
use crate::freeze::milliseconds;
use crate::preflight;

/// What was saved while the tasks were frozen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub milliseconds: f64,
    pub stored_bytes: u64,
}

/// What is done while the tasks are frozen.
#[derive(Debug)]
pub(super) struct Saving<'a> {
    pub tree: &'a Tree,
    pub directory: &'a Path,
    pub left_out: &'a Report,
    /// The file that tells `stasis run` why its program ends.
    pub mark: Option<PathBuf>,
    pub paused: &'a [Paused],
    pub executors: RefCell<Vec<Executor>>,
    pub outcome: RefCell<Option<Result<Saved>>>,
}

impl BeforeCommit for Saving<'_> {
    fn prepare(&self) -> bool {
        let saved = self.save();
        let may_commit = saved.is_ok();
        *self.outcome.borrow_mut() = Some(saved);
        may_commit
    }
}

impl Saving<'_> {
    fn save(&self) -> Result<Saved> {
        let began = Instant::now();
        let mut executors = self.executors.borrow_mut();
        let processes = preflight::tree_of(self.tree.pid);
        let held = Held::by(&processes)?;
        let elsewhere = self.held_elsewhere()?;
        let mut clients = Vec::new();
        let mut memories: BTreeMap<String, Memory> = BTreeMap::new();
        let mut plan = Plan::default();
        let left_out = self.left_out.take()?;
        for (executor, paused) in executors.iter_mut().zip(self.paused) {
            let client = executor.client;
            let state = executor.state()?;
            let name = state_file(client);
            let path = self.directory.join(&name);
            fs::write(&path, &state.bytes).with_context(|| format!("Cannot write {}", path.display()))?;
            let Paused { queues, waves, waits } = *paused;
            clients.push(Client { pid: client, state: name, queues, waves, waits });
            let mut no_task_has = Vec::new();
            for memory in state.memories {
                if memories.contains_key(&memory.name) {
                    continue;
                }
                if let Some((other, _)) = elsewhere.iter().find(|(_, held)| held.has(&memory.name)) {
                    bail!(
                        "Process {client} shares memory of its device ({}) with process {other}, which is not in the tree of \
                         process {}",
                        memory.name,
                        self.tree.pid
                    );
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
                let failed = || format!("Cannot look at the memory {:?}", memory.name);
                let place = Place::Here(plan.append(fd, memory.bytes).with_context(failed)?);
                let known = Memory { name: memory.name.clone(), bytes: memory.bytes, place };
                memories.insert(memory.name, known);
            }
        }
        // Also memory that tasks have mapped still and the device has no longer.
        for LeftOut { inode, name } in left_out {
            let failed =
                || format!("CRIU left out the memory {name:?}, which cannot be stored; try --self-contained");
            let fd = held.open(&name).with_context(failed)?.with_context(failed)?;
            let found = File::from(fd.try_clone().with_context(failed)?).metadata().with_context(failed)?;
            // It is found by its name again.
            ensure!(
                found.ino() == inode,
                "Two memories of the tree have the name {name:?}; try --self-contained"
            );
            let bytes = found.len();
            let place = Place::Beside(plan.append(fd, bytes).with_context(failed)?);
            memories.insert(name.clone(), Memory { name, bytes, place });
        }
        // A process has its gate mapped as long as it has a device.
        if let Some(gate) =
            held.beginning(&format!("{GATE_NAME}:")).find(|gate| !memories.contains_key(*gate))
        {
            bail!(
                "A process of the tree of process {} has a device ({gate}) whose executor has ended: its state is lost",
                self.tree.pid
            );
        }
        let stored_bytes = plan.write(&self.directory.join(CONTENTS_FILE))?;
        let memories = memories.into_values().collect();
        let run = self.tree.run.clone();
        let description = Description { version: description::VERSION, run, processes, clients, memories };
        let path = self.directory.join(description::FILE);
        let text =
            serde_json::to_vec(&description).context("Cannot encode the description of the devices")?;
        fs::write(&path, text).with_context(|| format!("Cannot write {}", path.display()))?;
        if let Some(mark) = &self.mark {
            let said = self.directory.as_os_str().as_encoded_bytes();
            fs::write(mark, said).with_context(|| format!("Cannot write {}", mark.display()))?;
        }
        // What was saved is of one moment only if none has resumed meanwhile.
        executors.iter_mut().try_for_each(Executor::confirm)?;
        Ok(Saved { milliseconds: milliseconds(began), stored_bytes })
    }

    /// What processes have that are not in the tree, of all of its run.
    fn held_elsewhere(&self) -> Result<Vec<(i32, Held)>> {
        let held = self.tree.others.iter().map(|pid| Ok::<_, Error>((*pid, Held::by(&[*pid])?)));
        // One that has ended meanwhile holds nothing.
        Ok(held.filter_map(Result::ok).collect())
    }
}
