// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AQL command processor.
//!
//! Packets run one after the other, which is a legal order for any barrier bits, and every packet's effects are
//! visible before the next begins, which satisfies every fence scope. A slot keeps its packet until the packet has
//! completed (kernels read it through `dispatch_ptr`); then its header becomes INVALID, the read index advances, and
//! only then the completion signal changes, so that a client that sees the signal finds the slot free.
//!
//! INVARIANT: only this module changes the position. Ring, write index and doorbell belong to the client: they can make
//! the queue wait or halt, and have no other effect.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use queues::aql::{
    BarrierValue, KernelDispatch, PACKET_BYTES, Packet, PacketError, PacketKind, Pm4Ib, RawPacket,
};
use queues::save_area::WaveRecord;
use softgpu_waves::{Launch, MemoryFault};

use super::backoff::Backoff;
use super::clock;
use super::core::{Core, Exit};
use super::dispatch::{self, Job, Progress};
use super::gpu::Gpu;
use super::mqd::{Reader, Writer};
use super::pm4;
use super::scratch::{self, Wanted};
use super::signal;
use crate::hardware::HwQueue;

/// How long a queue polls its doorbell before it parks after a packet; each spin without a ring halves the next one.
const LONGEST_SPIN: Duration = Duration::from_micros(40);

/// What runs inside the packet at the position.
#[derive(Debug, Default)]
enum Inside {
    /// Nothing: the packet has not begun.
    #[default]
    Nothing,
    /// A dispatch.
    Job(Box<Job>),
    /// An indirect buffer, for the packet with this completion signal, begun at this time.
    Buffer { machine: Box<pm4::Machine>, completion: u64, start: u64 },
}

/// An AQL queue between two packets or inside one.
#[derive(Debug, Default)]
pub(super) struct AqlContext {
    /// Index of the packet to execute next (or being executed), never wrapped.
    next: u64,
    /// One past the highest packet index rung.
    rung: u64,
    inside: Inside,
    /// How long to spin for the next packet.
    spin: Duration,
}

impl AqlContext {
    /// Reads what [`AqlContext::store`] wrote.
    ///
    /// # Errors
    /// `EINVAL` when a dispatch or an indirect buffer in it is none.
    pub(super) fn load(
        reader: &mut Reader<'_>,
        gpu: &Gpu,
        config: &HwQueue,
        waves: Vec<WaveRecord>,
    ) -> Result<Self, Errno> {
        let (next, rung) = (reader.take64(), reader.take64());
        let inside = match reader.take() {
            0 => Inside::Nothing,
            1 => Inside::Job(Box::new(Job::load(reader, gpu, config, waves)?)),
            2 => {
                let (completion, start) = (reader.take64(), reader.take64());
                let machine = Box::new(pm4::Machine::load(reader, gpu, config, waves)?);
                Inside::Buffer { machine, completion, start }
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { next, rung, inside, spin: Duration::ZERO })
    }

    /// Writes everything but the waves.
    pub(super) fn store(&self, writer: &mut Writer) {
        writer.put64(self.next);
        writer.put64(self.rung);
        match &self.inside {
            Inside::Nothing => writer.put(0),
            Inside::Job(job) => {
                writer.put(1);
                job.store(writer);
            }
            Inside::Buffer { machine, completion, start } => {
                writer.put(2);
                writer.put64(*completion);
                writer.put64(*start);
                machine.store(writer);
            }
        }
    }

    /// The waves of the interrupted dispatch.
    pub(super) fn waves(&self) -> Vec<WaveRecord> {
        match &self.inside {
            Inside::Nothing => Vec::new(),
            Inside::Job(job) => job.waves(),
            Inside::Buffer { machine, .. } => machine.waves(),
        }
    }

    /// `COMPUTE_PGM_RSRC1` of the dispatch that has running waves.
    pub(super) fn preempted_rsrc1(&self) -> Option<u32> {
        match &self.inside {
            Inside::Nothing => None,
            Inside::Job(job) => job.preempted_rsrc1(),
            Inside::Buffer { machine, .. } => machine.preempted_rsrc1(),
        }
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(&mut self, core: &Core) -> Exit {
        let mut run = AqlRun { core, config: core.config, context: self };
        loop {
            if let Err(exit) = run.step() {
                return exit;
            }
        }
    }
}

/// A queue on the hardware.
#[derive(Debug)]
struct AqlRun<'a> {
    core: &'a Core,
    config: HwQueue,
    context: &'a mut AqlContext,
}

impl AqlRun<'_> {
    fn step(&mut self) -> Result<(), Exit> {
        if self.core.must_leave() {
            return Err(Exit::Left);
        }
        match std::mem::take(&mut self.context.inside) {
            Inside::Nothing => {}
            Inside::Job(job) => return self.run_job(job),
            Inside::Buffer { machine, completion, start } => {
                return self.run_buffer(machine, completion, start);
            }
        }
        if !self.published()? {
            return self.idle();
        }
        let packet = match Packet::decode(&self.packet()?) {
            // The client invalidated the packet between the two reads.
            Err(PacketError::Unpublished) => return Ok(()),
            decoded => decoded?,
        };
        packet.validate()?;
        match packet {
            Packet::KernelDispatch(dispatch) => self.launch(dispatch),
            Packet::BarrierAnd(barrier) => {
                let deps = barrier.dep_signals;
                self.run_barrier(barrier.completion_signal, |value| all_zero(deps, value))
            }
            Packet::BarrierOr(barrier) => {
                let deps = barrier.dep_signals;
                self.run_barrier(barrier.completion_signal, |value| any_zero(deps, value))
            }
            Packet::BarrierValue(barrier) => {
                self.run_barrier(barrier.completion_signal, |value| holds(&barrier, value))
            }
            Packet::Pm4Ib(Pm4Ib { address, dwords, completion_signal, .. }) => {
                let machine = Box::new(pm4::Machine::indirect(address, dwords));
                self.run_buffer(machine, completion_signal, clock::ticks())
            }
            // Agent dispatch packets are for agents that are programs; no GPU's packet processor executes them (HSA 1.2
            // section 2.9.7).
            Packet::AgentDispatch(_) => {
                Err(PacketError::Unsupported { kind: PacketKind::AgentDispatch as u8 }.into())
            }
        }
    }

    /// Begins a dispatch; without enough scratch, the process is asked for it first.
    fn launch(&mut self, packet: KernelDispatch) -> Result<(), Exit> {
        let gpu = &self.core.gpu;
        let descriptor = dispatch::descriptor(gpu, &packet)?;
        let queue = scratch::queue_address(&self.config);
        let scratch = match packet.private_segment_bytes {
            0 => None,
            lane_bytes => {
                let wanted = Wanted { lane_bytes, lanes: descriptor.lanes() };
                match scratch::find(gpu, queue, wanted)? {
                    Some(scratch) => Some(scratch),
                    // The packet begins anew, now or when the queue is on the hardware again.
                    None => return scratch::ask(self.core, queue, wanted),
                }
            }
        };
        let launch = Launch {
            target: gpu.chip.target,
            descriptor,
            kernel_object: packet.kernel_object,
            entry: descriptor.entry(packet.kernel_object),
            packet,
            user_data: None,
            first_workgroup: [0; 3],
            packet_address: self.slot(),
            queue_address: queue.unwrap_or(0),
            dispatch_id: self.context.next,
            scratch,
            doorbell: self.config.doorbell_offset / 8,
            priority: self.config.priority,
            privileged: gpu.chip.privileged(self.config.kind, descriptor.compute_pgm_rsrc1),
        };
        let job = Box::new(Job::new(gpu, launch)?);
        self.run_job(job)
    }

    fn run_job(&mut self, mut job: Box<Job>) -> Result<(), Exit> {
        match job.run(&self.core.gpu, &self.core.control)? {
            Progress::Completed => self.retire(job.completion_signal(), job.start()),
            Progress::Paused => {
                self.context.inside = Inside::Job(job);
                Err(Exit::Left)
            }
            Progress::Aborted => Err(Exit::Left),
        }
    }

    fn run_buffer(
        &mut self,
        mut machine: Box<pm4::Machine>,
        completion: u64,
        start: u64,
    ) -> Result<(), Exit> {
        match machine.run(self.core) {
            Ok(()) => self.retire(completion, start),
            Err(exit) => {
                self.context.inside = Inside::Buffer { machine, completion, start };
                Err(exit)
            }
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
        let mut backoff = Backoff::new(&core.gpu.waiters);
        while !satisfied(&value)? {
            // A queue that leaves during a barrier executes the barrier from its beginning when it is back.
            if core.must_leave() {
                return Err(Exit::Left);
            }
            backoff.wait(|| core.must_leave() || !matches!(satisfied(&value), Ok(false)));
        }
        self.retire(completion, start)
    }

    /// Frees the slot of the completed packet and publishes the read index.
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

    /// Waits for a packet: first by a short spin, which only helps on a busy queue, then parked until a doorbell rings.
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
        // The next step finds a fault again and raises it.
        doorbells.park(|| self.core.must_leave() || !matches!(self.published(), Ok(false)));
        Ok(())
    }

    /// Whether the slot at the position holds a packet to execute: it was rung, or the write index has passed it, and
    /// its header is not INVALID.
    ///
    /// The doorbell alone is not enough with several producers, which may ring in another order than they reserved;
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

/// Barrier-value: the signal's masked value stands in the wanted relation; a null signal is no dependency.
fn holds<E>(barrier: &BarrierValue, value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    if barrier.signal == 0 {
        return Ok(true);
    }
    Ok(barrier.is_satisfied_by(value(barrier.signal)?.cast_signed()))
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

    use queues::aql::Condition;

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
    fn barrier_value_looks_at_the_masked_value() {
        let barrier = BarrierValue { mask: 0xf, ..BarrierValue::new(0x25, Condition::Eq, 4) };
        assert_eq!(holds(&barrier, &value), Ok(true));
        assert_eq!(holds(&BarrierValue { value: 5, ..barrier }, &value), Ok(false));
        assert_eq!(holds(&BarrierValue { value: 5, signal: 0, ..barrier }, &value), Ok(true));
    }

    #[test]
    fn any_zero_needs_one_signal_and_skips_null() {
        assert_eq!(any_zero([0; 5], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 1, 0, 0], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 3, 0, 0], &value), Ok(false));
    }
}
