// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch memory of a queue: how much a dispatch takes, how the processor is told of it, and what the processor gets
//! when it asks for more through the queue's inactive signal (`queues::aql::inactive`).
//!
//! INVARIANT: a question is answered with the registry locked and the queue on the hardware, and its 0 is stored last:
//! until then the processor stands still before the packet that asked, all earlier packets of the queue having
//! completed, so nothing uses the memory that is replaced. A suspended queue's question waits: a checkpoint may be
//! writing down which memory the queue has.

use std::mem::offset_of;

use bytemuck::bytes_of;
use queues::aql::{ExceptionCode, KernelDispatch, Packet, inactive};
use queues::hsa::AmdQueue;
use queues::target::ScratchFormat;
use queues::words::words;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{AllocError, DeviceError};
use crate::context::memory::make::{make_bo, unmake_bo};
use crate::context::memory::request::Request;
use crate::context::queue::fault::{Cause, ScratchFault, ScratchRefusal};
use crate::context::queue::live::QueueLive;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoRole, BoState, QueueKey, QueueState};

mod slots;

use slots::Slots;

/// Lanes of the widest wave, by which a queue's scratch is counted.
pub const WAVE_LANES: u32 = 64;
/// What a wave's share is rounded up to when the processor asks (ROCr does so too), bytes.
const GRANULE: u64 = 1024;

/// The fields of an `amd_queue_t` that describe scratch are neighbours; those of the queue before and after them are
/// the processor's, or stay.
const FIELDS: std::ops::Range<usize> =
    offset_of!(AmdQueue, compute_tmpring_size)..offset_of!(AmdQueue, queue_properties);

/// What the WAVESIZE field of COMPUTE_TMPRING_SIZE can say, bytes: 15 bits on chips that count per engine, else 13. The 18
/// bits of gfx12 are not used: ROCr gives no wave more than 8 MiB (`MAX_WAVE_SCRATCH`).
const fn max_wave_bytes(format: &ScratchFormat) -> u32 {
    let field = if format.waves_per_engine { 0x7fff } else { 0x1fff };
    field * format.wave_size_unit
}

/// The most scratch a lane of a wave of `lanes` can have, bytes.
pub fn max_lane_bytes(format: &ScratchFormat, lanes: u32) -> u32 {
    max_wave_bytes(format) / lanes.max(1)
}

/// Scratch bytes of one wave whose 64 lanes have `lane_bytes` each.
fn wave_bytes(lane_bytes: u32, format: &ScratchFormat) -> u64 {
    (u64::from(lane_bytes) * u64::from(WAVE_LANES)).next_multiple_of(u64::from(format.wave_size_unit))
}

/// The memory that gives every lane of an agent `lane_bytes`, for waves of 64.
pub(super) fn request(lane_bytes: u32, info: &AgentInfo, format: &ScratchFormat) -> Request {
    let slots = Slots::of(&info.node().properties);
    let bytes = slots.memory_bytes(wave_bytes(lane_bytes, format), info.target());
    // The CPU sees it if it can: what preempted waves keep there is saved with them.
    Request::vram(BoRole::Scratch, bytes, info.index(), info.is_visible())
}

/// Fills in the scratch fields of an `amd_queue_t`.
pub(super) fn describe(
    queue: &mut AmdQueue,
    memory: &BoState,
    lane_bytes: u32,
    info: &AgentInfo,
    format: ScratchFormat,
) {
    let slots = Slots::of(&info.node().properties);
    fill(queue, [memory.va, memory.bytes], lane_bytes, &slots, &format);
}

/// Fills in the fields for memory at an address, of so many bytes (ROCr `AqlQueue::InitScratchSRD`). The queue is told the
/// size of one XCC's part.
fn fill(queue: &mut AmdQueue, [va, bytes]: [u64; 2], lane_bytes: u32, slots: &Slots, format: &ScratchFormat) {
    queue.compute_tmpring_size = slots.tmpring_size(bytes, wave_bytes(lane_bytes, format), format);
    let part = slots.xcc_bytes(bytes, format);
    let [low, high] = words(va);
    let size = u32::try_from(part).unwrap_or(u32::MAX);
    queue.scratch_resource_descriptor =
        [low, high & 0xffff | format.descriptor_word1, size, format.descriptor_word3];
    queue.scratch_backing_memory_location = va;
    queue.scratch_backing_memory_byte_size = part;
    queue.scratch_wave64_lane_byte_size = lane_bytes;
}

/// Queues whose processor has stored something into their inactive signal: key, whether suspended, and what.
fn inactive(registry: &Registry) -> impl Iterator<Item = (QueueKey, bool, u64)> {
    registry.queues.iter().filter_map(|(key, queue)| {
        let signal = registry.signals.get(queue.state.inactive?)?.live.as_ref()?;
        let code = signal.load().cast_unsigned();
        let healthy = queue.created && queue.live.as_ref().is_some_and(|live| live.fault().is_none());
        (healthy && code != 0).then_some((key, queue.state.suspended, code))
    })
}

/// Whether there is a question. Its event may be used up: by a look that found the queue suspended, which need not be so
/// any more.
pub fn is_asked(registry: &Registry) -> bool {
    inactive(registry).next().is_some()
}

/// The exceptions that a value of an inactive signal names, as bits of an exception mask.
fn exceptions(code: u64) -> u64 {
    let named =
        |exception: &&ExceptionCode| exception.inactive_signal_code().is_some_and(|bits| code & bits != 0);
    ExceptionCode::ALL.iter().filter(named).fold(0, |bits, exception| bits | exception.mask())
}

/// What the packet at the read index needs.
#[derive(Debug)]
struct Wanted {
    kernel: Option<String>,
    lane_bytes: u32,
    /// Of a wave: the processor says it with the question.
    lanes: u32,
}

impl Wanted {
    fn read(registry: &Registry, live: &QueueLive, code: u64) -> Self {
        let lanes = if code & inactive::WAVE32 != 0 { 32 } else { WAVE_LANES };
        match Packet::decode(&live.packet_at(live.hardware_read())) {
            Ok(Packet::KernelDispatch(KernelDispatch { kernel_object, private_segment_bytes, .. })) => {
                let program = registry.executable_at(kernel_object).and_then(|(_, e, _)| e.program.as_ref());
                let kernel = program.and_then(|program| program.kernel_of(kernel_object));
                Wanted { kernel: kernel.map(str::to_owned), lane_bytes: private_segment_bytes, lanes }
            }
            _ => Wanted { kernel: None, lane_bytes: 0, lanes },
        }
    }

    /// Bytes of one wave.
    fn wave_bytes(&self) -> u64 {
        u64::from(self.lane_bytes) * u64::from(self.lanes)
    }

    /// What each lane of a wave of 64 gets, so that a wave of this kind has enough.
    ///
    /// # Errors
    /// [`ScratchRefusal::Limit`], [`ScratchRefusal::Unexplained`].
    fn lane_bytes_of_64(&self, has: u32, format: &ScratchFormat) -> Result<u32, ScratchRefusal> {
        let limit = u64::from(max_wave_bytes(format));
        if self.wave_bytes() > limit {
            return Err(ScratchRefusal::Limit { most: max_lane_bytes(format, self.lanes) });
        }
        if self.wave_bytes() <= wave_bytes(has, format) {
            return Err(ScratchRefusal::Unexplained);
        }
        let wave = self.wave_bytes().next_multiple_of(GRANULE).min(limit);
        // At most the limit, which is 32 bits.
        Ok(words(wave / u64::from(WAVE_LANES))[0])
    }

    fn fault(self, info: &AgentInfo, refusal: ScratchRefusal) -> ScratchFault {
        let wanted = Slots::of(&info.node().properties).all().saturating_mul(self.wave_bytes());
        ScratchFault { kernel: self.kernel, lane_bytes: self.lane_bytes, wanted, refusal }
    }
}

fn refusal(error: &AllocError) -> ScratchRefusal {
    match error {
        AllocError::OutOfMemory { available, .. } => ScratchRefusal::OutOfMemory { available: *available },
        AllocError::Device(DeviceError::Ioctl { source, .. }) => {
            ScratchRefusal::Refused { errno: Some(source.errno) }
        }
        AllocError::Device(DeviceError::Mmap { errno, .. }) => {
            ScratchRefusal::Refused { errno: Some(*errno) }
        }
        _ => ScratchRefusal::Refused { errno: None },
    }
}

/// Answers every question of every queue on the hardware. Returns the queues that cannot go on, and why; their
/// questions are still open.
pub fn answer(context: &Context, device: &Device, registry: &mut Registry) -> Vec<(QueueKey, Cause)> {
    let asking: Vec<_> = inactive(registry).filter(|&(_, suspended, _)| !suspended).collect();
    let mut stuck = Vec::new();
    for (key, _, code) in asking {
        let bits = exceptions(code);
        if bits == 0 && inactive::wants_scratch(code) {
            if let Err(scratch) = enlarge_scratch(context, device, registry, key, code) {
                stuck.push((key, Cause { scratch: Some(scratch), ..Cause::default() }));
            }
        } else if bits == 0 && code == inactive::RELEASE_USE_ONCE_SCRATCH {
            // Nothing is lent out: the memory stays the queue's.
            close_question(registry, key);
        } else {
            stuck.push((key, Cause { bits, ..Cause::default() }));
        }
    }
    stuck
}

/// Gives a queue that asked enough scratch for the packet at its read index.
fn enlarge_scratch(
    context: &Context,
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
    code: u64,
) -> Result<(), ScratchFault> {
    let Some(queue) = registry.queues.get(key) else { return Ok(()) };
    let (Some(live), Some(info)) = (queue.live.clone(), context.agents.get(queue.state.agent.at())) else {
        return Ok(());
    };
    let has = queue.state.bos.scratch.map_or(0, |_| queue.state.scratch_lane_bytes);
    let wanted = Wanted::read(registry, &live, code);
    let Some(format) = info.target().scratch else {
        return Err(wanted.fault(info, ScratchRefusal::Limit { most: 0 }));
    };
    let lane_bytes = match wanted.lane_bytes_of_64(has, &format) {
        Ok(lane_bytes) => lane_bytes,
        Err(refusal) => return Err(wanted.fault(info, refusal)),
    };
    let memory = match replace_scratch(context, device, registry, key, request(lane_bytes, info, &format)) {
        Ok(memory) => memory,
        Err(error) => {
            tracing::error!(target: "queues", %error, %key, "no scratch memory for a queue");
            return Err(wanted.fault(info, refusal(&error)));
        }
    };
    tracing::debug!(target: "queues", %key, lane_bytes, bytes = memory.bytes, "a queue has more scratch");
    let mut fields = AmdQueue::default();
    describe(&mut fields, &memory, lane_bytes, info, format);
    // CAST: within 256 bytes.
    live.memory().page.write(FIELDS.start as u64, &bytes_of(&fields)[FIELDS]);
    if let Some(queue) = registry.queues.get_mut(key) {
        queue.state.scratch_lane_bytes = lane_bytes;
    }
    close_question(registry, key);
    Ok(())
}

/// Puts new memory in the place of what a queue has for scratch, and frees that: before, if there is no room for
/// both. Without any the queue has no scratch.
fn replace_scratch(
    context: &Context,
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
    request: Request,
) -> Result<BoState, AllocError> {
    let entry = |registry: &mut Registry, to: Option<BoKey>| -> Option<BoKey> {
        let QueueState { bos, scratch_lane_bytes, .. } = &mut registry.queues.get_mut(key)?.state;
        if to.is_none() {
            *scratch_lane_bytes = 0;
        }
        std::mem::replace(&mut bos.scratch, to)
    };
    let made = match make_bo(context, registry, device, request.clone()) {
        Err(error @ AllocError::OutOfMemory { .. }) => {
            let old = entry(registry, None).ok_or(error)?;
            unmake_bo(registry, device, old);
            make_bo(context, registry, device, request)?
        }
        made => made?,
    };
    if let Some(old) = entry(registry, Some(made)) {
        unmake_bo(registry, device, old);
    }
    let made = registry.bos.get(made).ok_or(DeviceError::Absent { what: "the scratch memory" })?;
    Ok(made.state.clone())
}

/// Says that a question needs no answer any more, or has it: the processor, if the queue is on the hardware, goes on.
pub fn close_question(registry: &Registry, key: QueueKey) {
    let inactive = registry.queues.get(key).and_then(|queue| queue.state.inactive);
    if let Some(live) = inactive.and_then(|signal| registry.signals.get(signal)?.live.as_ref()) {
        // ORDERING: a release; the processor reads what describes the scratch memory after it has seen the 0.
        live.store(0);
    }
}

#[cfg(test)]
mod tests;
