// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process checkpoints itself: a call that returns twice.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stasis::checkpoint::{Life, Mode, SelfCheckpoint, State};
use stasis::criu::{CriuOptions, has_terminal};
use stasis::{Runtime, explain};

use crate::device::runtime;
use crate::error::CheckpointError;
use crate::printed;
use crate::restored::ByItself;
use crate::wait;

/// What a checkpoint has come to: complete, or restored from.
#[pyclass(frozen, module = "stasis", get_all)]
#[derive(Debug)]
pub struct Checkpoint {
    /// Where it is, as it was asked for.
    directory: PathBuf,
    /// Whether the call returned in a restored copy.
    restored: bool,
}

#[pymethods]
impl Checkpoint {
    fn __repr__(&self) -> String {
        let life = if self.restored { "restored from" } else { "complete in" };
        format!("<stasis.Checkpoint {life} {}>", self.directory.display())
    }
}

/// Checkpoints this process into `directory`.
#[pyfunction]
#[pyo3(signature = (directory, *, leave_running=true, mode="drain", timeout=10.0, connections="refuse", file_locks=false))]
pub fn checkpoint(
    py: Python<'_>,
    directory: PathBuf,
    leave_running: bool,
    mode: &str,
    timeout: f64,
    connections: &str,
    file_locks: bool,
) -> PyResult<Checkpoint> {
    let mode = match mode {
        "drain" => Mode::Drain,
        "preempt" => Mode::Preempt,
        _ => return Err(unknown("Mode", mode, "\"drain\" or \"preempt\"")),
    };
    let criu = CriuOptions {
        shell_job: has_terminal(std::process::id().cast_signed()),
        file_locks,
        ..with_connections(connections, leave_running)?
    };
    let lock_deadline = wait::seconds(timeout)?;
    let options = SelfCheckpoint { mode, lock_deadline, criu, leave_running, ..SelfCheckpoint::default() };
    let runtime = runtime(py)?;
    // A copy would pass it on as well.
    printed::pass_on(py)?;
    let _by_itself = ByItself::begin();
    let life = py.detach(|| runtime.checkpoint_to(&directory, &options));
    match life {
        Ok(life) => Ok(Checkpoint { directory, restored: matches!(life, Life::Restored(_)) }),
        Err(found) => Err(CheckpointError::new_err(explain(&found))),
    }
}

/// What CRIU is told of connections.
fn with_connections(connections: &str, leave_running: bool) -> PyResult<CriuOptions> {
    let none = CriuOptions::default();
    match connections {
        "refuse" => Ok(none),
        "close" => Ok(CriuOptions { tcp_close: true, ..none }),
        "keep" if leave_running => Err(PyValueError::new_err(
            "Connections cannot be kept by two processes: give leave_running=False, or connections=\"close\"",
        )),
        "keep" => Ok(CriuOptions { tcp_established: true, ..none }),
        _ => Err(unknown("Connections", connections, "\"refuse\", \"close\" or \"keep\"")),
    }
}

fn unknown(what: &str, given: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{what} {given:?} is unknown: give {known}"))
}

/// What a checkpoint is doing, and whether the runtime has let go of its devices for it.
#[pyfunction]
#[pyo3(name = "_activity")]
pub fn activity() -> (String, bool) {
    Runtime::current().map_or_else(
        || (String::new(), false),
        |runtime| (runtime.activity().to_string(), runtime.state() == State::Checkpointed),
    )
}
