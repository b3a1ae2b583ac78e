// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CRIU_OP remembers between calls.

/// What CRIU_OP remembers between calls.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct CriuState {
    /// PROCESS_INFO took the queues off the hardware.
    pub(in super::super) paused: bool,
    /// RESTORE made buffers, and RESUME is still to come (`block_mmu_notifications`).
    pub(in super::super) blocked: bool,
}
