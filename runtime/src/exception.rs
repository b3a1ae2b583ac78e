// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event thread: hears of memory faults, queue exceptions and resets, finds out whose they are, and tells
//! everyone who waits; and of queues that ask for scratch, which it gives them (`queue::scratch`).
//!
//! INVARIANT: the thread touches shared memory only while it holds the device, and is stopped before the device is
//! let go; so it needs no pass and works while the gate is closed. An event is no more than a hint: whenever the thread
//! starts or wakes, it looks at every queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kfd::GpuId;
use kfd::sys::{kfd_event_data, kfd_hsa_memory_exception_data};
use queues::aql::ExceptionCode;
use queues::save_area::{WaveRecord, read_waves};

use crate::device::{Device, DeviceEvents};
use crate::error::DeviceError;
use crate::gate::Lost;
use crate::pool::mapped::view;
use crate::queue::fault::{FaultingWave, MemoryViolation, QueueFault, ScratchFault};
use crate::queue::scratch;
use crate::registry::state::{AgentIndex, QueueKey};
use crate::registry::{EventLive, Registry};
use crate::runtime::Inner;

/// TIMEOUT: a memory fault and the queue exception that belongs to it are raised one after the other; how long to
/// wait for the second before the waves are searched instead.
const PAIR_GRACE: Duration = Duration::from_millis(50);
/// TIMEOUT: a queue that asked for something and was parked before it had it does not ask again when it is back; how
/// long to sleep at most while there is one.
const PUT_OFF_POLL: Duration = Duration::from_millis(5);
/// Bits of TRAPSTS: memory violation, illegal instruction.
const TRAPSTS_FAULTS: u32 = 1 << 8 | 1 << 11;
/// Longest instruction, bytes.
const INSTRUCTION_BYTES: u64 = 12;

/// The running thread.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    wake: Arc<EventLive>,
}

impl Watch {
    /// Starts the thread on `device`.
    ///
    /// # Errors
    /// What spawning a thread fails with.
    pub fn start(inner: &Arc<Inner>, device: Arc<Device>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, halt) = (Arc::downgrade(inner), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("stasis-events".to_owned()).spawn(move || {
            // What happened while nobody was listening may have used up its event.
            if let Some(inner) = weak.upgrade() {
                inner.handle(&device, Raised::default());
            }
            while !halt.load(Ordering::Acquire) {
                let Some(inner) = weak.upgrade() else { return };
                if !inner.watch_once(&device, &halt) {
                    return;
                }
            }
        })?;
        Ok(Watch { stop, thread, wake: Arc::clone(&inner.wake) })
    }

    /// Stops it and waits for it. Leaves the wake event set.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`] if it could not be woken; it goes on as before.
    pub fn stop(self, device: &Device) -> Result<(), (Self, DeviceError)> {
        // The event stays set: the thread does not sleep any more, and sees before its next attempt that it is to end.
        if let Err(error) = device.set_event(self.wake.id.load(Ordering::Relaxed)) {
            return Err((self, error));
        }
        self.stop.store(true, Ordering::Release);
        if self.thread.join().is_err() {
            tracing::error!(target: "exceptions", "the event thread panicked");
        }
        Ok(())
    }
}

/// Why a queue cannot go on.
#[derive(Debug, Default)]
pub(crate) struct Cause {
    /// Its exceptions, as an exception mask.
    pub bits: u64,
    pub memory: Option<MemoryViolation>,
    pub scratch: Option<ScratchFault>,
}

/// What one sleep brought.
#[derive(Debug, Default)]
struct Raised {
    memory: Option<kfd_hsa_memory_exception_data>,
    reset: Option<GpuId>,
}

impl Raised {
    fn read(data: &[kfd_event_data; 4]) -> Self {
        let memory = data[0].memory_exception_data();
        let reset = data[1].hw_exception_data();
        Raised {
            // A GPU id is never 0, and the driver fills in the payload of raised events only.
            memory: (memory.gpu_id != 0).then_some(memory),
            reset: (reset.gpu_id != 0).then_some(GpuId(reset.gpu_id)),
        }
    }
}

impl Inner {
    /// The events to sleep on, that of queue exceptions, and how long to sleep at most; `None` before there are any.
    fn listening(&self) -> Option<(DeviceEvents, Arc<EventLive>, Option<Duration>)> {
        let registry = self.registry.lock();
        let live = |key: Option<_>| {
            key.and_then(|key| registry.events.get(key)).map(|event| Arc::clone(&event.live))
        };
        let fixtures = &registry.fixtures;
        let (memory, hw) = (live(fixtures.memory)?, live(fixtures.hw_exception)?);
        let queue = live(fixtures.queue_exception)?;
        let id = |event: &EventLive| event.id.load(Ordering::Relaxed);
        let events = DeviceEvents {
            memory: id(&memory),
            hw_exception: id(&hw),
            queue_exception: id(&queue),
            wake: id(&self.wake),
        };
        let limit = scratch::is_asked(&registry).then_some(PUT_OFF_POLL);
        Some((events, queue, limit))
    }

    /// Looks at the events without sleeping. The age of the queue exceptions stays what it was, so that the next sleep
    /// returns for the same ones.
    fn look(&self, device: &Device) -> Option<Raised> {
        let (events, exception, _) = self.listening()?;
        let age = exception.age.load(Ordering::Relaxed);
        let data = device.sleep_on_exceptions(events, age, Some(Duration::ZERO)).ok()?;
        Some(Raised::read(&data))
    }

    /// Sleeps once and handles what came. `false` ends the thread.
    fn watch_once(&self, device: &Device, halt: &AtomicBool) -> bool {
        let Some((events, exception, limit)) = self.listening() else { return false };
        let age = exception.age.load(Ordering::Relaxed);
        match device.sleep_on_exceptions(events, age, limit) {
            Ok(data) => {
                if data[2].last_event_age() != 0 {
                    exception.age.store(data[2].last_event_age(), Ordering::Relaxed);
                }
                if !halt.load(Ordering::Acquire) {
                    self.handle(device, Raised::read(&data));
                }
                true
            }
            Err(_) if halt.load(Ordering::Acquire) => false,
            Err(error) => {
                self.lose(device, error);
                false
            }
        }
    }

    /// The device does not answer any more.
    fn lose(&self, device: &Device, error: DeviceError) {
        tracing::error!(target: "exceptions", %error, "the device is lost");
        self.gate.lose(Lost {
            what: "it does not answer; if it is softgpud, it was killed",
            source: Some(Arc::new(error)),
        });
        self.wake_everyone(device);
    }

    /// Handles what a sleep brought.
    fn handle(&self, device: &Device, mut raised: Raised) {
        if let Some(gpu) = raised.reset {
            self.fail_agent(device, gpu);
        }
        let mut found = self.collect();
        if raised.memory.is_some() && found.is_empty() {
            let deadline = Instant::now() + PAIR_GRACE;
            while found.is_empty() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                found = self.collect();
            }
        }
        if raised.memory.is_none() && found.iter().any(|&(_, bits)| bits & memory_bits() != 0) {
            // The bits were there before the thread was, or were seen by a sleep that something else had ended.
            let deadline = Instant::now() + PAIR_GRACE;
            while raised.memory.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                let Some(late) = self.look(device) else { break };
                if let Some(gpu) = late.reset {
                    self.fail_agent(device, gpu);
                }
                raised = Raised { memory: late.memory, reset: raised.reset.or(late.reset) };
            }
        }
        let mut registry = self.registry.lock();
        if let (Some(memory), true) = (raised.memory, found.is_empty()) {
            found = suspects(device, &mut registry, GpuId(memory.gpu_id));
        }
        let cause = |bits| {
            let memory = raised.memory.filter(|_| bits & memory_bits() != 0).map(violation);
            Cause { bits, memory, scratch: None }
        };
        let found: Vec<_> = found.into_iter().map(|(queue, bits)| (queue, cause(bits))).collect();
        let mut is_news = !found.is_empty() || raised.memory.is_some() || raised.reset.is_some();
        for (queue, cause) in found {
            diagnose(device, &mut registry, queue, cause);
        }
        for (queue, cause) in self.answer(device, &mut registry) {
            is_news = true;
            diagnose(device, &mut registry, queue, cause);
        }
        if let Some(memory) = raised.memory
            && let Some(agent) = device.agent_of(GpuId(memory.gpu_id))
        {
            // Kernels up to 6.12 and beyond take all of a process's queues off the GPU for good
            // (`kfd_dqm_evict_pasid`): better told than waited for.
            let queues = on_agent(&registry, agent);
            let is_evicted =
                |key| registry.queues.get(key).is_some_and(|queue| device.is_evicted(queue, &registry.bos));
            let evicted: Vec<_> = queues.iter().copied().filter(|&key| is_evicted(key)).collect();
            // The driver does not tell of queues without waves; it takes them with the others.
            let has_waves = |key| registry.queues.get(key).is_some_and(|q| q.state.kind.is_compute());
            let others = queues.iter().copied().filter(|&key| !evicted.is_empty() && !has_waves(key));
            let gone: Vec<_> = others.chain(evicted.iter().copied()).collect();
            for queue in gone {
                let bits = bit(ExceptionCode::PreemptionError);
                let memory = Some(violation(memory));
                diagnose(device, &mut registry, queue, Cause { bits, memory, scratch: None });
            }
        }
        drop(registry);
        if is_news {
            self.wake_everyone(device);
        }
    }

    /// Queues with exception bits, which are taken.
    fn collect(&self) -> Vec<(QueueKey, u64)> {
        let registry = self.registry.lock();
        let bits =
            |key| registry.signals.get(key).and_then(|s| s.live.as_ref()).map_or(0, |live| live.take_bits());
        let queues = registry.queues.iter().map(|(key, queue)| (key, bits(queue.state.exceptions)));
        queues.filter(|&(_, bits)| bits != 0).collect()
    }

    /// A reset takes all queues of a GPU with it.
    fn fail_agent(&self, device: &Device, gpu: GpuId) {
        let Some(agent) = device.agent_of(gpu) else { return };
        let mut registry = self.registry.lock();
        let queues: Vec<_> = on_agent(&registry, agent);
        for queue in queues {
            let bits = bit(ExceptionCode::PreemptionError);
            diagnose(device, &mut registry, queue, Cause { bits, ..Cause::default() });
        }
    }

    /// Raises every event that somebody sleeps on: they look at the gate and at their signal's fault.
    pub(crate) fn wake_everyone(&self, device: &Device) {
        let sleeping: Vec<u32> = {
            let registry = self.registry.lock();
            let events = registry.events.iter().map(|(_, event)| &event.live);
            events
                .filter(|live| live.waiters.load(Ordering::SeqCst) > 0)
                .map(|live| live.id.load(Ordering::Relaxed))
                .collect()
        };
        for id in sleeping {
            if let Err(error) = device.set_event(id) {
                tracing::debug!(target: "exceptions", %error, id, "a sleeper could not be woken");
            }
        }
    }
}

fn on_agent(registry: &Registry, agent: AgentIndex) -> Vec<QueueKey> {
    let healthy = |queue: &crate::registry::Queue| {
        queue.state.agent == agent && queue.live.as_ref().is_some_and(|live| live.fault().is_none())
    };
    registry.queues.iter().filter(|(_, queue)| healthy(queue)).map(|(key, _)| key).collect()
}

const fn bit(code: ExceptionCode) -> u64 {
    1 << (code as u32 - 1)
}

const fn memory_bits() -> u64 {
    bit(ExceptionCode::WaveMemoryViolation) | bit(ExceptionCode::WaveApertureViolation)
}

fn violation(data: kfd_hsa_memory_exception_data) -> MemoryViolation {
    MemoryViolation {
        address: data.va,
        not_present: data.failure.NotPresent != 0,
        read_only: data.failure.ReadOnly != 0,
        no_execute: data.failure.NoExecute != 0,
    }
}

/// The queues of a GPU that have a wave with a memory violation. The others go on; if there is no such wave at all, it
/// was a copy engine, which has neither waves nor a word to report in, and the copy queues with packets in flight are
/// suspected; if there are none of those either, every queue with packets in flight.
fn suspects(device: &Device, registry: &mut Registry, gpu: GpuId) -> Vec<(QueueKey, u64)> {
    let Some(agent) = device.agent_of(gpu) else { return Vec::new() };
    let bits = bit(ExceptionCode::WaveMemoryViolation);
    let queues = on_agent(registry, agent);
    let (mut guilty, mut copying, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for &key in &queues {
        let waves = park_and_read(device, registry, key);
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
fn park_and_read(device: &Device, registry: &mut Registry, key: QueueKey) -> Vec<WaveRecord> {
    let Registry { queues, bos, .. } = registry;
    let Some(queue) = queues.get_mut(key) else { return Vec::new() };
    let parked = device.park_queue(queue, bos);
    let Some(area) = queue.state.bos.save_area.and_then(|area| bos.get(area)) else { return Vec::new() };
    let Ok(sizes) = parked.and_then(|()| device.wave_state(queue, bos)) else { return Vec::new() };
    let Some(memory) = view(area.state.va, area.state.bytes) else { return Vec::new() };
    let Ok(node) = device.node(queue.state.agent) else { return Vec::new() };
    // Only the first XCC's area, up to the end of its records.
    let used = u64::from(node.info.geometry().control_stack_bytes) + u64::from(sizes.wave_state_bytes);
    // CAST: below the area's size, which fits.
    let mut bytes = vec![0; used.min(memory.bytes()) as usize];
    memory.read(0, &mut bytes);
    read_waves(&bytes).unwrap_or_else(|error| {
        tracing::warn!(target: "exceptions", %error, %key, "the save area is not readable");
        Vec::new()
    })
}

/// Puts a queue in the error state and breaks the promises of its packets.
fn diagnose(device: &Device, registry: &mut Registry, key: QueueKey, cause: Cause) {
    let Cause { bits, memory, scratch } = cause;
    let waves = park_and_read(device, registry, key);
    // It is off the hardware, and nobody will answer it.
    scratch::close_question(registry, key);
    let Some(queue) = registry.queues.get(key) else { return };
    let Some(live) = queue.live.clone() else { return };
    let codes = ExceptionCode::ALL.iter().copied().filter(|&code| bits & bit(code) != 0).collect();
    let guilty = waves.iter().find(|wave| wave.trapsts & TRAPSTS_FAULTS != 0).or(waves.first());
    let packet = match guilty {
        Some(_) => None,
        None => Some(live.next_packet()),
    };
    let agent = device.node(queue.state.agent).map_or("?", |node| node.info.target().name).to_owned();
    let wave = guilty.map(|wave| locate(registry, wave));
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

fn locate(registry: &Registry, wave: &WaveRecord) -> FaultingWave {
    let at = registry.executable_at(wave.pc);
    let kernel = at.and_then(|(_, executable, _)| executable.program.as_ref()?.kernel_at(wave.pc));
    let kernel = kernel.map(|(name, offset)| (name.to_owned(), offset));
    let bytes = at
        .and_then(|(_, executable, base)| {
            let image = &registry.bos.get(executable.image)?.state;
            let offset = wave.pc - base;
            let mut bytes = vec![0; INSTRUCTION_BYTES.min(image.bytes - offset) as usize];
            view(base, image.bytes).filter(|_| image.cpu_mapped)?.read(offset, &mut bytes);
            Some(bytes)
        })
        .unwrap_or_default();
    FaultingWave { pc: wave.pc, kernel, bytes, workgroup: [wave.ttmp[8], wave.ttmp[9], wave.ttmp[10]] }
}
