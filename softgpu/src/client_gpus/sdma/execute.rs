// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of each SDMA packet.
//!
//! INVARIANT: a packet that is left in the middle has its progress in the context and resumes from there; every other
//! packet has all its effects or none. The driver never waits for more than one piece of a
//! packet, and each time that the queue is started it executes at least one piece.

use std::time::{Duration, Instant};

use queues::aql::ExceptionCode;
use queues::sdma::{ConstFill, CopyLinear, CopyRect, Packet, PollRegMem};
use softgpu_waves::{MemoryFault, Vm};

use super::{SdmaRun, rect};
use crate::client_gpus::backoff::Backoff;
use crate::client_gpus::core::Exit;
use crate::client_gpus::raised::Raised;
use crate::misbehaviour::Misbehaviour;

/// Bytes that are moved or written between two checks of whether the queue must leave; a multiple of 4, so that the
/// pattern of a fill continues in phase.
const PIECE: u64 = 1 << 20;
/// A poll's count of retries that means no end.
const FOR_EVER: u16 = 0xfff;
/// One clock of the engine, as far as the pause between two looks of a poll is concerned.
const ENGINE_CLOCK: Duration = Duration::from_nanos(1);

impl SdmaRun<'_> {
    /// Executes a packet, or what is left of it.
    pub(super) fn execute(&mut self, packet: &Packet<'_>) -> Result<(), Exit> {
        let gpu = &self.core.gpu;
        match *packet {
            // There are no caches between the queues, the waves and the host.
            Packet::Nop { .. } | Packet::Gcr(_) => {}
            Packet::HdpFlush => {
                gpu.hdp.flush();
                gpu.hdp.settle(&gpu.vm);
            }
            Packet::CopyLinear(copy) => self.copy_linear(copy)?,
            Packet::CopyRect(copy) => self.copy_rect(&copy)?,
            Packet::Write { dst, data } => write(&gpu.vm, dst, data)?,
            Packet::Fence(fence) => gpu.vm.write_u32(fence.address, fence.value)?,
            Packet::Trap { event_id } => gpu.interrupt(event_id),
            Packet::PollRegMem(poll) => self.poll(&poll)?,
            Packet::Atomic(atomic) => {
                gpu.vm.atomic_add_u64(atomic.address, atomic.source)?;
            }
            Packet::ConstFill(fill) => self.const_fill(&fill)?,
            Packet::Timestamp { address } => gpu.vm.write_u64(address, gpu.counter.ticks())?,
        }
        Ok(())
    }

    fn copy_linear(&mut self, copy: CopyLinear) -> Result<(), Exit> {
        let left_out = if Misbehaviour::Sdma.is_on() { 4 } else { 0 };
        self.in_pieces(u64::from(copy.bytes).saturating_sub(left_out), |vm, done, bytes| {
            vm.copy(copy.dst.wrapping_add(done), copy.src.wrapping_add(done), bytes)
        })
    }

    fn const_fill(&mut self, fill: &ConstFill) -> Result<(), Exit> {
        let pattern = match fill.element_bytes() {
            1 => (fill.value & 0xff) * 0x0101_0101,
            2 => (fill.value & 0xffff) * 0x0001_0001,
            _ => fill.value,
        };
        self.in_pieces(u64::from(fill.bytes), |vm, done, bytes| {
            vm.fill32(fill.dst.wrapping_add(done), pattern, bytes)
        })
    }

    /// Does `act` to the pieces of a packet of `bytes` bytes that are not done yet, given as offset and length.
    fn in_pieces(
        &mut self,
        bytes: u64,
        act: impl Fn(&Vm, u64, u64) -> Result<(), MemoryFault>,
    ) -> Result<(), Exit> {
        // A progress read from a descriptor may be beyond the end: nothing is left then.
        while let Some(left) = bytes.checked_sub(self.context.progress).filter(|&left| left != 0) {
            let piece = left.min(PIECE);
            act(&self.core.gpu.vm, self.context.progress, piece)?;
            self.context.progress += piece;
            self.core.gpu.journal.copied(piece);
            if piece < left {
                self.may_stay()?;
            }
        }
        Ok(())
    }

    fn copy_rect(&mut self, copy: &CopyRect) -> Result<(), Exit> {
        let rows = rect::rows(copy);
        while self.context.progress < rows {
            let row = rect::row(copy, self.context.progress);
            self.core.gpu.vm.copy(row.dst, row.src, row.bytes)?;
            self.core.gpu.journal.copied(row.bytes);
            self.context.progress += 1;
            if self.context.progress < rows {
                self.may_stay()?;
            }
        }
        Ok(())
    }

    fn poll(&mut self, poll: &PollRegMem) -> Result<(), Exit> {
        if !poll.memory {
            // Only the kernel may access registers; the one poll of a register that clients use is the HDP flush.
            return Err(Raised::packet(ExceptionCode::PacketUnsupported).into());
        }
        let core = self.core;
        let look = || core.gpu.vm.read_u32(poll.address).map(|found| poll.is_satisfied_by(found));
        let pause = ENGINE_CLOCK * u32::from(poll.interval);
        let mut backoff = Backoff::new(&core.gpu.waiters);
        while !look()? {
            self.may_stay()?;
            if poll.retry == FOR_EVER {
                backoff.wait(|| core.must_leave() || !matches!(look(), Ok(false)));
            } else if self.context.progress < u64::from(poll.retry) {
                self.context.progress += 1;
                spin(pause);
            } else {
                // The engine ends the poll and continues with the next packet.
                tracing::debug!(target: "processor", queue = core.config.id, %poll, "poll gave up");
                break;
            }
        }
        Ok(())
    }

    fn may_stay(&self) -> Result<(), Exit> {
        if self.core.must_leave() { Err(Exit::Left) } else { Ok(()) }
    }
}

fn spin(pause: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < pause {
        std::hint::spin_loop();
    }
}

/// Stores the data of a write packet. One or two dwords are what clients signal with: they are stored by one atomic store.
fn write(vm: &Vm, dst: u64, data: &[u32]) -> Result<(), MemoryFault> {
    match *data {
        [value] => vm.write_u32(dst, value),
        [low, high] if dst.is_multiple_of(8) => vm.write_u64(dst, u64::from(low) | u64::from(high) << 32),
        _ => {
            let mut at = dst;
            // CAST: 2^18.
            for piece in data.chunks((PIECE / 4) as usize) {
                let bytes: Vec<u8> = piece.iter().flat_map(|value| value.to_le_bytes()).collect();
                vm.write_bytes(at, &bytes)?;
                // CAST: at most `PIECE`.
                at = at.wrapping_add(bytes.len() as u64);
            }
            Ok(())
        }
    }
}
