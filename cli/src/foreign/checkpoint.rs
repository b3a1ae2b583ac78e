// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint` of programs that know nothing of it.
//!
//! INVARIANT: either the checkpoint is committed, of all trees, or the processes and their devices go on as before; whichever comes
//! about, the state of a device is that of the moment at which its tasks were frozen.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, ensure};
use indicatif::ProgressBar;
use kfd::linux::unique_name;
use stasis::checkpoint::CheckpointReport;
use stasis::criu::{
    CommitGate, CriuOptions, Executable, LAYOUT, Manifest, SEALED_LAYOUT, SealAt, Sealer, SessionIndex,
    commit_error, commit_now, prepare, prepare_empty, retract, withdraw,
};
use stasis_criu::{Criu, CriuError, Dump, DumpOptions};
use stasis_criu_foreign::{
    CHECKPOINTED_FILE, Executor, ForeignError, OpenRunDirectory, Paused, RunDirectory, members, owner,
};

use super::cancel::Claim;
use super::clients::Tree;
use super::left_out::Report;
use super::outcome::{Frozen, Outcome};
use super::saving::{Saved, Saving};
use super::status::survey;
use crate::freeze::{CheckpointArgs, Known, clear_failed, command_line, list};
use crate::preflight;
use crate::progress::{milliseconds, spinner};
use crate::transfer::{self, Destination};

/// How long the device of processes that CRIU has ended may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How long softgpud may take to see that an executor has ended.
const NOTICING: Duration = Duration::from_millis(500);

/// A tree that is checkpointed, and where.
#[derive(Debug)]
struct Part {
    tree: Tree,
    directory: PathBuf,
    /// What CRIU is told of it.
    options: CriuOptions,
    paused: Vec<Paused>,
}

/// Freezes the trees into a directory.
///
/// # Errors
/// Why they were not frozen; they go on then.
pub fn run(args: &CheckpointArgs, mut trees: Vec<Tree>) -> Result<()> {
    let started = Instant::now();
    ensure!(
        !args.no_dump,
        "--no-dump is not for a program under `stasis run`: the device stays paused only while this command lives"
    );
    ensure!(
        args.parent.is_none(),
        "--parent is not for a program under `stasis run`, whose memory is written whole: leave it out"
    );
    ensure!(
        args.pre_copy.is_none(),
        "--pre-copy is not for a program under `stasis run`, whose memory is written when it stands still: leave it out"
    );
    let criu = Criu::find()?;
    let _claims = trees.iter().map(Claim::take).collect::<Result<Vec<_>>>()?;
    if !args.no_preflight {
        for tree in &trees {
            let told = [options(args, tree.pid).dump_arguments(), args.criu_args.clone()].concat();
            preflight::check_run(tree.pid, &criu, &told, survey(tree)?)?;
        }
    }
    let destination = Destination::of(&args.destination, &args.directory)?;
    let (directory, places) = make_directories(destination.directory(), &trees)?;
    let bar = spinner(args.json);
    let stopped = Instant::now();
    let held = trees.iter_mut().try_for_each(|tree| tree.broker.hold());
    let mut parts: Vec<Part> = trees
        .into_iter()
        .zip(places)
        .map(|(tree, directory)| {
            let options = options(args, tree.pid);
            Part { tree, directory, options, paused: Vec::new() }
        })
        .collect();
    let frozen = held.map_err(Error::from).and_then(|()| freeze(args, &mut parts, &criu, &bar));
    bar.finish_and_clear();
    let mut outcome = frozen.inspect_err(|_| {
        // Only logs are worth keeping of a checkpoint that did not come about.
        if !parts.iter().any(is_complete) {
            let _ = clear_failed(&directory);
        }
    })?;
    outcome.checkpoint_ms = milliseconds(started);
    let prose = outcome.prose(&destination.place(&args.destination, &directory), args.timings);
    outcome.delivered = destination.deliver(&args.destination, &directory, stopped, args.json)?;
    transfer::report(&args.destination, args.json, &outcome, prose, outcome.delivered.as_ref())
}

/// Makes the directories; answers the outermost, and that of each tree.
fn make_directories(directory: &Path, trees: &[Tree]) -> Result<(PathBuf, Vec<PathBuf>)> {
    if let [_] = trees {
        let directory = prepare(directory)?;
        return Ok((directory.clone(), vec![directory]));
    }
    let directory = prepare_empty(directory)?;
    let places = trees.iter().map(|tree| Ok(prepare(&directory.join(tree.pid.to_string()))?));
    let places = places.collect::<Result<Vec<_>>>()?;
    let id = unique_name("").context("Cannot draw a name for the session")?;
    let trees = trees.iter().map(|tree| tree.pid).collect();
    SessionIndex { layout: SEALED_LAYOUT, id, trees }.write(&directory)?;
    Ok((directory, places))
}

/// Whether the checkpoint of a tree counts.
fn is_complete(part: &Part) -> bool {
    Manifest::read(&part.directory).is_ok()
}

/// Pauses the devices of a tree, whose processes are from now on those that it has now.
fn pause(args: &CheckpointArgs, part: &mut Part) -> Result<Vec<Executor>> {
    let tree = &mut part.tree;
    // A process that was about to connect is a client by now, or the broker holds it back.
    let processes = members(tree.pid);
    let user = owner(tree.pid)?.0;
    let began = Instant::now();
    let mut executors = loop {
        let (clients, others) =
            tree.broker.clients()?.into_iter().partition(|client| processes.contains(client));
        (tree.clients, tree.others) = (clients, others);
        ensure!(
            !tree.clients.is_empty(),
            "No process of the tree of process {} has a device any more",
            tree.pid
        );
        let connected = tree.clients.iter().map(|client| Executor::connect(&tree.run.socket, *client, user));
        match connected.collect::<Result<Vec<_>, _>>() {
            // One has just ended, which the broker does not know yet.
            Err(error) if error.is_nobody() && began.elapsed() < NOTICING => {
                std::thread::sleep(NOTICING / 50)
            }
            connected => break connected?,
        }
    };
    let (deadline, lease) = (Duration::from_millis(args.deadline_ms), Duration::from_millis(args.lease_ms));
    for executor in &mut executors {
        let client = executor.client;
        let report = executor.pause(deadline, lease);
        // Those that are paused resume by the end of their connections.
        part.paused.push(report.map_err(ForeignError::of(client, "cannot be paused"))?);
    }
    Ok(executors)
}

fn freeze(args: &CheckpointArgs, parts: &mut [Part], criu: &Criu, bar: &ProgressBar) -> Result<Outcome> {
    bar.set_message("stopping the queues");
    let began = Instant::now();
    let executors = parts.iter_mut().map(|part| pause(args, part)).collect::<Result<Vec<_>>>()?;
    let known = Known::of(parts.iter().flat_map(|part| members(part.tree.pid)));
    let pause_ms = milliseconds(began);
    bar.set_message("CRIU dumps the processes");
    let parts = &*parts;
    let sealer =
        Sealer::this_program().context("Cannot find this program's own path, for CRIU to call it")?;
    let seal_at = match (args.leave_running, parts) {
        (true, _) => SealAt::Resumed,
        (false, [_]) => SealAt::Word,
        // All that can fail comes before the word.
        (false, _) => SealAt::Caller,
    };
    let (mut gates, mut reports) = (Vec::new(), Vec::new());
    for Part { tree, directory, options, .. } in parts {
        manifest(tree, criu, options)?.write_pending(directory)?;
        gates.push(CommitGate::write(directory, Some(&sealer), seal_at)?);
        reports.push(Report::new(directory, args.self_contained)?);
    }
    let mut savings = Vec::new();
    for ((Part { tree, directory, paused, .. }, left_out), executors) in
        parts.iter().zip(&reports).zip(executors)
    {
        let mark = if args.leave_running { None } else { Some(run_directory(tree)?) };
        let executors = RefCell::new(executors);
        let seals = seal_at == SealAt::Caller;
        let outcome = RefCell::new(None);
        savings.push(Saving { tree, directory, mark, paused, left_out, seals, executors, outcome });
    }
    // Python's semaphores are files that are mapped under a name that was removed, and have another one.
    let extra = [args.criu_args.clone(), vec!["--link-remap".to_owned()]].concat();
    let mut dumps = Vec::new();
    for ((part, gate), saving) in parts.iter().zip(&gates).zip(&savings) {
        let pids = std::iter::once(part.tree.pid).chain(part.tree.clients.iter().copied());
        dumps.push(Dump {
            pid: part.tree.pid,
            members: Dump::members(pids, &part.directory),
            directory: &part.directory,
            commit: gate.script(),
            options: DumpOptions {
                leave_running: args.leave_running,
                criu: &part.options,
                extra: &extra,
                environment: saving.left_out.environment(),
            },
            gate: Some(gate),
            before_commit: Some(saving),
        });
    }
    let roots: Vec<i32> = parts.iter().map(|part| part.tree.pid).collect();
    let criu_began = Instant::now();
    let dumped = criu.dump(&dumps, args.criu_deadline(&roots));
    let criu_ms = milliseconds(criu_began);
    drop(dumps);
    let (mut executors, mut outcomes) = (Vec::new(), Vec::new());
    for saving in savings {
        executors.push(saving.executors.into_inner());
        outcomes.push(saving.outcome.into_inner());
    }
    let saved = judge(parts, dumped, outcomes);
    let resumed = match &saved {
        Ok(_) if !args.leave_running => {
            executors.iter_mut().for_each(|executors| wait_for_end(executors));
            Ok(())
        }
        _ => {
            let back = parts.iter().zip(&mut executors);
            // A tree that has ended after its commit has nothing to go on with.
            let back = back.filter(|(part, _)| !(known.end(part.tree.pid).is_some() && is_complete(part)));
            let resumed = back.map(|(part, executors)| resume(&part.tree, executors));
            // All are resumed; the first failure is told.
            resumed.collect::<Vec<_>>().into_iter().collect()
        }
    };
    let saved = match saved {
        Ok(saved) => saved,
        Err(error) => return Err(give_up(parts, &known, error, resumed)?),
    };
    if args.leave_running {
        bar.set_message("hashing the files");
        let sealed = parts.iter().try_for_each(|part| commit_now(&part.directory));
        sealed.context("The processes go on, but the checkpoint is not complete")?;
    }
    resumed.context("The checkpoint is complete")?;
    let frozen = parts.iter().zip(&saved).map(|(part, saved)| Frozen {
        pid: part.tree.pid,
        clients: part.tree.clients.clone(),
        paused: part.paused.clone(),
        directory: part.directory.clone(),
        stored_bytes: saved.stored_bytes,
    });
    let save_ms = saved.iter().map(|saved| saved.milliseconds).sum();
    let mut outcome = Outcome::of(frozen.collect());
    (outcome.pause_ms, outcome.criu_ms, outcome.save_ms) = (pause_ms, criu_ms, save_ms);
    outcome.left_running = args.leave_running;
    Ok(outcome)
}

/// What was saved of each tree; else the failure that is to blame.
fn judge(
    parts: &[Part],
    dumped: Vec<Result<(), CriuError>>,
    outcomes: Vec<Option<Result<Saved>>>,
) -> Result<Vec<Saved>> {
    ensure!(dumped.len() == parts.len(), "CRIU was not called");
    let (mut saved, mut failures) = (Vec::new(), Vec::new());
    for ((part, dumped), outcome) in parts.iter().zip(dumped).zip(outcomes) {
        match (dumped, outcome) {
            (Ok(()), Some(Ok(this))) => saved.push(this),
            (_, Some(Err(error))) => failures.push((0, error)),
            // The others fail because one did: their scripts were told to.
            (Err(error @ CriuError::HeldBack), _) => failures.push((2, error.into())),
            (Err(error), _) => failures.push((
                1,
                match commit_error(&part.directory) {
                    Some(reason) => anyhow!(error).context(reason),
                    None => error.into(),
                },
            )),
            (Ok(()), None) => {
                failures.push((1, anyhow!("CRIU has ended the processes without the commit's script")));
            }
        }
    }
    match failures.into_iter().min_by_key(|(weight, _)| *weight) {
        None => Ok(saved),
        Some((_, error)) => Err(error),
    }
}

/// Has the devices of a tree go on that was not frozen.
fn resume(tree: &Tree, executors: &mut [Executor]) -> Result<()> {
    if let Ok(directory) = run_directory(tree) {
        // It is not there if this was never saved.
        let _ = directory.remove(CHECKPOINTED_FILE);
    }
    let resumed = executors.iter_mut().map(|executor| {
        let client = executor.client;
        executor.resume().map_err(ForeignError::of(client, "does not go on"))
    });
    Ok(resumed.collect::<Vec<_>>().into_iter().collect::<Result<_, _>>()?)
}

/// What is said of trees that were not frozen because of `error`, and of what became of them.
fn give_up(parts: &[Part], known: &Known, error: Error, resumed: Result<()>) -> Result<Error> {
    let ended = known.ended();
    let has_ended = |part: &Part| ended.iter().any(|(pid, _)| *pid == part.tree.pid);
    let (complete, others): (Vec<&Part>, Vec<&Part>) =
        parts.iter().partition(|part| has_ended(part) && is_complete(part));
    for part in &others {
        // CRIU may fail after the commit; processes that have gone on must not be restored from before that.
        retract(&part.directory)?;
        withdraw(&part.directory)?;
    }
    let pids: Vec<String> = others.iter().map(|part| part.tree.pid.to_string()).collect();
    let (whom, goes) = match &pids[..] {
        [one] => (format!("Process {one} was not checkpointed"), "it goes on"),
        _ => (format!("Processes {} were not checkpointed", pids.join(", ")), "they go on"),
    };
    let is_lost = |(pid, _): &(i32, _)| !complete.iter().any(|part| part.tree.pid == *pid);
    let lost: Vec<_> = ended.iter().filter(|end| is_lost(end)).copied().collect();
    let mut text = match resumed {
        // A CRIU that is killed while its code is in a task kills that task.
        _ if !lost.is_empty() => format!("{whom}; what has ended: {}", list(&lost)),
        Ok(()) => format!("{whom}; {goes}"),
        Err(other) => format!("{whom} ({other:#})"),
    };
    if !complete.is_empty() {
        let places: Vec<_> = complete.iter().map(|part| part.directory.display().to_string()).collect();
        text.push_str(&format!(". What is gone and can be restored is in {}", places.join(", ")));
    }
    Ok(error.context(text))
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

/// The directory of the tree's run, which belongs to the tree's user: its path is the word of a process.
fn run_directory(tree: &Tree) -> Result<OpenRunDirectory> {
    let directory = RunDirectory::of_machine(Path::new(&tree.run.directory))?;
    Ok(directory.open(None, owner(tree.pid)?.0)?)
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
