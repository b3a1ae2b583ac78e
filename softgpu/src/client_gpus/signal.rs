// SPDX-License-Identifier: MIT OR Apache-2.0
//! HSA signals as the command processor uses them: dependencies and completion (`amd_hsa_signal.h`).
//!
//! INVARIANT: everything a completion needs of the signal is read before its value changes, because a thread that
//! waits for the value may free the signal.

use std::mem::offset_of;

use queues::hsa::AmdSignal;
use softgpu_waves::{MemoryFault, Vm};

use super::gpu::Gpu;
use crate::misbehaviour::Misbehaviour;

const fn field(signal: u64, offset: usize) -> u64 {
    // CAST: an offset within 64 bytes.
    signal.wrapping_add(offset as u64)
}

/// The value of a dependency.
///
/// # Errors
/// The fault, if there is no readable signal.
pub(super) fn value(vm: &Vm, signal: u64) -> Result<u64, MemoryFault> {
    vm.read_u64(field(signal, offset_of!(AmdSignal, value)))
}

/// Completes a packet: time stamps, value, mailbox, interrupt, in the order `kfd_events.c` relies on.
///
/// # Errors
/// The fault, if the signal or its mailbox is not there.
pub(super) fn complete(gpu: &Gpu, signal: u64, start: u64, end: u64) -> Result<(), MemoryFault> {
    if signal == 0 {
        return Ok(());
    }
    let vm = &gpu.vm;
    let mailbox = Mailbox::of(vm, signal)?;
    let [start, end] = if Misbehaviour::Timestamps.is_on() { [0; 2] } else { [start, end] };
    vm.write_u64(field(signal, offset_of!(AmdSignal, start_ts)), start)?;
    vm.write_u64(field(signal, offset_of!(AmdSignal, end_ts)), end)?;
    // ORDERING: the atomic is SeqCst; a thread that sees the new value sees all the packet's work.
    vm.atomic_add_u64(field(signal, offset_of!(AmdSignal, value)), u64::MAX)?;
    gpu.waiters.wake();
    mailbox.raise(gpu)
}

/// Raises the event of a signal whose value has changed.
///
/// # Errors
/// The fault, if the signal or its mailbox is not there.
pub(super) fn notify(gpu: &Gpu, signal: u64) -> Result<(), MemoryFault> {
    gpu.waiters.wake();
    Mailbox::of(&gpu.vm, signal)?.raise(gpu)
}

/// Where a signal's event is announced.
struct Mailbox {
    address: u64,
    event: u32,
}

impl Mailbox {
    fn of(vm: &Vm, signal: u64) -> Result<Self, MemoryFault> {
        Ok(Self {
            address: vm.read_u64(field(signal, offset_of!(AmdSignal, event_mailbox_ptr)))?,
            event: vm.read_u32(field(signal, offset_of!(AmdSignal, event_id)))?,
        })
    }

    fn raise(&self, gpu: &Gpu) -> Result<(), MemoryFault> {
        if self.address != 0 {
            gpu.vm.write_u64(self.address, u64::from(self.event))?;
            gpu.interrupt(self.event);
        }
        Ok(())
    }
}
