// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills the process, the controller, CRIU, the software device or a keeper of the render files before or after any
//! system call of a checkpoint and of a restore. Afterwards the process lives and computes correctly, or can be
//! restored from its newest complete checkpoint.
//!
//! A sample of the points is tried, drawn with STASIS_SEED; STASIS_KILL_POINTS=N makes it N a scenario, =all every one.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Stdio;

use stasis_tests::gpu::{Numbers, skip_on_kernel_driver};
use stasis_tests::sample::{seed, setting};
use stasis_tests::stepper::{Act, Role, Stop, walk};
use stasis_tests::survivor::{Outcome, Survivor};
use stasis_tests::worker::{Worker, is_alive, kill, parent};

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Process,
    Controller,
    Criu,
    /// The executor of `softgpud` that has the process's memory; its broker lives on.
    Executor,
    /// All of `softgpud`.
    Device,
    /// One of the two processes that keep its render files.
    Keeper,
}

const VICTIMS: [Victim; 6] =
    [Victim::Process, Victim::Controller, Victim::Criu, Victim::Executor, Victim::Device, Victim::Keeper];

/// The operation during which it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    LeaveRunning,
    Freeze,
    /// Of a process whose contents are copied before.
    PreCopy,
    Restore,
    /// Of a process whose contents come while it runs.
    LazyRestore,
}

/// Points of a scenario that are tried unless more are asked for.
const SAMPLE: u64 = 8;

impl Victim {
    /// Kills it. Returns whether there was such a process.
    fn kill(self, worker: &Worker, controller: i32, criu: Option<i32>) -> bool {
        let devices = || worker.devices();
        let victims: Vec<i32> = match self {
            Self::Process => vec![worker.pid()],
            Self::Controller => vec![controller],
            Self::Criu => criu.into_iter().collect(),
            Self::Device => devices(),
            Self::Keeper => worker.keepers().into_iter().take(1).collect(),
            Self::Executor => {
                let all = devices();
                all.iter().copied().filter(|&pid| parent(pid).is_some_and(|p| all.contains(&p))).collect()
            }
        };
        let alive: Vec<i32> = victims.into_iter().filter(|&pid| is_alive(pid)).collect();
        alive.iter().copied().for_each(kill);
        !alive.is_empty()
    }
}

/// The result of a point.
struct Point {
    stops: u64,
    /// The stops while CRIU was at work.
    criu: Range<u64>,
    /// Where the victim was killed; `None` if the command ended first, or there was no victim.
    killed_at: Option<Stop>,
    outcome: Outcome,
}

/// Runs the operation once and kills `victim` at stop `at`, or at the first later stop where it exists.
fn point(survivor: &mut Survivor, verb: Verb, kill: Option<(Victim, u64)>) -> Point {
    let (name, mut command) = match verb {
        Verb::Restore | Verb::LazyRestore => {
            let name = survivor.freeze();
            let more: &[&str] = if verb == Verb::LazyRestore { &["--lazy"] } else { &[] };
            let command = survivor.command("restore", &name, more);
            (name, command)
        }
        Verb::LeaveRunning | Verb::Freeze | Verb::PreCopy => {
            let name = survivor.next_name();
            let more: &[&str] = match verb {
                Verb::LeaveRunning => &["--leave-running"],
                Verb::PreCopy => &["--pre-copy"],
                _ => &[],
            };
            let command = survivor.command("checkpoint", &name, more);
            (name, command)
        }
    };
    let log = std::fs::File::create(survivor.worker().path("command.log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let (mut killed_at, mut controller, mut criu) = (None, None, None::<Range<u64>>);
    let worker = survivor.worker();
    let walked = walk(&mut command, worker.pid(), &mut |stop| {
        if stop.role == Role::Controller && controller.is_none() {
            controller = Some(stop.thread);
        }
        if stop.criu.is_some() {
            criu.get_or_insert(stop.number..stop.number).end = stop.number + 1;
        }
        match (kill, controller) {
            (Some((victim, at)), Some(controller)) if stop.number >= at => {
                if victim.kill(worker, controller, stop.criu) {
                    killed_at = Some(*stop);
                    Act::LetGo
                } else {
                    Act::Step
                }
            }
            _ => Act::Step,
        }
    });
    if kill.is_none() {
        let said = std::fs::read_to_string(worker.path("command.log")).unwrap();
        assert_eq!(walked.succeeded, Some(true), "undisturbed, it fails: {said}");
    }
    let outcome = survivor.recover(&name);
    Point { stops: walked.stops, criu: criu.unwrap_or(0..0), killed_at, outcome }
}

fn scenario(verb: Verb) {
    if skip_on_kernel_driver("it kills softgpud") {
        return;
    }
    let mut survivor = Survivor::start(&["--threads", "2"]);
    survivor.checkpoint();
    let Point { stops, criu, .. } = point(&mut survivor, verb, None);
    assert!(stops > 500 && criu.clone().count() > 500, "{stops} stops, of CRIU {criu:?}: nothing was walked");
    let seed = seed();
    let all = std::env::var("STASIS_KILL_POINTS").is_ok_and(|value| value == "all");
    let count = setting("STASIS_KILL_POINTS").unwrap_or(SAMPLE);
    println!("{verb:?}: {stops} stops, with CRIU {criu:?}, seed {seed}");
    // A process that always exists can be killed at any stop.
    let range = |victim| if victim == Victim::Criu { criu.clone() } else { 0..stops };
    // A restored process has opened its render files itself: there are no keepers.
    let is_restore = matches!(verb, Verb::Restore | Verb::LazyRestore);
    let victims = || VICTIMS.into_iter().filter(|victim| !is_restore || *victim != Victim::Keeper);
    let points: Vec<(Victim, u64)> = if all {
        victims().flat_map(|victim| range(victim).map(move |at| (victim, at))).collect()
    } else {
        let drawn = Numbers(seed ^ (verb as u64) << 32).map(u64::from);
        let points = victims().cycle().zip(drawn).map(|(victim, drawn)| {
            let range = range(victim);
            (victim, range.start + drawn % (range.end - range.start))
        });
        points.take(count as usize).collect()
    };
    let mut outcomes: BTreeMap<(Victim, Option<Outcome>), u64> = BTreeMap::new();
    for (victim, at) in points {
        let shown = format!("{verb:?}, {victim:?} killed at stop {at} of {stops}");
        let guard = Said(&shown);
        let done = point(&mut survivor, verb, Some((victim, at)));
        if let (Some(stop), true) = (&done.killed_at, count != SAMPLE || all) {
            println!(
                "{shown}: {:?} {} call {}: {:?}",
                stop.role,
                if stop.is_entry { "before" } else { "after" },
                stop.call,
                done.outcome
            );
        }
        *outcomes.entry((victim, done.killed_at.map(|_| done.outcome))).or_default() += 1;
        std::mem::forget(guard);
    }
    for ((victim, outcome), count) in &outcomes {
        let outcome = outcome.map_or_else(|| "there was none".to_owned(), |outcome| format!("{outcome:?}"));
        println!("{verb:?} {victim:?}: {outcome} {count}");
    }
    survivor.finish();
}

/// Says at which point a test failed.
struct Said<'a>(&'a str);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        println!("FAILED: {}", self.0);
    }
}

#[test]
fn checkpoint_that_leaves_the_process_running() {
    scenario(Verb::LeaveRunning);
}

#[test]
fn checkpoint() {
    scenario(Verb::Freeze);
}

#[test]
fn restore() {
    scenario(Verb::Restore);
}

#[test]
fn checkpoint_after_a_pre_copy() {
    scenario(Verb::PreCopy);
}

#[test]
fn lazy_restore() {
    scenario(Verb::LazyRestore);
}
