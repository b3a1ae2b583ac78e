// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose an exception is: which queues it stops, and where their waves stood.
//!
//! INVARIANT: only queues that have failed stay off the hardware; a queue that was stopped to be looked at goes on.

use std::sync::Arc;

use kfd::GpuId;
use queues::aql::ExceptionCode;
use queues::save_area::Standing;
use queues::words::size;

use super::saved_waves::read_save_area;
use crate::context::device::Device;
use crate::context::error::{AgentLost, DeviceError};
use crate::context::memory::mapped::view;
use crate::context::queue::fault::{Cause, FaultingWave, QueueFault, WavesUnread};
use crate::context::queue::scratch;
use crate::context::registry::state::{AgentIndex, QueueKey};
use crate::context::registry::{Queue, Registry};
use crate::context::signal::make::break_promises;

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
/// suspected, with the queues whose waves could not be read; if there are none of those either, every queue with packets
/// in flight.
pub(super) fn suspects(device: &Device, registry: &mut Registry, gpu: GpuId) -> Vec<(QueueKey, u64)> {
    let Some(agent) = device.agent_of(gpu) else { return Vec::new() };
    let bits = bit(ExceptionCode::WaveMemoryViolation);
    let queues = on_agent(registry, agent);
    let (mut guilty, mut copying, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for &key in &queues {
        let waves = suspend_and_read(device, registry, key);
        let live = registry.queues.get(key).and_then(|queue| queue.live.as_ref());
        if waves.iter().flatten().any(|wave| wave.faulted) {
            guilty.push((key, bits));
        } else if let Some(live) = live.filter(|live| live.pending() > 0) {
            let is_innocent = live.kind().is_compute() && waves.is_ok();
            let list = if is_innocent { &mut busy } else { &mut copying };
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

/// Takes a queue off the hardware and reads where the waves in its save area stand, if it has one.
fn suspend_and_read(
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
) -> Result<Vec<Standing>, WavesUnread> {
    let waves = try_suspend_and_read(device, registry, key);
    if let Err(reason) = &waves {
        tracing::warn!(target: "exceptions", %reason, %key, "the waves of a queue are not known");
    }
    waves
}

fn try_suspend_and_read(
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
) -> Result<Vec<Standing>, WavesUnread> {
    let Registry { queues, bos, .. } = registry;
    let Some(queue) = queues.get_mut(key) else { return Ok(Vec::new()) };
    let suspended = device.suspend_queue(queue, bos);
    let Some(area) = queue.state.bos.save_area else { return Ok(Vec::new()) };
    let refused = |error: DeviceError| {
        let errno = if let DeviceError::Ioctl { source, .. } = error { Some(source.errno) } else { None };
        WavesUnread::Refused { errno }
    };
    let sizes = suspended.and_then(|()| device.wave_state(queue, bos)).map_err(refused)?;
    let node = device.node(queue.state.agent).map_err(refused)?;
    let geometry = node.info.geometry();
    let memory = bos.get(area).filter(|area| area.state.cpu_mapped);
    let memory = memory.and_then(|area| view(area.state.va, area.state.bytes));
    let memory = memory
        .filter(|memory| memory.holds(0, u64::from(geometry.save_bytes) * u64::from(geometry.num_xcc)))
        .ok_or(WavesUnread::NotMapped)?;
    read_save_area(node.info.target(), geometry, sizes, |offset, to| memory.read(offset, to))
}

/// Whether a wave raises it, and not a packet or the device.
fn is_of_wave(code: ExceptionCode) -> bool {
    matches!(
        code,
        ExceptionCode::WaveAbort
            | ExceptionCode::WaveTrap
            | ExceptionCode::WaveMathError
            | ExceptionCode::WaveIllegalInstruction
            | ExceptionCode::WaveMemoryViolation
            | ExceptionCode::WaveApertureViolation
    )
}

/// Puts a queue in the error state and breaks the promises of its packets.
pub(super) fn diagnose(
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
    cause: Cause,
) -> Option<Arc<QueueFault>> {
    let Cause { bits, memory, scratch, service, evicted, lost } = cause;
    let waves = suspend_and_read(device, registry, key);
    // It is off the hardware, and nobody will answer it.
    scratch::close_question(registry, key);
    let queue = registry.queues.get(key)?;
    let live = queue.live.clone()?;
    let codes: Vec<_> = ExceptionCode::ALL.iter().copied().filter(|&code| bits & bit(code) != 0).collect();
    let (guilty, unread) = match waves.and_then(|waves| blame(&waves)) {
        Ok(guilty) => (guilty, None),
        Err(reason) => (None, Some(reason)),
    };
    // The packet at the read index explains nothing where a wave is to blame, known or not.
    let by_unknown_wave = unread.is_some() && codes.iter().copied().any(is_of_wave);
    let packet = (guilty.is_none() && !by_unknown_wave).then(|| live.next_packet());
    let agent = device.node(queue.state.agent).map_or("?", |node| node.info.target().name).to_owned();
    let wave = guilty.map(|wave| locate(registry, wave));
    let fault = Arc::new(QueueFault {
        queue: key,
        agent,
        codes,
        memory,
        scratch,
        service,
        wave,
        unread,
        packet,
        evicted,
        lost,
    });
    tracing::error!(target: "exceptions", %fault);
    let fault = live.fail(fault);
    // A hash set would not pay: a ring has at most a few thousand open completions once in a queue's life.
    // The ring remembers packets that completed, and their signals may be promised elsewhere since.
    break_promises(&registry.signals, &live.completion_handles(), fault);
    Some(Arc::clone(fault))
}

/// The compute queues of an agent that the driver keeps off the hardware although nobody suspended them. It does not tell of
/// queues without waves.
pub(super) fn evicted(device: &Device, registry: &Registry, agent: AgentIndex) -> Vec<QueueKey> {
    let is_evicted = |key: &QueueKey| {
        registry.queues.get(*key).is_some_and(|queue| device.is_evicted(queue, &registry.bos))
    };
    on_agent(registry, agent).into_iter().filter(is_evicted).collect()
}

/// Stops the queues that the driver runs no more because of a fault that is not theirs: those in `off`, and those without
/// waves, which it takes with the others.
pub(super) fn abandon(
    device: &Device,
    registry: &mut Registry,
    agent: AgentIndex,
    off: impl Fn(QueueKey) -> bool,
    lost: &Arc<AgentLost>,
) -> bool {
    let has_waves = |key| registry.queues.get(key).is_some_and(|queue| queue.state.kind.is_compute());
    let gone: Vec<_> =
        on_agent(registry, agent).into_iter().filter(|&key| off(key) || !has_waves(key)).collect();
    for &queue in &gone {
        let cause = Cause {
            bits: bit(ExceptionCode::PreemptionError),
            memory: lost.memory,
            lost: Some(Arc::clone(lost)),
            ..Cause::default()
        };
        diagnose(device, registry, queue, cause);
    }
    !gone.is_empty()
}

/// A wave to blame.
struct Guilty {
    pc: u64,
    workgroup: [u32; 3],
}

/// The wave that a queue's exception came from: one that the hardware halted for a fault, else one that trapped.
fn blame(waves: &[Standing]) -> Result<Option<Guilty>, WavesUnread> {
    let stopped =
        |wave: &Standing| wave.stopped.map(|stopped| Guilty { pc: stopped.pc, workgroup: wave.workgroup });
    if let Some(guilty) = waves.iter().filter(|wave| wave.faulted).find_map(stopped) {
        return Ok(Some(guilty));
    }
    if waves.iter().any(|wave| wave.faulted) {
        return Err(WavesUnread::Moved);
    }
    Ok(waves.iter().find_map(stopped))
}

fn locate(registry: &Registry, wave: Guilty) -> FaultingWave {
    let Guilty { pc, workgroup } = wave;
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
    FaultingWave { pc, kernel, bytes, workgroup }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kfd::Errno;
    use kfd::sys::AMDKFD_IOC_GET_QUEUE_WAVE_STATE;
    use queues::save_area::Stopped;

    use super::*;
    use crate::testing::{TestDriver, runtime};
    use crate::{Executable, Queue, QueueOptions, Runtime, Signal, WaitError};

    const NOWHERE: u64 = 0x1234_5000;

    /// The fault of a kernel that writes to [`NOWHERE`].
    fn fault(runtime: &Runtime) -> Arc<QueueFault> {
        let agent = runtime.agent(0).unwrap();
        let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
        let executable = Executable::load(&agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
        let kernel = executable.kernel(device_lib::FILL).unwrap();
        let fill = device_lib::fill(NOWHERE, 4096, &[0]).unwrap();
        let (arguments, done) = (fill.arguments.to_bytes(), Signal::new(runtime, 1).unwrap());
        let dispatch = queue.dispatch(&kernel).grid(fill.grid).block(fill.workgroup).raw_kernarg(&arguments);
        dispatch.completion(&done).submit().unwrap();
        match done.wait_done(Some(Duration::from_secs(60))) {
            Err(WaitError::Queue(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blamed_is_who_faulted_then_who_trapped_and_nobody_else() {
        let wave = |pc: u64, faulted: bool, stopped: bool| Standing {
            pc: 0x5000,
            faulted,
            stopped: stopped.then_some(Stopped { pc, trap: 0 }),
            workgroup: [3, 2, 1],
        };
        let pc = |waves: &[Standing]| blame(waves).map(|guilty| guilty.map(|guilty| guilty.pc));
        let (innocent, trapped, faulted) = (wave(1, false, false), wave(2, false, true), wave(3, true, true));
        assert_eq!(pc(&[innocent, trapped, faulted]), Ok(Some(3)));
        assert_eq!(pc(&[innocent, trapped]), Ok(Some(2)));
        assert_eq!(pc(&[innocent]), Ok(None));
        // Its program counter may be 8 bytes before the instruction.
        let moved = wave(4, true, false);
        assert_eq!(pc(&[innocent, moved, trapped]), Err(WavesUnread::Moved));
        assert_eq!(pc(&[moved, faulted]), Ok(Some(3)));
    }

    fn refuse_wave_state(kernel: &TestDriver) {
        // It is asked more than once for one fault.
        (0..16).for_each(|_| kernel.fail_once(AMDKFD_IOC_GET_QUEUE_WAVE_STATE, Errno::ENXIO));
    }

    #[test]
    fn without_its_waves_a_fault_has_the_address_and_the_reason_and_no_more() {
        let (known, _) = runtime(1);
        let complete = fault(&known);
        assert!(complete.wave.as_ref().is_some_and(|wave| wave.kernel.is_some()), "{complete}");
        assert_eq!(complete.unread, None);

        let (unknown, kernel) = runtime(1);
        refuse_wave_state(&kernel);
        let fault = fault(&unknown);
        assert_eq!(fault.memory.map(|memory| memory.address), Some(NOWHERE));
        assert_eq!((&fault.wave, &fault.packet), (&None, &None));
        assert_eq!(fault.unread, Some(WavesUnread::Refused { errno: Some(Errno::ENXIO) }));
        let text = fault.to_string();
        assert!(text.contains("at 0x12345000)") && !text.contains("pc"), "{text}");
        assert!(text.contains("where its waves stood is not known: the driver did not save them"), "{text}");
    }
}
