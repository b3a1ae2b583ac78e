// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that says what device the processes of a checkpoint have.
//!
//! INVARIANT: numbers and names of it are checked before they are used; its hash, and those of the files that it names, stand in
//! the manifest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use stasis::criu::OpenDirectory;

use crate::error::{ForeignError, system};
use crate::run::Run;

/// The file's name in the checkpoint's directory.
pub const FILE: &str = "foreign.json";
/// The file with the bytes of memory that CRIU does not carry.
pub const CONTENTS_FILE: &str = "foreign-memory.bin";
/// Longest description, bytes.
const MAX_BYTES: u64 = 256 << 20;
/// The version of this format.
pub const VERSION: u32 = 2;
/// The oldest version that is read: it has no [`Place::Beside`].
const OLDEST: u32 = 1;

/// What is in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// 1, which has no [`Place::Beside`], to [`VERSION`].
    pub version: u32,
    /// The run that the processes belong to.
    pub run: Run,
    /// All processes of the tree, the root first: their pids must be free again.
    pub processes: Vec<i32>,
    /// The processes that have a device.
    pub clients: Vec<Client>,
    /// The memory of their devices; several may name the same.
    pub memories: Vec<Memory>,
    /// What a restore by CRIU alone starts; `stasis restore` finds its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Programs>,
}

/// The programs of a run, and for whom they are started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// softgpud.
    pub softgpud: PathBuf,
    /// What the run's processes load (`libstasis_kfd.so`).
    pub library: PathBuf,
    /// User and group of the processes.
    pub owner: (u32, u32),
    /// Whether softgpud is in the namespaces of the tree's root, where these names are found, and not in those of CRIU.
    pub joined: bool,
}

impl Programs {
    /// Their user and group, if this process is root and has to become that user to start them.
    pub(crate) fn another_user(&self) -> Option<(u32, u32)> {
        Some(self.owner).filter(|(user, _)| geteuid().is_root() && *user != 0)
    }
}

/// A process that has a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// The process, under the pid it gets back.
    pub pid: i32,
    /// The file with its executor's state.
    pub state: String,
    /// Queues.
    pub queues: u32,
    /// Waves that were in the middle of a kernel.
    pub waves: u64,
    /// Calls of WAIT_EVENTS that were ended.
    pub waits: u32,
}

/// A memory of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// The name of its memfd.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Where its bytes are.
    pub place: Place,
}

impl Memory {
    /// Its parts in [`CONTENTS_FILE`].
    pub fn extents(&self) -> &[Extent] {
        match &self.place {
            Place::Task => &[],
            Place::Beside(extents) | Place::Here(extents) => extents,
        }
    }
}

/// Where the bytes of a memory are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Among CRIU's images: a task has it.
    Task,
    /// A task has it, and its bytes are in [`CONTENTS_FILE`]; what is in no extent is zero.
    Beside(Vec<Extent>),
    /// No task has it, and its bytes are in [`CONTENTS_FILE`] in the same way.
    Here(Vec<Extent>),
}

/// A part of a memory in [`CONTENTS_FILE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins in the memory.
    pub offset: u64,
    /// Where it begins in the file.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The name of the file with the state of a client's executor.
pub fn state_file(pid: i32) -> String {
    format!("device-{pid}.state")
}

/// Whether a file of this name is one of a saved device.
#[must_use]
pub fn is_saved_file(name: &str) -> bool {
    let state = || name.strip_prefix("device-").and_then(|rest| rest.strip_suffix(".state"));
    [FILE, CONTENTS_FILE].contains(&name) || state().is_some_and(|pid| pid.parse::<i32>().is_ok())
}

impl Description {
    /// Reads and checks that of a checkpoint.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(directory: &OpenDirectory, name: &str) -> Result<Self, ForeignError> {
        use std::io::Read;
        let path = directory.path().join(name);
        let mut text = Vec::new();
        let file = directory.file(name)?;
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut text);
        read.map_err(system(format!("read {}", path.display())))?;
        let parsed = serde_json::from_slice::<Self>(&text);
        let description = parsed.map_err(|source| ForeignError::Parse { path: path.clone(), source })?;
        match description.check() {
            Ok(()) => Ok(description),
            Err(why) => Err(ForeignError::Description { path, why }),
        }
    }

    fn check(&self) -> Result<(), String> {
        ensure((OLDEST..=VERSION).contains(&self.version), || {
            format!("its version is {}, this program reads versions {OLDEST} to {VERSION}", self.version)
        })?;
        ensure(!self.clients.is_empty(), || "no process has a device".to_owned())?;
        // The first process of a container is restored, too; that of this machine never.
        let is_container = self.programs.as_ref().is_some_and(|programs| programs.joined);
        let lowest = if is_container { 1 } else { 2 };
        ensure(self.processes.iter().all(|pid| *pid >= lowest), || {
            "a process has no pid that can be restored".to_owned()
        })?;
        let mut pids = BTreeSet::new();
        for client in &self.clients {
            ensure(client.pid >= lowest && pids.insert(client.pid), || {
                format!("process {} cannot be, or is there twice", client.pid)
            })?;
            ensure(client.state == state_file(client.pid), || {
                format!("the state of process {} is not where it was", client.pid)
            })?;
        }
        let mut names = BTreeSet::new();
        for memory in &self.memories {
            ensure(names.insert(&memory.name), || format!("the memory {:?} is there twice", memory.name))?;
            ensure(!memory.name.contains('\0') && memory.name.len() < 200, || {
                "the name of a memory is none".to_owned()
            })?;
            for Extent { offset, at, bytes } in memory.extents() {
                let end = offset.checked_add(*bytes).filter(|end| *end <= memory.bytes);
                ensure(end.is_some() && at.checked_add(*bytes).is_some(), || {
                    format!("an extent of {:?} leaves it", memory.name)
                })?;
            }
        }
        let directory = Path::new(&self.run.directory);
        let is_plain = directory.is_absolute() && directory.components().all(|part| part.as_os_str() != "..");
        ensure(is_plain && directory.parent().is_some(), || {
            format!("the run's directory is {}", self.run.directory)
        })?;
        Ok(())
    }
}

/// Whether `is_so`; else why not.
fn ensure(is_so: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(why()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            version: VERSION,
            run: Run {
                socket: "s".into(),
                directory: "/dev/shm/stasis-run-x/machine".into(),
                devices: "gfx1100".into(),
            },
            processes: vec![7],
            clients: vec![Client { pid: 7, state: state_file(7), queues: 1, waves: 2, waits: 0 }],
            memories: vec![Memory {
                name: "m".into(),
                bytes: 8192,
                place: Place::Here(vec![Extent { offset: 4096, at: 0, bytes: 4096 }]),
            }],
            programs: None,
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        description().check().unwrap();
        let wrong = |change: fn(&mut Description)| {
            let mut changed = description();
            change(&mut changed);
            changed.check().unwrap_err()
        };
        assert!(wrong(|d| d.version = 9).contains("version is 9"));
        assert!(wrong(|d| d.processes.push(1)).contains("a process has no pid"));
        let in_container = |pid: i32| {
            let programs =
                Programs { softgpud: "/s".into(), library: "/l".into(), owner: (0, 0), joined: true };
            Description { processes: vec![pid], programs: Some(programs), ..description() }.check()
        };
        in_container(1).unwrap();
        in_container(0).unwrap_err();
        assert!(wrong(|d| d.clients.clear()).contains("no process"));
        assert!(wrong(|d| d.clients[0].pid = 1).contains("process 1"));
        assert!(wrong(|d| d.clients.push(d.clients[0].clone())).contains("twice"));
        assert!(wrong(|d| d.clients[0].state = "../x".into()).contains("not where it was"));
        assert!(wrong(|d| d.memories.push(d.memories[0].clone())).contains("twice"));
        assert!(wrong(|d| d.memories[0].bytes = 4096).contains("leaves it"));
        assert!(
            wrong(|d| {
                d.memories[0].place = Place::Here(vec![Extent { offset: u64::MAX, at: 0, bytes: 2 }]);
            })
            .contains("leaves it")
        );
        assert!(wrong(|d| d.run.directory = "/a/../b".into()).contains("directory"));
        assert!(wrong(|d| d.run.directory = "b".into()).contains("directory"));
    }
}
