// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that run waves, one per core, shared by all grids.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use queues::save_area::WaveRecord;

use crate::engine::Engine;
use crate::grid::Grid;
use crate::group::Group;
use crate::observe::Observe;
use crate::priority;

/// Workgroups whose memory is kept for the next grid: 16 MiB of LDS.
const KEPT_GROUPS: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    grids: Vec<Arc<Grid>>,
    turn: usize,
    closing: bool,
}

/// What a pool has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Dispatches that were begun.
    pub dispatches: u64,
    /// Waves of workgroups that have ended.
    pub waves: u64,
    /// Instructions, those of waves that have not ended included as of their last turn.
    pub instructions: u64,
}

#[derive(Debug, Default)]
struct Totals {
    dispatches: AtomicU64,
    waves: AtomicU64,
    instructions: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    engine: Engine,
    observe: Option<Arc<Observe>>,
    totals: Totals,
    /// The memory of workgroups of grids that were paused, and of records of grids that were resumed: the next ones are as many.
    /// Memory that the system has to give again takes longer than what is done with it.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    groups: VecDeque<Box<Group>>,
    records: Vec<WaveRecord>,
}

/// Most bytes of vector registers in records that are kept.
const RECORDS_BYTES: usize = 16 << 20;

/// A pool of worker threads.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// A pool with one thread per core.
    pub fn new() -> Workers {
        Workers::with_threads(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }

    /// A pool with `count` threads (at least one).
    pub fn with_threads(count: usize) -> Workers {
        Workers::with_engine(count, Engine::current())
    }

    /// A pool with `count` threads (at least one) that run waves with `engine`.
    pub fn with_engine(count: usize, engine: Engine) -> Workers {
        Workers::with_observer(count, engine, Observe::from_env())
    }

    /// A pool with `count` threads (at least one) that record what `observe` asks for about the grids they run; such
    /// grids are interpreted, whatever `engine` is.
    pub fn with_observer(count: usize, engine: Engine, observe: Observe) -> Workers {
        let observe = observe.is_on().then(|| Arc::new(observe));
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            engine,
            observe,
            totals: Totals::default(),
            kept: Mutex::default(),
        });
        let threads = (0..count.max(1))
            .filter_map(|k| {
                let view = Workers { shared: shared.clone(), threads: Vec::new() };
                std::thread::Builder::new().name(format!("waves-{k}")).spawn(move || view.serve()).ok()
            })
            .collect();
        Workers { shared, threads }
    }

    /// Number of worker threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Which engine they run waves with.
    pub fn engine(&self) -> Engine {
        self.shared.engine
    }

    /// What they have run so far.
    pub fn counts(&self) -> Counts {
        // ORDERING: Relaxed: counts that nothing else depends on.
        let Totals { dispatches, waves, instructions } = &self.shared.totals;
        Counts {
            dispatches: dispatches.load(Ordering::Relaxed),
            waves: waves.load(Ordering::Relaxed),
            instructions: instructions.load(Ordering::Relaxed),
        }
    }

    /// Adds to what they have run.
    pub(crate) fn count(&self, more: Counts) {
        let Totals { dispatches, waves, instructions } = &self.shared.totals;
        dispatches.fetch_add(more.dispatches, Ordering::Relaxed);
        waves.fetch_add(more.waves, Ordering::Relaxed);
        instructions.fetch_add(more.instructions, Ordering::Relaxed);
    }

    /// What is to be recorded, if anything.
    pub(crate) fn observe(&self) -> Option<&Arc<Observe>> {
        self.shared.observe.as_ref()
    }

    /// Memory for a workgroup.
    pub(crate) fn group(&self) -> Box<Group> {
        self.shared.kept.lock().groups.pop_front().unwrap_or_else(Group::new)
    }

    /// Keeps the memory of workgroups.
    pub(crate) fn keep(&self, groups: VecDeque<Box<Group>>) {
        let kept = &mut self.shared.kept.lock().groups;
        let more = KEPT_GROUPS.saturating_sub(kept.len());
        kept.extend(groups.into_iter().take(more));
    }

    /// Records that were used before, of any waves.
    pub(crate) fn records(&self) -> Vec<WaveRecord> {
        std::mem::take(&mut self.shared.kept.lock().records)
    }

    /// Keeps the memory of records.
    pub(crate) fn keep_records(&self, mut records: Vec<WaveRecord>) {
        let mut bytes = 0;
        let fit = records.iter().take_while(|record| {
            bytes += record.vgprs.capacity() * 4;
            bytes <= RECORDS_BYTES
        });
        let count = fit.count();
        records.truncate(count);
        self.shared.kept.lock().records = records;
    }

    pub(crate) fn add(&self, grid: Arc<Grid>) {
        self.shared.queue.lock().grids.push(grid);
        self.shared.wake.notify_all();
    }

    pub(crate) fn remove(&self, grid: &Arc<Grid>) {
        self.shared.queue.lock().grids.retain(|g| !Arc::ptr_eq(g, grid));
    }

    /// Whether more than one grid is in the queue.
    pub(crate) fn others_waiting(&self) -> bool {
        self.shared.queue.lock().grids.len() > 1
    }

    fn next(&self) -> Option<Arc<Grid>> {
        let mut q = self.shared.queue.lock();
        loop {
            if q.closing {
                return None;
            }
            let n = q.grids.len();
            // Of the grids with the highest priority the next one in turn.
            let waiting = (0..n).map(|k| (q.turn + k) % n).filter(|&k| q.grids[k].has_work());
            let found = waiting.min_by_key(|&k| std::cmp::Reverse(q.grids[k].priority()));
            if let Some(k) = found {
                q.turn = k + 1;
                return Some(q.grids[k].clone());
            }
            if n == 0 {
                self.shared.wake.wait(&mut q);
            } else {
                // A grid without work for this thread may get some when a workgroup's turn ends.
                self.shared.wake.wait_for(&mut q, std::time::Duration::from_micros(200));
            }
        }
    }

    fn serve(&self) {
        priority::take_long_slices();
        let mut spare = None;
        while let Some(grid) = self.next() {
            grid.work(self, &mut spare);
        }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Workers::new()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.shared.queue.lock().closing = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The panic of a worker was reported when it happened.
            let _ = thread.join();
        }
    }
}
