// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device of a tree does now, for `stasis preflight` and `stasis status`.
//!
//! INVARIANT: nothing is ordered that changes a device, and nobody is waited for longer than [`PATIENCE`]: an executor that a
//! controller has serves nobody else meanwhile.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kfd::transport::gate::{GATE_NAME, Gate};
use serde::Serialize;
use stasis_criu_foreign::{Executor, owner};

use super::clients::Tree;
use crate::output;
use crate::preflight::{self, DeviceState, RunClient, RunDevice};

/// TIMEOUT: how long an executor may take to say how its device is; one that is at work for a controller does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What `stasis status --json` prints.
#[derive(Debug, Serialize)]
struct Status<'a> {
    pid: i32,
    foreign: bool,
    /// The files of the run's machine.
    directory: &'a str,
    #[serde(flatten)]
    device: &'a RunDevice,
}

/// Asks the executors of a tree, and finds those of the run's other clients.
///
/// # Errors
/// When the root has ended.
pub fn survey(tree: &Tree) -> Result<RunDevice> {
    let user = owner(tree.pid)?.0;
    let socket = &tree.run.socket;
    let ask = |pid: &i32| match Executor::connect(socket, *pid, user) {
        Ok(executor) => look(executor),
        Err(_) => RunClient { pid: *pid, executor: None, state: DeviceState::Busy, queues: None },
    };
    let other = |pid: &i32| {
        let executor = Executor::connect(socket, *pid, user).ok().and_then(|executor| executor.pid());
        RunClient { pid: *pid, executor, state: DeviceState::Running, queues: None }
    };
    Ok(RunDevice {
        devices: tree.run.devices.clone(),
        socket: socket.clone(),
        clients: tree.clients.iter().map(ask).collect(),
        others: tree.others.iter().map(other).collect(),
    })
}

fn look(mut executor: Executor) -> RunClient {
    let (pid, process) = (executor.client, executor.pid());
    let (state, queues) = match executor.status(PATIENCE) {
        Ok(queues) => (DeviceState::Running, Some(queues)),
        Err(_) if process.is_some_and(is_paused) => (DeviceState::Paused, None),
        Err(_) => (DeviceState::Busy, None),
    };
    RunClient { pid, executor: process, state, queues }
}

/// Whether the gate that this executor has is closed; `false` if it cannot be seen.
fn is_paused(executor: i32) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{executor}/fd")).into_iter().flatten().flatten();
    let is_gate = |path: &PathBuf| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy().starts_with(&format!("/memfd:{GATE_NAME}:"))
    };
    let gate = descriptors.map(|entry| entry.path()).find(is_gate);
    let opened = gate.and_then(|path| File::options().read(true).write(true).open(path).ok());
    opened.and_then(|file| Gate::map(file.as_fd()).ok()).is_some_and(|gate| gate.is_closed())
}

/// Prints what the devices of a tree do.
///
/// # Errors
/// When the root has ended.
pub fn run(tree: &Tree, json: bool) -> Result<()> {
    let device = survey(tree)?;
    output::show(if json {
        let status = Status { pid: tree.pid, foreign: true, directory: &tree.run.directory, device: &device };
        serde_json::to_string(&status)? + "\n"
    } else {
        preflight::run_status(&device)
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_of_an_executor_says_whether_it_is_paused() {
        let own = std::process::id().cast_signed();
        let (gate, _memory) = Gate::create(&format!("{GATE_NAME}:made-up")).unwrap();
        assert!(!is_paused(own));
        gate.close(0);
        assert!(is_paused(own));
        gate.open();
        assert!(!is_paused(own) && !is_paused(i32::MAX));
    }
}
