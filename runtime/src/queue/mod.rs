// SPDX-License-Identifier: MIT OR Apache-2.0
//! User-mode queues: rings of packets that the hardware reads. [`Queue`] takes AQL packets; [`crate::raw`] has queues of
//! all kinds for those who write packets themselves.
//!
//! INVARIANT: every buffer a queue lives in is one exactly sized mapping of its own (`kfd_queue_acquire_buffers`),
//! made before the queue and freed after it.

mod bringup;
mod create;
mod cu_mask;
pub mod fault;
mod idle;
pub mod live;
pub(crate) mod packets;
pub(crate) mod scratch;

use std::fmt;
use std::sync::Arc;

use queues::aql::{Barrier, FenceScope, Header, Packet, PacketKind};

pub use self::bringup::{bring_up, bring_up_again};
pub(crate) use self::create::{Recipe, check_priority};
pub use self::cu_mask::CuMask;
pub use self::fault::{QueueFault, ScratchFault, ScratchRefusal};
pub use self::live::{QueueLive, QueueMemory};
use crate::agent::Agent;
use crate::device::Device;
use crate::error::{DeviceError, QueueError, SubmitError, WaitError};
use crate::registry;
use crate::registry::state::QueueKey;
use crate::registry::{Bo, Registry, Table};
use crate::runtime::Inner;
use crate::signal::Signal;

/// Fewest packets of a queue: one page of them, since a ring is whole pages.
pub const MIN_PACKETS: u32 = 64;
/// Most packets of a queue (HSA's limit on these chips).
pub const MAX_PACKETS: u32 = 131_072;

/// How a queue is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Packets in the ring, a power of two from 64 to 131072.
    pub packets: u32,
    /// KFD priority, 0 (lowest) to 15.
    pub priority: u32,
    /// Bytes of one packet's kernel-argument slot, a power of two from 64 to 65536; there are `2 * packets`.
    pub kernarg_slot_bytes: u32,
    /// Scratch (private segment) bytes that each lane of a wave of 64 has from the start; memory for all lanes of the
    /// agent is allocated. With 0, or less than a dispatch needs, more is allocated when a dispatch needs it; a kernel
    /// with a dynamic stack is given no more than this and what it was compiled for.
    pub scratch_lane_bytes: u32,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { packets: 1024, priority: 7, kernarg_slot_bytes: 1024, scratch_lane_bytes: 0 }
    }
}

/// A handle on a queue; clones name the same one, which is destroyed with the last.
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<Handle>);

pub(crate) struct Handle {
    pub inner: Arc<Inner>,
    pub key: QueueKey,
    pub live: Arc<QueueLive>,
    pub agent: Agent,
    /// Address of its `amd_queue_t`, and the apertures, for hidden arguments.
    pub page_va: u64,
    pub private_base_hi: u32,
    pub shared_base_hi: u32,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("key", &self.0.key).field("live", &self.0.live).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.live.is_destroyed() {
            return;
        }
        if let Ok(pass) = self.inner.gate.enter()
            && let Err(error) = self.inner.destroy_queue(&pass, self.key, &self.live)
        {
            tracing::warn!(target: "queues", %error, queue = %self.key, "a dropped queue could not be destroyed");
        }
    }
}

impl Queue {
    /// Creates a queue on `agent`.
    ///
    /// # Errors
    /// [`QueueError`]; nothing is left of it then.
    pub fn create(agent: &Agent, options: QueueOptions) -> Result<Self, QueueError> {
        let pass = agent.inner.gate.enter()?;
        let recipe = options.recipe(&agent.info, false)?;
        Ok(Queue(agent.inner.create_queue(&pass, agent, recipe)?))
    }

    /// Its key in the registry.
    pub fn key(&self) -> QueueKey {
        self.0.key
    }

    /// Where it runs.
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// Packets in its ring.
    pub fn packets(&self) -> u64 {
        self.0.live.ring().packets()
    }

    /// Index of the next packet to be reserved. Counts on across checkpoints.
    ///
    /// # Errors
    /// [`SubmitError::Lost`].
    pub fn write_index(&self) -> Result<u64, SubmitError> {
        let _pass = self.0.inner.gate.enter()?;
        Ok(self.0.live.logical(self.0.live.hardware_write()))
    }

    /// Index of the next packet the processor will consume.
    ///
    /// # Errors
    /// [`SubmitError::Lost`].
    pub fn read_index(&self) -> Result<u64, SubmitError> {
        let _pass = self.0.inner.gate.enter()?;
        Ok(self.0.live.logical(self.0.live.hardware_read()))
    }

    /// Why it stopped, if it did.
    pub fn fault(&self) -> Option<Arc<QueueFault>> {
        self.0.live.fault().cloned()
    }

    /// Submits a barrier: it completes when all of `after` (at most 5) have reached 0 and all packets before it have
    /// completed, and then decrements `completion`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn barrier(&self, after: &[&Signal], completion: Option<&Signal>) -> Result<u64, SubmitError> {
        let mut dep_signals = [0; 5];
        if after.len() > dep_signals.len() {
            return Err(SubmitError::Dependencies { found: after.len() });
        }
        for (place, signal) in dep_signals.iter_mut().zip(after) {
            *place = signal.handle();
        }
        let header = Header {
            barrier: true,
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::BarrierAnd)
        };
        let completion_signal = completion.map_or(0, Signal::handle);
        let packet = Packet::BarrierAnd(Barrier { header, dep_signals, completion_signal }).encode();
        let pass = self.0.inner.gate.enter()?;
        self.0.check_alive()?;
        let mut slot = self.0.live.reserve(&pass, 1)?;
        if let Some(signal) = completion {
            signal.live().promise();
        }
        let index = slot.publish(packet);
        drop(slot);
        self.0.inner.submitted(&pass, &self.0.live, completion.map(Signal::live));
        Ok(index)
    }

    /// Waits until all packets submitted so far have completed.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_idle(&self, timeout: Option<std::time::Duration>) -> Result<(), WaitError> {
        self.0.inner.wait_idle(&self.0.live, timeout)
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
    /// [`QueueError::CuMask`] before the driver is asked, [`QueueError::Stale`], [`QueueError::Device`],
    /// [`QueueError::Lost`].
    pub fn set_cu_mask(&self, mask: &CuMask) -> Result<(), QueueError> {
        self.0.set_cu_mask(mask)
    }

    /// Destroys it. Other handles on it find it stale.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while packets are not consumed (a stopped queue is destroyed with them),
    /// [`QueueError::Stale`] the second time, [`QueueError::Device`], [`QueueError::Lost`].
    pub fn destroy(&self) -> Result<(), QueueError> {
        self.0.destroy()
    }
}

impl Handle {
    pub(crate) fn set_priority(&self, priority: u32) -> Result<(), QueueError> {
        check_priority(priority)?;
        self.change(|device, queue, bos| device.set_priority(queue, bos, priority))
    }

    pub(crate) fn set_cu_mask(&self, mask: &CuMask) -> Result<(), QueueError> {
        let kind = self.live.kind();
        if !kind.is_compute() {
            let why = "copy engines have no compute units to choose from";
            return Err(QueueError::Unsupported {
                agent: self.agent.name().to_owned(),
                kind: "masked SDMA",
                why,
            });
        }
        mask.check(self.agent.target().major, self.agent.compute_units())?;
        self.change(|device, queue, _| device.set_cu_mask(queue, mask.words()))
    }

    /// Has the driver change the queue of this entry.
    fn change(
        &self,
        change: impl FnOnce(&Device, &mut registry::Queue, &Table<Bo>) -> Result<(), DeviceError>,
    ) -> Result<(), QueueError> {
        let pass = self.inner.gate.enter()?;
        let mut registry = self.inner.registry.lock();
        let device = self.inner.device_or_lost(&pass)?;
        let Registry { queues, bos, .. } = &mut *registry;
        let queue = queues.get_mut(self.key).ok_or(QueueError::Stale { queue: self.key })?;
        Ok(change(device, queue, bos)?)
    }

    pub(crate) fn destroy(&self) -> Result<(), QueueError> {
        let pass = self.inner.gate.enter()?;
        if self.live.is_destroyed() {
            return Err(QueueError::Stale { queue: self.key });
        }
        let pending = self.live.pending();
        if pending > 0 && self.live.fault().is_none() {
            return Err(QueueError::Busy { queue: self.key, pending, unit: self.live.kind().unit() });
        }
        self.inner.destroy_queue(&pass, self.key, &self.live)
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), SubmitError> {
        if self.live.is_destroyed() { Err(SubmitError::Stale { queue: self.key }) } else { Ok(()) }
    }
}
