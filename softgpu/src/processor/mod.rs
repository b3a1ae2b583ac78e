// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware under the driver: page tables, doorbells, and an AQL command processor for every queue.
//!
//! A [`Processor`] holds all GPUs of one client process and implements [`Hardware`]. The client's buffers are mapped
//! into this very process at their GPU addresses, so that a wave's address is a host address; what a wave (or a
//! packet) may touch is decided by the GPU's [`Vm`] alone.
//!
//! Invariant: everything in the client's memory is hostile. A packet, a signal or a kernel can halt its own queue,
//! and nothing else.
//!
//! PM4 and SDMA queues are known (they can be started, stopped and destroyed) but stay idle: their packet languages
//! are not spoken yet.

mod bell;
mod clock;
mod dispatch;
mod doorbell;
mod gpu;
mod memory;
mod queue;
mod raised;
mod save;
mod session;
mod shared;
mod signal;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use queues::target::Target;
use rustix::io::Errno;
use softgpu_waves::{Access, AccessKind, Vm, Workers};

use self::bell::SignalBell;
use self::doorbell::Doorbells;
pub use self::doorbell::{PARKED_BYTES, SLICE_BYTES};
use self::gpu::{Gpu, InterruptLine};
use self::memory::HostMemory;
use self::queue::Queue;
use crate::hardware::{GpuMapping, Hardware, HwQueue, Interrupts, QueueKind, SavedWaves};

/// A queue of a kind that executes something, or one that is only known.
#[derive(Debug)]
enum Slot {
    Aql(Queue),
    Idle,
}

#[derive(Debug)]
struct Seat {
    gpu: Arc<Gpu>,
    queues: Mutex<HashMap<u32, Arc<Slot>>>,
}

/// The GPUs of one client process.
#[derive(Debug)]
pub struct Processor {
    // Before the memory: dropping the queues stops everything that uses it.
    seats: Vec<Seat>,
    memory: HostMemory,
    line: InterruptLine,
}

impl Processor {
    /// Makes GPUs of these chips, in this order, without memory or queues.
    ///
    /// # Errors
    /// `ENOMEM` or `EMFILE` when doorbells or host threads cannot be had.
    pub fn new(targets: &[&'static Target]) -> Result<Self, Errno> {
        let line = InterruptLine::default();
        let bell = Arc::new(SignalBell::default());
        let workers = Arc::new(Workers::new());
        let seat = |(index, &target): (usize, &&'static Target)| {
            let gpu = Gpu {
                index,
                target,
                vm: Vm::new(),
                doorbells: Doorbells::new()?,
                workers: Arc::clone(&workers),
                bell: Arc::clone(&bell),
                line: Arc::clone(&line),
            };
            Ok(Seat { gpu: Arc::new(gpu), queues: Mutex::default() })
        };
        let seats = targets.iter().enumerate().map(seat).collect::<Result<_, Errno>>()?;
        Ok(Self { seats, memory: HostMemory::default(), line })
    }

    /// Says who hears the interrupts; only the first call counts. Interrupts raised before are lost.
    pub fn connect(&self, interrupts: Weak<dyn Interrupts>) {
        if self.line.set(interrupts).is_err() {
            tracing::error!(target: "processor", "the interrupt line is connected already");
        }
    }

    fn seat(&self, gpu: usize) -> Result<&Seat, Errno> {
        self.seats.get(gpu).ok_or(Errno::NODEV)
    }

    /// The queue, without holding the table's lock while it is asked something.
    fn slot(&self, gpu: usize, id: u32) -> Option<Arc<Slot>> {
        self.seats.get(gpu)?.queues.lock().get(&id).cloned()
    }
}

/// Whether everything an AQL queue needs is mapped with the permission it needs.
fn is_mapped(vm: &Vm, queue: &HwQueue) -> bool {
    let needs = [
        (queue.ring_va, queue.ring_bytes, AccessKind::Write),
        (queue.read_ptr_va, 8, AccessKind::Write),
        (queue.write_ptr_va, 8, AccessKind::Read),
    ];
    needs.iter().all(|&(address, bytes, kind)| vm.check(address, bytes, kind).is_ok())
}

impl Hardware for Processor {
    fn map(&self, gpu: usize, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        let vm = &self.seat(gpu)?.gpu.vm;
        self.memory.acquire(mapping)?;
        let access = Access { read: true, write: mapping.access.write, execute: mapping.access.execute };
        let range = mapping.va..mapping.va.wrapping_add(mapping.bytes);
        vm.map(range, access).map_err(|_| {
            self.memory.release(mapping.va, mapping.bytes);
            Errno::INVAL
        })
    }

    fn unmap(&self, gpu: usize, va: u64, bytes: u64) {
        let Ok(seat) = self.seat(gpu) else { return };
        seat.gpu.vm.unmap(va..va.saturating_add(bytes));
        self.memory.release(va, bytes);
    }

    fn start_queue(&self, gpu: usize, queue: &HwQueue) -> Result<(), Errno> {
        let seat = self.seat(gpu)?;
        if queue.kind == QueueKind::Aql && !is_mapped(&seat.gpu.vm, queue) {
            return Err(Errno::IO);
        }
        if let Some(slot) = self.slot(gpu, queue.id) {
            if let Slot::Aql(known) = &*slot {
                known.start(*queue);
            }
            return Ok(());
        }
        let slot = match queue.kind {
            QueueKind::Aql => Slot::Aql(Queue::new(Arc::clone(&seat.gpu), *queue)?),
            QueueKind::Compute | QueueKind::Sdma => Slot::Idle,
        };
        seat.queues.lock().insert(queue.id, Arc::new(slot));
        Ok(())
    }

    fn stop_queue(&self, gpu: usize, id: u32) -> SavedWaves {
        match self.slot(gpu, id).as_deref() {
            Some(Slot::Aql(queue)) => {
                queue.stop();
                queue.save()
            }
            Some(Slot::Idle) | None => SavedWaves::default(),
        }
    }

    fn destroy_queue(&self, gpu: usize, id: u32) {
        let Ok(seat) = self.seat(gpu) else { return };
        let slot = seat.queues.lock().remove(&id);
        if let Some(Slot::Aql(queue)) = slot.as_deref() {
            queue.destroy();
        }
    }

    fn doorbells(&self, gpu: usize) -> Result<(OwnedFd, OwnedFd), Errno> {
        self.seat(gpu)?.gpu.doorbells.descriptors()
    }

    fn clock(&self) -> u64 {
        clock::ticks()
    }
}
