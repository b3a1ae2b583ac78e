// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices: the process's runtime, opened once, and its agents.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use kfd::DeviceSpec;
use parking_lot::Mutex;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use stasis::{Agent, MemoryPlace, Options, QueueOptions, Runtime, explain};

use crate::error;
use crate::process::{self, Held};
use crate::queue::Queue;
use crate::restored;

/// What the process's runtime was opened on, as it was asked for.
static OPENED: Mutex<Option<String>> = Mutex::new(None);

/// The process's runtime, opened by the first call. Threads that use views while the process is checkpointed are held
/// back until it runs again.
///
/// # Errors
/// `Forked`, `Error`.
pub fn runtime(py: Python<'_>) -> PyResult<Runtime> {
    process::check()?;
    match Runtime::current() {
        Some(runtime) => Ok(runtime),
        None => py.detach(|| begin(None)),
    }
}

/// Opens the process's runtime.
fn begin(wanted: Option<&str>) -> PyResult<Runtime> {
    let mut opened = OPENED.lock();
    let named = wanted.unwrap_or("STASIS_DEVICE");
    if let (Some(opened), Some(wanted)) = (&*opened, wanted)
        && opened != wanted
    {
        return Err(PyValueError::new_err(format!(
            "The process's runtime was opened on {opened} and cannot be opened on {wanted}: a process has one"
        )));
    }
    let device: Option<DeviceSpec> = match wanted {
        Some(text) => Some(text.parse().map_err(|found| PyValueError::new_err(explain(&found)))?),
        None => None,
    };
    process::note_open();
    let runtime = Runtime::open(Options { device, agents: None }).map_err(|found| error::plain(&found))?;
    runtime.hold_pointers();
    runtime.keep_prints(true);
    restored::watch(&runtime);
    opened.get_or_insert_with(|| named.to_owned());
    Ok(runtime)
}

/// Opens the process's runtime on `device` (`None`: what STASIS_DEVICE says).
#[pyfunction]
#[pyo3(signature = (device=None))]
pub fn open(py: Python<'_>, device: Option<&str>) -> PyResult<()> {
    process::check()?;
    py.detach(|| begin(device)).map(drop)
}

/// The number of agents.
#[pyfunction]
pub fn device_count(py: Python<'_>) -> PyResult<usize> {
    Ok(runtime(py)?.agents().len())
}

/// What a software device has done for this process, by name; nothing of hardware, and before the runtime is open.
#[pyfunction(name = "_counts")]
pub fn counts(py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
    let Some(runtime) = Runtime::current().filter(|_| process::check().is_ok()) else {
        return Ok(Vec::new());
    };
    let text = py.detach(|| runtime.counts()).map_err(|found| error::alloc(&found))?.unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect())
}

/// An agent.
#[pyclass(frozen, module = "stasis")]
pub struct Device {
    agent: Held<Agent>,
    queue: PyOnceLock<Py<Queue>>,
    /// Whether the CPU may write its memory through views, at any time.
    has_views: AtomicBool,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.__repr__())
    }
}

impl Device {
    /// The one of this index.
    ///
    /// # Errors
    /// `IndexError` if there are not as many.
    pub fn of(py: Python<'_>, index: usize) -> PyResult<Self> {
        let runtime = runtime(py)?;
        let agent = runtime.agent(index).ok_or_else(|| {
            let count = runtime.agents().len();
            PyIndexError::new_err(format!("There is no device {index}: {count} are here, from 0 on"))
        })?;
        Ok(Self { agent: Held::new(agent), queue: PyOnceLock::new(), has_views: AtomicBool::new(false) })
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Notes that a view of its own memory was given out.
    pub fn note_view(&self) {
        self.has_views.store(true, Ordering::Relaxed);
    }

    /// Has what the CPU wrote through views be seen by packets that are submitted from here on.
    ///
    /// # Errors
    /// `Error` if the device is lost.
    pub fn flush_views(&self) -> PyResult<()> {
        match self.has_views.load(Ordering::Relaxed) {
            true => self.agent.flush_host_writes().map_err(|found| error::plain(&found)),
            false => Ok(()),
        }
    }

    /// The queue of launches that name none.
    ///
    /// # Errors
    /// `Error` if it cannot be created.
    pub fn default_queue(slf: &Bound<'_, Self>) -> PyResult<Py<Queue>> {
        let py = slf.py();
        let queue = slf.get().queue.get_or_try_init(py, || {
            Py::new(py, Queue::create(py, slf.clone().unbind(), QueueOptions::default())?)
        })?;
        Ok(queue.clone_ref(py))
    }
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (index=0))]
    fn new(py: Python<'_>, index: usize) -> PyResult<Self> {
        Self::of(py, index)
    }

    #[getter]
    fn index(&self) -> usize {
        self.agent.index()
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.agent.name()
    }

    #[getter]
    fn uuid(&self) -> &str {
        self.agent.uuid()
    }

    #[getter]
    fn compute_units(&self) -> u32 {
        self.agent.compute_units()
    }

    /// Work-items of a wave, as the topology has it.
    #[getter]
    fn wave_size(&self) -> u32 {
        self.agent.target().wave_front_size()
    }

    #[getter]
    fn is_software(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(runtime(py)?.transport_name().starts_with("soft"))
    }

    #[getter]
    fn queue(slf: &Bound<'_, Self>) -> PyResult<Py<Queue>> {
        process::check()?;
        Self::default_queue(slf)
    }

    /// Bytes of its memory: in all, that could be allocated now, that this process holds, and the most it held.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let runtime = runtime(py)?;
        let available = py.detach(|| self.agent.vram_available()).map_err(|found| error::alloc(&found))?;
        let stats = py.detach(|| runtime.memory_stats());
        let own = stats.at(MemoryPlace::Agent(self.agent.index()));
        let answer = PyDict::new(py);
        answer.set_item("total", self.agent.vram_bytes())?;
        answer.set_item("available", available)?;
        answer.set_item("held", own.map_or(0, |own| own.bytes))?;
        answer.set_item("peak", own.map_or(0, |own| own.peak))?;
        Ok(answer)
    }

    /// What the topology says of it, by KFD's names.
    #[pyo3(name = "_topology")]
    fn topology<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let node = &self.agent.node().properties;
        let answer = PyDict::new(py);
        for (name, value) in [
            ("array_count", node.array_count),
            ("cu_per_simd_array", node.cu_per_simd_array),
            ("drm_render_minor", node.drm_render_minor),
            ("gfx_target_version", node.gfx_target_version),
            ("lds_size_in_kb", node.lds_size_in_kb),
            ("max_slots_scratch_cu", node.max_slots_scratch_cu),
            ("max_waves_per_simd", node.max_waves_per_simd),
            ("num_xcc", node.num_xcc),
            ("simd_arrays_per_engine", node.simd_arrays_per_engine),
            ("simd_count", node.simd_count),
            ("simd_per_cu", node.simd_per_cu),
        ] {
            answer.set_item(name, value)?;
        }
        Ok(answer)
    }

    /// Waits until every queue of the device has completed what was submitted.
    #[pyo3(signature = (timeout=None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        crate::queue::synchronize_those(py, timeout, |index| index == self.agent.index())
    }

    fn __repr__(&self) -> String {
        format!("<stasis.Device {}: {} {}>", self.agent.index(), self.agent.name(), self.agent.uuid())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.agent.index() == other.agent.index()
    }

    fn __hash__(&self) -> usize {
        self.agent.index()
    }
}
