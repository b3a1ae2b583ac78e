// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life of a job on one node: its program begins or goes on, is checkpointed, and ends or leaves.
//!
//! INVARIANT: the job is handed back to Slurm (requeued) only after its checkpoint is complete and its program gone, or when an
//! earlier checkpoint has to do; so no program runs twice from one checkpoint by this command's doing.

use std::ffi::OsString;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;
use stasis::checkpoint::IMAGE_FILE;

use super::SlurmArgs;
use super::epoch::{Claim, Epoch, Epochs};
use super::images::{self, Image};
use super::job::Job;
use super::pids;
use super::program::{self, From, Life, Program};
use super::signals::{Word, Words};
use crate::output;

/// The job's exit status when it has left its node to go on elsewhere (EX_TEMPFAIL of sysexits.h).
const LEFT: u8 = 75;
/// How often the program, and commands, are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often is looked whether the job was started again elsewhere.
const SUPERSEDED: Duration = Duration::from_secs(2);
/// How often a checkpoint, or a word to Slurm, is tried.
const ATTEMPTS: u32 = 3;
/// What is waited in between.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a job is given to another node because none of its images could be restored.
const FAILED_NODES: u32 = 3;

/// A job at work.
struct Work<'a> {
    args: &'a SlurmArgs,
    job: &'a Job,
    epochs: Epochs,
    epoch: Epoch,
    words: Words,
    program: Program,
}

/// How a checkpoint went.
enum Taken {
    Complete,
    /// It was given up for this word.
    Interrupted(Word),
}

/// Runs the program of a job to its end on this node; answers the job's exit status.
pub fn run(args: &SlurmArgs, job: &Job, root: &Path) -> Result<u8> {
    // First: a word that comes while the program is restored counts.
    let words = Words::listen()?;
    set_child_subreaper(true).context("Cannot become the parent of restored processes")?;
    let epochs = Epochs::open(&root.join(&job.key))?;
    let epoch = epochs.begin()?;
    let devices = job.devices();
    let mut claim = Claim { node: job.node.clone(), pid: std::process::id(), ..Claim::default() };
    let program = match restore(job, &epochs, &epoch, devices.as_deref().unwrap_or_default())? {
        Origin::Image(program, pipes) => {
            claim.pipes = pipes;
            program
        }
        Origin::Elsewhere => return Ok(LEFT),
        Origin::Beginning => {
            say(job, format_args!("begins ({})", epoch.directory.display()));
            pids::place(&job.key);
            let (program, pipes) = Program::start(&args.command, &settings(job, devices.as_deref()))?;
            claim.pipes = pipes;
            program
        }
    };
    epoch.note(&claim).inspect_err(|_| program.kill())?;
    Work { args, job, epochs, epoch, words, program }.last()
}

/// Where a program comes from.
enum Origin {
    Beginning,
    /// An image; the inodes of its pipes.
    Image(Program, [u64; 2]),
    /// It cannot be restored here, and was given to another node.
    Elsewhere,
}

/// Restores the newest image that can be restored.
fn restore(job: &Job, epochs: &Epochs, epoch: &Epoch, devices: &[u32]) -> Result<Origin> {
    let mut failures = Vec::new();
    for earlier in epochs.before(epoch)? {
        let images = earlier.images();
        if images.is_empty() {
            continue;
        }
        let claim = earlier.claim()?;
        for Image { directory, .. } in &images {
            let from = From { image: directory, pipes: claim.pipes, devices };
            match Program::restore(from) {
                Ok((program, pipes)) => {
                    say(job, format_args!("goes on from {}", directory.display()));
                    return Ok(Origin::Image(program, pipes));
                }
                Err(error) => {
                    say(job, format_args!("cannot be restored from {}: {error:#}", directory.display()));
                    failures.push((earlier.clone(), claim.clone(), error));
                }
            }
        }
    }
    let Some((earlier, claim, error)) = failures.into_iter().next() else { return Ok(Origin::Beginning) };
    let failed = claim.failed + 1;
    earlier.note(&Claim { failed, ..claim })?;
    if failed < FAILED_NODES && !epochs.is_superseded(epoch) && requeue(job) {
        say(job, format_args!("is given to another node ({failed} of {FAILED_NODES} could not restore it)"));
        return Ok(Origin::Elsewhere);
    }
    Err(error.context(format!(
        "Job {} could not be restored from any image in {}, which are kept: mend what is said below, then `scontrol requeue {}`",
        job.id,
        earlier.directory.display(),
        job.id
    )))
}

/// What the program's environment has beyond this one's.
fn settings(job: &Job, devices: Option<&[u32]>) -> Vec<(&'static str, String)> {
    let mut settings = vec![("STASIS_SOFTGPU_INSTANCE", format!("slurm-{}", job.key))];
    if let Some(devices) = devices {
        let list: Vec<String> = devices.iter().map(u32::to_string).collect();
        settings.push(("ROCR_VISIBLE_DEVICES", list.join(",")));
    }
    settings.retain(|(name, _)| std::env::var_os(name).is_none());
    settings
}

/// Has Slurm start the job again, whatever it takes; whether it will.
fn requeue(job: &Job) -> bool {
    for attempt in 1..=ATTEMPTS {
        match job.requeue() {
            Ok(()) => return true,
            Err(error) => {
                say(job, format_args!("is not requeued (attempt {attempt} of {ATTEMPTS}): {error:#}"))
            }
        }
        if attempt < ATTEMPTS {
            sleep(PAUSE);
        }
    }
    false
}

fn say(job: &Job, text: impl std::fmt::Display) {
    output::complain(format_args!("stasis: job {} {text}\n", job.id));
}

impl Work<'_> {
    /// Until the program ends, or the job leaves.
    fn last(self) -> Result<u8> {
        let mut next = self.args.every.map(|every| Instant::now() + every);
        let mut looked = Instant::now();
        let mut waiting = None;
        loop {
            let word = waiting.take().or_else(|| self.words.within(LOOK));
            if let Life::Ended(code) = self.program.look() {
                return self.end(code);
            }
            if looked.elapsed() >= SUPERSEDED {
                looked = Instant::now();
                if self.epochs.is_superseded(&self.epoch) {
                    self.program.kill();
                    bail!("Job {} was started again elsewhere: it is ended here", self.job.id);
                }
            }
            match word {
                None => {}
                Some(Word::Interrupt) => self.program.tell(Signal::SIGINT),
                Some(word) if self.is_cancelled(word) => {
                    say(self.job, "is cancelled");
                    self.program.tell(Signal::SIGTERM);
                }
                Some(_) => {
                    if let Some(code) = self.leave()? {
                        return Ok(code);
                    }
                }
            }
            if next.is_some_and(|next| Instant::now() >= next) {
                match self.checkpoint(true) {
                    Ok(Taken::Complete) => images::tidy(&self.epoch.directory),
                    Ok(Taken::Interrupted(word)) => waiting = Some(word),
                    // The loop tells how.
                    Err(_) if self.program.look() != Life::Runs => {}
                    Err(error) => say(self.job, format_args!("is not checkpointed and runs on: {error:#}")),
                }
                next = self.args.every.map(|every| Instant::now() + every);
            }
            self.program.collect_others();
        }
    }

    /// Whether the word means that the job is not to start again.
    fn is_cancelled(&self, word: Word) -> bool {
        // Slurm's configuration, or the user, has asked for the other signal: it never cancels by that.
        word == Word::End
            && self.job.is_cancelled().unwrap_or_else(|error| {
                say(self.job, format_args!("is taken for one that goes on: {error:#}"));
                false
            })
    }

    /// The program has ended by itself.
    fn end(self, code: u8) -> Result<u8> {
        self.program.finish();
        // What was checkpointed is of use only if the program may be tried again.
        if code == 0
            && let Err(error) = self.epochs.remove()
        {
            say(self.job, format_args!("is complete, but its images could not be removed: {error}"));
        }
        Ok(code)
    }

    /// Checkpoints the program and has Slurm start the job elsewhere; answers the job's exit status, or nothing if the program runs
    /// on because it could not be checkpointed and never was.
    fn leave(&self) -> Result<Option<u8>> {
        say(self.job, "is asked to leave");
        let mut is_complete = false;
        for attempt in 1..=ATTEMPTS {
            match self.checkpoint(false) {
                Ok(_) => {
                    is_complete = true;
                    break;
                }
                Err(error) => {
                    say(
                        self.job,
                        format_args!("is not checkpointed (attempt {attempt} of {ATTEMPTS}): {error:#}"),
                    );
                    if self.program.look() != Life::Runs {
                        // The loop tells how.
                        return Ok(None);
                    }
                    sleep(PAUSE);
                }
            }
        }
        if !is_complete {
            let has_image = !self.epoch.images().is_empty()
                || self.epochs.before(&self.epoch)?.iter().any(|epoch| !epoch.images().is_empty());
            if !has_image {
                say(self.job, "runs on as long as it may: there is no checkpoint that it could go on from");
                return Ok(None);
            }
            say(self.job, "will go on from an earlier checkpoint");
            self.program.kill();
        }
        while self.program.look() == Life::Runs {
            sleep(LOOK);
        }
        images::tidy(&self.epoch.directory);
        if self.epochs.is_superseded(&self.epoch) {
            bail!("Job {} was started again elsewhere: it is not requeued from here", self.job.id);
        }
        if requeue(self.job) {
            say(self.job, format_args!("is in {} and requeued", self.epoch.directory.display()));
        } else {
            let directory = self.epoch.directory.display();
            say(self.job, format_args!("is in {directory}: `scontrol requeue {}` has it go on", self.job.id));
        }
        Ok(Some(LEFT))
    }

    /// Checkpoints the program; it runs on afterwards, or is gone. One after which it runs on is given up when Slurm sends a word.
    fn checkpoint(&self, runs_on: bool) -> Result<Taken> {
        let mut options: Vec<OsString> = self.args.criu.arguments().into_iter().map(OsString::from).collect();
        options.push(format!("--deadline-ms={}", self.args.deadline_ms).into());
        let wanted = [("--leave-running", runs_on), ("--preempt", self.args.preempt)];
        options.extend(wanted.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| name.into()));
        if let Some(parent) = self.epoch.images().first().filter(|image| has_parents(&image.directory)) {
            options.extend(["--parent".into(), parent.directory.clone().into_os_string()]);
        }
        let mut errors = tempfile::tempfile().context("Cannot make a file for messages")?;
        let said = errors.try_clone().context("Cannot make a file for messages")?;
        let mut child = self.program.checkpoint(&self.epoch.next_image(), &options, said)?;
        let (status, word) = self.wait(&mut child, runs_on)?;
        let mut text = Vec::new();
        errors.rewind().and_then(|()| errors.read_to_end(&mut text)).context("Cannot read messages")?;
        match (program::outcome(status, &text), word) {
            (Err(_), Some(word)) => Ok(Taken::Interrupted(word)),
            (Ok(()), Some(word)) if runs_on => Ok(Taken::Interrupted(word)),
            (outcome, _) => outcome.map(|()| Taken::Complete),
        }
    }

    fn wait(&self, child: &mut Child, gives_up: bool) -> Result<(std::process::ExitStatus, Option<Word>)> {
        let mut word = None;
        loop {
            if let Some(status) = child.try_wait().context("Cannot wait for stasis checkpoint")? {
                return Ok((status, word));
            }
            match self.words.within(LOOK) {
                Some(Word::Interrupt) => self.program.tell(Signal::SIGINT),
                Some(new) if gives_up && word.is_none() => {
                    word = Some(new);
                    // It undoes what it has done; the program runs on.
                    let _ = program::signal(child.id().cast_signed(), Signal::SIGTERM);
                }
                _ => {}
            }
        }
    }
}

/// Whether a checkpoint can be made upon this one: it is of a process with a runtime, not of one under `stasis run`.
fn has_parents(image: &Path) -> bool {
    let entries = std::fs::read_dir(image).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name == IMAGE_FILE || name.starts_with("runtime-")
    })
}
