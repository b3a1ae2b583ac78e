// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose an exception is: which queues it stops, and where their waves stood.
//!
//! INVARIANT: only queues that have failed stay off the hardware; a queue that was stopped to be looked at goes on.

use std::sync::Arc;

use kfd::GpuId;
use queues::aql::ExceptionCode;
use queues::save_area::{WaveRecord, read_waves};
use queues::words::size;

use crate::context::device::Device;
use crate::context::memory::mapped::view;
use crate::context::queue::fault::{Cause, FaultingWave, QueueFault};
use crate::context::queue::scratch;
use crate::context::registry::state::{AgentIndex, QueueKey};
use crate::context::registry::{Queue, Registry};

/// Bits of TRAPSTS: memory violation, illegal instruction.
const TRAPSTS_FAULTS: u32 = 1 << 8 | 1 << 11;
/// Longest instruction, bytes.
const INSTRUCTION_BYTES: u64 = 12;

pub(super) fn on_agent(registry: &Registry, agent: AgentIndex) -> Vec<QueueKey> {
    let healthy = |queue: &Queue| {
        queue.state.agent == agent && queue.live.as_ref().is_some_and(|live| live.fault().is_none())
    };
    registry.queues.iter().filter(|(_, queue)| healthy(queue)).map(|(key, _)| key).collect()
}

pub(super) const fn bit(code: ExceptionCode) -> u64 {
    1 << (code as u32 - 1)
}

pub(super) const fn memory_bits() -> u64 {
    bit(ExceptionCode::WaveMemoryViolation) | bit(ExceptionCode::WaveApertureViolation)
}

/// The queues of a GPU that have a wave with a memory violation. The others go on; if there is no such wave at all, it
/// was a copy engine, which has neither waves nor a word to report in, and the copy queues with packets in flight are
/// suspected; if there are none of those either, every queue with packets in flight.
pub(super) fn suspects(device: &Device, registry: &mut Registry, gpu: GpuId) -> Vec<(QueueKey, u64)> {
    let Some(agent) = device.agent_of(gpu) else { return Vec::new() };
    let bits = bit(ExceptionCode::WaveMemoryViolation);
    let queues = on_agent(registry, agent);
    let (mut guilty, mut copying, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for &key in &queues {
        let waves = suspend_and_read(device, registry, key);
        let live = registry.queues.get(key).and_then(|queue| queue.live.as_ref());
        if waves.iter().any(|wave| wave.trapsts & TRAPSTS_FAULTS != 0) {
            guilty.push((key, bits));
        } else if let Some(live) = live.filter(|live| live.pending() > 0) {
            let list = if live.kind().is_compute() { &mut busy } else { &mut copying };
            list.push((key, bits));
        }
    }
    let blamed = [guilty, copying, busy].into_iter().find(|list| !list.is_empty()).unwrap_or_default();
    for key in queues {
        if !blamed.iter().any(|&(blamed, _)| blamed == key) {
            let Registry { queues, bos, .. } = &mut *registry;
            if let Some(queue) = queues.get_mut(key)
                && let Err(error) = device.resume_queue(queue, bos)
            {
                tracing::warn!(target: "exceptions", %error, %key, "an innocent queue could not be resumed");
            }
        }
    }
    blamed
}

/// Takes a queue off the hardware and reads the waves in its save area, if it has one.
fn suspend_and_read(device: &Device, registry: &mut Registry, key: QueueKey) -> Vec<WaveRecord> {
    let Registry { queues, bos, .. } = registry;
    let Some(queue) = queues.get_mut(key) else { return Vec::new() };
    let suspended = device.suspend_queue(queue, bos);
    let Some(area) = queue.state.bos.save_area.and_then(|area| bos.get(area)) else { return Vec::new() };
    let Ok(sizes) = suspended.and_then(|()| device.wave_state(queue, bos)) else { return Vec::new() };
    let Some(memory) = view(area.state.va, area.state.bytes) else { return Vec::new() };
    let Ok(node) = device.node(queue.state.agent) else { return Vec::new() };
    // Only the first XCC's area, up to the end of its records.
    let used = u64::from(node.info.geometry().control_stack_bytes) + u64::from(sizes.wave_state_bytes);
    // Below the area's size, which fits.
    let mut bytes = vec![0; size(used.min(memory.bytes()))];
    memory.read(0, &mut bytes);
    read_waves(&bytes).unwrap_or_else(|error| {
        tracing::warn!(target: "exceptions", %error, %key, "the save area is not readable");
        Vec::new()
    })
}

/// Puts a queue in the error state and breaks the promises of its packets.
pub(super) fn diagnose(device: &Device, registry: &mut Registry, key: QueueKey, cause: Cause) {
    let Cause { bits, memory, scratch } = cause;
    let waves = suspend_and_read(device, registry, key);
    // It is off the hardware, and nobody will answer it.
    scratch::close_question(registry, key);
    let Some(queue) = registry.queues.get(key) else { return };
    let Some(live) = queue.live.clone() else { return };
    let codes = ExceptionCode::ALL.iter().copied().filter(|&code| bits & bit(code) != 0).collect();
    let target = device.node(queue.state.agent).map(|node| node.info.target()).ok();
    let stopped = |wave: &WaveRecord| target.and_then(|target| wave.stopped(target));
    let guilty = waves
        .iter()
        .find(|wave| wave.trapsts & TRAPSTS_FAULTS != 0)
        .or_else(|| waves.iter().find(|wave| stopped(wave).is_some()))
        .or(waves.first());
    let packet = match guilty {
        Some(_) => None,
        None => Some(live.next_packet()),
    };
    let agent = device.node(queue.state.agent).map_or("?", |node| node.info.target().name).to_owned();
    let wave = guilty.map(|wave| locate(registry, wave, stopped(wave).map_or(wave.pc, |stopped| stopped.pc)));
    let fault = Arc::new(QueueFault { queue: key, agent, codes, memory, scratch, wave, packet });
    tracing::error!(target: "exceptions", %fault);
    let fault = live.fail(fault);
    // A hash set would not pay: a ring has at most a few thousand open completions once in a queue's life.
    let handles = live.completion_handles();
    for (_, signal) in registry.signals.iter() {
        if let Some(signal) = &signal.live
            && handles.contains(&signal.handle())
            && !signal.is_settled()
        {
            signal.break_with(fault);
        }
    }
}

fn locate(registry: &Registry, wave: &WaveRecord, pc: u64) -> FaultingWave {
    let at = registry.executable_at(pc);
    let kernel = at.and_then(|(_, executable, _)| executable.program.as_ref()?.kernel_at(pc));
    let kernel = kernel.map(|(name, offset)| (name.to_owned(), offset));
    let bytes = at
        .and_then(|(_, executable, base)| {
            let image = &registry.bos.get(executable.image)?.state;
            let offset = pc - base;
            let mut bytes = vec![0; size(INSTRUCTION_BYTES.min(image.bytes - offset))];
            view(base, image.bytes).filter(|_| image.cpu_mapped)?.read(offset, &mut bytes);
            Some(bytes)
        })
        .unwrap_or_default();
    FaultingWave { pc, kernel, bytes, workgroup: [wave.ttmp[8], wave.ttmp[9], wave.ttmp[10]] }
}
