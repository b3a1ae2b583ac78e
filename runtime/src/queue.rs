// SPDX-License-Identifier: MIT OR Apache-2.0
//! User-mode queues: rings of packets that the hardware reads. [`Queue`] takes AQL packets; [`crate::raw`] has queues of
//! all kinds for those who write packets themselves.
//!
//! INVARIANT: every buffer a queue lives in is one exactly sized mapping of its own (`kfd_queue_acquire_buffers`),
//! made before the queue and freed after it.

use std::fmt;
use std::sync::Arc;

use queues::aql::{Barrier, FenceScope, Header, Packet, PacketKind, RawPacket};
use queues::words::count;
use stasis_protocol::gate::Pass;

use crate::agent::Agent;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{CodeCacheError, DeviceError, QueueError, SubmitError, WaitError};
use crate::context::queue::create::{Created, Recipe, check_priority, create_queue, destroy_queue};
use crate::context::queue::cu_mask::CuMask;
use crate::context::queue::fault::QueueFault;
use crate::context::queue::live::QueueLive;
use crate::context::queue::{code_caches, idle, lost_agent, scratch};
use crate::context::registry::state::{QueueKey, QueueKind};
use crate::context::registry::{Bo, Registry, Table};
use crate::context::signal::make::submitted;
use crate::context::{Context, registry};
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

impl QueueOptions {
    /// The queue they describe.
    pub(crate) fn recipe(&self, info: &AgentInfo, internal: bool) -> Result<Recipe, QueueError> {
        self.check(info)?;
        Ok(Recipe {
            kind: QueueKind::Aql,
            // The check has bounded the product.
            ring_bytes: self.packets * count(queues::aql::PACKET_BYTES),
            priority: self.priority,
            percentage: 100,
            kernarg_slot_bytes: self.kernarg_slot_bytes,
            scratch_lane_bytes: self.scratch_lane_bytes,
            internal,
        })
    }

    fn check(&self, info: &AgentInfo) -> Result<(), QueueError> {
        let packets = self.packets;
        if !packets.is_power_of_two() || !(MIN_PACKETS..=MAX_PACKETS).contains(&packets) {
            return Err(QueueError::Packets { packets, min: MIN_PACKETS, max: MAX_PACKETS });
        }
        let bytes = self.kernarg_slot_bytes;
        if !bytes.is_power_of_two() || !(64..=65536).contains(&bytes) {
            return Err(QueueError::KernargSlot { bytes });
        }
        check_priority(self.priority)?;
        let max =
            info.target().scratch.map_or(0, |format| scratch::max_lane_bytes(&format, scratch::WAVE_LANES));
        if self.scratch_lane_bytes > max {
            return Err(QueueError::Scratch { bytes: self.scratch_lane_bytes, max });
        }
        Ok(())
    }
}

/// A handle on a queue; clones name the same one, which is destroyed with the last.
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<Handle>);

pub(crate) struct Handle {
    pub context: Arc<Context>,
    pub key: QueueKey,
    pub live: Arc<QueueLive>,
    pub agent: Agent,
    /// Address of its `amd_queue_t`, and the apertures, for hidden arguments.
    pub page_va: u64,
    pub private_base_hi: u32,
    pub shared_base_hi: u32,
    /// The runtime's own, for copies, which see to their buffers' contents themselves.
    pub is_internal: bool,
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
        if let Ok(pass) = self.context.gate.enter()
            && let Err(error) = destroy_queue(&self.context, &pass, self.key, &self.live)
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
        let pass = agent.context.gate.enter()?;
        let recipe = options.recipe(&agent.info, false)?;
        Ok(Queue(Handle::create(agent, &pass, recipe)?))
    }

    /// Its key in the registry.
    #[inline]
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
        let _pass = self.0.context.gate.enter()?;
        Ok(self.0.live.logical(self.0.live.hardware_write()))
    }

    /// Index of the next packet the processor will consume.
    ///
    /// # Errors
    /// [`SubmitError::Lost`].
    pub fn read_index(&self) -> Result<u64, SubmitError> {
        let _pass = self.0.context.gate.enter()?;
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
        let packet = barrier_packet(after, completion)?;
        let pass = self.0.context.gate.enter()?;
        self.0.check_alive()?;
        let mut slot = self.0.live.reserve(&pass, 1)?;
        if let Some(signal) = completion {
            signal.live().promise();
        }
        let index = slot.publish(packet);
        drop(slot);
        submitted(&self.0.context, &pass, &self.0.live, completion.map(Signal::live));
        Ok(index)
    }

    /// Waits until all packets submitted so far have completed.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_idle(&self, timeout: Option<std::time::Duration>) -> Result<(), WaitError> {
        idle::wait_idle(&self.0.context, &self.0.live, timeout)
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

/// The packet of [`Queue::barrier`].
pub(crate) fn barrier_packet(
    after: &[&Signal],
    completion: Option<&Signal>,
) -> Result<RawPacket, SubmitError> {
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
    Ok(Packet::BarrierAnd(Barrier { header, dep_signals, completion_signal }).encode())
}

impl Handle {
    /// Makes a queue on `agent`.
    pub(crate) fn create(agent: &Agent, pass: &Pass<'_>, recipe: Recipe) -> Result<Arc<Self>, QueueError> {
        let (context, agent) = (Arc::clone(&agent.context), agent.clone());
        lost_agent::check(&context, pass, &agent.info)?;
        let Created { key, live, page_va, private_base_hi, shared_base_hi } =
            create_queue(&context, pass, &agent.info, recipe)?;
        let is_internal = recipe.internal;
        let queue =
            Handle { context, key, live, agent, page_va, private_base_hi, shared_base_hi, is_internal };
        let queue = Arc::new(queue);
        // A fault that was told since may have passed over a queue that was not there yet.
        lost_agent::check(&queue.context, pass, &queue.agent.info)?;
        if recipe.kind.is_compute() {
            let settled = code_caches::settle(&queue.context, pass, &queue.agent.info);
            settled.map_err(|error| match error {
                CodeCacheError::AgentLost(lost) => QueueError::AgentLost(lost),
                other => QueueError::CodeCaches(Box::new(other)),
            })?;
        }
        Ok(queue)
    }

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
        mask.check(self.agent.target().paired_cus, self.agent.compute_units())?;
        self.change(|device, queue, _| device.set_cu_mask(queue, mask.words()))
    }

    /// Has the driver change the queue of this entry.
    fn change(
        &self,
        change: impl FnOnce(&Device, &mut registry::Queue, &Table<Bo>) -> Result<(), DeviceError>,
    ) -> Result<(), QueueError> {
        let pass = self.context.gate.enter()?;
        let mut registry = self.context.registry.lock();
        let device = self.context.device_or_lost(&pass)?;
        let Registry { queues, bos, .. } = &mut *registry;
        let queue = queues.get_mut(self.key).ok_or(QueueError::Stale { queue: self.key })?;
        Ok(change(device, queue, bos)?)
    }

    pub(crate) fn destroy(&self) -> Result<(), QueueError> {
        let pass = self.context.gate.enter()?;
        if self.live.is_destroyed() {
            return Err(QueueError::Stale { queue: self.key });
        }
        let pending = self.live.pending();
        if pending > 0 && self.live.fault().is_none() {
            return Err(QueueError::Busy { queue: self.key, pending, unit: self.live.kind().unit() });
        }
        destroy_queue(&self.context, &pass, self.key, &self.live)
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), SubmitError> {
        if self.live.is_destroyed() { Err(SubmitError::Stale { queue: self.key }) } else { Ok(()) }
    }
}
