// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a tree that have a device of `stasis run`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};
use kfd::transport::control::{BrokerAnswer, BrokerOrder, Control, ControlError, broker_socket};
use kfd::transport::run::{DEVICES_VARIABLE, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use serde::{Deserialize, Serialize};

use crate::preflight::{self, Environment};

/// The run that processes belong to, as their environment says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The abstract socket of its softgpud.
    pub socket: String,
    /// The files of its machine.
    pub directory: String,
    /// Its devices, as softgpud names them.
    pub devices: String,
}

impl Run {
    /// The run of a process.
    fn of(pid: i32) -> Option<Self> {
        let environment = Environment::of(pid)?;
        let value = |name| String::from_utf8(environment.value(name)?.to_vec()).ok();
        let (socket, directory) = (value(SOCKET_VARIABLE)?, value(DIRECTORY_VARIABLE)?);
        Some(Self { socket, directory, devices: value(DEVICES_VARIABLE)? })
    }
}

/// A tree of processes some of which have a device of a run.
#[derive(Debug)]
pub struct Tree {
    /// Its root.
    pub pid: i32,
    /// The run.
    pub run: Run,
    /// Those with a device, ascending.
    pub clients: Vec<i32>,
    /// The run's processes with a device that are not in the tree.
    pub others: Vec<i32>,
    /// The broker, which lets no new process have a device while this is held.
    pub broker: Control,
}

/// The owner of a process.
pub(super) fn owner(pid: i32) -> Result<u32> {
    Ok(fs::metadata(format!("/proc/{pid}")).with_context(|| format!("There is no process {pid}"))?.uid())
}

/// Orders something of a broker.
fn order(broker: &mut Control, what: &'static str, order: &BrokerOrder) -> Result<BrokerAnswer> {
    match broker.order(what, order, &[])?.0 {
        BrokerAnswer::Failed { message } => Err(ControlError::Failed { order: what, message }.into()),
        answer => Ok(answer),
    }
}

/// Starts an executor for a client that was restored.
pub(super) fn start_executor(broker: &mut Control, client: i32) -> Result<()> {
    order(broker, "start an executor", &BrokerOrder::Start { client }).map(drop)
}

/// Has the broker stay until a process has ended.
pub(super) fn stay(broker: &mut Control, process: i32) -> Result<()> {
    order(broker, "stay for the program", &BrokerOrder::Stay { process }).map(drop)
}

/// Has the broker let no process connect that has no device yet, until the connection ends.
pub(super) fn hold(broker: &mut Control) -> Result<()> {
    order(broker, "hold new clients back", &BrokerOrder::Hold).map(drop)
}

/// The processes that have a device.
pub(super) fn clients(broker: &mut Control) -> Result<BTreeSet<i32>> {
    match order(broker, "name its clients", &BrokerOrder::Clients)? {
        BrokerAnswer::Clients(pids) => Ok(pids.into_iter().collect()),
        _ => Err(ControlError::Answer { order: "name its clients" }.into()),
    }
}

/// The root of the program that a `stasis run` with this pid has started, if that is what the pid is.
fn program_of(pid: i32) -> Option<i32> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = command.split(|byte| *byte == 0);
    let is_run = words.next()?.ends_with(b"stasis") && words.next()? == b"run";
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut programs =
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| Run::of(*pid).is_some());
    programs.next().filter(|_| is_run)
}

/// The tree of a process, if processes of it have a device of a run; also of the `stasis run` that has started it.
///
/// # Errors
/// When a softgpud cannot be asked, or processes have devices of several.
pub fn find(pid: i32) -> Result<Option<Tree>> {
    let root = if Run::of(pid).is_none() { program_of(pid).unwrap_or(pid) } else { pid };
    let processes: BTreeSet<i32> = preflight::tree_of(root).into_iter().collect();
    let runs: BTreeSet<Run> = processes.iter().filter_map(|pid| Run::of(*pid)).collect();
    let mut found: Option<Tree> = None;
    for run in runs {
        let mut broker = match Control::connect(&broker_socket(&run.socket), owner(root)?) {
            // Its softgpud is gone, or is none that takes orders: no process has a device of it.
            Err(ControlError::Nobody { .. }) => continue,
            connected => connected?,
        };
        let (clients, others): (Vec<i32>, Vec<i32>) =
            clients(&mut broker)?.into_iter().partition(|client| processes.contains(client));
        if clients.is_empty() {
            continue;
        }
        if let Some(other) = &found {
            bail!(
                "Processes {} and {} have devices of two `stasis run`, which are not checkpointed together",
                other.clients[0],
                clients[0]
            );
        }
        found = Some(Tree { pid: root, run, clients, others, broker });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::sleep_with;

    #[test]
    fn run_is_read_from_the_environment_of_a_process() {
        let all = [(SOCKET_VARIABLE, "s"), (DIRECTORY_VARIABLE, "/d"), (DEVICES_VARIABLE, "gfx1100")];
        let wanted = Run { socket: "s".into(), directory: "/d".into(), devices: "gfx1100".into() };
        for (variables, run) in [(&all[..], Some(wanted)), (&all[1..], None)] {
            let mut child = sleep_with(variables);
            assert_eq!(Run::of(child.id().cast_signed()), run);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(Run::of(i32::MAX), None);
    }

    #[test]
    fn process_without_a_run_is_no_tree_of_one() {
        assert!(find(std::process::id().cast_signed()).unwrap().is_none());
    }
}
