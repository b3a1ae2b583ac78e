// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting: without the interpreter's lock, and so that Ctrl-C ends it.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stasis::WaitError;

use crate::error;
use crate::printed;

/// TIMEOUT: how long a wait goes on before the interpreter's signal handlers are run.
pub const SLICE: Duration = Duration::from_millis(50);

/// A timeout in seconds.
///
/// # Errors
/// `ValueError` if it is negative, no number, or longer than a `Duration`.
pub fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("A timeout of {seconds} s is none: give 0 or more, or None"))
    })
}

/// A timeout in seconds; `None` is for ever.
///
/// # Errors
/// As for [`seconds`].
pub fn timeout(given: Option<f64>) -> PyResult<Option<Duration>> {
    given.map(seconds).transpose()
}

/// Calls `wait` with times to wait for until it does not time out, `limit` is over or a signal handler raises. What kernels print
/// meanwhile is passed on.
///
/// # Errors
/// What the wait ended with; what the handler raised.
pub fn interruptible(
    py: Python<'_>,
    limit: Option<Duration>,
    wait: impl Fn(Option<Duration>) -> Result<(), WaitError> + Sync,
) -> PyResult<()> {
    let start = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let waited = py.detach(|| wait(Some(slice)));
        printed::pass_on(py)?;
        match waited {
            Ok(()) => return Ok(()),
            Err(WaitError::Timeout { .. } | WaitError::Consumed { .. })
                if left.is_none_or(|left| left > slice) =>
            {
                py.check_signals()?;
            }
            Err(found) => return Err(error::wait(&found)),
        }
    }
}
