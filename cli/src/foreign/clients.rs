// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a tree that have a device of `stasis run`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, bail};
use kfd::transport::control::ControlError;
use stasis_criu_foreign::{Broker, Run, members, owner};

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
    pub broker: Broker,
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
    let processes: BTreeSet<i32> = members(root).into_iter().collect();
    let runs: BTreeSet<Run> = processes.iter().filter_map(|pid| Run::of(*pid)).collect();
    let mut found: Option<Tree> = None;
    for run in runs {
        let mut broker = match Broker::connect(&run.socket, owner(root)?.0) {
            // Its softgpud is gone, or is none that takes orders: no process has a device of it.
            Err(ControlError::Nobody { .. }) => continue,
            connected => connected?,
        };
        let (clients, others): (Vec<i32>, Vec<i32>) =
            broker.clients()?.into_iter().partition(|client| processes.contains(client));
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

/// The trees of these processes, if they have devices of runs: of each its own.
///
/// # Errors
/// As [`find`]; when only some have one, and when two have the same.
pub fn find_all(roots: &[i32]) -> Result<Option<Vec<Tree>>> {
    let mut trees: Vec<Tree> = Vec::new();
    let mut without = Vec::new();
    for root in roots {
        let Some(tree) = find(*root)? else {
            without.push(*root);
            continue;
        };
        if let Some(other) = trees.iter().find(|other| other.run.socket == tree.run.socket) {
            bail!(
                "Processes {} and {} belong to one `stasis run`; checkpoint a process above both",
                other.pid,
                tree.pid
            );
        }
        trees.push(tree);
    }
    match (trees.first(), without.first()) {
        (Some(tree), Some(other)) => bail!(
            "Process {} has a device of a `stasis run` and process {other} has none: they are not checkpointed as one session",
            tree.pid
        ),
        (None, _) => Ok(None),
        (Some(_), None) => Ok(Some(trees)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_a_run_is_no_tree_of_one() {
        assert!(find(std::process::id().cast_signed()).unwrap().is_none());
    }
}
