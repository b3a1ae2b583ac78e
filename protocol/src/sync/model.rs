// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same primitives as the model checker's. Time is the model's choice, and so is what is broken.
//!
//! INVARIANT: a clock advances by one nanosecond each time a thread reads it, so a limit of *n* ns passes at the
//! *n*-th read, whatever else happens. A timed wait ends by itself as often as [`World::timeouts`] says and then no more:
//! with none, a wake-up that is lost is a deadlock, which the checker reports.

use std::cell::Cell;
use std::ops::{Add, Deref, DerefMut, Sub};
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
pub use loom::sync::atomic::{AtomicBool, AtomicU8};
pub use loom::thread::yield_now;
pub use loom::thread_local;

/// What a model may be told to get wrong, to see that it notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    #[default]
    None,
    /// Notifications reach no thread.
    Mute,
    /// Atomic operations on 64-bit words order nothing.
    Relaxed,
    /// Additions to 64-bit words are a load and a store.
    Torn,
}

/// What the primitives of the models started by this thread are like.
#[derive(Clone, Copy, Debug, Default)]
pub struct World {
    /// What is broken.
    pub flaw: Flaw,
    /// How many timed waits of each thread end by time-out.
    pub timeouts: u32,
}

std::thread_local! {
    static WORLD: Cell<World> = const { Cell::new(World { flaw: Flaw::None, timeouts: 0 }) };
}

thread_local! {
    static LOOKS: Cell<u64> = Cell::new(0);
    static TIMEOUTS: Cell<u32> = Cell::new(WORLD.get().timeouts);
}

impl World {
    /// Makes the models that this thread starts from now on such.
    pub fn rule(self) {
        WORLD.set(self);
    }
}

/// Whether the timed wait that a thread is about to begin ends by time-out.
fn times_out() -> bool {
    TIMEOUTS.with(|left| left.replace(left.get().saturating_sub(1)) > 0)
}

/// A moment of one thread's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// One nanosecond after the last look.
    #[must_use]
    pub fn now() -> Self {
        Self(Duration::from_nanos(LOOKS.with(|looks| looks.replace(looks.get() + 1))))
    }

    /// `None` if that is later than the clock goes.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }

    /// The time since `earlier`.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since then. Does not count as a read of the clock.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Duration::ZERO
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// A word that may be flawed.
#[derive(Debug)]
pub struct AtomicU64(loom::sync::atomic::AtomicU64);

fn order(ordering: Ordering) -> Ordering {
    if WORLD.get().flaw == Flaw::Relaxed { Ordering::Relaxed } else { ordering }
}

impl AtomicU64 {
    /// A word.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    /// Reads it.
    pub fn load(&self, ordering: Ordering) -> u64 {
        self.0.load(order(ordering))
    }

    /// Adds to it; the value before.
    pub fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        if WORLD.get().flaw == Flaw::Torn {
            let before = self.0.load(Ordering::SeqCst);
            self.0.store(before + value, Ordering::SeqCst);
            return before;
        }
        self.0.fetch_add(value, order(ordering))
    }

    /// Subtracts from it; the value before.
    pub fn fetch_sub(&self, value: u64, ordering: Ordering) -> u64 {
        self.0.fetch_sub(value, order(ordering))
    }

    /// Sets bits; the value before.
    pub fn fetch_or(&self, value: u64, ordering: Ordering) -> u64 {
        self.0.fetch_or(value, order(ordering))
    }

    /// Clears bits; the value before.
    pub fn fetch_and(&self, value: u64, ordering: Ordering) -> u64 {
        self.0.fetch_and(value, order(ordering))
    }
}

/// A lock that no panic poisons.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// Its holder.
#[derive(Debug)]
pub struct MutexGuard<'m, T>(Option<loom::sync::MutexGuard<'m, T>>, &'m Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked one.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().ok(), self)
    }

    /// Waits for it until `until` has come.
    pub fn try_lock_until(&self, until: Instant) -> Option<MutexGuard<'_, T>> {
        loop {
            if let Ok(guard) = self.0.try_lock() {
                return Some(MutexGuard(Some(guard), self));
            }
            if Instant::now() >= until {
                return None;
            }
            if !times_out() {
                return Some(self.lock());
            }
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("INVARIANT: it is held except in a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("INVARIANT: it is held except in a wait")
    }
}

/// Where threads wait for a change.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// No thread waits.
    #[must_use]
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().and_then(|held| self.0.wait(held).ok());
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        if WORLD.get().flaw != Flaw::Mute {
            self.0.notify_all();
        }
    }
}

/// Waits on `changed` until it is notified or the time is up.
pub(crate) fn wait_until<T>(changed: &Condvar, guard: &mut MutexGuard<'_, T>, _until: Instant) {
    if !times_out() {
        return changed.wait(guard);
    }
    guard.0 = None;
    guard.0 = guard.1.lock().0;
}

/// A cell whose accesses are checked against each other.
#[derive(Debug)]
pub(crate) struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Panics if a write of another thread is not ordered with this.
    pub fn read(&self) -> *const T {
        self.0.with(|value| value)
    }

    /// Panics if a read or write of another thread is not ordered with this.
    pub fn write(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

/// How long a closing thread sleeps before it looks whether it was cancelled: the shortest time there is.
pub(crate) const CANCEL_POLL: Duration = Duration::from_nanos(1);
/// How long a thread that waits for contents sleeps before it looks whether its time is over: the shortest time there is.
pub(crate) const ARRIVAL_POLL: Duration = Duration::from_nanos(1);
