// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value that only callers inside the gate read.
//!
//! INVARIANT: it changes only through the exclusively borrowed [`Closed`] of its own gate, when no [`Pass`] exists.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{CLOSED, Closed, Gate, Pass};
use crate::sync::{SharedCell, yield_now};

/// A value read under a [`Pass`] and replaced under a [`Closed`] of the same gate: a lock that costs readers nothing.
pub struct GatedCell<T> {
    gate: Arc<Gate>,
    value: SharedCell<T>,
}

impl<T> fmt::Debug for GatedCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedCell").finish_non_exhaustive()
    }
}

// SAFETY: `get` gives `&T` to several threads (T: Sync), `set` moves a T in and drops the old one on another thread
// (T: Send). The two never overlap: `get` needs a `Pass` and `set` the gate's one `Closed`, while no pass exists.
unsafe impl<T: Send + Sync> Sync for GatedCell<T> {}

impl<T> GatedCell<T> {
    /// A cell that belongs to `gate`.
    pub fn new(gate: &Arc<Gate>, value: T) -> Self {
        GatedCell { gate: Arc::clone(gate), value: SharedCell::new(value) }
    }

    /// Reads under a pass.
    ///
    /// # Panics
    /// If `pass` is of another gate.
    #[inline]
    pub fn get<'a>(&'a self, pass: &'a Pass<'_>) -> &'a T {
        assert!(
            std::ptr::eq(pass.gate, Arc::as_ptr(&self.gate)),
            "INVARIANT: a cell is read under its own gate"
        );
        // SAFETY: a pass of this gate is held for as long as the borrow lives, so no `Closed` of it exists and
        // nothing is writing.
        unsafe { &*self.value.read() }
    }

    /// Replaces the value while the gate is closed.
    ///
    /// # Panics
    /// If `closed` is of another gate.
    pub fn set(&self, closed: &mut Closed, value: T) {
        assert!(closed.is_of(&self.gate), "INVARIANT: a cell is written under its own gate");
        // Calls that find the gate closed are counted for a moment. What is counted for longer can only be a pass
        // nested in one of `Closed::pass` and kept beyond it: waiting for ever is
        // better than changing a value that it may be reading.
        while closed.gate.word.load(Ordering::Acquire) & !CLOSED != 0 {
            yield_now();
        }
        // SAFETY: the one `Closed` of this gate is borrowed exclusively and no pass exists, so there is no borrow
        // from `get` or `get_closed`, and no other thread is in here.
        unsafe { *self.value.write() = value };
    }
}
