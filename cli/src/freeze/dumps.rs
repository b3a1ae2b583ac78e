// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU's part of a checkpoint: one tree, or several that are dumped together or not at all.
//!
//! INVARIANT: a tree is gone only when every tree's images were whole. CRIU's `--leave-stopped` would not do for that: it
//! leaves the network locked and connections in repair mode, so that a tree could not go on if another failed; a commit
//! script that waits and then fails makes CRIU undo all of it by itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use stasis::checkpoint::CheckpointReport;
use stasis::criu::{
    CommitGate, CriuOptions, LAYOUT, Manifest, SealAt, Sealer, TREE_LAYOUT, TreeMember, commit_error,
    image_names, write_commit_script,
};
use stasis_criu::{Criu, CriuError, Dump, DumpOptions, Target};

use super::args::CheckpointArgs;
use super::outcome::sum;
use super::party::{Party, Tree};

/// Writes the manifest of a tree, for the commit to name. The reports are those of its members.
fn write_manifest(
    tree: &Tree,
    directory: &Path,
    args: &CheckpointArgs,
    criu: &Criu,
    reports: &[CheckpointReport],
) -> Result<()> {
    let is_plain = tree.is_plain();
    let member = |(member, report): (&super::party::Member, &CheckpointReport)| TreeMember {
        pid: member.pid,
        directory: member.place.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        executable: member.executable.clone(),
        report: report.clone(),
    };
    let members = if is_plain { Vec::new() } else { tree.members.iter().zip(reports).map(member).collect() };
    let manifest = Manifest {
        layout: if is_plain { LAYOUT } else { TREE_LAYOUT },
        pid: tree.pid,
        command: tree.command.clone(),
        executable: tree.executable.clone(),
        criu: criu.version().to_owned(),
        options: args.criu.options(tree.pid),
        images: image_names(directory)?,
        members,
        foreign: None,
        report: CheckpointReport {
            secret: reports.first().filter(|_| is_plain).and_then(|report| report.secret.clone()),
            ..sum(reports)
        },
        files: Vec::new(),
    };
    Ok(manifest.write_pending(directory)?)
}

/// Dumps all trees of a party; `reports` are those of its members. For each tree: whether it was dumped.
///
/// # Errors
/// When CRIU was not even called.
pub(super) fn dump(
    party: &Party,
    directory: &Path,
    args: &CheckpointArgs,
    criu: &Criu,
    reports: &[CheckpointReport],
) -> Result<Vec<Result<(), CriuError>>> {
    let sealer =
        Sealer::this_program().context("Cannot find this program's own path, for CRIU to call it")?;
    let mut rest = reports;
    for tree in &party.trees {
        let (own, others) = rest.split_at(tree.members.len().min(rest.len()));
        write_manifest(tree, &directory.join(&tree.place), args, criu, own)?;
        rest = others;
    }
    let is_alone = party.trees.len() == 1;
    let prepare = |tree: &Tree| {
        let directory = directory.join(&tree.place);
        let gate =
            if is_alone { None } else { Some(CommitGate::write(&directory, Some(&sealer), SealAt::Once)?) };
        let commit = match &gate {
            Some(gate) => gate.script().to_owned(),
            None => write_commit_script(&directory, Some(&sealer))?,
        };
        Ok(Prepared {
            pid: tree.pid,
            members: Dump::members(tree.pids(), &directory),
            told: args.criu.options(tree.pid),
            directory,
            commit,
            gate,
        })
    };
    let prepared = party.trees.iter().map(prepare).collect::<Result<Vec<_>>>()?;
    let dumps = prepared.iter().map(|tree| Dump {
        pid: tree.pid,
        members: tree.members.clone(),
        directory: &tree.directory,
        commit: &tree.commit,
        options: DumpOptions {
            leave_running: args.leave_running,
            criu: &tree.told,
            extra: &args.criu_args,
            environment: &[],
        },
        gate: tree.gate.as_ref(),
        before_commit: None,
    });
    let dumped = criu.dump(&dumps.collect::<Vec<_>>(), args.criu_deadline(&party.roots()));
    let explained = |(dumped, tree): (Result<(), CriuError>, &Tree)| {
        dumped.map_err(|error| explained(error, &directory.join(&tree.place)))
    };
    Ok(dumped.into_iter().zip(&party.trees).map(explained).collect())
}

/// Of a commit that failed CRIU's log says only that it did.
fn explained(error: CriuError, directory: &Path) -> CriuError {
    match (error, commit_error(directory)) {
        (CriuError::Failed { verb, status, log, .. }, Some(reason)) => {
            CriuError::Failed { verb, status, reason, log }
        }
        (error, _) => error,
    }
}

/// What a tree's dump needs.
#[derive(Debug)]
struct Prepared {
    pid: i32,
    members: Vec<Target>,
    directory: PathBuf,
    told: CriuOptions,
    commit: PathBuf,
    gate: Option<CommitGate>,
}
