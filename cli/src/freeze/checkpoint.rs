// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint`: the agents evacuate, CRIU freezes, the manifest makes it count.
//!
//! INVARIANT: all processes of a session are frozen or all run on. Whoever fails brings the others back.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use indicatif::ProgressBar;
use stasis::checkpoint::{
    CallError, CheckpointOrder, CheckpointReport, Mode, PreCopyReport, Request, State, call,
};
use stasis::criu::{CRIU_DIRECTORY, Manifest, ManifestError, retract, withdraw};
use stasis_criu::{Criu, CriuError};

use super::args::CheckpointArgs;
use super::dumps;
use super::fate::{Known, is_complete, list, verdict};
use super::orders::{Return, cause, checkpoint_all, resume_all};
use super::outcome::{CheckpointOutcome, named};
use super::parent::{self, Parents};
use super::party::{Member, Party, Tree};
use super::pre_copy;
use crate::preflight;
use crate::progress::{milliseconds, spinner};
use crate::transfer::{self, Destination};

/// TIMEOUT: how long writing may take beyond the queues' deadline where nobody set a limit; a disk may be slow.
const WRITING: Duration = Duration::from_secs(600);
/// TIMEOUT: how long processes may take to get their devices back.
const RESUMING: Duration = Duration::from_secs(120);
/// TIMEOUT: how long an agent may take to say its state.
const STATUS: Duration = Duration::from_secs(5);

/// Freezes process trees into a directory.
pub fn run(args: &CheckpointArgs) -> Result<()> {
    let started = Instant::now();
    let roots = args.roots();
    // First: a receiver may be waited for, while processes begin and end.
    let destination = Destination::of(&args.destination, &args.directory)?;
    let party = Party::find(&roots).map_err(|error| explain(&roots, error))?;
    if args.self_contained && party.is_session() {
        bail!(
            "--self-contained keeps the buffers in each process's own memory, where the others cannot find what they \
             share: it is for a single process with a runtime, and here are {}",
            party.members().count()
        );
    }
    let criu = Criu::find()?;
    check(args, &roots, &criu)?;
    let parents = args.parent.as_ref().map(|parent| parent::find(parent, &party)).transpose()?;
    let directory = party.prepare(destination.directory())?;
    let bar = spinner(args.json);
    let work = Work {
        args,
        party: &party,
        criu: &criu,
        destination: &destination,
        directory: &directory,
        bar: &bar,
    };
    let frozen = freeze(&work, &parents.unwrap_or_default());
    bar.finish_and_clear();
    let Frozen { reports, criu_ms, pre_copied, stopped } = frozen.inspect_err(|_| {
        if is_abandoned(&party, &directory) {
            // Only logs are worth keeping of a checkpoint that did not come about; the images would mislead.
            let _ = clear_failed(&directory);
        }
    })?;
    let mut outcome = CheckpointOutcome {
        checkpoint_ms: milliseconds(started),
        criu_ms,
        left_running: args.leave_running,
        pre_copied,
        ..CheckpointOutcome::new(&party, &directory, &reports)
    };
    let prose = match args.no_dump {
        true => what_is_left(&party, &directory, args.lease_ms, criu.program()),
        false => outcome.prose(&party, &destination.place(&args.destination, &directory), args.timings),
    };
    outcome.delivered = destination.deliver(&args.destination, &directory, stopped, args.json)?;
    transfer::report(&args.destination, args.json, &outcome, prose, outcome.delivered.as_ref())
}

/// A better reason than that there is no runtime, where processes have opened a driver by themselves: the kernel's, or that of a
/// `stasis run`.
fn explain(roots: &[i32], error: Error) -> Error {
    if !error.is::<CallError>() {
        return error;
    }
    if let Some((pid, file)) = roots.iter().find_map(|root| preflight::kernel_driver_user(*root)) {
        return anyhow!("Process {pid} has opened {file}: {}", preflight::KERNEL_DRIVER);
    }
    match roots.iter().find(|root| preflight::names_a_run(**root)) {
        Some(pid) => error.context(format!(
            "Process {pid} is under a `stasis run` and has no device there, or its softgpud takes no orders: that has ended, or is \
             of an older build"
        )),
        None => error,
    }
}

/// What is to be done after `--no-dump`.
fn what_is_left(party: &Party, directory: &Path, lease_ms: u64, criu: &Path) -> String {
    let mut text = String::new();
    for tree in &party.trees {
        let (pid, place) = (tree.pid, directory.join(&tree.place));
        let (who, its) = match tree.is_plain() {
            true => (named(pid, 1, true), "its device; its buffers are"),
            false => (named(pid, tree.members.len(), false), "its devices; its buffers are"),
        };
        let resumed: Vec<_> = tree.members.iter().map(|m| format!("stasis resume {}", m.pid)).collect();
        text.push_str(&format!(
            "{who} has closed {its} in {place}. Within {lease_ms} ms:\n  {criu} dump -t {pid} -D {place}/{CRIU_DIRECTORY}      \
             freezes it ({criu} restore -D ... brings it back)\n  {}      has it run on\n",
            resumed.join(" & "),
            place = place.display(),
            criu = criu.display(),
        ));
    }
    text
}

/// What is to be frozen, by what, and where to.
struct Work<'w> {
    args: &'w CheckpointArgs,
    party: &'w Party,
    criu: &'w Criu,
    destination: &'w Destination,
    /// Where CRIU writes.
    directory: &'w Path,
    bar: &'w ProgressBar,
}

fn freeze(work: &Work<'_>, parents: &Parents) -> Result<Frozen> {
    let Work { args, party, criu, destination, directory, bar } = *work;
    // Beyond the drain the time goes into writing.
    let writing = args.write_deadline_ms.map_or(WRITING, Duration::from_millis);
    let known = Known::of(party.trees.iter().flat_map(Tree::pids));
    let before = args.pre_copy.map(|rounds| {
        bar.set_message("copying the buffers while the process runs");
        pre_copy::run(party, parents, directory, rounds, writing)
    });
    let before = before.transpose()?;
    if let Some(before) = &before {
        bar.set_message("sending what was copied");
        destination.send_before(&args.destination, directory, &before.images(party))?;
        look_again(args, party, criu)?;
    }
    bar.set_message("stopping the queues and writing the buffers");
    let parents = before.as_ref().map_or(parents, |before| &before.parents);
    let stopped = Instant::now();
    let (reports, files) = evacuate(args, party, parents, directory, writing, &known)?;
    let pre_copied = before.map(|before| before.report.clone());
    let members = Members { known: &known, files: &files };
    if args.no_dump {
        return Ok(Frozen { reports, criu_ms: 0.0, pre_copied, stopped });
    }
    bar.set_message("CRIU dumps the process");
    let started = Instant::now();
    let dumped = dumps::dump(party, directory, args, criu, &reports);
    let criu_ms = milliseconds(started);
    let failed = match dumped {
        Err(error) => Some(error),
        Ok(dumps) => blame(party, dumps),
    };
    if args.leave_running || failed.is_some() {
        bar.set_message("the process takes its device back");
        let resumed = resume_members(party, directory, &members, failed.is_some());
        if failed.is_some() && resumed.is_ok() {
            for tree in party.trees.iter().filter(|tree| known.end(tree.pid).is_none()) {
                // CRIU may fail after the commit; a process that has gone on must not be restored from before that.
                retract(&directory.join(&tree.place))?;
            }
        }
        if let Some(error) = failed {
            for tree in &party.trees {
                // It can count no more; one that stays would only mislead.
                if let Err(error) = withdraw(&directory.join(&tree.place)) {
                    tracing::warn!(target: "checkpoint", %error, "a manifest that does not count stays");
                }
            }
            return Err(error.context(verdict(party, directory, &known, resumed.err().as_ref())));
        }
        let ended = known.ended();
        if !ended.is_empty() {
            bail!(
                "The checkpoint in {} is complete, but processes that were to run on have ended: {}",
                directory.display(),
                list(&ended)
            );
        }
        resumed.context("The checkpoint is complete, but the process did not come back")?;
    }
    Ok(Frozen { reports, criu_ms, pre_copied, stopped })
}

/// After a while in which the processes ran: whether they are the same, and nothing has come that would be refused.
fn look_again(args: &CheckpointArgs, party: &Party, criu: &Criu) -> Result<()> {
    let roots = args.roots();
    let members = |party: &Party| party.members().map(|member| member.pid).collect::<BTreeSet<_>>();
    let now = Party::find(&roots)?;
    if members(&now) != members(party) {
        bail!("Processes with a runtime began or ended while the buffers were copied: try again");
    }
    check(args, &roots, criu)
}

/// The preflight, if it is wanted.
fn check(args: &CheckpointArgs, roots: &[i32], criu: &Criu) -> Result<()> {
    if args.no_preflight {
        return Ok(());
    }
    let told = |root| [args.criu.options(root).dump_arguments(), args.criu_args.clone()].concat();
    preflight::check(roots, criu, told, args.preempt)
}

/// What a checkpoint took.
struct Frozen {
    reports: Vec<CheckpointReport>,
    criu_ms: f64,
    pre_copied: Option<PreCopyReport>,
    /// When the order to stop was given.
    stopped: Instant,
}

/// What is held for each member, by its pid, until it has its device back.
type HeldFiles = HashMap<i32, Arc<[OwnedFd]>>;

/// What is known of the members, and held for them.
#[derive(Clone, Copy)]
struct Members<'a> {
    known: &'a Known,
    files: &'a HeldFiles,
}

/// Has all let go of their devices, or none.
fn evacuate(
    args: &CheckpointArgs,
    party: &Party,
    parents: &Parents,
    directory: &Path,
    writing: Duration,
    known: &Known,
) -> Result<(Vec<CheckpointReport>, HeldFiles)> {
    let deadline = Duration::from_millis(args.deadline_ms);
    let order = |member: &Member| CheckpointOrder {
        parent: parents.get(&member.pid).cloned(),
        deadline_ms: args.deadline_ms,
        lease_ms: args.lease_ms,
        mode: if args.preempt { Mode::Preempt } else { Mode::Drain },
        write_deadline_ms: args.write_deadline_ms,
        self_contained: args.self_contained,
        outlives_controller: args.no_dump,
        hold_files: !args.no_dump,
        on_stranded: args.on_stranded,
        stranded_ms: args.stranded_ms,
        session: party.session(member, directory, deadline + writing),
        ..CheckpointOrder::into_directory(directory.join(&member.place))
    };
    let orders: Vec<_> = party.members().map(|member| (member.pid, order(member))).collect();
    let (mut reports, mut files, mut failures) = (Vec::new(), HeldFiles::new(), Vec::new());
    let answers = checkpoint_all(&orders, deadline + WRITING.max(writing));
    for ((pid, _), answer) in orders.iter().zip(answers) {
        match answer {
            Ok(evacuated) => {
                reports.push(evacuated.report);
                files.insert(*pid, evacuated.files.into());
            }
            Err(error) => failures.push(error),
        }
    }
    match cause(failures) {
        None => Ok((reports, files)),
        Some(error) if !party.is_session() && known.end_of_silent(party.trees[0].pid).is_none() => Err(error),
        Some(error) => {
            let resumed = resume_members(party, directory, &Members { known, files: &files }, true);
            Err(error.context(verdict(party, directory, known, resumed.err().as_ref())))
        }
    }
}

/// Orders all members that live to take their devices back, at the same time, since each waits for the others. After a
/// failure some members may still have their devices. A member that ends meanwhile is no failure.
fn resume_members(party: &Party, directory: &Path, members: &Members<'_>, after_failure: bool) -> Result<()> {
    let Members { known, files } = *members;
    let is_wanted =
        |pid: i32| known.end(pid).is_none() && !(after_failure && state(pid) == Some(State::Running));
    let trees = party.trees.iter().filter(|tree| !is_complete(tree, directory));
    let members = trees.flat_map(|tree| &tree.members).filter(|member| is_wanted(member.pid));
    let back = members.map(|member| {
        let files = files.get(&member.pid).cloned().unwrap_or_default();
        Return { pid: member.pid, files, directory: None, admission: None }
    });
    let back: Vec<_> = back.collect();
    // What counts is how it is in the end, whoever has seen to that.
    let failed = |(back, answer): (&Return, Result<_>)| {
        let error = answer.err().filter(|_| state(back.pid) != Some(State::Running))?;
        known.end_of_silent(back.pid).is_none().then_some((back.pid, error))
    };
    let answers = resume_all(&back, RESUMING);
    let mut failures: Vec<(i32, Error)> = back.iter().zip(answers).filter_map(failed).collect();
    let pids: Vec<_> = failures.iter().map(|(pid, _)| pid.to_string()).collect();
    match failures.pop() {
        None => Ok(()),
        Some((_, error)) if !party.is_session() => Err(error),
        Some((_, error)) => {
            Err(error.context(format!("Processes that did not come back: {}", pids.join(", "))))
        }
    }
}

fn state(pid: i32) -> Option<State> {
    call(pid, &Request::Status, STATUS).ok().map(|(state, _)| state)
}

/// The first failure among dumps.
fn blame(party: &Party, dumps: Vec<Result<(), CriuError>>) -> Option<Error> {
    let several = dumps.len() > 1;
    let failed = party.trees.iter().zip(dumps).filter_map(|(tree, dump)| Some((tree.pid, dump.err()?)));
    // The others fail because one did: their scripts were told to.
    let (pid, error) = failed.min_by_key(|(_, error)| matches!(error, CriuError::HeldBack))?;
    Some(if several {
        anyhow!(error).context(format!("The tree of process {pid} cannot be dumped"))
    } else {
        error.into()
    })
}

/// Whether nobody needs the images: they are not complete, and the processes have taken their contents back.
fn is_abandoned(party: &Party, directory: &Path) -> bool {
    let needed = party.members().any(|member| state(member.pid).is_some_and(|state| state != State::Running));
    let is_incomplete = |place: &Path| {
        matches!(Manifest::read(&directory.join(place)), Err(ManifestError::Incomplete { .. }))
    };
    !needed && party.trees.iter().all(|tree| is_incomplete(&tree.place))
}

/// Leaves only CRIU's logs of a failed checkpoint, or nothing where there are none; whether there is one.
pub fn clear_failed(directory: &Path) -> io::Result<bool> {
    let mut keeps = false;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_log = path.ends_with(Path::new(CRIU_DIRECTORY).join("dump.log"));
        match path.is_dir() {
            true => keeps |= clear_failed(&path)?,
            false if is_log => keeps = true,
            false => fs::remove_file(path)?,
        }
    }
    if !keeps {
        fs::remove_dir(directory)?;
    }
    Ok(keeps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_a_run_without_a_device_is_explained() {
        let explained = |variables: &[(&str, &str)]| {
            let mut child = preflight::sleep_with(variables);
            let pid = child.id().cast_signed();
            let error = explain(&[pid], call(pid, &Request::Status, STATUS).unwrap_err().into());
            child.kill().unwrap();
            child.wait().unwrap();
            error.to_string()
        };
        assert!(explained(&[]).contains("has no Stasis agent"));
        assert!(explained(&[(kfd::transport::run::SOCKET_VARIABLE, "made-up")]).contains("takes no orders"));
        assert_eq!(explain(&[i32::MAX], anyhow!("another reason")).to_string(), "another reason");
    }

    #[test]
    fn only_logs_stay_of_what_failed() {
        let temporary = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = temporary.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        make("one/session/7.table");
        make("one/7/criu/pages.img");
        make("one/7/criu/dump.log");
        make("one/9/criu/pages.img");
        make("other/criu/pages.img");
        assert!(clear_failed(&temporary.path().join("one")).unwrap());
        assert!(!clear_failed(&temporary.path().join("other")).unwrap());
        let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["one"]);
        let left: Vec<_> =
            fs::read_dir(temporary.path().join("one")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [temporary.path().join("one/7")]);
        let log = fs::read_dir(temporary.path().join("one/7/criu")).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(log.collect::<Vec<_>>(), ["dump.log"]);
    }
}
