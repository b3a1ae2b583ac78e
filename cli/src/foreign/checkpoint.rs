// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint` of a program that knows nothing of it.
//!
//! INVARIANT: either the checkpoint is committed, or the processes and their device go on as before; whichever comes about, the
//! device's state is that of the moment at which the tasks were frozen.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::ProgressBar;
use serde::Serialize;
use stasis::checkpoint::CheckpointReport;
use stasis::criu::{
    CRIU_DIRECTORY, CommitGate, CriuOptions, DumpStats, Executable, LAYOUT, Manifest, SealAt, Sealer,
    commit_error, commit_now, prepare, retract, withdraw,
};
use stasis_criu::{Criu, Dump, DumpOptions};
use stasis_criu_foreign::{Executor, ForeignError, Paused, members, owner};

use super::cancel::Claim;
use super::clients::Tree;
use super::left_out::Report;
use super::saving::Saving;
use super::status::survey;
use crate::freeze::{
    CheckpointArgs, Known, clear_failed, command_line, directory_bytes, list, milliseconds, spinner,
};
use crate::{output, preflight, timings};

/// A file in the run's directory that is there when its program ends because it was checkpointed.
pub const CHECKPOINTED_FILE: &str = "checkpointed";
/// How long the device of processes that CRIU has ended may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// What `stasis checkpoint --json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    pid: i32,
    foreign: bool,
    checkpoint_ms: f64,
    /// From the order to pause until all devices were paused.
    pause_ms: f64,
    /// CRIU, from its start to its end, the next included.
    criu_ms: f64,
    /// States and memory, while the tasks were frozen.
    save_ms: f64,
    clients: usize,
    queues: u32,
    waves_saved: u64,
    waits: u32,
    criu_bytes: u64,
    /// Of memory that no task had.
    stored_bytes: u64,
    left_running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    criu_stats: Option<DumpStats>,
}

impl Outcome {
    /// How long the processes stood still for what, milliseconds.
    fn phases(&self) -> Vec<(&'static str, f64)> {
        let stats = self.criu_stats.unwrap_or_default();
        let frozen = stats.freezing_ms + stats.frozen_ms;
        vec![
            ("pause the devices", self.pause_ms),
            ("frozen by CRIU", (frozen - self.save_ms).max(0.0)),
            ("save the devices, frozen", self.save_ms),
            ("CRIU around it", (self.criu_ms - frozen).max(0.0)),
        ]
    }
}

/// Freezes the tree into a directory.
///
/// # Errors
/// Why it was not frozen; it goes on then.
pub fn run(args: &CheckpointArgs, mut tree: Tree) -> Result<()> {
    let started = Instant::now();
    refuse_options(args)?;
    let criu = Criu::find()?;
    let user = owner(tree.pid)?.0;
    let _claim = Claim::take(&tree)?;
    if !args.no_preflight {
        let told = [options(args, tree.pid).dump_arguments(), args.criu_args.clone()].concat();
        preflight::check_run(tree.pid, &criu, &told, survey(&tree)?)?;
    }
    let directory = prepare(&args.directory)?;
    let bar = spinner(args.json);
    let frozen = tree
        .broker
        .hold()
        .map_err(Into::into)
        .and_then(|()| freeze(args, &mut tree, &criu, &directory, user, &bar));
    bar.finish_and_clear();
    let outcome = frozen.inspect_err(|_| {
        // Only logs are worth keeping of a checkpoint that did not come about.
        let _ = clear_failed(&directory);
    })?;
    let outcome = Outcome { checkpoint_ms: milliseconds(started), ..outcome };
    if args.json {
        output::report(serde_json::to_string(&outcome)? + "\n");
    } else {
        output::report(prose(&outcome, &tree, &directory, args.timings));
    }
    Ok(())
}

fn refuse_options(args: &CheckpointArgs) -> Result<()> {
    let refused = [
        (!args.session.is_empty(), "--session", "trees of `stasis run` are checkpointed one by one"),
        (args.no_dump, "--no-dump", "the device stays paused only while this command lives"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => bail!("{option} is not for a program under `stasis run`: {why}"),
        None => Ok(()),
    }
}

fn freeze(
    args: &CheckpointArgs,
    tree: &mut Tree,
    criu: &Criu,
    directory: &Path,
    user: u32,
    bar: &ProgressBar,
) -> Result<Outcome> {
    bar.set_message("stopping the queues");
    let began = Instant::now();
    // A process that was about to connect is a client by now, or the broker holds it back.
    let processes = members(tree.pid);
    let (clients, others) = tree.broker.clients()?.into_iter().partition(|client| processes.contains(client));
    (tree.clients, tree.others) = (clients, others);
    ensure!(!tree.clients.is_empty(), "No process of the tree of process {} has a device any more", tree.pid);
    let known = Known::of(processes.into_iter());
    let mut executors = Vec::new();
    for client in &tree.clients {
        executors.push(Executor::connect(&tree.run.socket, *client, user)?);
    }
    let (deadline, lease) = (Duration::from_millis(args.deadline_ms), Duration::from_millis(args.lease_ms));
    let mut paused = Vec::new();
    for executor in &mut executors {
        let client = executor.client;
        let report = executor.pause(deadline, lease);
        // Those that are paused resume by the end of their connections.
        paused.push(report.map_err(ForeignError::of(client, "cannot be paused"))?);
    }
    let pause_ms = milliseconds(began);
    bar.set_message("CRIU dumps the processes");
    let options = options(args, tree.pid);
    manifest(tree, criu, &options)?.write_pending(directory)?;
    let sealer =
        Sealer::this_program().context("Cannot find this program's own path, for CRIU to call it")?;
    let seal_at = if args.leave_running { SealAt::Resumed } else { SealAt::Word };
    let gate = CommitGate::write(directory, Some(&sealer), seal_at)?;
    let left_out = Report::new(directory, args.self_contained)?;
    let saving = Saving {
        tree,
        directory,
        mark: (!args.leave_running).then(|| mark_path(tree)).flatten(),
        paused: &paused,
        left_out: &left_out,
        executors: RefCell::new(executors),
        outcome: RefCell::new(None),
    };
    // Python's semaphores are files that are open under a name that was removed, and have another one.
    let extra = [args.criu_args.clone(), vec!["--link-remap".to_owned()]].concat();
    let dump = Dump {
        pid: tree.pid,
        members: Dump::members(std::iter::once(tree.pid).chain(tree.clients.iter().copied()), directory),
        directory,
        commit: gate.script(),
        options: DumpOptions {
            leave_running: args.leave_running,
            criu: &options,
            extra: &extra,
            environment: left_out.environment(),
        },
        gate: Some(&gate),
        before_commit: Some(&saving),
    };
    let criu_began = Instant::now();
    let dumped = criu.dump(&[dump], args.criu_deadline(&[tree.pid])).pop().context("CRIU was not called")?;
    let criu_ms = milliseconds(criu_began);
    let (mut executors, saved) = (saving.executors.into_inner(), saving.outcome.into_inner());
    let failure = match (dumped, saved) {
        (Ok(()), Some(Ok(saved))) => Ok(saved),
        (_, Some(Err(error))) => Err(error),
        (Err(error), _) => Err(match commit_error(directory) {
            Some(reason) => anyhow!(error).context(reason),
            None => error.into(),
        }),
        (Ok(()), None) => Err(anyhow!("CRIU has ended the processes without the commit's script")),
    };
    let resumed = match &failure {
        Ok(_) if !args.leave_running => {
            wait_for_end(&mut executors);
            Ok(())
        }
        _ => {
            if let Some(mark) = mark_path(tree) {
                // It is not there if this was never saved.
                let _ = fs::remove_file(mark);
            }
            executors.iter_mut().try_for_each(|executor| {
                let client = executor.client;
                executor.resume().map_err(ForeignError::of(client, "does not go on"))
            })
        }
    };
    let saved = match failure {
        Ok(saved) => saved,
        Err(error) => {
            // CRIU may fail after the commit; processes that have gone on must not be restored from before that.
            retract(directory)?;
            withdraw(directory)?;
            let ended = known.ended();
            return Err(error.context(match resumed {
                // A CRIU that is killed while its code is in a task kills that task.
                _ if !ended.is_empty() => {
                    format!("Process {} was not checkpointed; what has ended: {}", tree.pid, list(&ended))
                }
                Ok(()) => format!("Process {} was not checkpointed; it goes on", tree.pid),
                Err(other) => format!("Process {} was not checkpointed ({other:#})", tree.pid),
            }));
        }
    };
    if args.leave_running {
        bar.set_message("hashing the files");
        commit_now(directory).context("The processes go on, but the checkpoint is not complete")?;
    }
    resumed.context("The checkpoint is complete")?;
    let sum = |count: fn(&Paused) -> u64| paused.iter().map(count).sum::<u64>();
    let images = directory.join(CRIU_DIRECTORY);
    Ok(Outcome {
        pid: tree.pid,
        foreign: true,
        checkpoint_ms: 0.0,
        pause_ms,
        criu_ms,
        save_ms: saved.milliseconds,
        clients: tree.clients.len(),
        queues: u32::try_from(sum(|paused| paused.queues.into())).unwrap_or(u32::MAX),
        waves_saved: sum(|paused| paused.waves),
        waits: u32::try_from(sum(|paused| paused.waits.into())).unwrap_or(u32::MAX),
        criu_bytes: directory_bytes(&images),
        stored_bytes: saved.stored_bytes,
        left_running: args.leave_running,
        criu_stats: DumpStats::read(&images).ok(),
    })
}

/// What CRIU is told of the tree.
fn options(args: &CheckpointArgs, pid: i32) -> CriuOptions {
    let options = args.criu.options(pid);
    CriuOptions { file_locks: true, shell_job: options.shell_job || !leads_session(pid), ..options }
}

/// Whether CRIU can restore a process as what it is, or needs a session to put it in.
fn leads_session(pid: i32) -> bool {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::unistd::getsid(Some(pid)) == Ok(pid)
}

fn mark_path(tree: &Tree) -> Option<PathBuf> {
    Some(Path::new(&tree.run.directory).parent()?.join(CHECKPOINTED_FILE))
}

fn manifest(tree: &Tree, criu: &Criu, options: &CriuOptions) -> Result<Manifest> {
    Ok(Manifest {
        layout: LAYOUT,
        pid: tree.pid,
        command: command_line(tree.pid)?,
        executable: Executable::of(tree.pid).ok(),
        criu: criu.version().to_owned(),
        options: options.clone(),
        images: Vec::new(),
        members: Vec::new(),
        foreign: Some(stasis_criu_foreign::FILE.to_owned()),
        report: CheckpointReport::default(),
        files: Vec::new(),
    })
}

/// Waits until executors whose clients CRIU has ended are gone.
fn wait_for_end(executors: &mut [Executor]) {
    let begun = Instant::now();
    for executor in executors {
        while begun.elapsed() < ENDING && executor.confirm().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn prose(outcome: &Outcome, tree: &Tree, directory: &Path, with_timings: bool) -> String {
    let mut text = headline(outcome, tree, directory);
    if with_timings {
        text.push_str(&timings::bars(&outcome.phases()));
    }
    text
}

fn headline(outcome: &Outcome, tree: &Tree, directory: &Path) -> String {
    let whom = match &tree.clients[..] {
        [only] if *only == tree.pid => format!("Process {}", tree.pid),
        clients => format!("The tree of process {} ({} with a device)", tree.pid, clients.len()),
    };
    let waves = output::counted(outcome.waves_saved, "wave");
    let how = if outcome.left_running { "is checkpointed and goes on" } else { "is checkpointed" };
    format!(
        "{whom} {how}: {} in {:.0} ms, {} in the middle of kernels, {:.1} MiB by CRIU, {:.1} MiB beside\n",
        directory.display(),
        outcome.checkpoint_ms,
        waves,
        outcome.criu_bytes as f64 / f64::from(1 << 20),
        outcome.stored_bytes as f64 / f64::from(1 << 20),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_do_not_count_the_time_of_the_devices_twice() {
        let outcome = Outcome {
            pid: 7,
            foreign: true,
            checkpoint_ms: 110.0,
            pause_ms: 10.0,
            criu_ms: 90.0,
            save_ms: 20.0,
            clients: 1,
            queues: 1,
            waves_saved: 1,
            waits: 0,
            criu_bytes: 1,
            stored_bytes: 1,
            left_running: false,
            criu_stats: Some(DumpStats { freezing_ms: 5.0, frozen_ms: 65.0, ..DumpStats::default() }),
        };
        let times: Vec<f64> = outcome.phases().into_iter().map(|(_, ms)| ms).collect();
        assert_eq!(times, [10.0, 50.0, 20.0, 20.0]);
    }
}
