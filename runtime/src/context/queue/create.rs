// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making and unmaking a queue of any kind: its buffers, its signals, an entry, and the hardware queue over them.
//!
//! INVARIANT: a failure at any step leaves nothing registered and nothing allocated.

use std::sync::Arc;

use kfd::sys::DOORBELL_SLICE_BYTES;
use queues::ring::Ring;
use stasis_protocol::gate::Pass;

use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, flags};
use crate::context::error::{AllocError, DeviceError, QueueError};
use crate::context::memory::free::free_deferred;
use crate::context::memory::make::{bo_view, make_bo, unmake_bo};
use crate::context::memory::request::Request;
use crate::context::queue::bringup::bring_up;
use crate::context::queue::live::{QueueLive, QueueMemory};
use crate::context::queue::scratch;
use crate::context::queue::trap::set_trap_handler;
use crate::context::registry::Registry;
use crate::context::registry::state::{
    AgentIndex, BoKey, BoKind, BoRole, QueueBos, QueueKey, QueueKind, QueueNumbers, QueueState, SignalKey,
};
use crate::context::signal::make::{drop_signal, new_signal, new_signal_on};
use crate::context::{Context, registry};

/// Bytes of the page both indices are in; the driver wants exactly one.
const PAGE_BYTES: u64 = 4096;

/// What queue to make, of whatever kind; checked.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub kind: QueueKind,
    /// Power of two, at least a page.
    pub ring_bytes: u32,
    /// 0 to 15.
    pub priority: u32,
    /// 1 to 100.
    pub percentage: u32,
    /// 0 where the caller places kernel arguments.
    pub kernarg_slot_bytes: u32,
    pub scratch_lane_bytes: u32,
    /// The runtime's own.
    pub internal: bool,
}

impl Recipe {
    /// The smallest AQL queue, for packets of the runtime's own that must run soon.
    pub fn own_aql() -> Self {
        Recipe {
            kind: QueueKind::Aql,
            ring_bytes: 4096,
            priority: kfd::sys::KFD_MAX_QUEUE_PRIORITY,
            percentage: 100,
            kernarg_slot_bytes: 0,
            scratch_lane_bytes: 0,
            internal: true,
        }
    }
}

/// KFD takes 0 to 15.
pub fn check_priority(priority: u32) -> Result<(), QueueError> {
    if priority > kfd::sys::KFD_MAX_QUEUE_PRIORITY {
        return Err(QueueError::Priority { priority });
    }
    Ok(())
}

/// A queue that was made.
#[derive(Debug)]
pub struct Created {
    /// Its key.
    pub key: QueueKey,
    /// The part that its handles share.
    pub live: Arc<QueueLive>,
    /// Address of its `amd_queue_t`.
    pub page_va: u64,
    /// High half of the scratch aperture's address.
    pub private_base_hi: u32,
    /// High half of the LDS aperture's address.
    pub shared_base_hi: u32,
}

/// What has been made of a queue so far; unmade on drop unless it was completed.
struct Parts<'a> {
    context: &'a Context,
    registry: &'a mut Registry,
    device: &'a Device,
    bos: Vec<BoKey>,
    signals: Vec<SignalKey>,
    entry: Option<QueueKey>,
}

impl Parts<'_> {
    fn bo(&mut self, what: &'static str, request: Request) -> Result<BoKey, QueueError> {
        let made = make_bo(self.context, self.registry, self.device, request);
        let key = made.map_err(|source| QueueError::Memory { what, source })?;
        self.bos.push(key);
        Ok(key)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.registry.queues.remove(entry);
        }
        for signal in self.signals.drain(..) {
            drop_signal(self.context, self.registry, signal);
        }
        for key in self.bos.drain(..) {
            unmake_bo(self.registry, self.device, key);
        }
    }
}

/// Makes a queue on an agent: its buffers, its signals, its entry and the hardware queue.
///
/// # Errors
/// [`QueueError`]; nothing is left of it then.
pub fn create_queue(
    context: &Context,
    pass: &Pass<'_>,
    info: &AgentInfo,
    recipe: Recipe,
) -> Result<Created, QueueError> {
    free_deferred(context, pass);
    let device = Arc::clone(context.device_or_lost(pass)?);
    let (exceptions, inactive) = queue_signals(context, pass, recipe.kind)?;
    let mut registry = context.registry.lock();
    let mut parts = Parts {
        context,
        registry: &mut registry,
        device: &device,
        bos: Vec::new(),
        signals: inactive.into_iter().chain([exceptions]).collect(),
        entry: None,
    };
    let index = info.index();
    set_trap_handler(parts.registry, &device, index)?;
    let bos = parts.queue_memory(&recipe, info)?;
    doorbell_slice(context, parts.registry, &device, index)?;
    let state = QueueState {
        agent: index,
        kind: recipe.kind,
        ring_bytes: recipe.ring_bytes,
        priority: recipe.priority,
        percentage: recipe.percentage,
        suspended: false,
        cu_mask: Vec::new(),
        bos,
        kernarg_slot_bytes: recipe.kernarg_slot_bytes,
        scratch_lane_bytes: recipe.scratch_lane_bytes,
        exceptions,
        inactive,
        hostcall_doorbell: None,
        bias: 0,
        write_index: 0,
        waiting: Vec::new(),
        internal: recipe.internal,
    };
    let live = queue_live(context, parts.registry, &state)?;
    let key = parts.registry.queues.insert(registry::Queue {
        state,
        numbers: QueueNumbers::default(),
        created: false,
        live: None,
    });
    parts.entry = Some(key);
    let doorbell = bring_up(&device, parts.registry, key, &live, 0)?;
    let live = Arc::new(live.with_doorbell(&context.gate, doorbell));
    if let Some(queue) = parts.registry.queues.get_mut(key) {
        queue.live = Some(Arc::clone(&live));
    }
    // Complete: nothing is left for the drop to undo.
    parts.entry = None;
    parts.signals.clear();
    parts.bos.clear();
    drop(parts);
    let node = device.node(index)?;
    let page_va = live.memory().page.va();
    let (private_base_hi, shared_base_hi) = (node.scratch_aperture_hi, node.lds_aperture_hi);
    Ok(Created { key, live, page_va, private_base_hi, shared_base_hi })
}

/// The signal its exceptions are or-ed into and, of an AQL queue, the one its processor asks through.
fn queue_signals(
    context: &Context,
    pass: &Pass<'_>,
    kind: QueueKind,
) -> Result<(SignalKey, Option<SignalKey>), QueueError> {
    let failed = |what| move |source| QueueError::Memory { what, source };
    let (exceptions, _) = new_signal(context, pass, 0).map_err(failed("exception signal"))?;
    if kind != QueueKind::Aql {
        return Ok((exceptions, None));
    }
    let event = context.registry.lock().fixtures.queue_exception;
    match new_signal_on(context, pass, 0, event) {
        Ok((inactive, _)) => Ok((exceptions, Some(inactive))),
        Err(error) => {
            drop_signal(context, &mut context.registry.lock(), exceptions);
            Err(failed("inactive signal")(error))
        }
    }
}

pub fn destroy_queue(
    context: &Context,
    pass: &Pass<'_>,
    key: QueueKey,
    live: &QueueLive,
) -> Result<(), QueueError> {
    let device = Arc::clone(context.device_or_lost(pass)?);
    let mut registry = context.registry.lock();
    let Some(queue) = registry.queues.get_mut(key) else { return Err(QueueError::Stale { queue: key }) };
    live.mark_destroyed(true);
    if let Err(error) = device.destroy_queue(queue) {
        // It is still there, and can be destroyed later.
        live.mark_destroyed(false);
        return Err(error.into());
    }
    // It may have been destroyed while it asked.
    scratch::close_question(&registry, key);
    let Some(queue) = registry.queues.remove(key) else { return Ok(()) };
    for bo in queue.state.bos.all() {
        unmake_bo(&mut registry, &device, bo);
    }
    let doorbell = queue.state.hostcall_doorbell.and_then(|signal| registry.signals.get(signal));
    if let Some(doorbell) = doorbell.and_then(|signal| signal.live.as_ref()) {
        // What kernels add to it is no completion that was promised.
        doorbell.settle();
    }
    for signal in queue.state.signals() {
        drop_signal(context, &mut registry, signal);
    }
    Ok(())
}

/// The live part of a queue over its registered memory.
///
/// # Errors
/// [`DeviceError::Absent`] if part of it is not registered or not mapped for the CPU.
pub fn queue_live(
    context: &Context,
    registry: &Registry,
    state: &QueueState,
) -> Result<QueueLive, QueueError> {
    let absent = || QueueError::Device(DeviceError::Absent { what: "a queue's memory" });
    let memory = |key| bo_view(registry, key).ok_or_else(absent);
    let views = QueueMemory {
        ring: memory(state.bos.ring)?,
        page: memory(state.bos.page)?,
        kernargs: state.bos.kernargs.map(memory).transpose()?,
        kernarg_slot: u64::from(state.kernarg_slot_bytes),
    };
    let info = context.agents.get(state.agent.at()).ok_or_else(absent)?;
    let ring = Ring::new(u64::from(state.ring_bytes) / state.kind.unit_bytes()).map_err(|_| absent())?;
    Ok(QueueLive::new(&context.gate, info.target(), ring, views, state).behind(&context.host_writes))
}

impl Parts<'_> {
    /// All buffers of a queue (`kfd_queue_acquire_buffers`, `kfd_queue.c`): those of every kind, then those that only
    /// waves need.
    fn queue_memory(&mut self, recipe: &Recipe, info: &AgentInfo) -> Result<QueueBos, QueueError> {
        let (agent, geometry) = (info.index(), info.geometry());
        let own = |role, bytes| Request::queue_memory(role, bytes, agent);
        let ring = self.bo("ring", own(BoRole::Ring, u64::from(recipe.ring_bytes)))?;
        let page = self.bo("index page", own(BoRole::QueuePage, PAGE_BYTES))?;
        let mut bos = QueueBos::new(ring, page);
        if recipe.kind.has_eop(info.target()) {
            let eop = Request {
                flags: flags::VRAM_HIDDEN | flags::EXECUTABLE,
                kind: BoKind::Vram,
                cpu_mapped: false,
                ..own(BoRole::Eop, u64::from(geometry.eop_bytes))
            };
            bos.eop = Some(self.bo("end-of-pipe area", eop)?);
        }
        if recipe.kind.is_compute() {
            bos.save_area = Some(self.bo("context save area", own(BoRole::SaveArea, geometry.total_bytes))?);
        }
        if recipe.kernarg_slot_bytes > 0 {
            let packets = u64::from(recipe.ring_bytes) / recipe.kind.unit_bytes();
            let arguments = packets * 2 * u64::from(recipe.kernarg_slot_bytes);
            bos.kernargs = Some(self.bo("kernel-argument area", own(BoRole::Kernargs, arguments))?);
        }
        if let Some(format) = info.target().scratch.filter(|_| recipe.scratch_lane_bytes > 0) {
            let request = scratch::request(recipe.scratch_lane_bytes, info, &format);
            bos.scratch = Some(self.bo("scratch", request)?);
        }
        Ok(bos)
    }
}

/// Sees to it that the agent's doorbell slice has its addresses and is mapped to the agent, whose kernels may enqueue. It stays
/// when the queue goes.
pub fn doorbell_slice(
    context: &Context,
    registry: &mut Registry,
    device: &Device,
    agent: AgentIndex,
) -> Result<BoKey, QueueError> {
    if let Some(&key) = registry.fixtures.doorbells.get(&agent) {
        return Ok(key);
    }
    let request = Request {
        kind: BoKind::Doorbell,
        flags: flags::DOORBELLS,
        ..Request::queue_memory(BoRole::Doorbell, DOORBELL_SLICE_BYTES as u64, agent)
    };
    let made = make_bo(context, registry, device, request);
    let key = made.map_err(|source: AllocError| QueueError::Memory { what: "doorbells", source })?;
    registry.fixtures.doorbells.insert(agent, key);
    Ok(key)
}
