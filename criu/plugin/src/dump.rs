// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu dump`: before CRIU freezes the first process, all processes of the tree that have an agent close their
//! devices.
//!
//! INVARIANT: the plugin calls agents only while no process of the tree is frozen, that is in the first `PAUSE_DEVICES`
//! hook and when CRIU ends: a frozen process does not answer. From the first hook on every checkpointed process has a
//! lease: even if CRIU is killed the process resumes, unless the dump has killed it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stasis::checkpoint::{CheckpointOrder, Request, State};
use stasis_criu_foreign::members;
use thiserror::Error;

use crate::agent::{AgentError, Call, answers, call};
use crate::foreign::{self, FreezeError};
use crate::guard::{self, Leak};
use crate::host::{self, Level, log};
use crate::images::{Contents, Images, PlaceError, name_of};
use crate::inside::{self, InsideError};
use crate::marker::{self, Entry, MarkerError};
use crate::process::{self, Process};
use crate::session::{self, SessionPlan};
use crate::settings::{Settings, SettingsError};
use crate::sys::AlarmStopped;

/// TIMEOUT: how long an agent may take to say its state.
const STATUS: Duration = Duration::from_secs(10);
/// TIMEOUT: how long writing the contents may take beyond the queues' deadline; a disk may be slow.
const WRITING: Duration = Duration::from_secs(600);
/// TIMEOUT: how long the processes of a tree that is not dumped may take to get their devices back.
const RESUMING: Duration = Duration::from_secs(60);
/// TIMEOUT: how long a resumed process may take to answer.
const FAREWELL: Duration = Duration::from_secs(5);
/// The pause before a process that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(10);

/// Why a tree is not dumped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum DumpError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Marker(#[from] MarkerError),
    #[error("The tree is not dumped; all its processes run on")]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Inside(#[from] InsideError),
    #[error(transparent)]
    Foreign(#[from] FreezeError),
    #[error(transparent)]
    Leak(#[from] Leak),
    #[error("Process {pid} is {state} by another controller's order: the tree is not dumped")]
    Occupied { pid: i32, state: State },
    #[error("Process {pid} was checkpointed and is {state} again: give it more time (STASIS_CRIU_LEASE_MS)")]
    TooLate { pid: i32, state: State },
}

/// What is known of the current dump.
#[derive(Debug)]
struct Dump {
    /// CRIU dumps; at a pre-dump the plugin does nothing.
    is_active: bool,
    /// The root of the tree, once the tree has been walked.
    root: Option<i32>,
    /// The processes without a device.
    ready: Vec<Ready>,
    /// Whether the devices of programs under `stasis run` were saved, if there are any.
    is_saved: bool,
}

/// A process without a device.
#[derive(Debug)]
struct Ready {
    process: Process,
    /// Where its contents are; `None` if another controller had checkpointed it before.
    contents: Option<Contents>,
}

static DUMP: Mutex<Dump> =
    Mutex::new(Dump { is_active: false, root: None, ready: Vec::new(), is_saved: false });

fn dump() -> MutexGuard<'static, Dump> {
    DUMP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first hook of a dump.
pub(crate) fn prepare() {
    dump().is_active = true;
    foreign::forget();
    // A dump of processes without an agent must not notice the plugin.
    if (process::is_any() || foreign::is_any()) && !host::freeze_by_interrupts_only() {
        log(
            Level::Info,
            "this criu freezes a --freeze-cgroup at once: processes started late are not waited for",
        );
    }
}

/// `PAUSE_DEVICES`: CRIU is about to freeze `pid`; the first is the root of the tree.
pub(crate) fn pause(pid: i32) -> Result<(), DumpError> {
    let mut dump = dump();
    if !dump.is_active {
        return Ok(());
    }
    let is_first = dump.root.is_none();
    let root = *dump.root.get_or_insert(pid);
    let candidates = if is_first { members(pid) } else { vec![pid] };
    let is_ready = |pid: i32| dump.ready.iter().any(|ready| ready.process.pid == pid);
    if is_first {
        foreign::pause(pid)?;
    }
    // The device of a program under `stasis run` is in softgpud, also if the program has an agent.
    let asked = candidates.into_iter().filter(|pid| !is_ready(*pid) && !foreign::has_client(*pid));
    let found = asked.filter_map(process::find);
    let ours: Vec<_> = found.collect();
    if ours.is_empty() {
        // That of a tree with devices is written with them.
        return if is_first && !foreign::is_holding() { mark(&[], None) } else { Ok(()) };
    }
    // These processes were started, or have opened their runtime, since the tree was walked. They still run, but their
    // parents do not: a kernel that waits for a parent makes them late, and the dump fails.
    let ready = quiesce(ours)?;
    dump.ready.extend(ready);
    mark(&dump.ready, None)?;
    Ok(inside::clear(root, dump.ready.iter().map(|ready| &ready.process))?)
}

/// Writes the marker, which says beside the images whose contents belong to them, and which files devices.
fn mark(ready: &[Ready], devices: Option<Vec<marker::File>>) -> Result<(), DumpError> {
    let Ok(images) = Images::open() else { return Ok(()) };
    let with_contents = ready.iter().filter_map(|Ready { process, contents }| {
        let written_to = contents.as_ref()?.place()?.path.clone();
        Some(Entry { pid: process.own_pid, name: name_of(process), written_to })
    });
    Ok(marker::write(images.fd, with_contents.collect(), devices)?)
}

/// `CHECKPOINT_DEVICES`: all processes are frozen. Those with an agent may not have a device; that of programs under `stasis run` is
/// saved.
pub(crate) fn verify(pid: i32) -> Result<(), DumpError> {
    let mut dump = dump();
    if !dump.is_active {
        return Ok(());
    }
    if !std::mem::replace(&mut dump.is_saved, true)
        && let Some(files) = foreign::save()?
    {
        mark(&dump.ready, Some(files))?;
    }
    match process::find(pid).filter(|_| !foreign::has_client(pid)) {
        Some(process) => {
            let was_asked = dump.ready.iter().any(|ready| ready.process.pid == pid);
            Ok(guard::check(&process, was_asked)?)
        }
        None => Ok(()),
    }
}

/// The dump has ended, with success or without; the tasks are still frozen and cannot answer. Returns whether there are
/// processes for [`see_off`].
pub(crate) fn end(result: i32) -> bool {
    let mut dump = dump();
    let count = dump.ready.len();
    if count > 0 {
        let ended = if result == 0 { "complete" } else { "not complete" };
        log(Level::Info, &format!("the dump is {ended}; {count} processes run on if they are let go"));
    }
    guard::forget();
    let ready = std::mem::take(&mut dump.ready);
    *dump = Dump { is_active: false, root: None, ready: Vec::new(), is_saved: false };
    let ours = ready.into_iter().filter(|ready| ready.contents.is_some()).map(|ready| ready.process);
    *after() = (std::process::id(), ours.collect());
    count > 0
}

/// The processes for [`see_off`], and the process that has to call it: not a fork of CRIU that ends before CRIU.
static AFTER: Mutex<(u32, Vec<Process>)> = Mutex::new((0, Vec::new()));

fn after() -> MutexGuard<'static, (u32, Vec<Process>)> {
    AFTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CRIU is about to end. The processes that run on get their devices back before CRIU's caller goes on, for the caller
/// may then move or remove the images, which have their contents. A process that does not run, because its control
/// group was frozen before the dump, is not waited for. Nothing is logged: CRIU has closed its log.
pub(crate) fn see_off() {
    let (criu, processes) = std::mem::take(&mut *after());
    if criu != std::process::id() {
        return;
    }
    let lives = |process: &Process| process::find(process.pid).as_ref() == Some(process);
    let alive: Vec<_> = processes.into_iter().filter(lives).collect();
    let asked = alive.iter().filter_map(|process| call(process, &Request::Status).ok()).collect();
    let states = answers(asked, FAREWELL, |_| false);
    let parked = states.iter().filter(|(_, outcome)| matches!(outcome, Ok(State::Checkpointed)));
    resume(&mut parked.map(|(process, _)| *process).collect());
}

/// Asks every agent for its state.
fn states<'p>(processes: impl Iterator<Item = &'p Process>) -> Result<Vec<(&'p Process, State)>, AgentError> {
    let calls = processes.map(|process| call(process, &Request::Status)).collect::<Result<_, _>>()?;
    let answered = answers(calls, STATUS, Result::is_err);
    answered.into_iter().map(|(process, outcome)| Ok((process, outcome?))).collect()
}

/// Has processes close their devices, all or none. Returns those that did, or that had before.
fn quiesce(ours: Vec<Process>) -> Result<Vec<Ready>, DumpError> {
    let settings = Settings::from_env()?;
    let images = Images::open()?;
    let _stopped = AlarmStopped::now();
    let states = states(ours.iter())?;
    if let Some((process, state)) = states.iter().find(|(_, state)| *state == State::Locked) {
        return Err(DumpError::Occupied { pid: process.pid, state: *state });
    }
    let running = states.iter().filter(|(_, state)| *state == State::Running).map(|(process, _)| *process);
    let running: Vec<_> = running.collect();
    let mut contents = checkpoint(&running, &images, settings)?;
    let confirmed = self::states(states.iter().map(|(process, _)| *process))?;
    if let Some((process, state)) = confirmed.iter().find(|(_, state)| *state != State::Checkpointed) {
        return Err(DumpError::TooLate { pid: process.pid, state: *state });
    }
    log(Level::Info, &format!("{} processes have closed their devices", confirmed.len()));
    let ready = confirmed.into_iter().map(|(process, _)| {
        let at = contents.iter().position(|(written, _)| *written == process);
        Ready { process: process.clone(), contents: at.map(|at| contents.swap_remove(at).1) }
    });
    Ok(ready.collect())
}

/// Checkpoints running processes, all at the same time. If one fails, all resume.
fn checkpoint<'p>(
    running: &[&'p Process],
    images: &Images,
    settings: Settings,
) -> Result<Vec<(&'p Process, Contents)>, DumpError> {
    let mut contents: Vec<(&Process, Contents)> = Vec::new();
    let (mut sessions, mut calls) = (Vec::new(), Vec::new());
    let patience = Duration::from_millis(settings.deadline_ms).saturating_add(WRITING);
    let mut failure =
        order_all(running, images, (settings, patience), &mut contents, &mut sessions, &mut calls).err();
    let mut doubtful: Vec<&Process> = calls.iter().map(Call::process).collect();
    if failure.is_none() {
        for (process, outcome) in answers(calls, patience, Result::is_err) {
            let Err(error) = outcome else { continue };
            if matches!(error, AgentError::Refused { state: State::Running, .. }) {
                doubtful.retain(|other| *other != process);
            }
            failure = Some(error.into());
        }
    }
    let Some(failure) = failure else { return Ok(contents) };
    resume(&mut doubtful);
    for (process, contents) in &contents {
        // A process that has not got its device back needs its contents.
        if let Some(place) = contents.place().filter(|_| !doubtful.contains(process)) {
            images.discard(place);
        }
    }
    if doubtful.is_empty() {
        sessions.iter().for_each(|session| images.discard(&session.place));
    }
    for process in doubtful {
        let text = format!("process {} has not got its device back; it does when criu has gone", process.pid);
        log(Level::Warning, &text);
    }
    Err(failure)
}

/// Finds a place for each process's contents, and then gives the orders. The lists have all directories made and orders
/// begun, also after a failure.
fn order_all<'p>(
    running: &[&'p Process],
    images: &Images,
    (settings, patience): (Settings, Duration),
    contents: &mut Vec<(&'p Process, Contents)>,
    sessions: &mut Vec<SessionPlan>,
    calls: &mut Vec<Call<'p>>,
) -> Result<(), DumpError> {
    for process in running {
        contents.push((process, images.contents_of(process, settings.self_contained)?));
    }
    // A process that keeps its contents in its own memory joins no session. If it shares memory with another process, it
    // reports that itself.
    let meeting = contents.iter().filter(|(_, contents)| contents.place().is_some());
    *sessions = session::plan(&meeting.map(|(process, _)| *process).collect::<Vec<_>>(), images, patience)?;
    for (process, contents) in contents {
        let directory = contents.place().map_or(&images.path, |place| &place.path);
        let order = CheckpointOrder {
            mode: settings.mode,
            deadline_ms: settings.deadline_ms,
            lease_ms: settings.lease_ms,
            self_contained: contents.place().is_none(),
            session: sessions.iter().find_map(|session| session.order(process)),
            ..CheckpointOrder::into_directory(directory.clone())
        };
        calls.push(call(process, &Request::Checkpoint(order))?);
    }
    Ok(())
}

/// Has processes take their devices back, and leaves those in the list that did not. An agent gives up an order when
/// its controller has gone; until then the agent takes no other order.
fn resume(processes: &mut Vec<&Process>) {
    let until = Instant::now() + RESUMING;
    while !processes.is_empty() && Instant::now() < until {
        let order = Request::Resume { directory: None, admission: None };
        let calls = processes.iter().filter_map(|process| call(process, &order).ok()).collect();
        for (process, outcome) in answers(calls, until.saturating_duration_since(Instant::now()), |_| false) {
            if outcome.is_ok() {
                processes.retain(|other| *other != process);
            }
        }
        processes.retain(|process| process::find(process.pid).is_some());
        if !processes.is_empty() {
            std::thread::sleep(AGAIN);
        }
    }
}
