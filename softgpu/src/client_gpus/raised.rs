// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exceptions that halt a queue, and how they are reported to the driver.
//!
//! INVARIANT: a queue that raised something executes no further packet until it is destroyed.

use queues::aql::{ExceptionCode, PacketError};
use queues::save_area::WaveRecord;
use softgpu_waves::{Cause, MemoryFault, WaveException};

use super::gpu::{Gpu, vm_fault};
use crate::hardware::VmFault;

/// Why a queue halted, with the waves that are left in it.
#[derive(Debug)]
pub(super) struct Raised {
    /// The queue's exception.
    pub(super) code: ExceptionCode,
    /// Whether a wave raised it, which only a trap handler can report.
    pub(super) by_wave: bool,
    /// The VM fault that comes with it.
    pub(super) fault: Option<VmFault>,
    /// The waves to be found in the save area.
    pub(super) waves: Vec<WaveRecord>,
    /// The XCC of these waves.
    pub(super) xcc: usize,
}

impl Raised {
    /// An exception that left no wave behind.
    pub(super) fn packet(code: ExceptionCode) -> Self {
        Self { code, by_wave: false, fault: None, waves: Vec::new(), xcc: 0 }
    }

    /// Reports the exception to the driver. The queue must already be off the hardware, because the driver may stop it
    /// during this call.
    pub(super) fn report(&self, gpu: &Gpu, queue: u32) {
        tracing::warn!(target: "processor", gpu = gpu.index, queue, code = %self.code, fault = ?self.fault,
            waves = self.waves.len(), "queue halted");
        let Some(interrupts) = gpu.interrupts() else { return };
        if let Some(fault) = self.fault {
            interrupts.memory_fault(gpu.index, fault);
        }
        if !self.by_wave {
            interrupts.queue_exception(gpu.index, queue, self.code);
        }
    }
}

impl From<PacketError> for Raised {
    fn from(error: PacketError) -> Self {
        tracing::debug!(target: "processor", %error, "packet refused");
        Self::packet(error.exception_code())
    }
}

/// A fault of the command processor's own memory access.
impl From<MemoryFault> for Raised {
    fn from(fault: MemoryFault) -> Self {
        let fault = Some(vm_fault(fault.address, fault.access, fault.not_present));
        Self { code: ExceptionCode::WaveMemoryViolation, by_wave: false, fault, waves: Vec::new(), xcc: 0 }
    }
}

impl From<Box<WaveException>> for Raised {
    fn from(exception: Box<WaveException>) -> Self {
        tracing::debug!(target: "processor", cause = ?exception.cause, pc = exception.pc,
            workgroup = ?exception.workgroup, wave = exception.wave_in_group, "wave exception");
        let code = match exception.cause {
            Cause::IllegalInstruction { .. } => ExceptionCode::WaveIllegalInstruction,
            Cause::MemoryViolation { .. } => ExceptionCode::WaveMemoryViolation,
            Cause::Trap(_) => ExceptionCode::WaveTrap,
            Cause::ScratchTooSmall { .. } => ExceptionCode::WaveApertureViolation,
            _ => ExceptionCode::WaveAbort,
        };
        // That one is the processor's, which starts no wave then.
        let by_wave = !matches!(exception.cause, Cause::ScratchTooSmall { .. });
        // A fault was reported when it happened.
        Self { code, by_wave, fault: None, waves: vec![exception.record], xcc: 0 }
    }
}
