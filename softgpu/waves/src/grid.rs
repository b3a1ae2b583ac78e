// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running dispatch: which of its workgroups have not started, which are resident, and how the dispatch ends.
//!
//! INVARIANT: `next` only grows; a workgroup below it is finished, resident in `Progress`, or held by exactly one worker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLockReadGuard};

use crate::code::Code;
use crate::control::{Command, Control, Observer};
use crate::engine::Engine;
use crate::exception::WaveException;
use crate::group::{Group, Turn, TurnOptions};
use crate::launch::{Launch, Plan};
use crate::level::Level;
use crate::observe::Observation;
use crate::outcome::{GridState, Outcome};
use crate::vm::Vm;
use crate::workers::{Counts, Workers};

/// How long a workgroup runs before another one of the grid does.
const SLICE: Duration = Duration::from_millis(4);
/// Instructions after which a worker looks at the clock again.
const CLOCK_INSTRUCTIONS: u64 = 20_000;
/// How long a worker runs workgroups of one grid while other grids wait.
const GRID_TIME: Duration = Duration::from_millis(10);
/// How often the thread that waits for the grid checks the control, for changes that no worker reports.
const POLL: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
struct Progress {
    resident: VecDeque<Box<Group>>,
    /// Workgroups that have started and not finished, resident or held by a worker.
    started: usize,
    free: FreePlaces,
    active: usize,
    closed: bool,
    exception: Option<Box<WaveException>>,
    prefer_fresh: bool,
}

/// Places in the scratch that no workgroup has.
///
/// A place is known by its number from the first time that it is taken on: most dispatches take few of the places that a
/// GPU has.
#[derive(Debug, Default)]
struct FreePlaces {
    /// Engines of different XCCs alternate.
    engines: Vec<EnginePlaces>,
    /// XCCs: workgroups go round them in their order, so that a workgroup has to wait for a place of its own XCC.
    xccs: usize,
    /// The engine that has the next workgroup: they take turns, and one without a free place is left out.
    turn: usize,
    /// Places there are; the n-th is the engine's n modulo the engines.
    count: usize,
    /// Whether a resumed workgroup has had it from the start; those behind the last are free.
    used: Vec<bool>,
}

/// Free places of one shader engine.
#[derive(Debug, Default)]
struct EnginePlaces {
    /// Given back, the next one last.
    returned: Vec<usize>,
    /// The first that was never taken.
    fresh: usize,
}

impl FreePlaces {
    fn new(engines: usize, xccs: usize, count: usize, used: &[usize]) -> FreePlaces {
        let engines = (0..engines.max(1)).map(|fresh| EnginePlaces { returned: Vec::new(), fresh }).collect();
        let mut is_used = vec![false; used.iter().max().map_or(0, |last| last + 1).min(count)];
        for &place in used {
            if let Some(is_used) = is_used.get_mut(place) {
                *is_used = true;
            }
        }
        FreePlaces { engines, xccs: xccs.max(1), turn: 0, count, used: is_used }
    }

    /// The XCC of a workgroup.
    fn xcc(&self, workgroup: u64) -> usize {
        // CAST: below the number of XCCs.
        (workgroup % self.xccs.max(1) as u64) as usize
    }

    fn has_one_for(&self, workgroup: u64) -> bool {
        let mut of_xcc = (0..self.engines.len()).skip(self.xcc(workgroup)).step_by(self.xccs.max(1));
        of_xcc.any(|engine| !self.engines[engine].returned.is_empty() || self.fresh(engine).is_some())
    }

    /// The first place of an engine that was never taken.
    fn fresh(&self, engine: usize) -> Option<usize> {
        let mut places = (self.engines[engine].fresh..self.count).step_by(self.engines.len());
        places.find(|&place| !self.used.get(place).copied().unwrap_or(false))
    }

    fn take_for(&mut self, workgroup: u64) -> Option<usize> {
        let (engines, xccs, xcc) = (self.engines.len(), self.xccs.max(1), self.xcc(workgroup));
        let turns = (self.turn..self.turn + engines).map(|turn| turn % engines);
        let mut of_xcc = turns.filter(|engine| engine % xccs == xcc);
        let (engine, place) = of_xcc.find_map(|engine| {
            let place = self.engines[engine].returned.pop().or_else(|| {
                let fresh = self.fresh(engine)?;
                self.engines[engine].fresh = fresh + engines;
                Some(fresh)
            })?;
            Some((engine, place))
        })?;
        self.turn = engine + 1;
        Some(place)
    }

    fn put(&mut self, place: usize) {
        let engines = self.engines.len();
        self.engines[place % engines].returned.push(place);
    }
}

/// One dispatch in flight.
#[derive(Debug)]
pub(crate) struct Grid {
    plan: Plan,
    vm: Arc<Vm>,
    control: Control,
    next: AtomicU64,
    /// Set with `Progress::exception`.
    failed: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
    executed: AtomicU64,
    observation: Option<Observation>,
    /// Called when a worker has left and the grid may be over.
    ended: Option<Ended>,
    /// Set once a worker that has left found it over.
    over: AtomicBool,
}

/// What a worker calls when a grid may be over.
pub type Ended = Arc<dyn Notify>;

/// Someone who waits for the end of a [`Running`] dispatch, among other things.
pub trait Notify: std::fmt::Debug + Send + Sync {
    /// Makes him look whether it is over.
    fn notify(&self);
}

impl Observer for Grid {
    fn command_changed(&self) {
        let _progress = self.progress.lock();
        self.changed.notify_all();
    }
}

impl Grid {
    fn new(
        plan: Plan,
        vm: Arc<Vm>,
        workers: &Workers,
        control: Control,
        resume: Option<Box<GridState>>,
        observation: Option<Observation>,
        ended: Option<Ended>,
    ) -> Grid {
        let mut progress = Progress::default();
        let mut next = 0;
        let mut used = Vec::new();
        if let Some(state) = resume {
            next = state.next_workgroup;
            let mut start = 0;
            for (k, r) in state.waves.iter().enumerate() {
                if r.last_in_group {
                    let mut group = workers.group();
                    group.restore(&plan, &state.waves[start..=k]);
                    used.push(group.slot);
                    progress.resident.push_back(group);
                    start = k + 1;
                }
            }
            workers.keep_records(state.waves);
        }
        progress.started = progress.resident.len();
        // Resumed workgroups keep their scratch; a hostile or changed state may name slots that do not exist.
        progress.free = FreePlaces::new(plan.engines(), plan.xccs(), plan.max_resident, &used);
        Grid {
            plan,
            vm,
            control,
            next: AtomicU64::new(next),
            failed: AtomicBool::new(false),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            executed: AtomicU64::new(0),
            observation,
            ended,
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn priority(&self) -> u32 {
        self.plan.priority
    }

    fn halted(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.control.command() != Command::Run
    }

    fn exhausted(&self, p: &Progress) -> bool {
        p.started == 0 && self.next.load(Ordering::Relaxed) >= self.plan.total
    }

    /// Whether a workgroup is left that can start now.
    fn can_start(&self, p: &Progress) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        next < self.plan.total && p.started < self.plan.max_resident && p.free.has_one_for(next)
    }

    /// A workgroup to run: the resident one that has waited longest, or a new one in the memory of `spare`. Before that, the
    /// one that is `done` is finished.
    fn take(&self, done: &mut Option<Box<Group>>, spare: &mut Option<Box<Group>>) -> Option<Box<Group>> {
        let mut p = self.progress.lock();
        if let Some(group) = done.take() {
            self.finish(&mut p, group, spare);
        }
        let can_start = self.can_start(&p);
        p.prefer_fresh = !p.prefer_fresh;
        if (!can_start || !p.prefer_fresh)
            && let Some(group) = p.resident.pop_front()
        {
            return Some(group);
        }
        if !can_start {
            return None;
        }
        let slot = p.free.take_for(self.next.load(Ordering::Relaxed))?;
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        p.started += 1;
        drop(p);
        let mut group = spare.take().unwrap_or_else(Group::new);
        group.start(&self.plan, self.plan.group_id(index), slot);
        Some(group)
    }

    fn finish(&self, p: &mut Progress, group: Box<Group>, spare: &mut Option<Box<Group>>) {
        p.started -= 1;
        p.free.put(group.slot);
        *spare = Some(group);
    }

    /// Whether there is a workgroup for a worker to run.
    pub(crate) fn has_work(&self) -> bool {
        if self.halted() {
            return false;
        }
        let p = self.progress.lock();
        !p.closed && (self.can_start(&p) || !p.resident.is_empty())
    }

    /// Runs workgroups of this grid until none is left, the grid is halted, or the worker must run another grid.
    pub(crate) fn work(&self, workers: &Workers, spare: &mut Option<Box<Group>>) {
        self.work_turns(workers, spare, u64::MAX);
        if let Some(ended) = &self.ended
            && self.note_over()
        {
            ended.notify();
        }
    }

    fn note_over(&self) -> bool {
        // Never taken back: what a worker that left before has seen may be told after what the last one has.
        let over = self.is_over(&self.progress.lock());
        if over {
            self.over.store(true, Ordering::Release);
        }
        over
    }

    /// The same for so many turns of workgroups at most, without a notice at the end.
    fn work_turns(&self, workers: &Workers, spare: &mut Option<Box<Group>>, turns: u64) {
        {
            let mut p = self.progress.lock();
            if p.closed {
                return;
            }
            p.active += 1;
        }
        let mut counts = Counts::default();
        self.work_active(workers, spare, &mut counts, turns);
        self.executed.fetch_add(counts.instructions, Ordering::Relaxed);
        workers.count(counts);
        self.progress.lock().active -= 1;
        // Not while it is locked: the one that waits would be given the lock before it runs, and this thread, which asks for more
        // work, would yield its core to whoever else wants one.
        self.changed.notify_all();
    }

    fn work_active(
        &self,
        workers: &Workers,
        spare: &mut Option<Box<Group>>,
        counts: &mut Counts,
        turns: u64,
    ) {
        let mut left = turns;
        let leave = Instant::now() + GRID_TIME;
        let mut map = self.vm.lock();
        let level = Level::current();
        let main = self.vm.programs().get(&map, level, self.plan.shape, self.plan.entry);
        let mut watch = self.observation.as_ref().map(Observation::watch);
        let engine = if watch.is_some() { Engine::Interp } else { workers.engine() };
        let mut code = Code::new(self.vm.programs(), level, main, self.plan.shape, engine);
        let mut hot = crate::env::Hot::new();
        let mut done = None;
        let (mut now, mut look_at) = (Instant::now(), CLOCK_INSTRUCTIONS);
        while !self.halted() && left > 0 {
            left -= 1;
            let Some(mut group) = self.take(&mut done, spare) else { return };
            // Looking at the clock takes as long as a short workgroup.
            if counts.instructions >= look_at {
                (now, look_at) = (Instant::now(), counts.instructions + CLOCK_INSTRUCTIONS);
            }
            let deadline = now + SLICE;
            let mut options = TurnOptions {
                plan: &self.plan,
                map: &mut map,
                code: &mut code,
                hot: &mut hot,
                control: &self.control,
                deadline,
                executed: &mut counts.instructions,
                watch: &mut watch,
            };
            match group.run(&mut options) {
                Turn::Done => {
                    counts.waves += group.waves();
                    done = Some(group);
                }
                Turn::Again | Turn::Interrupted => {
                    look_at = 0;
                    self.progress.lock().resident.push_back(group);
                }
                Turn::Exception(exception) => {
                    let mut p = self.progress.lock();
                    p.resident.push_back(group);
                    p.exception.get_or_insert(exception);
                    self.failed.store(true, Ordering::Relaxed);
                    return;
                }
            }
            RwLockReadGuard::bump(&mut map);
            if deadline > leave && workers.others_waiting() {
                break;
            }
        }
        if let Some(group) = done {
            self.finish(&mut self.progress.lock(), group, spare);
        }
    }

    /// Whether no worker has it, and none will do anything for it.
    fn is_over(&self, p: &Progress) -> bool {
        p.active == 0 && (self.exhausted(p) || self.halted())
    }

    /// Waits until the grid has ended and closes it. Returns how it ended.
    fn wait(&self, workers: &Workers) -> Outcome {
        let mut p = self.progress.lock();
        while !self.is_over(&p) {
            self.changed.wait_for(&mut p, POLL);
        }
        p.closed = true;
        if let Some(exception) = p.exception.take() {
            return Outcome::Exception(exception);
        }
        if self.exhausted(&p) {
            return Outcome::Completed;
        }
        if self.control.command() == Command::Abort {
            return Outcome::Aborted;
        }
        let next_workgroup = self.next.load(Ordering::Relaxed).min(self.plan.total);
        // CAST: waves of at most `max_resident` workgroups.
        let count: usize = p.resident.iter().map(|group| group.waves() as usize).sum();
        let mut waves = workers.records();
        waves.reserve(count.saturating_sub(waves.len()));
        let used = p.resident.iter().fold(0, |used, group| group.put_records(&mut waves, used));
        waves.truncate(used);
        Outcome::Paused(Box::new(GridState { next_workgroup, waves }))
    }
}

fn refused(launch: &Launch, cause: crate::exception::Cause) -> Outcome {
    let w = crate::wave::Wave::new(32, 8);
    Outcome::Exception(Box::new(WaveException {
        cause,
        pc: launch.entry,
        workgroup: [0; 3],
        wave_in_group: 0,
        record: w.record(),
    }))
}

/// Runs a dispatch, or resumes a paused one, until it completes, is stopped through `control`, or a wave raises an
/// exception. Blocks the caller; the waves run on `workers`.
pub fn run(
    launch: &Launch,
    vm: &Arc<Vm>,
    workers: &Workers,
    control: &Control,
    resume: Option<Box<GridState>>,
) -> Outcome {
    run_counted(launch, vm, workers, control, resume).0
}

/// As [`run`], and the number of instructions executed (all encoded ones, waits and hints included).
pub fn run_counted(
    launch: &Launch,
    vm: &Arc<Vm>,
    workers: &Workers,
    control: &Control,
    resume: Option<Box<GridState>>,
) -> (Outcome, u64) {
    match begin(launch, vm, workers, control, resume, None) {
        Ok(grid) => finish(&grid, launch, workers),
        Err(outcome) => (outcome, 0),
    }
}

/// Creates the grid and gives it to the workers, if anything is left for them.
fn begin(
    launch: &Launch,
    vm: &Arc<Vm>,
    workers: &Workers,
    control: &Control,
    resume: Option<Box<GridState>>,
    ended: Option<Ended>,
) -> Result<Arc<Grid>, Outcome> {
    let plan = Plan::new(launch).map_err(|cause| refused(launch, cause))?;
    // A grid of one workgroup cannot use a second thread, and passing it to a worker often takes longer than it runs.
    let alone = plan.total == 1;
    let is_resumed = resume.is_some();
    let observation =
        workers.observe().and_then(|wishes| Observation::new(wishes, launch, &plan, is_resumed));
    let grid = Arc::new(Grid::new(plan, vm.clone(), workers, control.clone(), resume, observation, ended));
    control.attach(&grid);
    if !is_resumed {
        workers.count(Counts { dispatches: 1, ..Counts::default() });
    }
    if alone {
        // The caller may have other things to do than to run a kernel that does not end.
        SPARE.with_borrow_mut(|spare| grid.work_turns(workers, spare, 1));
    }
    if !alone || grid.has_work() {
        workers.add(grid.clone());
    }
    // Nothing may be left of it for a worker to leave.
    grid.note_over();
    Ok(grid)
}

/// Waits for the end of a grid.
fn finish(grid: &Arc<Grid>, launch: &Launch, workers: &Workers) -> (Outcome, u64) {
    let outcome = grid.wait(workers);
    workers.remove(grid);
    workers.keep(std::mem::take(&mut grid.progress.lock().resident));
    if let Some(observation) = &grid.observation {
        observation.finish(launch, &grid.plan, &outcome);
    }
    (outcome, grid.executed.load(Ordering::Relaxed))
}

/// A dispatch on the workers. Dropping it abandons the dispatch.
#[derive(Debug)]
pub struct Running {
    grid: Arc<Grid>,
    workers: Arc<Workers>,
}

impl Running {
    /// Begins a dispatch, or resumes a paused one; `ended` is notified when it may be over, unless it is so at once.
    ///
    /// # Errors
    /// The outcome of a dispatch that cannot begin.
    pub fn start(
        launch: &Launch,
        vm: &Arc<Vm>,
        workers: &Arc<Workers>,
        control: &Control,
        resume: Option<Box<GridState>>,
        ended: Option<Ended>,
    ) -> Result<Running, Outcome> {
        let grid = begin(launch, vm, workers, control, resume, ended)?;
        Ok(Running { grid, workers: Arc::clone(workers) })
    }

    /// Whether [`Running::finish`] returns at once: it has completed, failed, or was stopped through its control.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // The lock is the workers': a caller that polls leaves it to them.
        let grid = &self.grid;
        (grid.over.load(Ordering::Acquire) || grid.halted()) && grid.is_over(&grid.progress.lock())
    }

    /// Waits until it is over.
    #[must_use]
    pub fn finish(self, launch: &Launch) -> Outcome {
        finish(&self.grid, launch, &self.workers).0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.grid.failed.store(true, Ordering::Relaxed);
        self.workers.remove(&self.grid);
    }
}

thread_local! {
    /// The workgroup memory in which this thread runs grids of one workgroup itself.
    static SPARE: RefCell<Option<Box<Group>>> = const { RefCell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_take_turns_as_long_as_they_have_places() {
        let mut free = FreePlaces::new(3, 1, 7, &[1]);
        let mut take = |count| (0..count).map(|group| free.take_for(group)).collect::<Vec<_>>();
        assert_eq!(take(4), [Some(0), Some(4), Some(2), Some(3)]);
        free.put(0);
        let mut take = |count| (0..count).map(|group| free.take_for(group)).collect::<Vec<_>>();
        // The second engine's are used up.
        assert_eq!(take(4), [Some(5), Some(0), Some(6), None]);
        assert!(!free.has_one_for(0));
    }

    #[test]
    fn workgroups_wait_for_a_place_of_their_own_xcc() {
        // Two XCCs of two engines; place p is of XCC p % 2.
        let mut free = FreePlaces::new(4, 2, 8, &[]);
        let xccs: Vec<_> = (0..6).map(|group| free.take_for(group).unwrap() % 2).collect();
        assert_eq!(xccs, [0, 1, 0, 1, 0, 1]);
        assert_eq!((free.take_for(6), free.take_for(8)), (Some(6), None), "four each");
        assert!(!free.has_one_for(8) && free.has_one_for(9));
        free.put(2);
        assert_eq!((free.take_for(9), free.take_for(10)), (Some(7), Some(2)));
    }
}
