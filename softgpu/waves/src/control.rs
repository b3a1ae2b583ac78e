// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host asks of a running grid: to go on, to pause, to abort, to count instructions.
//!
//! INVARIANT: one byte holds the command, so that a wave (and generated code) can look at it with a single load.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Bits of a control's state: nothing set means run.
const PAUSE: u8 = 1;
const ABORT: u8 = 2;
const COUNTING: u8 = 4;
const DEAF: u8 = 8;

/// What has to look at its control again when the command changes: the grid that the control is attached to.
pub(crate) trait Nudge: std::fmt::Debug + Send + Sync {
    /// Has the waiting thread look at the control again.
    fn nudge(&self);
}

#[derive(Debug, Default)]
struct Wish {
    state: AtomicU8,
    /// Instructions until a pause, while counting.
    left: AtomicI64,
    grid: Mutex<Option<Weak<dyn Nudge>>>,
}

/// What another thread wants of a running grid; waves look at it on every backward branch.
#[derive(Clone, Debug, Default)]
pub struct Control {
    wish: Arc<Wish>,
}

/// State of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Go on.
    Run,
    /// Stop at the next instruction boundary and keep the state.
    Pause,
    /// Stop and drop everything.
    Abort,
}

impl Control {
    /// A control that says run.
    pub fn new() -> Control {
        Control::default()
    }

    /// A control that no wave looks at, to measure what looking costs. Such a grid ends only by itself.
    pub fn deaf() -> Control {
        let control = Control::default();
        control.wish.state.store(DEAF, Ordering::Release);
        control
    }

    /// Sets the command; a count that was under way is over.
    pub fn set(&self, command: Command) {
        let value = match command {
            Command::Run => 0,
            Command::Pause => PAUSE,
            Command::Abort => ABORT,
        };
        if self.wish.state.swap(value, Ordering::AcqRel) == value {
            return;
        }
        let grid = self.wish.grid.lock().as_ref().and_then(Weak::upgrade);
        if let Some(grid) = grid {
            grid.nudge();
        }
    }

    /// Runs on, and pauses after exactly this many instructions of all waves together (0: before the first).
    pub fn pause_after(&self, instructions: u64) {
        self.wish.left.store(i64::try_from(instructions).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.wish.state.store(if instructions == 0 { PAUSE } else { COUNTING }, Ordering::Release);
    }

    /// Says whom to nudge when the command changes.
    pub(crate) fn attach<N: Nudge + 'static>(&self, grid: &Arc<N>) {
        let grid: Weak<N> = Arc::downgrade(grid);
        *self.wish.grid.lock() = Some(grid);
    }

    /// Asks for a pause.
    pub fn pause(&self) {
        self.set(Command::Pause);
    }

    /// Asks for an abort.
    pub fn abort(&self) {
        self.set(Command::Abort);
    }

    /// The command in force.
    pub fn command(&self) -> Command {
        match self.wish.state.load(Ordering::Acquire) & (PAUSE | ABORT) {
            0 => Command::Run,
            PAUSE => Command::Pause,
            _ => Command::Abort,
        }
    }

    /// The state byte, for generated code: a set bit among the lowest two asks the wave to stop.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn flag(&self) -> &AtomicU8 {
        static NEVER: AtomicU8 = AtomicU8::new(0);
        if self.has(DEAF) { &NEVER } else { &self.wish.state }
    }

    #[inline(always)]
    pub(crate) fn interrupts(&self) -> bool {
        // ORDERING: only a hint; whoever acts on it reads `command` with acquire.
        self.wish.state.load(Ordering::Relaxed) & (PAUSE | ABORT) != 0
    }

    /// Whether instructions are counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.has(COUNTING)
    }

    /// Whether no wave is to look at the control.
    pub(crate) fn is_deaf(&self) -> bool {
        self.has(DEAF)
    }

    fn has(&self, bit: u8) -> bool {
        self.wish.state.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether the wave has to stop behind an instruction; counts it if instructions are counted and it is one with an
    /// effect.
    pub(crate) fn is_over(&self, has_effect: bool) -> bool {
        if has_effect && self.has(COUNTING) { self.count() } else { !self.has(DEAF) && self.interrupts() }
    }

    /// Counts one instruction; whether the wave has to stop behind it.
    pub(crate) fn count(&self) -> bool {
        if self.wish.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            return self.interrupts();
        }
        // A command given meanwhile stays.
        let _ = self.wish.state.compare_exchange(COUNTING, PAUSE, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}
