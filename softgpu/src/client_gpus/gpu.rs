// SPDX-License-Identifier: MIT OR Apache-2.0
//! One GPU of one client process: what its queues share.

use std::sync::{Arc, OnceLock, Weak};

use queues::target::{Target, privileged_dispatch};
use softgpu_waves::{AccessKind, Vm, Workers};

use super::backoff::SignalWaiters;
use super::clock::Counter;
use super::doorbell::Doorbells;
use super::hdp::Hdp;
use crate::hardware::{HwQueueKind, Interrupts, VmFault};
use crate::journal::Journal;
use crate::misbehaviour::Misbehaviour;

/// The receiver of interrupts: set once the driver exists, and weak because the driver owns the hardware.
pub(super) type InterruptLine = Arc<OnceLock<Weak<dyn Interrupts>>>;

/// `COMPUTE_PGM_RSRC1.PRIV`.
const PRIV: u32 = 1 << 20;

/// The properties of a chip that its queues depend on.
#[derive(Clone, Copy, Debug)]
pub struct Chip {
    /// The target.
    pub target: &'static Target,
    /// Compute units of all XCCs. A dispatch is spread over all of them, whatever its queue's CU mask.
    pub compute_units: u32,
    /// Shader arrays of an XCC (`array_count / num_xcc`).
    pub arrays: u32,
    /// Shader engines of an XCC.
    pub engines: u32,
    /// XCCs, which all process a compute queue together.
    pub xccs: u32,
    /// Compute queues that are on the hardware at a time (`num_cp_queues`).
    pub compute_queues: usize,
    /// Whether the chip's errata are modelled.
    pub errata: bool,
    /// What its clock counter is ahead of the host's clock ([`super::clock::ahead_of`]).
    pub counter_ahead: u64,
}

impl Chip {
    /// Whether the waves of a dispatch are privileged: as its packets say, and on an AQL queue where the firmware has to set
    /// the bit.
    pub(super) fn privileged(&self, kind: HwQueueKind, rsrc1: u32) -> bool {
        match kind {
            HwQueueKind::Aql => privileged_dispatch(self.target, self.arrays),
            _ => rsrc1 & PRIV != 0,
        }
    }

    /// Whether preempting a wave of such a dispatch hangs the chip: a wave of a PM4 dispatch that lacks `PRIV` where
    /// the trap handler needs it, and any that has it where the chip cannot take it ([`privileged_dispatch`]). On AQL
    /// queues the firmware sets the bit, so only the second can happen there.
    pub(super) fn hangs(&self, kind: HwQueueKind, rsrc1: u32) -> bool {
        let (set, needed) = (rsrc1 & PRIV != 0, privileged_dispatch(self.target, self.arrays));
        self.errata && (set && !needed || kind == HwQueueKind::Compute && needed && !set)
    }
}

/// What the interrupt tells of an access that was refused.
pub(super) fn vm_fault(address: u64, access: AccessKind, not_present: bool) -> VmFault {
    let kind = match access {
        AccessKind::Read => VmFault::READ,
        AccessKind::Write => VmFault::WRITE,
        AccessKind::Execute => VmFault::EXECUTE,
    };
    let valid = if not_present { VmFault::VALID } else { 0 };
    let address = address ^ if Misbehaviour::FaultAddress.is_on() { 1 << 20 } else { 0 };
    VmFault { address, permission_faults: kind | valid }
}

/// What a queue needs of its GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    /// Number among the process's GPUs.
    pub(super) index: usize,
    /// The chip.
    pub(super) chip: Chip,
    /// Its clock counter.
    pub(super) counter: Arc<Counter>,
    /// The GPU's page tables for this process.
    pub(super) vm: Arc<Vm>,
    /// The process's doorbells on this GPU.
    pub(super) doorbells: Doorbells,
    /// What the host stores into its memory.
    pub(super) hdp: Arc<Hdp>,
    /// The host threads that run waves, shared by all GPUs of the process.
    pub(super) workers: Arc<Workers>,
    /// Woken whenever a packet completes on any GPU of the process.
    pub(super) waiters: Arc<SignalWaiters>,
    /// Where interrupts go.
    pub(super) line: InterruptLine,
    /// What the client had done.
    pub(super) journal: Arc<Journal>,
}

fn driver(line: &InterruptLine) -> Option<Arc<dyn Interrupts>> {
    line.get().and_then(Weak::upgrade)
}

/// Passes the messages of a GPU's waves to the driver.
pub(super) struct Messages {
    gpu: usize,
    line: InterruptLine,
    counter: Arc<Counter>,
}

impl Messages {
    pub(super) fn new(gpu: usize, line: InterruptLine, counter: Arc<Counter>) -> Self {
        Self { gpu, line, counter }
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl softgpu_waves::Messages for Messages {
    fn memory_fault(&self, address: u64, access: AccessKind, not_present: bool) {
        if let Some(interrupts) = driver(&self.line) {
            interrupts.memory_fault(self.gpu, vm_fault(address, access, not_present));
        }
    }

    fn interrupt(&self, m0: u32, privileged: bool) {
        if Misbehaviour::Trap.is_on() || Misbehaviour::IllegalCode.is_on() {
            return;
        }
        if let Some(interrupts) = driver(&self.line) {
            interrupts.wave_message(self.gpu, m0, privileged);
        }
    }

    fn counter(&self) -> u64 {
        self.counter.ticks()
    }
}

/// Wakes the queues of a GPU when a dispatch of theirs may be over.
#[derive(Debug)]
pub(super) struct Wake(pub(super) Arc<Gpu>);

impl softgpu_waves::Notify for Wake {
    fn notify(&self) {
        self.0.doorbells.wake_parked();
        self.0.waiters.wake();
    }
}

impl Gpu {
    /// The driver, as long as it exists.
    pub(super) fn interrupts(&self) -> Option<Arc<dyn Interrupts>> {
        driver(&self.line)
    }

    /// Raises an end-of-pipe interrupt.
    pub(super) fn interrupt(&self, context_id: u32) {
        if Misbehaviour::Interrupt.is_on() {
            return;
        }
        if let Some(interrupts) = self.interrupts() {
            interrupts.end_of_pipe(context_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chip(name: &str, arrays: u32) -> Chip {
        let target = Target::by_name(name).unwrap();
        Chip {
            target,
            compute_units: 8 * arrays,
            arrays,
            engines: 1,
            xccs: 1,
            compute_queues: 8,
            errata: true,
            counter_ahead: 0,
        }
    }

    #[test]
    fn missing_and_misplaced_priv_hang_where_real_chips_do() {
        use HwQueueKind::{Aql, Compute};
        assert!(chip("gfx1100", 12).hangs(Compute, 0));
        assert!(!chip("gfx1100", 12).hangs(Compute, PRIV));
        assert!(!chip("gfx1100", 12).hangs(Aql, 0));
        assert!(!chip("gfx1103", 1).hangs(Compute, 0));
        assert!(chip("gfx1103", 1).hangs(Compute, PRIV));
        assert!(chip("gfx1103", 2).hangs(Compute, 0));
        assert!(chip("gfx1150", 2).hangs(Aql, PRIV));
        let tolerant = Chip { errata: false, ..chip("gfx1100", 12) };
        assert!(!tolerant.hangs(Compute, 0));
    }
}
