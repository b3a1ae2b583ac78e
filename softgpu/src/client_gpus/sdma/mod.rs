// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command processor of one SDMA queue.
//!
//! Packets run one after the other and each is done before the next begins, so a fence needs no waiting and a cache
//! request nothing to do. The read pointer passes a packet only once its effects are visible.
//!
//! INVARIANT: only this module changes the position and the progress inside the packet there. Ring, write pointer and
//! doorbell belong to the client: they can make the queue wait or halt, and have no other effect.
//!
//! ```text
//!   next            limit        positions count bytes and never wrap; the packet at `next` is decoded anew when the
//!    v                v          queue comes back, and resumes after `progress`
//!   [copy......][fence][........
//!     ^ progress
//! ```

mod execute;
mod rect;
mod window;

use std::time::{Duration, Instant};

use nix::errno::Errno;
use queues::aql::ExceptionCode;
use queues::sdma::{Generation, SdmaError, decode};

use self::window::Window;
use super::core::{Core, Exit};
use super::doorbell::NEVER_RUNG;
use super::mqd::{Reader, Writer};
use super::raised::Raised;

/// How long a queue polls its doorbell before it parks after a packet; each spin without a ring halves the next one.
const LONGEST_SPIN: Duration = Duration::from_micros(40);
/// Dwords to decode first: more than any packet of fixed length has.
const FIRST_LOOK: u64 = 16;
/// Bytes of a dword.
const DWORD: u64 = 4;

/// An SDMA queue between two packets or inside one.
#[derive(Debug, Default)]
pub(super) struct SdmaContext {
    /// Byte position of the packet to execute next, or being executed.
    next: u64,
    /// Byte position behind the last packet announced, as far as was read.
    limit: u64,
    /// How much of the packet at `next` is done: bytes of a copy or fill, rows of a rectangle, checks of a poll.
    progress: u64,
    /// How long to spin for the next packet.
    spin: Duration,
}

impl SdmaContext {
    /// Reads what [`SdmaContext::store`] wrote.
    ///
    /// # Errors
    /// `EINVAL` when the position is not that of a dword.
    pub(super) fn load(reader: &mut Reader<'_>) -> Result<Self, Errno> {
        let [next, limit, progress] = std::array::from_fn(|_| reader.take64());
        if !next.is_multiple_of(DWORD) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { next, limit, progress, spin: Duration::ZERO })
    }

    /// Writes everything.
    pub(super) fn store(&self, writer: &mut Writer) {
        for value in [self.next, self.limit, self.progress] {
            writer.put64(value);
        }
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(&mut self, core: &Core) -> Exit {
        let mut run = SdmaRun { core, context: self };
        let mut window = Window::default();
        if let Err(exit) = run.read_write_pointer() {
            return exit;
        }
        loop {
            if let Err(exit) = run.step(&mut window) {
                return exit;
            }
            // This check follows the step, so that a queue that is stopped and started repeatedly still makes progress.
            if core.must_leave() {
                return Exit::Left;
            }
        }
    }

    /// Takes over a write pointer; one that is older than the latest is ignored.
    fn announce(&mut self, limit: u64) {
        if limit.wrapping_sub(self.limit).cast_signed() > 0 {
            self.limit = limit;
        }
    }
}

/// A queue on the hardware.
#[derive(Debug)]
struct SdmaRun<'a> {
    core: &'a Core,
    context: &'a mut SdmaContext,
}

impl SdmaRun<'_> {
    fn step(&mut self, window: &mut Window) -> Result<(), Exit> {
        let published = self.published()?;
        if published == 0 {
            self.idle();
            return Ok(());
        }
        let generation = Generation::of(self.core.gpu.chip.target)
            .ok_or_else(|| Raised::packet(ExceptionCode::PacketUnsupported))?;
        let config = &self.core.config;
        let mut dwords = FIRST_LOOK.min(published);
        loop {
            let stream = window.read(&self.core.gpu.vm, config, self.context.next, dwords)?;
            match decode(stream, generation) {
                Ok((packet, taken)) => {
                    self.core.gpu.hdp.settle(&self.core.gpu.vm);
                    self.execute(&packet)?;
                    // CAST: usize is at most 64 bits.
                    return self.retire(taken as u64);
                }
                Err(SdmaError::Truncated { wanted, .. }) if fits(wanted, config.ring_bytes) => {
                    // CAST: usize is at most 64 bits.
                    dwords = wanted as u64;
                    if dwords > published {
                        // The client has announced a packet's beginning only.
                        self.idle();
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves the position past the packet that was executed, and publishes it.
    fn retire(&mut self, dwords: u64) -> Result<(), Exit> {
        self.context.next = self.context.next.wrapping_add(dwords * DWORD);
        self.context.progress = 0;
        self.context.spin = LONGEST_SPIN;
        let gpu = &self.core.gpu;
        // ORDERING: a release store: a client that sees the read pointer sees the packet's effects.
        gpu.vm.write_u64(self.core.config.read_ptr_va, self.context.next)?;
        // Another queue may poll for what this packet wrote.
        gpu.waiters.wake();
        Ok(())
    }

    /// The write pointer in memory counts when the queue gets on the hardware; later ones come by doorbell.
    fn read_write_pointer(&mut self) -> Result<(), Exit> {
        let limit = self.core.gpu.vm.read_u64(self.core.config.write_ptr_va)?;
        self.context.announce(limit);
        Ok(())
    }

    /// What is announced by now.
    fn limit(&mut self) -> u64 {
        let rung = self.core.gpu.doorbells.value(self.core.config.doorbell_offset);
        if rung != NEVER_RUNG {
            self.context.announce(rung);
        }
        self.context.limit
    }

    /// Whole dwords from the position to the limit.
    ///
    /// # Errors
    /// More than the ring holds: some were overwritten before they were executed.
    fn published(&mut self) -> Result<u64, Exit> {
        let ahead = self.limit().wrapping_sub(self.context.next);
        if ahead.cast_signed() <= 0 {
            return Ok(0);
        }
        if ahead > self.core.config.ring_bytes {
            tracing::debug!(target: "processor", queue = self.core.config.id, ahead,
                ring = self.core.config.ring_bytes, "SDMA ring overrun");
            return Err(Raised::packet(ExceptionCode::PacketReserved).into());
        }
        Ok(ahead / DWORD)
    }

    /// Waits until more is announced: first by a short spin, which only helps on a busy queue, then parked until a
    /// doorbell rings.
    fn idle(&mut self) {
        let (begun, seen) = (Instant::now(), self.context.limit);
        while begun.elapsed() < self.context.spin {
            if self.limit() != seen || self.core.must_leave() {
                return;
            }
            std::hint::spin_loop();
        }
        self.context.spin /= 2;
        let core = self.core;
        core.gpu.doorbells.park(|| core.must_leave() || self.limit() != seen);
    }
}

/// Whether a ring can hold a packet of so many dwords.
fn fits(dwords: usize, ring_bytes: u64) -> bool {
    // CAST: usize is at most 64 bits.
    dwords as u64 <= ring_bytes / DWORD
}

/// The exception for a packet that cannot be decoded. The codes are those of AQL packets with the same defect.
impl From<SdmaError> for Raised {
    fn from(error: SdmaError) -> Self {
        tracing::debug!(target: "processor", %error, "packet refused");
        Self::packet(match error {
            SdmaError::UnknownOperation { .. } | SdmaError::AtomicOperation { .. } => {
                ExceptionCode::PacketUnsupported
            }
            _ => ExceptionCode::PacketReserved,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announce_ignores_what_is_older_across_the_wrap() {
        let mut context = SdmaContext { limit: u64::MAX - 3, ..SdmaContext::default() };
        context.announce(u64::MAX - 7);
        assert_eq!(context.limit, u64::MAX - 3);
        context.announce(8);
        assert_eq!(context.limit, 8);
    }

    #[test]
    fn packets_longer_than_the_ring_never_fit() {
        assert!(fits(1024, 4096) && !fits(1025, 4096));
    }
}
