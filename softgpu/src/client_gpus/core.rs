// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue as the command processors (AQL, PM4, SDMA) see it, and why they stop.
//!
//! INVARIANT: once [`Core::must_leave`] is true it stays so; a command processor checks it between packets and in every
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use softgpu_waves::Control;

use super::gpu::Gpu;
use super::raised::Raised;
use crate::hardware::HwQueue;

/// Why a command processor stopped.
#[derive(Debug)]
pub(super) enum Exit {
    /// The driver takes the queue off the hardware.
    Left,
    /// The queue halts.
    Raised(Box<Raised>),
}

impl<E: Into<Raised>> From<E> for Exit {
    fn from(error: E) -> Self {
        Self::Raised(Box::new(error.into()))
    }
}

/// A queue as the command processor that executes it sees it.
#[derive(Debug)]
pub(super) struct Core {
    /// The GPU it belongs to.
    pub(super) gpu: Arc<Gpu>,
    /// As it was started.
    pub(super) config: HwQueue,
    /// Seen by running waves.
    pub(super) control: Control,
    /// The thread checks it between packets.
    leave: AtomicBool,
}

impl Core {
    /// A queue that is to leave at once, or to stay until [`Core::wake`].
    pub(super) fn new(gpu: Arc<Gpu>, config: HwQueue, control: Control, leave: bool) -> Self {
        Self { gpu, config, control, leave: AtomicBool::new(leave) }
    }

    /// Whether the thread must get off the hardware.
    pub(super) fn must_leave(&self) -> bool {
        self.leave.load(Ordering::SeqCst)
    }

    /// Makes the thread take the queue off the hardware.
    pub(super) fn wake(&self) {
        self.leave.store(true, Ordering::SeqCst);
        // The thread may be asleep, waiting for a doorbell or a signal.
        self.gpu.doorbells.wake_all();
        self.gpu.waiters.wake();
    }
}
