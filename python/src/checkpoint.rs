// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process checkpoints itself: a call that returns twice.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stasis::checkpoint::{Life, Mode, SelfCheckpoint};
use stasis::explain;

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
#[pyo3(signature = (directory, *, leave_running=true, mode="drain", timeout=10.0))]
pub fn checkpoint(
    py: Python<'_>,
    directory: PathBuf,
    leave_running: bool,
    mode: &str,
    timeout: f64,
) -> PyResult<Checkpoint> {
    let mode = match mode {
        "drain" => Mode::Drain,
        "preempt" => Mode::Preempt,
        _ => {
            return Err(PyValueError::new_err(format!(
                "Mode {mode:?} is unknown: give \"drain\" or \"preempt\""
            )));
        }
    };
    let lock_deadline = wait::seconds(timeout)?;
    let options = SelfCheckpoint { mode, lock_deadline, leave_running, ..SelfCheckpoint::default() };
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
