// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernels print, given to Python's `sys.stdout` and `sys.stderr`: notebooks and tests have others there than the process.
//!
//! The runtime keeps the text, and whoever waits for kernels passes it on: no thread needs the interpreter's lock to answer a kernel, which a
//! checkpoint may be waiting for.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use stasis::{Runtime, Stream};

use crate::process;

/// Passes on what was printed. A stream that fails, or is not there, loses its text.
///
/// # Errors
/// What a handler of a signal raised meanwhile: what is no `Exception`.
#[pyfunction(name = "_pass_on_prints")]
pub fn pass_on(py: Python<'_>) -> PyResult<()> {
    // A child of the process that opened it has a copy of its parent's text.
    let Some(runtime) = Runtime::current().filter(|_| process::check().is_ok()) else { return Ok(()) };
    for piece in runtime.take_prints() {
        let name = match piece.stream {
            Stream::Out => "stdout",
            Stream::Error => "stderr",
        };
        match write(py, name, &String::from_utf8_lossy(&piece.text)) {
            Err(failed) if failed.is_instance_of::<PyException>(py) => failed.write_unraisable(py, None),
            done => done?,
        }
    }
    Ok(())
}

fn write(py: Python<'_>, name: &str, text: &str) -> PyResult<()> {
    let stream = py.import("sys")?.getattr(name)?;
    if !stream.is_none() {
        stream.call_method1("write", (text,))?;
    }
    Ok(())
}
