// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime's errors as Python exceptions, with their whole text: what failed, the numbers, what to do next.

use std::error::Error as StdError;

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTimeoutError, PyValueError};
use stasis::{
    AllocError, CopyError, LoadError as LoadResult, QueueError, RawError, SubmitError, WaitError, explain,
};

create_exception!(
    stasis,
    Error,
    PyRuntimeError,
    "An act of the runtime failed; the text says which, and what to do."
);
create_exception!(stasis, OutOfMemory, PyMemoryError, "An agent has not that much memory left.");
create_exception!(stasis, LoadError, Error, "A code object could not be loaded, or has no such kernel.");
create_exception!(
    stasis,
    LaunchError,
    PyValueError,
    "A launch is not one: its shape or its arguments are wrong."
);
create_exception!(stasis, KernelFault, Error, "A kernel faulted, and its queue stopped.");
create_exception!(
    stasis,
    DeviceLost,
    KernelFault,
    "The device runs nothing of this process any more, after a kernel's memory fault or because it is gone."
);
create_exception!(stasis, CheckpointError, Error, "The process was not checkpointed; it runs on.");
create_exception!(
    stasis,
    Forked,
    Error,
    "The process was forked after the runtime was opened: only the parent has it."
);
create_exception!(stasis, Timeout, PyTimeoutError, "Time was up before what was waited for came about.");

/// An error of no family of its own.
pub fn plain(error: &(dyn StdError + 'static)) -> PyErr {
    Error::new_err(explain(error))
}

/// Memory could not be had.
pub fn alloc(error: &AllocError) -> PyErr {
    match error {
        AllocError::OutOfMemory { .. } => OutOfMemory::new_err(explain(error)),
        AllocError::Empty | AllocError::Elements { .. } => PyValueError::new_err(explain(error)),
        AllocError::Lost(_) => DeviceLost::new_err(explain(error)),
        _ => plain(error),
    }
}

/// Bytes could not be moved.
pub fn copy(error: &CopyError) -> PyErr {
    match error {
        CopyError::Range { .. } | CopyError::Elements { .. } => PyValueError::new_err(explain(error)),
        CopyError::Lost(_) | CopyError::AgentLost(_) => DeviceLost::new_err(explain(error)),
        _ => plain(error),
    }
}

/// A dispatch was not submitted.
pub fn submit(error: &SubmitError) -> PyErr {
    match error {
        SubmitError::Queue(_) => KernelFault::new_err(explain(error)),
        SubmitError::Timeout { .. } | SubmitError::WouldBlock { .. } => Timeout::new_err(explain(error)),
        SubmitError::Lost(_) | SubmitError::AgentLost(_) => DeviceLost::new_err(explain(error)),
        SubmitError::Contents(_) | SubmitError::Stale { .. } => plain(error),
        _ => LaunchError::new_err(explain(error)),
    }
}

/// Packets of the caller's own were not submitted.
pub fn raw(error: &RawError) -> PyErr {
    match error {
        RawError::Queue(_) => KernelFault::new_err(explain(error)),
        RawError::AgentLost(_) | RawError::Lost(_) => DeviceLost::new_err(explain(error)),
        RawError::Contents(_) | RawError::Stale { .. } | RawError::Freed { .. } => plain(error),
        _ => PyValueError::new_err(explain(error)),
    }
}

/// A wait ended without its condition.
pub fn wait(error: &WaitError) -> PyErr {
    match error {
        WaitError::Queue(_) => KernelFault::new_err(explain(error)),
        WaitError::Lost(_) | WaitError::AgentLost(_) => DeviceLost::new_err(explain(error)),
        WaitError::Timeout { .. } | WaitError::Consumed { .. } => Timeout::new_err(explain(error)),
        _ => plain(error),
    }
}

/// A queue could not be created.
pub fn queue(error: &QueueError) -> PyErr {
    match error {
        QueueError::Lost(_) | QueueError::AgentLost(_) => DeviceLost::new_err(explain(error)),
        QueueError::Packets { .. } | QueueError::Priority { .. } => PyValueError::new_err(explain(error)),
        _ => plain(error),
    }
}

/// A code object could not be loaded.
pub fn load(error: &LoadResult) -> PyErr {
    match error {
        LoadResult::Lost(_) | LoadResult::AgentLost(_) => DeviceLost::new_err(explain(error)),
        LoadResult::Memory(found) => alloc(found),
        _ => LoadError::new_err(explain(error)),
    }
}
