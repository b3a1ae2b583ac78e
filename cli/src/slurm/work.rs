// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life of a job on one node: its program begins or goes on, is checkpointed, and ends or leaves.
//!
//! INVARIANT: the job is handed back to Slurm (requeued) only after its checkpoint is complete and its program gone, or when an
//! earlier checkpoint has to do; so no program runs twice from one checkpoint by this command's doing.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;

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
/// How many starts in a row may fail to restore any image.
const FAILED_STARTS: u32 = 3;
/// TIMEOUT: how much sooner than this process the program may end by a signal that both were sent.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

/// A job at work.
struct Work<'a> {
    args: &'a SlurmArgs,
    job: &'a Job,
    epochs: Epochs,
    epoch: Epoch,
    words: Words,
    program: Program,
    /// Whether Slurm has sent what it also sends to jobs that are cancelled.
    ends: Cell<bool>,
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
    if job.is_first_start
        && let Some(aside) = epochs.put_aside()?
    {
        say(
            job,
            format_args!("was another one's number before, whose checkpoints are in {}", aside.display()),
        );
    }
    let epoch = epochs.begin()?;
    let devices = job.devices();
    let mut claim = Claim { node: job.node.clone(), pid: std::process::id(), ..Claim::default() };
    let restoring = Restoring { job, epochs: &epochs, epoch: &epoch, words: &words };
    let program = match restoring.restore(devices.as_deref().unwrap_or_default(), &mut claim)? {
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
    Work { args, job, epochs, epoch, words, program, ends: Cell::new(false) }.last()
}

/// Where a program comes from.
enum Origin {
    Beginning,
    /// An image; the inodes of its pipes.
    Image(Program, [u64; 2]),
    /// It cannot be restored here, and was given back to Slurm.
    Elsewhere,
}

/// A start that looks for images.
struct Restoring<'a> {
    job: &'a Job,
    epochs: &'a Epochs,
    epoch: &'a Epoch,
    words: &'a Words,
}

impl Restoring<'_> {
    /// Restores the newest image that can be restored. How many starts have failed to is noted in `claim`.
    fn restore(&self, devices: &[u32], claim: &mut Claim) -> Result<Origin> {
        let job = self.job;
        let before = self.epochs.before(self.epoch)?;
        let mut newest_error = None;
        for earlier in &before {
            let images = earlier.images()?;
            if images.is_empty() {
                continue;
            }
            let found = match earlier.claim() {
                Ok(found) => found,
                Err(error) => {
                    say(job, format_args!("has checkpoints that cannot be used: {error:#}"));
                    newest_error.get_or_insert(error);
                    continue;
                }
            };
            for Image { directory, .. } in &images {
                let from = From { image: directory, pipes: found.pipes, devices };
                match Program::restore(from) {
                    Ok((program, pipes)) => {
                        say(job, format_args!("goes on from {}", directory.display()));
                        return Ok(Origin::Image(program, pipes));
                    }
                    Err(error) => {
                        say(job, format_args!("cannot be restored from {}: {error:#}", directory.display()));
                        // What Slurm sends may have ended the restore: an older image is not wanted for that.
                        if let Some(word) = self.words.within(Duration::ZERO) {
                            return self.give_back(word);
                        }
                        newest_error.get_or_insert(error);
                    }
                }
            }
        }
        let Some(error) = newest_error else { return Ok(Origin::Beginning) };
        // The last start has noted it, if it came so far.
        let failed_before =
            before.iter().find_map(|earlier| earlier.claim().ok()).map_or(0, |claim| claim.failed);
        claim.failed = failed_before + 1;
        self.epoch.note(claim)?;
        if claim.failed < FAILED_STARTS && !self.epochs.is_superseded(self.epoch) && requeue(job) {
            say(
                job,
                format_args!(
                    "is given back ({} of {FAILED_STARTS} starts could not restore it)",
                    claim.failed
                ),
            );
            return Ok(Origin::Elsewhere);
        }
        Err(error.context(format!(
            "Job {} could not be restored from any image, which are kept: mend what is said below, then `scontrol requeue {}`",
            job.id, job.id
        )))
    }

    /// The job has to leave before it was there.
    fn give_back(&self, word: Word) -> Result<Origin> {
        if word == Word::End && is_cancelled(self.job) {
            bail!("Job {} is cancelled while it is restored; its checkpoints are kept", self.job.id);
        }
        if !self.epochs.is_superseded(self.epoch) && requeue(self.job) {
            say(self.job, "has to leave while it is restored, and is requeued");
        }
        Ok(Origin::Elsewhere)
    }
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

/// Whether the job is not to start again. One that cannot be asked about is kept.
fn is_cancelled(job: &Job) -> bool {
    job.is_cancelled().unwrap_or_else(|error| {
        say(job, format_args!("is taken for one that goes on: {error:#}"));
        false
    })
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
            let word = waiting.take().or_else(|| self.hear(LOOK));
            if looked.elapsed() >= SUPERSEDED {
                looked = Instant::now();
                self.end_if_superseded()?;
            }
            if let Life::Ended(code) = self.program.look() {
                return self.end(code, word);
            }
            match word {
                None => {}
                Some(Word::Interrupt) => self.program.tell(Signal::SIGINT),
                Some(Word::End) if is_cancelled(self.job) => {
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
                    Ok(Taken::Complete) => self.tidy(),
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

    /// A word, if one comes within this time.
    fn hear(&self, time: Duration) -> Option<Word> {
        let word = self.words.within(time);
        self.ends.set(self.ends.get() || word == Some(Word::End));
        word
    }

    fn tidy(&self) {
        images::tidy(&self.epoch.directory);
        if !self.epochs.is_superseded(&self.epoch) {
            self.epochs.tidy(&self.epoch);
        }
    }

    /// Ends the program if the job goes on elsewhere.
    fn end_if_superseded(&self) -> Result<()> {
        if self.epochs.is_superseded(&self.epoch) {
            self.program.kill();
            bail!("Job {} was started again elsewhere: it is ended here", self.job.id);
        }
        Ok(())
    }

    /// The program has ended by itself, or by a signal that all processes of the job were sent.
    fn end(self, code: u8, mut word: Option<Word>) -> Result<u8> {
        self.program.finish();
        // It may have been faster than this process.
        word = word.or_else(|| self.hear(SAME_SIGNAL));
        self.end_if_superseded()?;
        // By SIGTERM a program may end well, and not be complete.
        let was_told = self.ends.get() || word == Some(Word::End);
        if was_told && !is_cancelled(self.job) {
            if self.has_image()? && requeue(self.job) {
                say(self.job, "was ended by Slurm's signal, and goes on from its last checkpoint");
                return Ok(LEFT);
            }
            return Ok(code);
        }
        // What was checkpointed is of use only if the program may be tried again.
        if code == 0
            && !was_told
            && let Err(error) = self.epochs.remove()
        {
            say(self.job, format_args!("is complete, but its images could not be removed: {error}"));
        }
        Ok(code)
    }

    /// Whether there is anything that the job could go on from.
    fn has_image(&self) -> Result<bool> {
        let mut all = vec![self.epoch.clone()];
        all.extend(self.epochs.before(&self.epoch)?);
        for epoch in all {
            if !epoch.images()?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checkpoints the program and has Slurm start the job elsewhere; answers the job's exit status, or nothing if the program runs
    /// on because it could not be checkpointed and never was, or has ended.
    fn leave(&self) -> Result<Option<u8>> {
        say(self.job, "is asked to leave");
        let mut is_complete = false;
        for attempt in 1..=ATTEMPTS {
            match self.checkpoint(false) {
                Ok(_) => {
                    is_complete = true;
                    break;
                }
                // The loop tells how.
                Err(_) if self.program.look() != Life::Runs => return Ok(None),
                Err(error) => {
                    say(
                        self.job,
                        format_args!("is not checkpointed (attempt {attempt} of {ATTEMPTS}): {error:#}"),
                    );
                    sleep(PAUSE);
                }
            }
        }
        if !is_complete {
            if !self.has_image()? {
                say(self.job, "runs on as long as it may: there is no checkpoint that it could go on from");
                return Ok(None);
            }
            say(self.job, "will go on from an earlier checkpoint");
            self.program.kill();
        }
        while self.program.look() == Life::Runs {
            sleep(LOOK);
        }
        // Slurm ends this process once the job is requeued.
        self.program.finish();
        self.tidy();
        if self.epochs.is_superseded(&self.epoch) {
            bail!("Job {} was started again elsewhere: it is not requeued from here", self.job.id);
        }
        let directory = self.epoch.directory.display();
        // The job may have been cancelled meanwhile.
        while self.hear(Duration::ZERO).is_some() {}
        if self.ends.get() && is_cancelled(self.job) {
            say(self.job, format_args!("is cancelled; its checkpoint is in {directory}"));
        } else if requeue(self.job) {
            say(self.job, format_args!("is in {directory} and requeued"));
        } else {
            say(self.job, format_args!("is in {directory}: `scontrol requeue {}` has it go on", self.job.id));
        }
        Ok(Some(LEFT))
    }

    /// Checkpoints the program; it runs on afterwards, or is gone. One after which it runs on is given up when Slurm sends a word.
    fn checkpoint(&self, runs_on: bool) -> Result<Taken> {
        let images = self.epoch.images()?;
        // Programs under `stasis run` have no parents.
        let Some(parent) = images.first().filter(|image| !Image::runtimes(&image.directory).is_empty())
        else {
            return self.checkpoint_upon(runs_on, None);
        };
        // The earlier image may be of processes that have ended, or damaged, or its file system may have no links.
        match self.checkpoint_upon(runs_on, Some(parent)) {
            Err(error) if self.program.look() == Life::Runs => {
                say(
                    self.job,
                    format_args!("is checkpointed whole: upon {}: {error:#}", parent.directory.display()),
                );
                self.checkpoint_upon(runs_on, None)
            }
            taken => taken,
        }
    }

    fn checkpoint_upon(&self, runs_on: bool, parent: Option<&Image>) -> Result<Taken> {
        let mut options: Vec<OsString> = self.args.criu.arguments().into_iter().map(OsString::from).collect();
        options.push(format!("--deadline-ms={}", self.args.deadline_ms).into());
        let wanted = [("--leave-running", runs_on), ("--preempt", self.args.preempt)];
        options.extend(wanted.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| name.into()));
        options.extend(
            parent.into_iter().flat_map(|parent| ["--parent".into(), parent.directory.clone().into()]),
        );
        let mut errors = tempfile::tempfile().context("Cannot make a file for messages")?;
        let said = errors.try_clone().context("Cannot make a file for messages")?;
        let mut child = self.program.checkpoint(&self.epoch.next_image()?, &options, said)?;
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
            match self.hear(LOOK) {
                Some(Word::Interrupt) => self.program.tell(Signal::SIGINT),
                Some(new) if gives_up && word.is_none() => {
                    word = Some(new);
                    // It undoes what it has done; the program runs on.
                    let _ = program::signal(child.id().cast_signed(), Signal::SIGINT);
                }
                _ => {}
            }
        }
    }
}
