// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: places in a queue that come about, and when.

use pyo3::prelude::*;
use stasis::{Agent, SYSTEM_FREQUENCY, Signal, WaitError};

use crate::device::runtime;
use crate::error;
use crate::process::{self, Held};
use crate::queue::Queue;
use crate::wait;

/// A packet behind others, which completes when they have, and its signal.
#[pyclass(frozen, module = "stasis")]
#[derive(Debug)]
pub struct Event {
    signal: Held<Signal>,
    agent: Held<Agent>,
}

impl Event {
    /// Submits it behind all that `queue` has.
    ///
    /// # Errors
    /// `Error`, `Timeout` if the queue is full.
    pub fn after(py: Python<'_>, queue: &Queue) -> PyResult<Self> {
        let signal = Signal::new(&runtime(py)?, 1).map_err(|found| error::alloc(&found))?;
        let submitted = queue.queue().barrier(&[], Some(&signal));
        submitted.map_err(|found| error::submit(&found))?;
        let agent = queue.device().agent().clone();
        Ok(Self { signal: Held::new(signal), agent: Held::new(agent) })
    }

    /// The signal that is 0 when it has come about.
    pub fn signal(&self) -> &Held<Signal> {
        &self.signal
    }

    /// When it came about, seconds of the system's clock (CLOCK_BOOTTIME).
    fn time(&self, py: Python<'_>) -> PyResult<f64> {
        self.synchronize(py, None)?;
        let times = py.detach(|| self.signal.system_times(&self.agent));
        let (_, end) = times.map_err(|found| error::alloc(&found))?;
        Ok(end as f64 / SYSTEM_FREQUENCY as f64)
    }
}

#[pymethods]
impl Event {
    /// Whether it came about.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        process::check()?;
        let value = py.detach(|| self.signal.load()).map_err(|found| error::wait(&WaitError::Lost(found)))?;
        Ok(value < 1)
    }

    /// Waits until it has come about.
    #[pyo3(signature = (timeout=None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        process::check()?;
        wait::interruptible(py, wait::timeout(timeout)?, |time| self.signal.wait_done(time))
    }

    /// Seconds from this event to `end`, by the devices' clocks. Waits for both.
    fn elapsed(&self, py: Python<'_>, end: &Self) -> PyResult<f64> {
        Ok(end.time(py)? - self.time(py)?)
    }

    fn __repr__(&self) -> String {
        format!("<stasis.Event of device {}>", self.agent.index())
    }
}
