// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of the host to a running grid: run, pause, abort, count instructions.
//!
//! INVARIANT: one byte holds the command, so that a wave (and generated code) can check it with a single load.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Bits of a control's state: nothing set means run.
const PAUSE: u8 = 1;
const ABORT: u8 = 2;
const COUNTING: u8 = 4;
const UNINTERRUPTIBLE: u8 = 8;

/// A grid that a control is attached to, which is notified when the command changes.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    /// Makes the thread that waits for the grid check the control again.
    fn command_changed(&self);
}

#[derive(Debug, Default)]
struct Shared {
    state: AtomicU8,
    /// Instructions until a pause, while counting.
    left: AtomicI64,
    /// Those that still run, and some that have ended.
    grids: Mutex<Vec<Weak<dyn Observer>>>,
}

/// The command of another thread to a running grid. Waves check it on every backward branch.
#[derive(Clone, Debug, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

/// State of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Run.
    Run,
    /// Stop at the next instruction boundary and keep the state.
    Pause,
    /// Stop and discard the state.
    Abort,
}

impl Control {
    /// A control with the command to run.
    pub fn new() -> Control {
        Control::default()
    }

    /// A control that no wave checks, for measuring what the check costs. A grid with it cannot be stopped.
    pub fn uninterruptible() -> Control {
        let control = Control::default();
        control.shared.state.store(UNINTERRUPTIBLE, Ordering::Release);
        control
    }

    /// Sets the command, and ends a count of instructions.
    pub fn set(&self, command: Command) {
        let value = match command {
            Command::Run => 0,
            Command::Pause => PAUSE,
            Command::Abort => ABORT,
        };
        if self.shared.state.swap(value, Ordering::AcqRel) == value {
            return;
        }
        // A grid that is notified takes its own lock, so none is held here.
        let grids: Vec<_> = self.shared.grids.lock().iter().filter_map(Weak::upgrade).collect();
        grids.iter().for_each(|grid| grid.command_changed());
    }

    /// Runs on, and pauses after exactly this many instructions of all waves together (0: before the first).
    pub fn pause_after(&self, instructions: u64) {
        self.shared.left.store(i64::try_from(instructions).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.shared.state.store(if instructions == 0 { PAUSE } else { COUNTING }, Ordering::Release);
    }

    /// Names one more grid to notify when the command changes.
    pub(crate) fn attach<N: Observer + 'static>(&self, grid: &Arc<N>) {
        let grid: Weak<N> = Arc::downgrade(grid);
        let mut grids = self.shared.grids.lock();
        grids.retain(|grid| grid.strong_count() > 0);
        grids.push(grid);
    }

    /// Asks for a pause.
    pub fn pause(&self) {
        self.set(Command::Pause);
    }

    /// Asks for an abort.
    pub fn abort(&self) {
        self.set(Command::Abort);
    }

    /// The current command.
    pub fn command(&self) -> Command {
        match self.shared.state.load(Ordering::Acquire) & (PAUSE | ABORT) {
            0 => Command::Run,
            PAUSE => Command::Pause,
            _ => Command::Abort,
        }
    }

    /// The state byte, for generated code: a set bit among the lowest two asks the wave to stop.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn flag(&self) -> &AtomicU8 {
        static NEVER: AtomicU8 = AtomicU8::new(0);
        if self.has(UNINTERRUPTIBLE) { &NEVER } else { &self.shared.state }
    }

    #[inline(always)]
    pub(crate) fn interrupts(&self) -> bool {
        // ORDERING: only a hint; the code that acts on it reads `command` with acquire.
        self.shared.state.load(Ordering::Relaxed) & (PAUSE | ABORT) != 0
    }

    /// Whether instructions are counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.has(COUNTING)
    }

    /// Whether no wave checks the control.
    pub(crate) fn is_uninterruptible(&self) -> bool {
        self.has(UNINTERRUPTIBLE)
    }

    fn has(&self, bit: u8) -> bool {
        self.shared.state.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether the wave has to stop behind an instruction; counts it if instructions are counted and it is one with an
    /// effect.
    pub(crate) fn is_over(&self, has_effect: bool) -> bool {
        if has_effect && self.has(COUNTING) {
            self.count()
        } else {
            !self.has(UNINTERRUPTIBLE) && self.interrupts()
        }
    }

    /// Counts one instruction; whether the wave has to stop behind it.
    pub(crate) fn count(&self) -> bool {
        if self.shared.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            return self.interrupts();
        }
        // A command that was set meanwhile stays.
        let _ = self.shared.state.compare_exchange(COUNTING, PAUSE, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}
