// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command processors (AQL, PM4, SDMA) know of the queue that they execute, and why they stop.
//!
//! INVARIANT: once [`Core::must_leave`] is true it stays so; a command processor looks at it between packets and in every
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use softgpu_waves::Control;

use super::gpu::Gpu;
use super::raised::Raised;
use crate::hardware::HwQueue;

/// Why a stay on the hardware ended.
#[derive(Debug)]
pub(super) enum Exit {
    /// The driver wants the queue off.
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
    /// What the thread looks at between packets.
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

    /// Has the thread get off the hardware.
    pub(super) fn wake(&self) {
        self.leave.store(true, Ordering::SeqCst);
        // It may sleep on a doorbell or a signal.
        self.gpu.doorbells.wake_all();
        self.gpu.bell.strike();
    }
}
