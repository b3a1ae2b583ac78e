// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues for those who write packets themselves: any kind, any ring size, nothing between the words and the ring.
//!
//! The packet languages are in the `queues` crate (`queues::pm4`, `queues::sdma`, `queues::aql`). A dispatcher makes a
//! [`RawQueue`], tells it what its packets touch ([`RawQueue::uses`], [`RawQueue::completes`]) and submits words:
//!
//! ```no_run
//! use queues::sdma::{self, Generation};
//! use stasis::raw::{RawKind, RawOptions, RawQueue};
//! # fn copy(agent: &stasis::Agent, to: &stasis::Buffer, from: &stasis::Buffer) -> Result<(), Box<dyn std::error::Error>> {
//! let options = RawOptions { kind: RawKind::Sdma { engine: None }, ..RawOptions::default() };
//! let queue = RawQueue::create(agent, options)?;
//! let generation = Generation::of(agent.target()).ok_or("no copy packets are known for this agent")?;
//! let mut words = Vec::new();
//! sdma::copy(&mut words, generation, to.va(), from.va(), from.len())?;
//! queue.uses(to)?;
//! queue.uses(from)?;
//! queue.submit(&words)?;
//! queue.wait_idle(None)?;
//! # Ok(())
//! # }
//! ```
//!
//! Ring, pointer page, end-of-pipe area, save area and doorbell are made as the driver demands them, and registered: a
//! checkpoint waits until such a queue has completed what it was given, and a restored process finds it under the same
//! doorbell with the same positions.
//!
//! INVARIANT: positions are the caller's: they count units ([`RawKind`]) from 0 for ever, whatever hardware queue is
//! under the ring at the time. Two positions that differ by a multiple of the ring's size are the same place in it.

mod access;
mod options;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queues::aql::PacketKind;
use queues::words::halves;
use stasis_protocol::gate::Pass;

pub use self::access::{Access, Doorbell, ReadPointer, Ring, WritePointer};
pub use self::options::{MAX_AQL_RING_BYTES, MAX_RING_BYTES, MIN_RING_BYTES, RawKind, RawOptions};
use crate::agent::Agent;
use crate::context::error::{Lost, QueueError, RawError, WaitError};
use crate::context::queue::cu_mask::CuMask;
use crate::context::queue::fault::QueueFault;
use crate::context::queue::idle::wait_idle;
use crate::context::queue::live::{Full, QueueLive};
pub use crate::context::queue::packets::transfer_prologue;
use crate::context::registry::state::{QueueKey, QueueKind};
use crate::context::signal::make::submitted;
use crate::executable::Kernel;
use crate::pool::Buffer;
use crate::queue::Handle;
use crate::signal::Signal;

/// A handle on a queue whose packets the caller writes; clones name the same one, which is destroyed with the last.
///
/// Several threads may submit: each submission is in the ring as a whole. What a queue's packets do is not checked;
/// packets that address what is not theirs fault, and the fault is the queue's ([`RawQueue::fault`]).
#[derive(Clone)]
pub struct RawQueue(Arc<Handle>);

impl fmt::Debug for RawQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawQueue").field("key", &self.0.key).field("live", &self.0.live).finish()
    }
}

impl RawQueue {
    /// Creates a queue on `agent`.
    ///
    /// # Errors
    /// [`QueueError::RingBytes`], [`QueueError::Priority`], [`QueueError::Percentage`], [`QueueError::Unsupported`] and
    /// [`QueueError::Engine`] before the driver is asked; [`QueueError::Memory`], [`QueueError::Device`],
    /// [`QueueError::Lost`]. Nothing is left of it then.
    pub fn create(agent: &Agent, options: RawOptions) -> Result<Self, QueueError> {
        Self::make(agent, options, false)
    }

    /// A queue for the runtime's own use.
    pub(crate) fn internal(agent: &Agent, options: RawOptions) -> Result<Self, QueueError> {
        Self::make(agent, options, true)
    }

    fn make(agent: &Agent, options: RawOptions, internal: bool) -> Result<Self, QueueError> {
        let pass = agent.context.gate.enter()?;
        let minor = agent.context.device_or_lost(&pass)?.interface_minor();
        let recipe = options.recipe(&agent.info, minor, internal)?;
        Ok(RawQueue(Handle::create(agent, &pass, recipe)?))
    }

    fn live(&self) -> &QueueLive {
        &self.0.live
    }

    /// Its key in the registry.
    pub fn key(&self) -> QueueKey {
        self.0.key
    }

    /// Where it runs.
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// Its packet language.
    pub fn kind(&self) -> RawKind {
        self.live().kind().into()
    }

    /// Bytes of its ring.
    pub fn ring_bytes(&self) -> u64 {
        self.live().memory().ring.bytes()
    }

    /// Most units that can be in the ring at once. Of a ring of words a dword always stays free, or a full one could
    /// not be told from an empty one.
    pub fn capacity(&self) -> u64 {
        self.live().capacity()
    }

    /// Position behind the last unit written.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn write_position(&self) -> Result<u64, Lost> {
        let _pass = self.0.context.gate.enter()?;
        Ok(self.live().logical(self.live().hardware_write()))
    }

    /// Position of the first unit that the processor has not consumed. What it has consumed may not have completed.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn read_position(&self) -> Result<u64, Lost> {
        let _pass = self.0.context.gate.enter()?;
        Ok(self.live().logical(self.live().hardware_read()))
    }

    /// Whether the processor stands at an AQL packet that waits for signals: it goes on when somebody sets them. What came before may
    /// run still.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn is_at_wait(&self) -> Result<bool, Lost> {
        let _pass = self.0.context.gate.enter()?;
        Ok(self.live().is_at_wait())
    }

    /// Why it stopped, if it did.
    pub fn fault(&self) -> Option<Arc<QueueFault>> {
        self.live().fault().cloned()
    }

    fn enter(&self) -> Result<Pass<'_>, RawError> {
        let pass = self.0.context.gate.enter()?;
        if self.live().is_destroyed() {
            return Err(RawError::Stale { queue: self.0.key });
        }
        match self.live().fault() {
            Some(fault) => Err(Arc::clone(fault).into()),
            None => {
                self.await_contents(&pass)?;
                Ok(pass)
            }
        }
    }

    /// Has all contents be here that are still to come: what its packets touch is not known.
    fn await_contents(&self, pass: &Pass<'_>) -> Result<(), RawError> {
        match self.0.is_internal {
            true => Ok(()),
            false => self.0.context.arriving.all(&self.0.context, pass).map_err(RawError::Contents),
        }
    }

    /// Says that packets of this queue will use a buffer: it is not freed before the queue has completed what it was
    /// given until then. Say it before the packets are submitted.
    ///
    /// # Errors
    /// [`RawError::Freed`].
    pub fn uses(&self, buffer: &Buffer) -> Result<(), RawError> {
        if !buffer.is_alive() || !buffer.is_of(&self.0.context) {
            return Err(RawError::Freed { key: buffer.key() });
        }
        buffer.note_use(self.0.key);
        Ok(())
    }

    /// Says that packets of this queue will run a kernel: its code is not unloaded under them.
    pub fn uses_kernel(&self, kernel: &Kernel) {
        kernel.executable().note_use(self.0.key);
    }

    /// Says that one packet of this queue, not submitted yet, will decrement `signal` (of a value of 1: set it to 0).
    /// The signal's memory is then not reused before that, and should the queue stop, waits for the signal end with the
    /// queue's fault.
    pub fn completes(&self, signal: &Signal) {
        self.live().promise(signal.live());
        // If the queue has stopped already, whoever breaks its signals may have missed this one.
        if let Ok(pass) = self.0.context.gate.enter() {
            submitted(&self.0.context, &pass, self.live(), Some(signal.live()));
        }
    }

    /// Appends packets, publishes them and rings the doorbell; the position behind them. Never waits for room.
    ///
    /// PM4 packets may lie around the ring's end. Packets of a copy engine may not: all of `words` is kept together,
    /// behind no-ops up to the ring's start if it must be, and no-ops follow it if the engine must not be told of so
    /// little at once ([`sdma_submission_dwords`](queues::target::Target::sdma_submission_dwords)). AQL packets are
    /// published one by one, body first.
    ///
    /// # Errors
    /// [`RawError::Full`] (try again later), [`RawError::TooLong`], [`RawError::Empty`], [`RawError::Packets`] and
    /// [`RawError::Unpublished`] for what are no AQL packets, [`RawError::Queue`], [`RawError::Stale`],
    /// [`RawError::Lost`]. None of `words` was submitted then.
    pub fn submit(&self, words: &[u32]) -> Result<u64, RawError> {
        if words.is_empty() {
            return Err(RawError::Empty);
        }
        let pass = self.enter()?;
        let live = self.live();
        let producer = live.produce();
        let end = match live.kind() {
            QueueKind::Aql => return self.submit_aql(&pass, words),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => live.write_words(&pass, &producer, words),
        };
        let unit = live.kind().unit();
        end.map(|end| live.logical(end)).map_err(|full| match full {
            Full::Now { wanted, used, free } => RawError::Full { wanted, used, free, unit },
            Full::Ever { wanted, most } => RawError::TooLong { wanted, most, unit },
        })
    }

    /// Appends AQL packets; the caller is the one producer.
    fn submit_aql(&self, pass: &Pass<'_>, words: &[u32]) -> Result<u64, RawError> {
        let (packets, rest) = words.as_chunks::<16>();
        if !rest.is_empty() {
            return Err(RawError::Packets { dwords: words.len() });
        }
        for (index, packet) in packets.iter().enumerate() {
            // The header is the low half.
            let header = halves(packet[0])[0];
            if PacketKind::of(header) == Some(PacketKind::Invalid) {
                return Err(RawError::Unpublished { index, header });
            }
        }
        let live = self.live();
        let (wanted, most, unit) = (packets.len() as u64, live.capacity(), live.kind().unit());
        if wanted > most {
            return Err(RawError::TooLong { wanted, most, unit });
        }
        let Ok(mut slots) = live.reserve(pass, wanted) else {
            let (used, free) = live.room(live.hardware_write());
            return Err(match live.fault() {
                Some(fault) => Arc::clone(fault).into(),
                None => RawError::Full { wanted, used, free, unit },
            });
        };
        let mut end = 0;
        for packet in packets {
            end = slots.publish(*packet) + 1;
        }
        Ok(end)
    }

    /// Becomes the one producer and holds the process unlocked, to write the ring by hand; see [`Access`].
    ///
    /// # Errors
    /// [`RawError::Queue`], [`RawError::Stale`], [`RawError::Lost`].
    pub fn access(&self) -> Result<Access<'_>, RawError> {
        let pass = self.enter()?;
        Ok(Access::new(self.live(), pass))
    }

    /// Waits until the processor has consumed everything before `position`; `None` waits for ever. Consumed is not
    /// completed: PM4 and AQL packets may still run, and only a signal, or [`RawQueue::wait_idle`], tells.
    ///
    /// # Errors
    /// [`WaitError::Consumed`] with the read position when time is up, [`WaitError::Queue`], [`WaitError::Lost`].
    pub fn wait_consumed(&self, position: u64, timeout: Option<Duration>) -> Result<(), WaitError> {
        let start = Instant::now();
        let mut pause = Duration::ZERO;
        loop {
            let read = self.read_position()?;
            // Positions wrap at 2^64; one that is ahead by less than half of that is still to come.
            if position.wrapping_sub(read).cast_signed() <= 0 {
                return Ok(());
            }
            if let Some(fault) = self.fault() {
                return Err(fault.into());
            }
            let waited = start.elapsed();
            if timeout.is_some_and(|limit| waited >= limit) {
                return Err(WaitError::Consumed { position, read, unit: self.live().kind().unit(), waited });
            }
            // TIMEOUT: packets are consumed within microseconds or when a kernel or a poll before them ends.
            std::thread::sleep(pause);
            pause = (pause + Duration::from_micros(5)).min(Duration::from_millis(1));
        }
    }

    /// Waits until everything submitted so far has completed; it submits a packet for that.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_idle(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        wait_idle(&self.0.context, self.live(), timeout)
    }

    /// Changes its KFD priority, 0 (lowest) to 15.
    ///
    /// # Errors
    /// [`QueueError::Priority`], [`QueueError::Stale`], [`QueueError::Device`], [`QueueError::Lost`].
    pub fn set_priority(&self, priority: u32) -> Result<(), QueueError> {
        self.0.set_priority(priority)
    }

    /// Changes which compute units its waves may run on, from the next wave on. A restore keeps it.
    ///
    /// # Errors
    /// [`QueueError::CuMask`] and, for a copy engine's queue, [`QueueError::Unsupported`] before the driver is asked;
    /// [`QueueError::Stale`], [`QueueError::Device`], [`QueueError::Lost`].
    pub fn set_cu_mask(&self, mask: &CuMask) -> Result<(), QueueError> {
        self.0.set_cu_mask(mask)
    }

    /// Destroys it. Other handles on it find it stale.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while there is something that was not consumed (a stopped queue is destroyed with it),
    /// [`QueueError::Stale`] the second time, [`QueueError::Device`], [`QueueError::Lost`].
    pub fn destroy(&self) -> Result<(), QueueError> {
        self.0.destroy()
    }
}
