// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate every call that touches the device passes through; closing it is how a process stops itself.
//!
//! INVARIANT: while a [`Closed`] exists no [`Pass`] exists, so whatever only pass holders read (a [`GatedCell`], the
//! memory of buffers, the device itself) may be replaced by the holder of the `Closed`.
//!
//! Passing an open gate costs one atomic add and leaving one atomic subtract: no lock, no syscall, no allocation. The
//! word holds the number of passes in flight and one bit that says closed; both change in the same atomic
//! operation, so no pass can slip by a close unseen.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

const CLOSED: u64 = 1 << 63;

/// How often a closing thread looks whether it was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(10);

thread_local! {
    /// (address of the gate this thread holds a pass of, how many): a thread inside may enter again, closed or not.
    static HELD: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Why calls are refused: the device is gone or could not be brought back. Cloneable, keeps its cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("The device is lost: {what}")]
pub struct Lost {
    /// What happened, in words.
    pub what: &'static str,
    /// The failure behind it.
    #[source]
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Why a gate could not be closed. The gate is open again in every case but `AlreadyClosed`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Someone else holds it closed.
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
    /// The closing thread is itself inside, it would wait for itself.
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
    pub const fn new() -> Self {
        Gate { word: AtomicU64::new(0), mode: Mutex::new(Mode::Hold), changed: Condvar::new() }
    }

    /// Passes the gate; blocks while it is held closed.
    ///
    /// A thread that already holds a pass of this gate enters at once even if it is being closed: otherwise it and
    /// the closer would wait for each other.
    ///
    /// # Errors
    /// [`Lost`] while the gate refuses calls.
    pub fn enter(&self) -> Result<Pass<'_>, Lost> {
        let (held, depth) = HELD.get();
        let nested = held == self.address() && depth > 0;
        // ORDERING: Acquire pairs with the Release in `open`, so that everything rebuilt while the gate was closed
        // is seen; it also keeps the call's accesses after it.
        if self.word.fetch_add(1, Ordering::Acquire) & CLOSED != 0 && !nested {
            self.enter_slow()?;
        }
        Ok(self.admit())
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
    pub fn try_enter(&self) -> Result<Option<Pass<'_>>, Lost> {
        let (held, depth) = HELD.get();
        let nested = held == self.address() && depth > 0;
        if self.word.fetch_add(1, Ordering::Acquire) & CLOSED != 0 && !nested {
            self.leave_word();
            return match &*self.mode.lock() {
                Mode::Refuse(lost) => Err(lost.clone()),
                Mode::Hold => Ok(None),
            };
        }
        Ok(Some(self.admit()))
    }

    fn admit(&self) -> Pass<'_> {
        let (held, depth) = HELD.get();
        let counted = depth == 0 || held == self.address();
        if counted {
            HELD.set((self.address(), depth + 1));
        }
        Pass { gate: self, counted, not_send: PhantomData }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn leave_word(&self) {
        // ORDERING: Release pairs with the Acquire load in `close`: the closer sees all that this call did.
        if self.word.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            // Under the lock, or the closer could miss it between its look at the word and its sleep.
            let _mode = self.mode.lock();
            self.changed.notify_all();
        }
    }

    /// Whether the gate is closed now. Never blocks.
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
        let (held, depth) = HELD.get();
        if held == self.address() && depth > 0 {
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
                self.changed.wait_until(&mut mode, deadline.min(now + CANCEL_POLL));
                continue;
            };
            self.word.fetch_and(!CLOSED, Ordering::Release);
            self.changed.notify_all();
            return Err(failure);
        }
    }

    /// Refuses all calls from now on with `lost`, including those waiting. Only [`Closed::open`] undoes it.
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
    fn drop(&mut self) {
        if self.counted {
            let (held, depth) = HELD.get();
            HELD.set((held, depth - 1));
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
    /// Opens the gate: waiting calls go on.
    pub fn open(self) {
        *self.gate.mode.lock() = Mode::Hold;
        drop(self);
    }

    /// Makes calls fail with `lost` instead of waiting, until [`Closed::hold`] or [`Closed::open`].
    pub fn refuse(&self, lost: Lost) {
        *self.gate.mode.lock() = Mode::Refuse(lost);
        self.gate.changed.notify_all();
    }

    /// Makes calls wait again.
    pub fn hold(&self) {
        *self.gate.mode.lock() = Mode::Hold;
    }

    /// A pass for the holder's own use, for instance to submit the last packets of a drain. While it is borrowed
    /// from, nothing can be replaced.
    pub fn pass(&self) -> Pass<'_> {
        self.gate.word.fetch_add(1, Ordering::Acquire);
        self.gate.admit()
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

/// A value read under a [`Pass`] and replaced under a [`Closed`] of the same gate: a lock that costs readers nothing.
pub struct GatedCell<T> {
    gate: Arc<Gate>,
    value: UnsafeCell<T>,
}

impl<T> fmt::Debug for GatedCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedCell").finish_non_exhaustive()
    }
}

// SAFETY: `get` gives `&T` to several threads (T: Sync), `set` moves a T in and drops the old one on another thread
// (T: Send); the gate keeps the two apart, see `set`.
unsafe impl<T: Send + Sync> Sync for GatedCell<T> {}

impl<T> GatedCell<T> {
    /// A cell that belongs to `gate`.
    pub fn new(gate: &Arc<Gate>, value: T) -> Self {
        GatedCell { gate: Arc::clone(gate), value: UnsafeCell::new(value) }
    }

    /// Reads under a pass.
    ///
    /// # Panics
    /// If `pass` is of another gate.
    pub fn get<'a>(&'a self, pass: &'a Pass<'_>) -> &'a T {
        assert!(
            std::ptr::eq(pass.gate, Arc::as_ptr(&self.gate)),
            "INVARIANT: a cell is read under its own gate"
        );
        // SAFETY: a pass of this gate is held for as long as the borrow lives, so no `Closed` of it exists and
        // nothing is writing.
        unsafe { &*self.value.get() }
    }

    /// Replaces the value while the gate is closed.
    ///
    /// # Panics
    /// If `closed` is of another gate.
    pub fn set(&self, closed: &mut Closed, value: T) {
        assert!(closed.is_of(&self.gate), "INVARIANT: a cell is written under its own gate");
        // Calls that find the gate closed are counted for a moment. What is counted for longer can only be a pass
        // nested in one of `Closed::pass` and kept beyond it: waiting for ever is better than writing under its eyes.
        while closed.gate.word.load(Ordering::Acquire) & !CLOSED != 0 {
            std::thread::yield_now();
        }
        // SAFETY: the one `Closed` of this gate is borrowed exclusively and no pass exists, so there is no borrow
        // from `get` or `get_closed`, and no other thread is in here.
        unsafe { *self.value.get() = value };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn close(gate: &Arc<Gate>) -> Result<Closed, CloseError> {
        gate.close(soon(), &AtomicBool::new(false))
    }

    #[test]
    fn enter_open_gate_counts_and_leaves() {
        let gate = Arc::new(Gate::new());
        let pass = gate.enter().unwrap();
        assert_eq!(gate.passes(), 1);
        drop(pass);
        assert_eq!(gate.passes(), 0);
    }

    #[test]
    fn close_waits_for_passes_and_holds_new_ones() {
        let gate = Arc::new(Gate::new());
        let (g, started) = (Arc::clone(&gate), Arc::new(AtomicBool::new(false)));
        let s = Arc::clone(&started);
        let worker = thread::spawn(move || {
            let pass = g.enter().unwrap();
            s.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(50));
            drop(pass);
            let _second = g.enter().unwrap();
        });
        while !started.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let closed = close(&gate).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert!(!worker.is_finished());
        assert!(gate.try_enter().unwrap().is_none());
        closed.open();
        worker.join().unwrap();
    }

    #[test]
    fn close_past_deadline_reopens() {
        let gate = Arc::new(Gate::new());
        let g = Arc::clone(&gate);
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (inside, is_inside) = std::sync::mpsc::channel();
        let worker = thread::spawn(move || {
            let _pass = g.enter().unwrap();
            inside.send(()).unwrap();
            told.recv().unwrap();
        });
        is_inside.recv().unwrap();
        let error =
            gate.close(Instant::now() + Duration::from_millis(20), &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, CloseError::Timeout { passes: 1 }));
        assert!(!gate.is_closed());
        drop(gate.enter().unwrap());
        tell.send(()).unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn close_cancelled_reopens_and_closing_from_inside_is_refused() {
        let gate = Arc::new(Gate::new());
        let pass = gate.enter().unwrap();
        assert!(matches!(close(&gate), Err(CloseError::HeldByCaller)));
        let g = Arc::clone(&gate);
        let error =
            thread::spawn(move || g.close(soon(), &AtomicBool::new(true)).unwrap_err()).join().unwrap();
        assert!(matches!(error, CloseError::Cancelled { passes: 1 }));
        assert!(!gate.is_closed());
        drop(pass);
    }

    #[test]
    fn nested_enter_while_closing_does_not_deadlock() {
        let gate = Arc::new(Gate::new());
        let pass = gate.enter().unwrap();
        let g = Arc::clone(&gate);
        let closer = thread::spawn(move || close(&g).map(drop));
        while !gate.is_closed() {
            thread::yield_now();
        }
        drop(gate.enter().unwrap());
        drop(pass);
        closer.join().unwrap().unwrap();
    }

    #[test]
    fn lost_gate_refuses_waiters_until_opened() {
        let gate = Arc::new(Gate::new());
        let closed = close(&gate).unwrap();
        let g = Arc::clone(&gate);
        let waiter = thread::spawn(move || g.enter().map(drop));
        closed.refuse(Lost { what: "test", source: None });
        assert_eq!(waiter.join().unwrap().unwrap_err().what, "test");
        assert!(matches!(close(&gate), Err(CloseError::Lost(_))));
        closed.open();
        drop(gate.enter().unwrap());
    }

    #[test]
    fn gated_cell_set_is_seen_by_the_next_pass() {
        let gate = Arc::new(Gate::new());
        let cell = GatedCell::new(&gate, 1);
        assert_eq!(*cell.get(&gate.enter().unwrap()), 1);
        let mut closed = close(&gate).unwrap();
        cell.set(&mut closed, 2);
        closed.open();
        assert_eq!(*cell.get(&gate.enter().unwrap()), 2);
    }

    #[test]
    fn hammering_enter_and_close_never_overlaps() {
        let gate = Arc::new(Gate::new());
        let inside = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let (gate, inside, stop) = (Arc::clone(&gate), Arc::clone(&inside), Arc::clone(&stop));
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _pass = gate.enter().unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            let closed = close(&gate).unwrap();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            closed.open();
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|w| w.join().unwrap());
    }
}
