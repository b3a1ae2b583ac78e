// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: what is submitted to one is executed in order.

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use pyo3::prelude::*;
use stasis::{QueueOptions, Signal};

use crate::device::Device;
use crate::error;
use crate::event::Event;
use crate::process::{self, Held};
use crate::wait;

/// All queues there are: for [`synchronize`].
static QUEUES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Shared {
    queue: Held<stasis::Queue>,
    /// Signals that packets wait for, with the packets' indices: the place of a signal whose handles are gone may become
    /// another's.
    awaited: Mutex<Vec<(u64, Held<Signal>)>>,
}

/// An AQL queue.
#[pyclass(frozen, module = "stasis")]
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    device: Py<Device>,
}

impl Queue {
    /// Creates one.
    ///
    /// # Errors
    /// `Error`.
    pub fn create(py: Python<'_>, device: Py<Device>, options: QueueOptions) -> PyResult<Self> {
        let agent = device.get().agent();
        let queue =
            py.detach(|| stasis::Queue::create(agent, options)).map_err(|found| error::queue(&found))?;
        let shared = Arc::new(Shared { queue: Held::new(queue), awaited: Mutex::default() });
        let mut queues = QUEUES.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&shared));
        Ok(Self { shared, device })
    }

    /// The runtime's queue.
    pub fn queue(&self) -> &stasis::Queue {
        &self.shared.queue
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.device.get()
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (device, *, packets=1024, priority=7))]
    fn new(py: Python<'_>, device: Py<Device>, packets: u32, priority: u32) -> PyResult<Self> {
        process::check()?;
        Self::create(py, device, QueueOptions { packets, priority, ..QueueOptions::default() })
    }

    #[getter]
    #[pyo3(name = "device")]
    fn py_device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    #[getter]
    fn packets(&self) -> u64 {
        self.queue().packets()
    }

    /// An event that comes about when all that was submitted before has completed.
    fn record(&self, py: Python<'_>) -> PyResult<Event> {
        process::check()?;
        Event::after(py, self)
    }

    /// Has what is submitted from here on wait for an event, of any queue.
    fn wait_for(&self, event: &Event) -> PyResult<()> {
        process::check()?;
        let mut awaited = self.shared.awaited.lock();
        let read = self.queue().read_index().map_err(|found| error::submit(&found))?;
        awaited.retain(|(index, _)| *index >= read);
        let index = self.queue().barrier(&[event.signal()], None).map_err(|found| error::submit(&found))?;
        awaited.push((index, event.signal().clone()));
        Ok(())
    }

    /// Waits until all that was submitted has completed.
    #[pyo3(signature = (timeout=None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        process::check()?;
        wait::interruptible(py, wait::timeout(timeout)?, |time| self.queue().wait_idle(time))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.synchronize(py, None)
    }

    fn __repr__(&self) -> String {
        let agent = self.device().agent();
        format!("<stasis.Queue of device {}: {} packets>", agent.index(), self.queue().packets())
    }
}

/// Waits until all queues have completed what was submitted.
#[pyfunction]
#[pyo3(signature = (timeout=None))]
pub fn synchronize(py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
    synchronize_those(py, timeout, |_| true)
}

/// Waits for the queues of devices whose index `is_meant`.
///
/// # Errors
/// `Timeout`, `KernelFault`, `Error`.
pub fn synchronize_those(
    py: Python<'_>,
    timeout: Option<f64>,
    is_meant: impl Fn(usize) -> bool,
) -> PyResult<()> {
    process::check()?;
    let (limit, start) = (wait::timeout(timeout)?, Instant::now());
    let queues: Vec<_> = QUEUES.lock().iter().filter_map(Weak::upgrade).collect();
    for shared in queues.iter().filter(|shared| is_meant(shared.queue.agent().index())) {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        wait::interruptible(py, left, |time| shared.queue.wait_idle(time))?;
    }
    Ok(())
}
