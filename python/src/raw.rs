// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues for those who write packets themselves: `stasis.tinygrad` submits what tinygrad has written through them.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stasis::raw::{RawKind, RawOptions};
use stasis::{Condition, RawError, Signal, WaitError, WaitMode};

use crate::device::{Device, runtime};
use crate::error;
use crate::process::{self, Held};
use crate::wait;

/// TIMEOUT: how long a submission sleeps before it looks again whether a full ring has room.
const PAUSE: Duration = Duration::from_micros(100);

/// A queue of packets that the caller writes.
#[pyclass(frozen, module = "stasis._stasis")]
#[derive(Debug)]
pub struct RawQueue {
    queue: Held<stasis::RawQueue>,
    /// Whose event packets may interrupt with.
    signal: Held<Signal>,
    device: Py<Device>,
}

#[pymethods]
impl RawQueue {
    /// One of a kind (`"pm4"`, `"aql"`, `"sdma"`), with a ring of so many bytes.
    #[new]
    fn new(py: Python<'_>, device: Py<Device>, kind: &str, ring_bytes: u32) -> PyResult<Self> {
        process::check()?;
        let kind = match kind {
            "pm4" => RawKind::Pm4,
            "aql" => RawKind::Aql,
            "sdma" => RawKind::Sdma { engine: None },
            _ => {
                return Err(PyValueError::new_err(format!(
                    "Packets of kind {kind:?} are unknown: give \"pm4\", \"aql\" or \"sdma\""
                )));
            }
        };
        let options = RawOptions { kind, ring_bytes, ..RawOptions::default() };
        let (runtime, agent) = (runtime(py)?, device.get().agent());
        let queue = py.detach(|| stasis::RawQueue::create(agent, options));
        let queue = Held::new(queue.map_err(|found| error::queue(&found))?);
        let signal = Signal::new(&runtime, 0).map_err(|found| error::alloc(&found))?;
        Ok(Self { queue, signal: Held::new(signal), device })
    }

    /// Appends whole packets, little-endian dwords, and rings the doorbell. Waits while the ring is full.
    fn submit(&self, py: Python<'_>, packets: &[u8]) -> PyResult<u64> {
        process::check()?;
        let (dwords, rest) = packets.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err(format!(
                "Packets are whole dwords; {} bytes were given",
                packets.len()
            )));
        }
        let words: Vec<u32> = dwords.iter().map(|dword| u32::from_le_bytes(*dword)).collect();
        self.device.get().flush_views()?;
        loop {
            match py.detach(|| self.queue.submit(&words)) {
                Ok(position) => return Ok(position),
                Err(RawError::Full { .. }) => {
                    py.detach(|| std::thread::sleep(PAUSE));
                    py.check_signals()?;
                }
                Err(found) => return Err(error::raw(&found)),
            }
        }
    }

    /// The position behind the last unit that was read: of dwords, packets or bytes, by the kind.
    fn read_position(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.queue.read_position()).map_err(|found| error::plain(&found))
    }

    /// Where packets write an event's id before they interrupt with it, and the id.
    fn interrupt(&self) -> PyResult<(u64, u32)> {
        let mailbox = self.signal.mailbox().map_err(|found| error::plain(&found))?;
        mailbox.ok_or_else(|| error::Error::new_err("The signal raises no event"))
    }

    /// Sleeps for so many seconds at most. Raises if the queue has stopped.
    fn sleep(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let limit = wait::seconds(seconds)?;
        // Nothing changes the value.
        let slept =
            py.detach(|| self.signal.wait(Condition::NotEqual(0), Some(limit), WaitMode::Blocked).map(drop));
        py.check_signals()?;
        match (slept, self.queue.fault()) {
            (_, Some(fault)) => Err(error::wait(&WaitError::Queue(fault))),
            (Ok(()) | Err(WaitError::Timeout { .. }), None) => Ok(()),
            (Err(found), None) => Err(error::wait(&found)),
        }
    }

    /// Waits until all that was submitted has completed.
    #[pyo3(signature = (timeout=None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        process::check()?;
        wait::interruptible(py, wait::timeout(timeout)?, |time| self.queue.wait_idle(time))
    }
}
