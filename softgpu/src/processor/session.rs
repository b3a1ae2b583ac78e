// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AQL command processor: one queue's stay on the hardware.
//!
//! Packets run one after the other, which is a legal order for any barrier bits, and every packet's effects are
//! visible before the next begins, which satisfies every fence scope. A slot keeps its packet until the packet has
//! completed (kernels read it through `dispatch_ptr`); then its header becomes INVALID, the read index advances, and
//! only then the completion signal changes, so that whoever sees the signal finds the slot free.
//!
//! Invariant: the position is ours alone. Ring, write index and doorbell belong to the client: they can make the
//! queue wait or halt, and nothing else.

use std::time::{Duration, Instant};

use queues::aql::{PACKET_BYTES, Packet, PacketError, PacketKind, RawPacket};
use queues::save_area::WaveRecord;
use softgpu_waves::MemoryFault;

use super::bell::Patience;
use super::clock;
use super::dispatch::{self, Job};
use super::queue::Core;
use super::raised::Raised;
use super::signal;
use crate::hardware::HwQueue;

/// How long a queue looks at its doorbell before it parks after a packet; each fruitless spin halves the next.
const LONGEST_SPIN: Duration = Duration::from_micros(40);

/// What a queue keeps while it is off the hardware.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Index of the packet to execute next (or being executed), never wrapped.
    next: u64,
    /// One past the highest packet index rung.
    rung: u64,
    /// The dispatch that was interrupted.
    job: Option<Box<Job>>,
    /// How long to spin for the next packet.
    spin: Duration,
}

impl Context {
    /// The waves of the interrupted dispatch.
    pub(super) fn waves(&self) -> Vec<WaveRecord> {
        self.job.as_ref().map_or_else(Vec::new, |job| job.waves())
    }
}

/// Why a stay ended.
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

/// A queue on the hardware.
#[derive(Debug)]
pub(super) struct Session<'a> {
    core: &'a Core,
    config: HwQueue,
    context: &'a mut Context,
}

impl<'a> Session<'a> {
    /// Puts a context on the hardware.
    pub(super) fn new(core: &'a Core, config: HwQueue, context: &'a mut Context) -> Self {
        Self { core, config, context }
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(mut self) -> Exit {
        loop {
            if let Err(exit) = self.step() {
                return exit;
            }
        }
    }

    fn step(&mut self) -> Result<(), Exit> {
        if self.core.must_leave() {
            return Err(Exit::Left);
        }
        if self.context.job.is_some() {
            return self.run_job();
        }
        if !self.published()? {
            return self.idle();
        }
        let packet = match Packet::decode(&self.packet()?) {
            // The client took it back between the two looks.
            Err(PacketError::Unpublished) => return Ok(()),
            decoded => decoded?,
        };
        packet.validate()?;
        match packet {
            Packet::KernelDispatch(dispatch) => {
                let place = dispatch::Place {
                    packet_address: self.slot(),
                    dispatch_id: self.context.next,
                    read_ptr_va: self.config.read_ptr_va,
                    write_ptr_va: self.config.write_ptr_va,
                    doorbell: self.config.doorbell_offset / 8,
                };
                self.context.job = Some(Box::new(Job::prepare(&self.core.gpu, dispatch, &place)?));
                self.run_job()
            }
            Packet::BarrierAnd(barrier) => {
                let deps = barrier.dep_signals;
                self.run_barrier(barrier.completion_signal, |value| all_zero(deps, value))
            }
            Packet::BarrierOr(barrier) => {
                let deps = barrier.dep_signals;
                self.run_barrier(barrier.completion_signal, |value| any_zero(deps, value))
            }
        }
    }

    fn run_job(&mut self) -> Result<(), Exit> {
        let Some(mut job) = self.context.job.take() else { return Ok(()) };
        match job.run(&self.core.gpu, &self.core.control)? {
            dispatch::Progress::Completed => self.retire(job.completion_signal(), job.start()),
            dispatch::Progress::Paused => {
                self.context.job = Some(job);
                Err(Exit::Left)
            }
            dispatch::Progress::Aborted => Err(Exit::Left),
        }
    }

    fn run_barrier(
        &mut self,
        completion: u64,
        satisfied: impl Fn(&dyn Fn(u64) -> Result<u64, MemoryFault>) -> Result<bool, MemoryFault>,
    ) -> Result<(), Exit> {
        let start = clock::ticks();
        let core = self.core;
        let value = |handle| signal::value(&core.gpu.vm, handle);
        let mut patience = Patience::new(&core.gpu.bell);
        while !satisfied(&value)? {
            // Off the hardware in the middle of a barrier is before the barrier: it begins anew.
            if core.must_leave() {
                return Err(Exit::Left);
            }
            patience.wait(|| core.must_leave() || !matches!(satisfied(&value), Ok(false)));
        }
        self.retire(completion, start)
    }

    /// Gives the slot of the completed packet back, and says so.
    fn retire(&mut self, completion: u64, start: u64) -> Result<(), Exit> {
        let end = clock::ticks();
        let gpu = &self.core.gpu;
        let word = gpu.vm.read_u32(self.slot())?;
        gpu.vm.write_u32(self.slot(), word & 0xffff_0000 | PacketKind::Invalid as u32)?;
        self.context.next = self.context.next.wrapping_add(1);
        self.context.spin = LONGEST_SPIN;
        gpu.vm.write_u64(self.config.read_ptr_va, self.context.next)?;
        signal::complete(gpu, completion, start, end)?;
        Ok(())
    }

    /// Waits for a packet: a short spin that pays only on a busy queue, then parked until a doorbell rings.
    fn idle(&mut self) -> Result<(), Exit> {
        let offset = self.config.doorbell_offset;
        let doorbells = &self.core.gpu.doorbells;
        let (begun, seen) = (Instant::now(), doorbells.value(offset));
        while begun.elapsed() < self.context.spin {
            if doorbells.value(offset) != seen || self.core.must_leave() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.context.spin /= 2;
        // A fault is found again, and raised, by the next step.
        doorbells.park(|| self.core.must_leave() || !matches!(self.published(), Ok(false)));
        Ok(())
    }

    /// Whether the slot at the position holds a packet for us: it was rung, or the write index has passed it, and
    /// its header is not INVALID.
    ///
    /// The doorbell alone is not enough with several producers, who may ring in another order than they reserved;
    /// the header alone is not enough in a ring that was never filled with INVALID headers.
    fn published(&mut self) -> Result<bool, MemoryFault> {
        let next = self.context.next;
        let ahead = |limit: u64| limit.wrapping_sub(next).cast_signed() > 0;
        let rung = self.core.gpu.doorbells.value(self.config.doorbell_offset).wrapping_add(1);
        if rung.wrapping_sub(self.context.rung).cast_signed() > 0 {
            self.context.rung = rung;
        }
        let vm = &self.core.gpu.vm;
        if !ahead(self.context.rung) && !ahead(vm.read_u64(self.config.write_ptr_va)?) {
            return Ok(false);
        }
        // ORDERING: an acquire load, pairs with the release store of the header.
        let header = vm.read_u32(self.slot())?.to_le_bytes()[0];
        Ok(header != PacketKind::Invalid as u8)
    }

    fn packet(&self) -> Result<RawPacket, MemoryFault> {
        let mut bytes = [0_u8; PACKET_BYTES];
        self.core.gpu.vm.read_bytes(self.slot(), &mut bytes)?;
        let mut raw: RawPacket = [0; 16];
        for (word, bytes) in raw.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Ok(raw)
    }

    /// Address of the slot at the position.
    fn slot(&self) -> u64 {
        // CAST: 64.
        let bytes = PACKET_BYTES as u64;
        let slots = (self.config.ring_bytes / bytes).max(1);
        self.config.ring_va.wrapping_add(self.context.next % slots * bytes)
    }
}

/// Barrier-and: no dependency is pending; null handles are none.
fn all_zero<E>(deps: [u64; 5], value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    for dep in deps.into_iter().filter(|&dep| dep != 0) {
        if value(dep)? != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Barrier-or: one dependency has arrived, or there is none at all.
fn any_zero<E>(deps: [u64; 5], value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    let mut none = true;
    for dep in deps.into_iter().filter(|&dep| dep != 0) {
        if value(dep)? == 0 {
            return Ok(true);
        }
        none = false;
    }
    Ok(none)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Signals whose handle is their value plus one.
    fn value(handle: u64) -> Result<u64, Infallible> {
        Ok(handle - 1)
    }

    #[test]
    fn all_zero_needs_every_signal_and_skips_null() {
        assert_eq!(all_zero([0; 5], &value), Ok(true));
        assert_eq!(all_zero([1, 0, 1, 0, 0], &value), Ok(true));
        assert_eq!(all_zero([1, 0, 2, 0, 0], &value), Ok(false));
    }

    #[test]
    fn any_zero_needs_one_signal_and_skips_null() {
        assert_eq!(any_zero([0; 5], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 1, 0, 0], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 3, 0, 0], &value), Ok(false));
    }
}
