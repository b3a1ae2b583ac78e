// SPDX-License-Identifier: MIT OR Apache-2.0
//! The AQL command processor.
//!
//! Packets begin in their order; a dispatch without the barrier bit begins although others before it still run (HSA 1.2
//! section 2.9). The processor has done with a dispatch packet when it begins: its header becomes INVALID and the read index
//! passes it, so that a client may reuse the slot while the kernel runs. What has completed is told by completion signals
//! alone. Every packet's effects are visible before its signal changes, which satisfies every fence scope.
//!
//! Nothing is executed without a doorbell, except what was published before the queue came onto the hardware.
//!
//! Where several XCCs process the queue, each of them executes every packet, and the first one completes it when all have done
//! their part (`super::xccs`). Of a barrier there is nothing to do but to wait; an indirect buffer is executed by each of them.
//!
//! INVARIANT: only this module changes the position. Ring, write index and doorbell belong to the client: they can make
//! the queue wait or halt, and have no other effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use queues::aql::{KernelDispatch, PACKET_BYTES, Packet, PacketError, PacketKind, Pm4Ib, RawPacket};
use queues::save_area::WaveRecord;
use queues::words::count;
use softgpu_waves::{Ended, Launch, MemoryFault};

use super::backoff::Backoff;
use super::core::{Core, Exit};
use super::dependencies::{all_zero, any_zero, holds};
use super::dispatch::{self, Job, Progress};
use super::doorbell::{LONGEST_NAP, Nap};
use super::gpu::{Gpu, Wake};
use super::mqd::{Reader, Writer};
use super::pm4;
use super::scratch::{self, Wanted};
use super::signal;
use super::xccs::DispatchWaves;
use crate::hardware::HwQueue;
use crate::misbehaviour::Misbehaviour;

/// How long a queue polls its doorbell before it parks after a packet; each spin without a ring halves the next one.
const LONGEST_SPIN: Duration = Duration::from_micros(40);

/// Dispatches of a queue that run at a time, as many as its descriptor can hold.
const MAX_RUNNING: usize = 3;

/// What a descriptor says of what runs: nothing, one dispatch, an indirect buffer, or several dispatches.
const NOTHING: u32 = 0;
const JOB: u32 = 1;
const BUFFER: u32 = 2;
const JOBS: u32 = 3;

/// An indirect buffer, for the packet at the position with this completion signal, begun at this time.
#[derive(Debug)]
struct Buffer {
    /// One of each XCC.
    machines: Vec<pm4::Machine>,
    completion: u64,
    start: u64,
}

impl Buffer {
    fn new(packet: &Pm4Ib, xccs: u32, start: u64) -> Self {
        let one = || pm4::Machine::indirect(packet.address, packet.dwords);
        let machines = match xccs {
            0 | 1 => vec![one()],
            xccs => (0..xccs).map(|xcc| one().of_xcc(xcc)).collect(),
        };
        Self { machines, completion: packet.completion_signal, start }
    }

    /// Lets the machines take turns, a packet each, until all are done: what one of them waits for may be another one's to do.
    ///
    /// # Errors
    /// As [`pm4::Machine::run`].
    fn run(&mut self, core: &Core) -> Result<(), Exit> {
        if let [machine] = &mut self.machines[..] {
            return machine.run(core);
        }
        let mut backoff = Backoff::new(&core.gpu.waiters);
        while !self.machines.iter().all(pm4::Machine::is_done) {
            let mut moved = false;
            for machine in self.machines.iter_mut().filter(|machine| !machine.is_done()) {
                moved |= machine.advance(core)?;
            }
            if moved {
                backoff = Backoff::new(&core.gpu.waiters);
            } else {
                backoff.wait(|| core.must_leave());
            }
        }
        Ok(())
    }
}

/// An AQL queue between two packets or inside some.
#[derive(Debug, Default)]
pub(super) struct AqlContext {
    /// Index of the packet to begin next (or inside of which it is), never wrapped.
    next: u64,
    /// One past the highest packet index rung.
    rung: u64,
    /// What the doorbell held when it was last read.
    seen: Option<u64>,
    /// Dispatches that have begun, in their order.
    jobs: Vec<Job>,
    /// No dispatch runs beside it.
    buffer: Option<Buffer>,
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
        let mut context = Self { next, rung, ..Self::default() };
        match reader.take() {
            NOTHING => {}
            JOB => context.jobs.push(Job::load(reader, gpu, config, waves)?),
            BUFFER => {
                let (completion, start) = (reader.take64(), reader.take64());
                context.buffer =
                    Some(Buffer { machines: machines(reader, gpu, config, waves)?, completion, start });
            }
            JOBS => {
                let count = usize::try_from(reader.take()).unwrap_or(usize::MAX);
                if count > MAX_RUNNING {
                    return Err(Errno::EINVAL);
                }
                let mut left = waves;
                for _ in 0..count {
                    let own = usize::try_from(reader.take()).map_err(|_| Errno::EINVAL)?;
                    if own > left.len() {
                        return Err(Errno::EINVAL);
                    }
                    let behind = left.split_off(own);
                    context.jobs.push(Job::load(reader, gpu, config, left)?);
                    left = behind;
                }
                if !left.is_empty() {
                    return Err(Errno::EINVAL);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(context)
    }

    /// Writes everything but the waves.
    pub(super) fn store(&self, writer: &mut Writer) {
        writer.put64(self.next);
        writer.put64(self.rung);
        match (&self.buffer, &self.jobs[..]) {
            (Some(Buffer { machines, completion, start }), _) => {
                writer.put(BUFFER);
                writer.put64(*completion);
                writer.put64(*start);
                machines.iter().take(1).for_each(|machine| machine.store(writer));
            }
            (None, []) => writer.put(NOTHING),
            (None, [job]) => {
                writer.put(JOB);
                job.store(writer);
            }
            (None, jobs) => {
                writer.put(JOBS);
                // A number that does not fit is refused by `load`.
                let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
                writer.put(count(jobs.len()));
                for job in jobs {
                    writer.put(count(job.wave_count()));
                    job.store(writer);
                }
            }
        }
    }

    /// Writes what the XCCs behind the first have for themselves; the second one's descriptor is being written.
    pub(super) fn store_further_xccs(&self, writer: &mut Writer) {
        let further = self.buffer.iter().flat_map(|buffer| &buffer.machines[1..]);
        for (at, machine) in further.enumerate() {
            if at > 0 {
                writer.next_xcc();
            }
            machine.store(writer);
        }
    }

    /// The waves of the interrupted dispatches.
    pub(super) fn waves(&self) -> Vec<DispatchWaves<'_>> {
        match &self.buffer {
            Some(Buffer { machines, .. }) => machines.iter().map(pm4::Machine::waves).collect(),
            None => self.jobs.iter().map(Job::waves).collect(),
        }
    }

    /// Whether a dispatch has begun and not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        let mut machines = self.buffer.iter().flat_map(|buffer| &buffer.machines);
        !self.jobs.is_empty() || machines.any(pm4::Machine::is_in_dispatch)
    }

    /// `COMPUTE_PGM_RSRC1` of each dispatch that has running waves.
    pub(super) fn preempted_rsrc1(&self) -> Vec<u32> {
        let machines = self.buffer.iter().flat_map(|buffer| &buffer.machines);
        let of_buffer = machines.filter_map(pm4::Machine::preempted_rsrc1);
        of_buffer.chain(self.jobs.iter().filter_map(Job::preempted_rsrc1)).collect()
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(&mut self, core: &Core) -> Exit {
        let wake: Ended = Arc::new(Wake(Arc::clone(&core.gpu)));
        let mut run = AqlRun { core, config: core.config, context: self, wake, nap: Nap::default() };
        let mut begun = run.map();
        while begun.is_ok() {
            begun = run.step();
        }
        match begun {
            Ok(()) => Exit::Left,
            Err(exit) => run.stop(exit),
        }
    }
}

/// The machines of an indirect buffer: the first one's state is next in the queue's own, those of further XCCs are in their
/// descriptors, the second one's behind whose waves are whose.
fn machines(
    reader: &mut Reader<'_>,
    gpu: &Gpu,
    config: &HwQueue,
    waves: Vec<WaveRecord>,
) -> Result<Vec<pm4::Machine>, Errno> {
    let first = pm4::Machine::load(reader, gpu, config, waves)?;
    let xccs = reader.xccs();
    if xccs == 1 {
        return Ok(vec![first]);
    }
    let mut machines = vec![first.of_xcc(0)];
    for xcc in 1..count(xccs) {
        reader.next_xcc();
        if xcc == 1 {
            // An indirect buffer has no waves there: nothing else can be in the list.
            reader.take();
        }
        machines.push(pm4::Machine::load(reader, gpu, config, Vec::new())?.of_xcc(xcc));
    }
    Ok(machines)
}

/// The packet as a device that misbehaves takes it.
fn misread(packet: KernelDispatch) -> KernelDispatch {
    let [x, y, z] = packet.grid;
    KernelDispatch {
        grid: [if Misbehaviour::Atomics.is_on() { x.max(2) - 1 } else { x }, y, z],
        group_segment_bytes: if Misbehaviour::LocalMemory.is_on() { 0 } else { packet.group_segment_bytes },
        ..packet
    }
}

/// A queue on the hardware.
#[derive(Debug)]
struct AqlRun<'a> {
    core: &'a Core,
    config: HwQueue,
    context: &'a mut AqlContext,
    wake: Ended,
    /// How long to sleep next beside a dispatch.
    nap: Nap,
}

impl AqlRun<'_> {
    /// The queue comes onto the hardware: packets that were published meanwhile count as rung (the MES and the HWS are told
    /// where the write index is: `wptr_addr` of ADD_QUEUE and MAP_QUEUES), and interrupted dispatches go on.
    fn map(&mut self) -> Result<(), Exit> {
        let written = self.core.gpu.vm.read_u64(self.config.write_ptr_va)?;
        self.note_rung(written);
        for job in &mut self.context.jobs {
            job.begin(&self.core.gpu, &self.core.control, Some(Arc::clone(&self.wake)))?;
        }
        Ok(())
    }

    /// Takes the dispatches off the workers. Those of a queue that halts are abandoned.
    fn stop(&mut self, mut exit: Exit) -> Exit {
        let mut kept = Vec::new();
        for mut job in std::mem::take(&mut self.context.jobs) {
            if matches!(exit, Exit::Raised(_)) {
                self.core.control.abort();
            }
            match job.end(&self.core.gpu) {
                Ok(Progress::Paused) => kept.push(job),
                Ok(Progress::Aborted) => {}
                Ok(Progress::Completed) => {
                    if let (Err(raised), Exit::Left) = (self.complete(&job), &exit) {
                        exit = raised;
                    }
                }
                Err(raised) if matches!(exit, Exit::Left) => exit = raised.into(),
                Err(_) => {}
            }
        }
        if matches!(exit, Exit::Left) {
            self.context.jobs = kept;
        }
        exit
    }

    fn step(&mut self) -> Result<(), Exit> {
        if self.core.must_leave() {
            return Err(Exit::Left);
        }
        if let Some(buffer) = self.context.buffer.take() {
            return self.run_buffer(buffer);
        }
        self.collect()?;
        if !self.published()? {
            return self.idle();
        }
        let packet = match Packet::decode(&self.packet()?) {
            // The client invalidated the packet between the two reads.
            Err(PacketError::Unpublished) => return Ok(()),
            decoded => decoded?,
        };
        packet.validate()?;
        let ordered =
            packet.header().barrier && !Misbehaviour::BarrierBit.is_on() || Misbehaviour::Overlap.is_on();
        if !self.context.jobs.is_empty() && (ordered || matches!(packet, Packet::Pm4Ib(_))) {
            self.wait_for_a_job();
            return Ok(());
        }
        self.core.gpu.hdp.settle(&self.core.gpu.vm);
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
            Packet::Pm4Ib(packet) => {
                let gpu = &self.core.gpu;
                self.run_buffer(Buffer::new(&packet, gpu.chip.xccs, gpu.counter.ticks()))
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
        if Misbehaviour::Kernel.is_on() {
            return self.retire(packet.completion_signal, gpu.counter.ticks());
        }
        let packet = misread(packet);
        let descriptor = dispatch::descriptor(gpu, &packet)?;
        let queue = scratch::queue_address(&self.config);
        let scratch = match packet.private_segment_bytes {
            0 => None,
            lane_bytes => {
                let wanted = Wanted { lane_bytes, lanes: descriptor.lanes() };
                match scratch::find(gpu, queue, wanted)? {
                    Some(scratch) => Some(scratch),
                    // Only an idle queue's scratch can be changed.
                    None if !self.context.jobs.is_empty() => {
                        self.wait_for_a_job();
                        return Ok(());
                    }
                    // The packet begins anew, now or when the queue is on the hardware again.
                    None => return scratch::ask(self.core, queue, wanted),
                }
            }
        };
        let launch = Launch {
            target: gpu.chip.target,
            compute_units: gpu.chip.compute_units,
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
        let mut job = Job::new(gpu, self.config.kind, launch)?;
        if !self.fits(&job) {
            self.wait_for_a_job();
            return Ok(());
        }
        self.consume()?;
        job.begin(gpu, &self.core.control, Some(Arc::clone(&self.wake)))?;
        self.context.jobs.push(job);
        self.nap = Nap::default();
        Ok(())
    }

    /// Whether a dispatch can run beside those that do: the descriptor and the save area must hold them all, and only one can
    /// have the queue's scratch memory.
    fn fits(&self, job: &Job) -> bool {
        let jobs = &self.context.jobs;
        let bytes = jobs.iter().fold(job.save_bytes(), |all, other| all.saturating_add(other.save_bytes()));
        jobs.is_empty()
            || jobs.len() < MAX_RUNNING
                && bytes <= u64::from(self.config.cwsr_bytes)
                && !(job.has_scratch() && jobs.iter().any(Job::has_scratch))
    }

    /// Completes the dispatches that are over.
    fn collect(&mut self) -> Result<(), Exit> {
        let mut at = 0;
        while let Some(job) = self.context.jobs.get_mut(at) {
            if !job.is_running() || !job.is_over() {
                at += 1;
                continue;
            }
            match job.end(&self.core.gpu)? {
                // The queue is about to leave.
                Progress::Paused => at += 1,
                Progress::Aborted => return Err(Exit::Left),
                Progress::Completed => {
                    let job = self.context.jobs.remove(at);
                    // Workers tell of the end of what they have run; a short dispatch may have needed none.
                    self.core.gpu.doorbells.notice();
                    self.complete(&job)?;
                }
            }
        }
        Ok(())
    }

    fn complete(&self, job: &Job) -> Result<(), Exit> {
        Ok(signal::complete(
            &self.core.gpu,
            job.completion_signal(),
            job.start(),
            self.core.gpu.counter.ticks(),
        )?)
    }

    fn is_one_over(&self) -> bool {
        self.context.jobs.iter().any(Job::is_over)
    }

    fn wait_for_a_job(&mut self) {
        let (core, jobs) = (self.core, &self.context.jobs);
        let ready = || core.must_leave() || jobs.iter().any(Job::is_over);
        core.gpu.doorbells.park_beside_waves(&mut self.nap, ready);
    }

    fn run_buffer(&mut self, mut buffer: Buffer) -> Result<(), Exit> {
        match buffer.run(self.core) {
            Ok(()) => self.retire(buffer.completion, buffer.start),
            Err(exit) => {
                self.context.buffer = Some(buffer);
                Err(exit)
            }
        }
    }

    fn run_barrier(
        &mut self,
        completion: u64,
        satisfied: impl Fn(&dyn Fn(u64) -> Result<u64, MemoryFault>) -> Result<bool, MemoryFault>,
    ) -> Result<(), Exit> {
        let start = self.core.gpu.counter.ticks();
        let core = self.core;
        let value = |handle| signal::value(&core.gpu.vm, handle);
        let mut backoff = Backoff::new(&core.gpu.waiters);
        let mut noticed = Instant::now();
        while !satisfied(&value)? {
            // A queue that leaves during a barrier executes the barrier from its beginning when it is back.
            if core.must_leave() {
                return Err(Exit::Left);
            }
            self.collect()?;
            backoff
                .wait(|| core.must_leave() || self.is_one_over() || !matches!(satisfied(&value), Ok(false)));
            // What the barrier waits for may be what the waves of a dispatch before it enqueue.
            if !self.context.jobs.is_empty() && noticed.elapsed() >= LONGEST_NAP {
                core.gpu.doorbells.notice();
                noticed = Instant::now();
            }
        }
        self.retire(completion, start)
    }

    /// Frees the slot of a packet that has completed, and completes its signal.
    fn retire(&mut self, completion: u64, start: u64) -> Result<(), Exit> {
        let end = self.core.gpu.counter.ticks();
        self.consume()?;
        signal::complete(&self.core.gpu, completion, start, end)?;
        Ok(())
    }

    /// Frees the slot of the packet at the position and publishes the read index.
    fn consume(&mut self) -> Result<(), MemoryFault> {
        let gpu = &self.core.gpu;
        let word = gpu.vm.read_u32(self.slot())?;
        gpu.vm.write_u32(self.slot(), word & 0xffff_0000 | PacketKind::Invalid as u32)?;
        self.context.next = self.context.next.wrapping_add(1);
        self.context.spin = LONGEST_SPIN;
        gpu.vm.write_u64(self.config.read_ptr_va, self.context.next)
    }

    /// Waits for a packet or the end of a dispatch: first by a short spin, which only helps on a busy queue, then parked until
    /// a doorbell rings or a worker notifies it.
    fn idle(&mut self) -> Result<(), Exit> {
        let offset = self.config.doorbell_offset;
        let doorbells = &self.core.gpu.doorbells;
        let (begun, seen) = (Instant::now(), doorbells.value(offset));
        while begun.elapsed() < self.context.spin {
            if doorbells.value(offset) != seen || self.core.must_leave() || self.is_one_over() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.context.spin /= 2;
        let (has_waves, mut nap) = (!self.context.jobs.is_empty(), self.nap);
        // The next step finds a fault again and raises it.
        let ready = || self.core.must_leave() || self.is_one_over() || !matches!(self.published(), Ok(false));
        match has_waves {
            true => doorbells.park_beside_waves(&mut nap, ready),
            false => doorbells.park(ready),
        }
        self.nap = nap;
        Ok(())
    }

    /// Whether the slot at the position holds a packet to execute: it was rung, and its header is not INVALID.
    ///
    /// The doorbell alone is not enough with several producers, which may ring in another order than they reserved;
    /// the header alone is not enough in a ring that was never filled with INVALID headers.
    fn published(&mut self) -> Result<bool, MemoryFault> {
        let value = self.core.gpu.doorbells.value(self.config.doorbell_offset);
        if self.context.seen != Some(value) {
            self.context.seen = Some(value);
            self.note_rung(value.wrapping_add(1));
            // Another producer may have rung a higher index before, which this value has overwritten.
            let written = self.core.gpu.vm.read_u64(self.config.write_ptr_va)?;
            self.note_rung(written);
        }
        if self.context.rung.wrapping_sub(self.context.next).cast_signed() <= 0 || Misbehaviour::Aql.is_on() {
            return Ok(false);
        }
        // ORDERING: an acquire load, pairs with the release store of the header.
        let header = self.core.gpu.vm.read_u32(self.slot())?.to_le_bytes()[0];
        Ok(header != PacketKind::Invalid as u8)
    }

    fn note_rung(&mut self, end: u64) {
        if end.wrapping_sub(self.context.rung).cast_signed() > 0 {
            self.context.rung = end;
        }
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
