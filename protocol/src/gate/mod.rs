// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate that every call to the device passes through. Closing it keeps all calls out.
//!
//! INVARIANT: while a [`Closed`] exists no [`Pass`] exists, so whatever only pass holders read (a [`GatedCell`], the
//! memory of buffers, the device itself) may be replaced by the holder of the `Closed`.
//!
//! Passing an open gate costs one atomic add and leaving one atomic subtract: no lock, no syscall, no allocation. The
//! word holds the number of passes in flight and one bit that says closed; both change in the same atomic
//! operation, so every pass is counted before or refused after a close.

mod cell;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::error::Error;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use self::cell::GatedCell;
use crate::sync::{AtomicBool, AtomicU64, CANCEL_POLL, Condvar, Instant, Mutex, thread_local, wait_until};

const CLOSED: u64 = 1 << 63;

#[cfg(not(loom))]
thread_local! {
    /// (address of the gate this thread holds a pass of, how many): a thread inside may enter again, closed or not.
    static HELD: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}
#[cfg(loom)]
thread_local! {
    static HELD: Cell<(usize, u32)> = Cell::new((0, 0));
}

#[inline]
fn held() -> (usize, u32) {
    HELD.with(Cell::get)
}

#[inline]
fn hold(gate: usize, depth: u32) {
    HELD.with(|cell| cell.set((gate, depth)));
}

/// Why calls are refused: the device was lost or could not be rebuilt. Cloneable, keeps its cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("The device is lost: {what}")]
pub struct Lost {
    /// What happened, in words.
    pub what: &'static str,
    /// The failure behind it.
    #[source]
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Why a gate could not be closed. The gate is open again in every case but `AlreadyClosed` and `Lost`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Another thread holds it closed.
    #[error("The gate is closed already: another lock is in progress or held")]
    AlreadyClosed,
    /// Calls in flight did not finish in time.
    #[error(
        "{passes} calls were still in flight at the deadline: retry, or end long host accesses and waits"
    )]
    Timeout {
        /// Passes still held.
        passes: u64,
    },
    /// The caller asked to stop.
    #[error("Closing the gate was cancelled with {passes} calls in flight")]
    Cancelled {
        /// Passes still held.
        passes: u64,
    },
    /// The closing thread holds a pass, so it would wait for itself.
    #[error("The locking thread holds a host access or is inside a call: drop it before locking")]
    HeldByCaller,
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

#[derive(Debug)]
enum Mode {
    /// Calls that find the gate closed wait.
    Hold,
    /// Calls that find the gate closed get this error.
    Refuse(Lost),
}

/// The gate. See the module documentation.
#[derive(Debug)]
pub struct Gate {
    /// Passes in flight, plus [`CLOSED`].
    word: AtomicU64,
    mode: Mutex<Mode>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}

impl Gate {
    /// An open gate.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Gate { word: AtomicU64::new(0), mode: Mutex::new(Mode::Hold), changed: Condvar::new() }
    }

    /// An open gate of a model.
    #[cfg(loom)]
    pub fn new() -> Self {
        Gate { word: AtomicU64::new(0), mode: Mutex::new(Mode::Hold), changed: Condvar::new() }
    }

    /// Passes the gate; blocks while it is held closed.
    ///
    /// A thread that already holds a pass of this gate enters at once even if it is being closed: otherwise it and
    /// the closer would wait for each other.
    ///
    /// # Errors
    /// [`Lost`] while the gate refuses calls.
    #[inline]
    pub fn enter(&self) -> Result<Pass<'_>, Lost> {
        let held = held();
        // ORDERING: Acquire pairs with the Release in `open`, so that everything rebuilt while the gate was closed
        // is seen; it also keeps the call's accesses after it.
        if self.word.fetch_add(1, Ordering::Acquire) & CLOSED != 0 && !self.is_among(held) {
            self.enter_slow()?;
        }
        Ok(self.admit(held))
    }

    #[cold]
    fn enter_slow(&self) -> Result<(), Lost> {
        loop {
            self.leave_word();
            {
                let mut mode = self.mode.lock();
                loop {
                    if let Mode::Refuse(lost) = &*mode {
                        return Err(lost.clone());
                    }
                    if self.word.load(Ordering::Relaxed) & CLOSED == 0 {
                        break;
                    }
                    self.changed.wait(&mut mode);
                }
            }
            if self.word.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
                return Ok(());
            }
        }
    }

    /// Passes the gate if it is open now; `Ok(None)` while it is held closed.
    ///
    /// # Errors
    /// [`Lost`] while the gate refuses calls.
    #[inline]
    pub fn try_enter(&self) -> Result<Option<Pass<'_>>, Lost> {
        let held = held();
        if self.word.fetch_add(1, Ordering::Acquire) & CLOSED != 0 && !self.is_among(held) {
            self.leave_word();
            return match &*self.mode.lock() {
                Mode::Refuse(lost) => Err(lost.clone()),
                Mode::Hold => Ok(None),
            };
        }
        Ok(Some(self.admit(held)))
    }

    /// A pass, counted in what this thread holds if it is the first or of the same gate.
    #[inline]
    fn admit(&self, (held, depth): (usize, u32)) -> Pass<'_> {
        let counted = depth == 0 || held == self.address();
        if counted {
            hold(self.address(), depth + 1);
        }
        Pass { gate: self, counted, not_send: PhantomData }
    }

    /// Whether this thread holds a pass.
    #[inline]
    fn is_held(&self) -> bool {
        self.is_among(held())
    }

    /// Whether what a thread holds is a pass of this gate.
    #[inline]
    fn is_among(&self, (held, depth): (usize, u32)) -> bool {
        held == self.address() && depth > 0
    }

    #[inline]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn leave_word(&self) {
        // ORDERING: Release pairs with the Acquire load in `close`: the closer sees all that this call did.
        if self.word.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.tell_closer();
        }
    }

    #[cold]
    fn tell_closer(&self) {
        // Under the lock: otherwise the closer could miss it between its read of the word and its sleep.
        let _mode = self.mode.lock();
        self.changed.notify_all();
    }

    /// Whether the gate is closed now. Never blocks.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Why calls are refused now, if they are.
    pub fn lost(&self) -> Option<Lost> {
        match &*self.mode.lock() {
            Mode::Refuse(lost) => Some(lost.clone()),
            Mode::Hold => None,
        }
    }

    /// Calls in flight.
    pub fn passes(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & !CLOSED
    }

    /// Closes the gate: new calls wait, and this returns when those in flight have finished.
    ///
    /// # Errors
    /// [`CloseError`]; on `Timeout`, `Cancelled` and `HeldByCaller` the gate is open as before.
    pub fn close(self: &Arc<Self>, deadline: Instant, cancelled: &AtomicBool) -> Result<Closed, CloseError> {
        if self.is_held() {
            return Err(CloseError::HeldByCaller);
        }
        let mut mode = self.mode.lock();
        if let Mode::Refuse(lost) = &*mode {
            return Err(lost.clone().into());
        }
        if self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            return Err(CloseError::AlreadyClosed);
        }
        loop {
            // The gate was lost while this call waited: then it is not opened, not even by a closer that gives up.
            if let Mode::Refuse(lost) = &*mode {
                return Err(lost.clone().into());
            }
            // ORDERING: pairs with the Release of every leaving pass.
            let passes = self.word.load(Ordering::Acquire) & !CLOSED;
            if passes == 0 {
                return Ok(Closed { gate: Arc::clone(self) });
            }
            let now = Instant::now();
            let failure = if cancelled.load(Ordering::Relaxed) {
                CloseError::Cancelled { passes }
            } else if now >= deadline {
                CloseError::Timeout { passes }
            } else {
                // TIMEOUT: woken by the last pass; the poll is only for cancellation.
                wait_until(&self.changed, &mut mode, deadline.min(now + CANCEL_POLL));
                continue;
            };
            self.word.fetch_and(!CLOSED, Ordering::Release);
            self.changed.notify_all();
            return Err(failure);
        }
    }

    /// Refuses all calls from now on with `lost`, including those waiting. Only the holder of a [`Closed`] undoes it:
    /// [`Closed::hold`], [`Closed::open`].
    pub fn lose(&self, lost: Lost) {
        let mut mode = self.mode.lock();
        *mode = Mode::Refuse(lost);
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
        self.changed.notify_all();
    }
}

/// A call in flight. Dropping it leaves the gate. Not `Send`: the thread that entered leaves.
#[derive(Debug)]
pub struct Pass<'g> {
    gate: &'g Gate,
    /// Counted in this thread's `HELD`.
    counted: bool,
    not_send: PhantomData<*const ()>,
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            let (held, depth) = held();
            hold(held, depth - 1);
        }
        self.gate.leave_word();
    }
}

/// The right to change what only passes read. Dropping it opens the gate, unless it refuses calls.
#[derive(Debug)]
pub struct Closed {
    gate: Arc<Gate>,
}

impl Closed {
    /// Opens the gate: waiting calls continue, also if the device was lost.
    pub fn open(self) {
        *self.gate.mode.lock() = Mode::Hold;
        drop(self);
    }

    /// Makes calls fail with `lost` instead of waiting, until [`Closed::hold`] or [`Closed::open`].
    pub fn refuse(&self, lost: Lost) {
        *self.gate.mode.lock() = Mode::Refuse(lost);
        self.gate.changed.notify_all();
    }

    /// Makes calls wait again: what was lost is found.
    pub fn hold(&self) {
        *self.gate.mode.lock() = Mode::Hold;
    }

    /// A pass for the holder's own use, for instance to submit the last packets of a drain. While it is borrowed
    /// from, nothing can be replaced.
    pub fn pass(&self) -> Pass<'_> {
        self.gate.word.fetch_add(1, Ordering::Acquire);
        self.gate.admit(held())
    }

    /// Whether this is the token of `gate`.
    pub fn is_of(&self, gate: &Gate) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.gate), gate)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let mode = self.gate.mode.lock();
        if matches!(*mode, Mode::Hold) {
            // ORDERING: Release publishes all that was rebuilt to the Acquire in `enter`.
            self.gate.word.fetch_and(!CLOSED, Ordering::Release);
            self.gate.changed.notify_all();
        }
    }
}
