// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primitives that the protocol is built of: parking_lot's locks, the standard library's atomics and clock; under
//! `--cfg loom` the model checker's, with a clock of its own.
//!
//! INVARIANT: the rest of the crate synchronises with nothing else, so a model sees every step that matters.

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use self::model::*;
#[cfg(not(loom))]
pub use self::real::*;

#[cfg(not(loom))]
mod real {
    use std::cell::UnsafeCell;
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
    pub use std::thread::yield_now;
    pub use std::thread_local;
    use std::time::Duration;
    pub use std::time::Instant;

    pub use parking_lot::{Condvar, Mutex, MutexGuard};

    /// Waits on `changed` until it is notified or `until` has come.
    pub(crate) fn wait_until<T>(changed: &Condvar, guard: &mut MutexGuard<'_, T>, until: Instant) {
        let _ = changed.wait_until(guard, until);
    }

    /// A cell whose accesses the model checker can see.
    #[derive(Debug)]
    pub(crate) struct SharedCell<T>(UnsafeCell<T>);

    impl<T> SharedCell<T> {
        pub fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// For reading, while nothing writes.
        #[inline]
        pub fn read(&self) -> *const T {
            self.0.get()
        }

        /// For writing, while nothing reads.
        pub fn write(&self) -> *mut T {
            self.0.get()
        }
    }

    /// How long a closing thread sleeps before it looks whether it was cancelled.
    pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(10);
    /// How long a thread that waits for contents sleeps before it looks whether its time is over.
    pub(crate) const ARRIVAL_POLL: Duration = Duration::from_millis(10);
}
