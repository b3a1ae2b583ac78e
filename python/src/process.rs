// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process: whether it is the one that opened the runtime.
//!
//! INVARIANT: a child that `os.fork` made has copies of its parent's handles and of its connection to the device. What
//! it sent there would be taken for the parent's; so in a child nothing is used, and dropping a handle does nothing.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::error::Forked;

/// Whether the runtime was opened, or is about to be.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// Whether this is a child of the process that opened the runtime.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Called in a child by `os.register_at_fork`.
#[pyfunction(name = "_forked")]
pub fn forked() {
    // A child of a process that has not opened it may open one of its own.
    IS_CHILD.fetch_or(IS_OPEN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Notes that the runtime is about to be opened.
pub fn note_open() {
    IS_OPEN.store(true, Ordering::Relaxed);
}

/// Refuses in a child.
///
/// # Errors
/// [`Forked`].
pub fn check() -> PyResult<()> {
    match IS_CHILD.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Forked::new_err(
            "The process was forked after the runtime was opened, and only its parent has the device: open the runtime \
             after the fork, or start processes with multiprocessing's method \"spawn\"",
        )),
    }
}

/// A handle of the runtime. Dropped in a child it is left alone.
#[derive(Debug)]
pub struct Held<T>(ManuallyDrop<T>);

impl<T> Held<T> {
    /// Holds it.
    pub fn new(handle: T) -> Self {
        Self(ManuallyDrop::new(handle))
    }
}

impl<T: Clone> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self::new(T::clone(&self.0))
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if !IS_CHILD.load(Ordering::Relaxed) {
            // SAFETY: it is not used again: this is the only place that drops it, and `self` is gone after it.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}
