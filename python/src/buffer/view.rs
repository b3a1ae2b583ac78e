// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views: what a numpy array over a buffer's memory keeps alive.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::Elements;
use crate::memory::{Hold, Memory};

/// A part of the array protocol (`__array_interface__`, version 3): where the elements are. The array refers to it.
#[pyclass(frozen, module = "stasis._stasis")]
#[derive(Debug)]
pub struct View {
    _hold: Hold,
    address: usize,
    elements: Elements,
}

impl View {
    /// Of memory that the CPU sees.
    ///
    /// # Errors
    /// `Error` if it does not, or it was freed.
    pub fn new(py: Python<'_>, memory: &Arc<Memory>, elements: Elements) -> PyResult<Self> {
        let hold = memory.hold()?;
        Ok(Self { address: memory.address(py)?, _hold: hold, elements })
    }
}

#[pymethods]
impl View {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let answer = PyDict::new(py);
        answer.set_item("version", 3)?;
        answer.set_item("shape", PyTuple::new(py, &self.elements.shape)?)?;
        answer.set_item("typestr", &self.elements.typestr)?;
        answer.set_item("data", (self.address, false))?;
        Ok(answer)
    }
}
