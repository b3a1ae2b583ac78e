// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PM4 command processor of one compute queue.
//!
//! Packets run one after the other and to their end, which is a legal order for any stream. Write pointer and doorbell
//! hold the client's count of written dwords, which never wraps; the read pointer that is published wraps at the ring's
//! size, as that of real processors does (kfdtest's `PM4Queue` computes with that).
//!
//! INVARIANT: only this module changes the position. Ring, write pointer and doorbell belong to the client: they can make
//! the queue wait or halt, and have no other effect.

mod execute;
mod launch;
mod machine;
mod registers;

use std::time::{Duration, Instant};

use nix::errno::Errno;
use queues::aql::ExceptionCode;
use queues::pm4::{Pm4Error, packet_dwords};
use queues::save_area::WaveRecord;

pub(super) use self::machine::Machine;
use self::machine::append;
use super::core::{Core, Exit};
use super::doorbell::NEVER_RUNG;
use super::gpu::Gpu;
use super::mqd::{Reader, Writer};
use super::raised::Raised;
use super::xccs::DispatchWaves;
use crate::hardware::HwQueue;
use crate::misbehaviour::Misbehaviour;

/// How long a queue polls its doorbell before it parks after a packet; each spin without a ring halves the next one.
const LONGEST_SPIN: Duration = Duration::from_micros(40);

/// Words that cannot be decoded halt the queue.
impl From<Pm4Error> for Raised {
    fn from(error: Pm4Error) -> Self {
        tracing::debug!(target: "processor", %error, "packet refused");
        Self::packet(match error {
            Pm4Error::Kind { .. } | Pm4Error::Opcode { .. } => ExceptionCode::PacketUnsupported,
            _ => ExceptionCode::PacketReserved,
        })
    }
}

/// A PM4 queue between two packets or inside one.
#[derive(Debug, Default)]
pub(super) struct Pm4Context {
    /// Dword of the ring to execute next, never wrapped.
    next: u64,
    /// One past the last dword that the client has written, as far as the write pointer or the doorbell said.
    limit: u64,
    machine: Machine,
    /// How long to spin for the next packet.
    spin: Duration,
}

impl Pm4Context {
    /// Reads what [`Pm4Context::store`] wrote.
    ///
    /// # Errors
    /// `EINVAL` when no queue could be like this.
    pub(super) fn load(
        reader: &mut Reader<'_>,
        gpu: &Gpu,
        config: &HwQueue,
        waves: Vec<WaveRecord>,
    ) -> Result<Self, Errno> {
        let (next, limit) = (reader.take64(), reader.take64());
        let machine = Machine::load(reader, gpu, config, waves)?;
        Ok(Self { next, limit, machine, spin: Duration::ZERO })
    }

    /// Writes everything but the waves.
    pub(super) fn store(&self, writer: &mut Writer) {
        writer.put64(self.next);
        writer.put64(self.limit);
        self.machine.store(writer);
    }

    /// The waves of the interrupted dispatch.
    pub(super) fn waves(&self) -> DispatchWaves<'_> {
        self.machine.waves()
    }

    /// Whether a dispatch has begun and not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        self.machine.is_in_dispatch()
    }

    /// `COMPUTE_PGM_RSRC1` of the dispatch that has running waves.
    pub(super) fn preempted_rsrc1(&self) -> Option<u32> {
        self.machine.preempted_rsrc1()
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(&mut self, core: &Core) -> Exit {
        let mut run = Pm4Run { core, context: self, published: None };
        // Later counts come from the doorbell.
        match core.gpu.vm.read_u64(core.config.write_ptr_va) {
            Ok(written) => run.note_written(written),
            Err(fault) => return fault.into(),
        }
        while Misbehaviour::Pm4.is_on() && !core.must_leave() {
            core.gpu.doorbells.park(|| core.must_leave());
        }
        loop {
            if let Err(exit) = run.step() {
                return exit;
            }
        }
    }
}

/// Whether a count of dwords is ahead of another.
fn is_ahead(count: u64, of: u64) -> bool {
    count.wrapping_sub(of).cast_signed() > 0
}

/// A queue on the hardware.
#[derive(Debug)]
struct Pm4Run<'a> {
    core: &'a Core,
    context: &'a mut Pm4Context,
    /// The position that was published last.
    published: Option<u64>,
}

impl Pm4Run<'_> {
    fn step(&mut self) -> Result<(), Exit> {
        self.context.machine.run(self.core)?;
        self.read_doorbell();
        self.publish()?;
        if self.core.must_leave() {
            return Err(Exit::Left);
        }
        let Pm4Context { next, limit, machine, .. } = &mut *self.context;
        let ring = Ring { core: self.core, next: *next, limit: *limit };
        let Some(step) = machine.execute_from(self.core, |words| ring.fetch(words))? else {
            self.idle();
            return Ok(());
        };
        *next = next.wrapping_add(u64::from(step.dwords));
        machine.enter(&step);
        self.context.spin = LONGEST_SPIN;
        Ok(())
    }

    /// Publishes the read pointer; all packets before it have completed.
    fn publish(&mut self) -> Result<(), Exit> {
        let Core { gpu, config, .. } = self.core;
        let Pm4Context { next, limit, .. } = *self.context;
        // Predication may skip dwords that are not written yet; with a read pointer beyond them the ring would look full
        // to the client.
        let next = if is_ahead(next, limit) { limit } else { next };
        if self.published != Some(next) {
            // A ring has at most 2^30 dwords (KFD counts its bytes in 32 bits).
            gpu.vm.write_u32(config.read_ptr_va, queues::words::words(next % ring_dwords(config))[0])?;
            self.published = Some(next);
        }
        Ok(())
    }

    /// Takes note of a count of written dwords.
    fn note_written(&mut self, written: u64) {
        if is_ahead(written, self.context.limit) {
            self.context.limit = written;
        }
    }

    /// The doorbell's value, if it was ever rung.
    fn rung(&self) -> Option<u64> {
        let rung = self.core.gpu.doorbells.value(self.core.config.doorbell_offset);
        (rung != NEVER_RUNG).then_some(rung)
    }

    fn read_doorbell(&mut self) {
        if let Some(rung) = self.rung() {
            self.note_written(rung);
        }
    }

    /// Waits for dwords: first by a short spin, which only helps on a busy queue, then parked until a doorbell rings.
    fn idle(&mut self) {
        let limit = self.context.limit;
        let is_over = || self.core.must_leave() || self.rung().is_some_and(|rung| is_ahead(rung, limit));
        let begun = Instant::now();
        while begun.elapsed() < self.context.spin {
            if is_over() {
                return;
            }
            std::hint::spin_loop();
        }
        self.core.gpu.doorbells.park(is_over);
        self.context.spin /= 2;
    }
}

fn ring_dwords(config: &HwQueue) -> u64 {
    (config.ring_bytes / 4).max(1)
}

/// The part of the ring that holds packets.
#[derive(Clone, Copy, Debug)]
struct Ring<'a> {
    core: &'a Core,
    next: u64,
    limit: u64,
}

impl Ring<'_> {
    /// Reads the packet at the position; `false` if it is not all there yet.
    fn fetch(&self, words: &mut Vec<u32>) -> Result<bool, Exit> {
        if !is_ahead(self.limit, self.next) {
            return Ok(false);
        }
        let Core { gpu, config, .. } = self.core;
        let size = ring_dwords(config);
        let place = self.next % size;
        let address = config.ring_va.wrapping_add(place * 4);
        // ORDERING: what the client wrote is visible since the doorbell was read with Acquire.
        let wanted = packet_dwords(gpu.vm.read_u32(address)?)?;
        // CAST: a packet has at most 0x4001 dwords.
        let dwords = wanted as u64;
        if dwords > size {
            return Err(Pm4Error::Truncated { wanted, available: queues::words::size(size) }.into());
        }
        if is_ahead(dwords, self.limit.wrapping_sub(self.next)) {
            return Ok(false);
        }
        let first = dwords.min(size - place);
        append(&gpu.vm, address, queues::words::size(first), words)?;
        append(&gpu.vm, config.ring_va, queues::words::size(dwords - first), words)?;
        Ok(true)
    }
}
