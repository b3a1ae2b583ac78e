// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore`: CRIU thaws, the agents come back, all at the same time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use stasis::checkpoint::{Admission, Ended, RestoreReport};
use stasis::criu::{CRIU_DIRECTORY, Manifest, OpenDirectory, Trust, open_image};
use stasis::image::memory_is_ample;
use stasis_criu::Criu;

use super::args::RestoreArgs;
use super::check;
use super::claim::{Claim, Presence};
use super::fate::{Known, list};
use super::orders::{Return, resume_all};
use super::outcome::{RestoreOutcome, Row, sum_restored};
use crate::progress::{milliseconds, spinner};
use crate::{beside, output};

/// TIMEOUT: what is left at least of the deadline when CRIU has done its part: processes that are there are asked.
const LEAST: Duration = Duration::from_secs(1);

/// Brings processes back from a directory.
pub fn run(args: &RestoreArgs) -> Result<()> {
    match args.beside {
        true if std::process::id() != 1 => beside::enter(args),
        true => {
            beside::furnish()?;
            beside::stay(&[args.finish(thaw(args))?])
        }
        false => args.finish(thaw(args)).map(drop),
    }
}

/// Brings the tree back; returns the pid of its root.
fn thaw(args: &RestoreArgs) -> Result<i32> {
    let place = args.place();
    let directory = place
        .canonicalize()
        .with_context(|| format!("Cannot find the checkpoint directory {}", place.display()))?;
    tree(args, &OpenDirectory::open(&directory, args.trust())?)
}

/// Brings one tree back; returns the pid of its root.
fn tree(args: &RestoreArgs, opened: &OpenDirectory) -> Result<i32> {
    let started = Instant::now();
    let directory = opened.path();
    let manifest = Manifest::read_in(opened)?;
    let runtimes = manifest.runtimes(directory);
    let admission = args.terms.admission()?;
    let is_lazy = args.terms.lazy.is_some();
    let bar = spinner(args.json);
    // At the same time: a CRIU is started to say its version.
    let finding = thread::Builder::new().spawn(Criu::find);
    let checked = check::all(&manifest, opened, args.no_verify, is_lazy, &bar);
    if !manifest.is_sealed() && checked.is_ok() {
        bar.suspend(|| eprintln!("Warning: {}", check::unlisted(&manifest, directory)));
    }
    checked?;
    let is_unread = is_lazy || args.no_verify;
    let ahead = is_unread.then(|| Ahead::start(directory.into(), args.trust(), &manifest)).flatten();
    let criu = match finding {
        Ok(finding) => finding.join().map_err(|_| anyhow!("Looking for CRIU failed"))??,
        Err(_) => Criu::find()?,
    };
    bar.set_message("waiting for the pid");
    let others = runtimes.iter().map(|(pid, _)| *pid).filter(|pid| *pid != manifest.pid);
    let images = directory.join(CRIU_DIRECTORY);
    let pids = || std::iter::once(manifest.pid).chain(others.clone());
    let places = runtimes.iter().map(|(_, directory)| directory.as_path());
    let limit = args.deadline(places.chain([images.as_path()]));
    let claim = Claim {
        manifest: &manifest,
        runtimes: &runtimes,
        admission: &admission,
        joins: args.join,
        deadline: started + limit,
    };
    let (standing, presence) = claim.stake()?;
    let criu_started = Instant::now();
    if presence == Presence::None {
        bar.set_message("CRIU restores the process");
        let made = criu.restore(&images, &manifest.options, &args.criu_args, pids().collect(), limit);
        // A CRIU whose controller was killed may have been faster.
        if made.is_err() && !claim.is_overtaken()? {
            made?;
        }
    }
    // Without `lazy`, all of it is read now by the processes themselves.
    let ahead = ahead.filter(|_| is_lazy);
    let known = Known::of(pids());
    let criu_ms = milliseconds(criu_started);
    bar.set_message("the process rebuilds its device");
    let patience = limit.saturating_sub(criu_started.elapsed()).max(LEAST);
    let reports = resume_restored(&runtimes, &admission, &known, patience);
    drop((standing, ahead));
    bar.finish_and_clear();
    let reports = reports?;
    let ended = judge_ended(&known, manifest.pid, directory)?;
    let how = |pid: i32| ended.iter().find(|(dead, _)| *dead == pid).map(|(_, how)| how.to_string());
    let row = |((pid, _), report): (&(i32, PathBuf), &RestoreReport)| Row {
        pid: *pid,
        tree: manifest.pid,
        ended: how(*pid),
        report: report.clone(),
    };
    let is_plain = manifest.members.is_empty();
    let rows = runtimes.iter().zip(&reports).filter(|_| !is_plain).map(row);
    let stopped = args.obtained.as_ref().and_then(|obtained| obtained.stopped);
    let outcome = RestoreOutcome {
        pid: manifest.pid,
        stopped_ms: stopped.map(milliseconds),
        restore_ms: milliseconds(started),
        criu_ms,
        ended: how(manifest.pid),
        report: sum_restored(reports.iter()),
        processes: rows.collect(),
    };
    if args.json {
        output::report(serde_json::to_string(&outcome)? + "\n");
    } else {
        output::report(outcome.prose());
    }
    Ok(manifest.pid)
}

/// A thread that brings contents into the page cache until this is dropped, while the process that will read them is not there yet.
#[derive(Debug)]
struct Ahead(Arc<AtomicBool>);

impl Ahead {
    /// Reads the images in `directory`, one behind the other. What cannot be read is no error here: their processes read it, too. None
    /// if there is no thread.
    fn start(directory: PathBuf, trust: Trust, manifest: &Manifest) -> Option<Self> {
        let names: Vec<String> = manifest.image_names().collect();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let is_wanted = move || !seen.load(Ordering::Relaxed);
        let read = move || {
            if let Err(error) = kfd::linux::be_idle() {
                tracing::debug!(%error, "contents are read ahead at the usual priority");
            }
            let Ok(opened) = OpenDirectory::open(&directory, trust) else { return };
            for name in names.iter().take_while(|_| is_wanted()) {
                let Ok(image) = open_image(&opened, name) else { return };
                image.read_ahead(&is_wanted);
            }
        };
        let thread = memory_is_ample().then(|| thread::Builder::new().spawn(read));
        matches!(thread, Some(Ok(_))).then_some(Self(ended))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Orders all restored processes to take their devices; the error names those that live and do not.
fn resume_restored(
    runtimes: &[(i32, PathBuf)],
    admission: &Admission,
    known: &Known,
    patience: Duration,
) -> Result<Vec<RestoreReport>> {
    let back = runtimes.iter().map(|(pid, directory)| Return {
        pid: *pid,
        files: Arc::default(),
        directory: Some(directory.clone()),
        admission: Some(admission.clone()),
    });
    let answers = resume_all(&back.collect::<Vec<_>>(), patience);
    let mut reports = Vec::new();
    let mut failures: Vec<(&(i32, PathBuf), Error)> = Vec::new();
    for (runtime, answer) in runtimes.iter().zip(answers) {
        match answer {
            Ok(report) => reports.push(report),
            // It may have come back by itself and ended before it could be asked; or it was killed.
            Err(_) if known.end_of_silent(runtime.0).is_some() => reports.push(RestoreReport::default()),
            Err(error) => failures.push((runtime, error)),
        }
    }
    let others: Vec<_> = failures.iter().skip(1).map(|((pid, _), error)| format!("{pid}: {error}")).collect();
    let Some(((pid, directory), error)) = failures.into_iter().next() else { return Ok(reports) };
    let mut text = format!(
        "Process {pid} is restored but its gate stays shut; its contents are kept in {}, so the same `stasis restore` of \
         the device can be tried again with `stasis resume {pid}`",
        directory.display()
    );
    if !others.is_empty() {
        text.push_str(&format!(". The same of {}", others.join("; ")));
    }
    Err(error.context(text))
}

/// Those that have ended since they were restored, by themselves and content, or as their parent in the tree knows.
///
/// # Errors
/// When one was killed or failed, or it is the root and nobody can say how it ended.
fn judge_ended(known: &Known, root: i32, directory: &Path) -> Result<Vec<(i32, Ended)>> {
    let ended = known.ended();
    let is_content = |(pid, how): &(i32, Ended)| match how {
        Ended::Exited(code) => *code == 0,
        Ended::Unknown => *pid != root && known.end(root).is_none(),
        Ended::Killed(_) => false,
    };
    let failed: Vec<_> = ended.iter().copied().filter(|end| !is_content(end)).collect();
    if !failed.is_empty() {
        bail!(
            "Restored, processes have ended: {}; the checkpoint in {} is as it was and can be restored again",
            list(&failed),
            directory.display()
        );
    }
    Ok(ended)
}
