// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells Python that this process is a restored copy, after a checkpoint from outside: its main thread calls the callbacks of
//! `stasis.on_restore` at its next step.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use stasis::checkpoint::Incarnation;
use stasis::{Limit, Runtime, Submitter};

use crate::process;

/// Whether the process checkpoints itself: whoever called for that calls the callbacks.
static BY_ITSELF: AtomicBool = AtomicBool::new(false);

/// A checkpoint that the process makes of itself, while this lives.
#[derive(Debug)]
pub struct ByItself(());

impl ByItself {
    /// Begins it.
    pub fn begin() -> Self {
        BY_ITSELF.store(true, Ordering::Release);
        Self(())
    }
}

impl Drop for ByItself {
    fn drop(&mut self) {
        BY_ITSELF.store(false, Ordering::Release);
    }
}

/// Which life of the process it was at the last look.
#[derive(Debug)]
struct Watch(Mutex<Option<Incarnation>>);

impl Submitter for Watch {
    fn settle(&self, _limit: &Limit) {}

    fn go_on(&self) {
        let Ok(now) = Incarnation::current() else { return };
        let before = self.0.lock().replace(now.clone());
        if before.is_some_and(|before| before != now) && !BY_ITSELF.load(Ordering::Acquire) {
            // SAFETY: may be called by any thread, without the interpreter's lock; the function takes no argument.
            let full = unsafe { pyo3::ffi::Py_AddPendingCall(Some(call_back), std::ptr::null_mut()) };
            if full != 0 {
                tracing::error!(target: "checkpoint", "the interpreter has no room for a call: callbacks are not called");
            }
        }
    }
}

/// Has the process's runtime tell of restores.
pub fn watch(runtime: &Runtime) {
    runtime.set_submitter(Watch(Mutex::new(Incarnation::current().ok())));
}

/// Calls the callbacks. What they raise is reported as what cannot be raised.
extern "C" fn call_back(_nothing: *mut c_void) -> c_int {
    Python::attach(|py| {
        let called = process::check().and_then(|()| py.import("stasis._restore")?.call_method0("_call_back"));
        if let Err(failed) = called {
            failed.write_unraisable(py, None);
        }
    });
    0
}
