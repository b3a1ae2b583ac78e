// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a buffer, as its Python object, its views and its kernels' launches share it.
//!
//! INVARIANT: memory is not freed while it is held: whoever has an array over it may read it at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use stasis::{Buffer, FreeError, Pool, PoolKind, explain};

use crate::error::{self, DeviceLost, Error, Timeout};
use crate::process::Held;
use crate::queue::synchronize_those;

/// What `holds` has while the memory is being freed.
const FREEING: usize = usize::MAX / 2;

/// Keeps memory from being freed.
#[derive(Debug)]
pub struct Hold(Arc<Memory>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A buffer of the runtime, and how many hold its memory.
#[derive(Debug)]
pub struct Memory {
    /// The buffer.
    pub buffer: Held<Buffer>,
    /// Whether it is a device's own, not the host's.
    pub is_of_device: bool,
    holds: AtomicUsize,
    /// Devices whose queues were given it: bit = index mod 64.
    used_by: AtomicU64,
}

impl Memory {
    /// Allocates `bytes` bytes of a pool, which waves may execute if `is_code`.
    ///
    /// # Errors
    /// `OutOfMemory`, `ValueError` for 0 bytes, `Error`.
    pub fn allocate(py: Python<'_>, pool: &Pool, bytes: u64, is_code: bool) -> PyResult<Self> {
        let made = py.detach(|| if is_code { pool.alloc_executable(bytes) } else { pool.alloc(bytes) });
        let buffer = made.map_err(|found| error::alloc(&found))?;
        Ok(Self::of(buffer, pool.kind() == PoolKind::Vram))
    }

    /// Of a buffer that nobody else has.
    pub fn of(buffer: Buffer, is_of_device: bool) -> Self {
        Self {
            buffer: Held::new(buffer),
            is_of_device,
            holds: AtomicUsize::new(0),
            used_by: AtomicU64::new(0),
        }
    }

    /// Keeps it from being freed, for whoever will use its address.
    ///
    /// # Errors
    /// `Error` while another thread frees it.
    pub fn hold(self: &Arc<Self>) -> PyResult<Hold> {
        let more = |holds| (holds < FREEING).then_some(holds + 1);
        match self.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Hold(Arc::clone(self))),
            Err(_) => Err(Error::new_err("The buffer is being freed by another thread")),
        }
    }

    /// Where the CPU finds it, for whoever holds it. Contents that are still to come after a restore are waited for.
    ///
    /// # Errors
    /// `Error` if the CPU does not see it or it was freed.
    pub fn address(&self, py: Python<'_>) -> PyResult<usize> {
        let address = py.detach(|| self.buffer.host().map(|guard| guard.as_ptr().addr()));
        address.map_err(|found| error::copy(&found))
    }

    /// Notes that a launch on a device is given it. Before it is submitted.
    pub fn note_use(&self, device: usize) {
        self.used_by.fetch_or(1 << (device % 64), Ordering::Relaxed);
    }

    /// Waits until all queues of the devices whose launches were given it have completed what was submitted.
    ///
    /// # Errors
    /// `KernelFault` if one of them has stopped, `Error`.
    pub fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let devices = self.used_by.load(Ordering::Relaxed);
        synchronize_those(py, None, |device| devices & 1 << (device % 64) != 0)
    }

    /// Gives it back, once packets that were given it have completed.
    ///
    /// # Errors
    /// `BufferError` while views live, `Timeout` if packets have not completed by then, `Error` if it was freed before.
    pub fn free(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<()> {
        let start = Instant::now();
        loop {
            if let Err(holds) = self.holds.compare_exchange(0, FREEING, Ordering::AcqRel, Ordering::Acquire) {
                let why = match holds < FREEING {
                    true => format!("{holds} arrays or tensors are views of it; delete them first"),
                    false => "another thread frees it".to_owned(),
                };
                return Err(PyBufferError::new_err(format!("The buffer is not freed: {why}")));
            }
            let freed = py.detach(|| self.buffer.free());
            self.holds.fetch_sub(FREEING, Ordering::AcqRel);
            match freed {
                Ok(()) => return Ok(()),
                Err(found @ FreeError::Pending { .. })
                    if limit.is_some_and(|limit| start.elapsed() >= limit) =>
                {
                    return Err(Timeout::new_err(explain(&found)));
                }
                Err(FreeError::Pending { .. }) => py.check_signals()?,
                Err(found @ FreeError::Lost(_)) => return Err(DeviceLost::new_err(explain(&found))),
                Err(found) => return Err(error::plain(&found)),
            }
        }
    }
}
