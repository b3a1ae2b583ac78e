// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory without its process: labelled buffers are saved, and adopted by a process that was started afresh.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stasis::checkpoint::SaveOptions;
use stasis::explain;

use crate::buffer::Buffer;
use crate::device::{Device, runtime};
use crate::error::{CheckpointError, Error};
use crate::printed;
use crate::wait;

/// Writes the labelled buffers into `directory`; the process runs on.
#[pyfunction]
#[pyo3(signature = (directory, *, timeout=10.0))]
pub fn save(py: Python<'_>, directory: PathBuf, timeout: f64) -> PyResult<()> {
    let options = SaveOptions { lock_deadline: wait::seconds(timeout)?, ..SaveOptions::default() };
    let runtime = runtime(py)?;
    printed::pass_on(py)?;
    let saved = py.detach(|| runtime.save(&directory, &options));
    saved.map(drop).map_err(|found| CheckpointError::new_err(explain(&found)))
}

/// Takes over the labelled buffers in `directory`, by their labels.
#[pyfunction]
#[pyo3(signature = (directory, *, devices=None))]
pub fn adopt<'py>(
    py: Python<'py>,
    directory: PathBuf,
    devices: Option<BTreeMap<usize, usize>>,
) -> PyResult<Bound<'py, PyDict>> {
    let runtime = runtime(py)?;
    let devices = devices.unwrap_or_default();
    let adopted = py.detach(|| runtime.adopt(&directory, &devices));
    let adopted = adopted.map_err(|found| Error::new_err(explain(&found)))?;
    let mut handles: BTreeMap<usize, Py<Device>> = BTreeMap::new();
    let buffers = PyDict::new(py);
    for (label, adopted) in adopted {
        let index = adopted.agent.unwrap_or(0);
        let device = match handles.get(&index) {
            Some(device) => device.clone_ref(py),
            None => handles.entry(index).or_insert(Py::new(py, Device::of(py, index)?)?).clone_ref(py),
        };
        buffers.set_item(label, Py::new(py, Buffer::adopted(py, adopted, device)?)?)?;
    }
    Ok(buffers)
}
