// SPDX-License-Identifier: MIT OR Apache-2.0
//! One GPU of one client process: what its queues share.

use std::sync::{Arc, OnceLock, Weak};

use queues::target::Target;
use softgpu_waves::{Vm, Workers};

use super::bell::SignalBell;
use super::doorbell::Doorbells;
use crate::hardware::Interrupts;

/// Who hears interrupts; set once the driver exists, weak because the driver owns the hardware.
pub(super) type InterruptLine = Arc<OnceLock<Weak<dyn Interrupts>>>;

/// What a queue needs of its GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    /// Number among the process's GPUs.
    pub(super) index: usize,
    /// The chip.
    pub(super) target: &'static Target,
    /// The GPU's page tables for this process.
    pub(super) vm: Arc<Vm>,
    /// The process's doorbells on this GPU.
    pub(super) doorbells: Doorbells,
    /// The host threads that run waves, shared by all GPUs of the process.
    pub(super) workers: Arc<Workers>,
    /// Struck whenever a packet completes on any GPU of the process.
    pub(super) bell: Arc<SignalBell>,
    /// Where interrupts go.
    pub(super) line: InterruptLine,
}

impl Gpu {
    /// The driver, as long as it exists.
    pub(super) fn interrupts(&self) -> Option<Arc<dyn Interrupts>> {
        self.line.get().and_then(Weak::upgrade)
    }
}
