// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event thread: hears of memory faults, queue exceptions and resets, finds out whose they are, and tells
//! everyone who waits; of queues that ask for scratch, which it gives them (`queue::scratch`); and of kernels that call the host
//! (`queue::host_calls`).
//!
//! INVARIANT: the thread touches shared memory only while it holds the device, and is stopped before the device is
//! let go; so it needs no pass and works while the gate is closed. An event is no more than a hint: whenever the thread
//! starts or wakes, it looks at every queue.

mod attribution;
mod saved_waves;
pub mod thread_handle;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kfd::GpuId;
use kfd::sys::{kfd_event_data, kfd_hsa_memory_exception_data};
use queues::aql::ExceptionCode;
use stasis_protocol::gate::Lost;

use self::attribution::{abandon, bit, diagnose, evicted, memory_bits, on_agent, suspects};
use self::thread_handle::Watch;
use crate::context::Context;
use crate::context::device::{Device, DeviceEvents};
use crate::context::error::{AgentLost, DeviceError};
use crate::context::hostcall::output::OUTPUT;
use crate::context::memory::guard;
use crate::context::queue::fault::{Cause, MemoryViolation};
use crate::context::queue::{host_calls, scratch};
use crate::context::registry::state::QueueKey;
use crate::context::signal::event::EventLive;

/// TIMEOUT: a memory fault and the queue exception that belongs to it are raised one after the other; how long to
/// wait for the second before the waves are searched instead.
const PAIR_GRACE: Duration = Duration::from_millis(50);
/// TIMEOUT: a queue that asked for something and was suspended before it had it does not ask again when it is back; how
/// long to sleep at most while there is one.
const PUT_OFF_POLL: Duration = Duration::from_millis(5);

/// Starts the thread on `device`.
///
/// # Errors
/// What spawning a thread fails with.
pub fn start(context: &Arc<Context>, device: Arc<Device>) -> std::io::Result<Watch> {
    let stop = Arc::new(AtomicBool::new(false));
    let (weak, halt) = (Arc::downgrade(context), Arc::clone(&stop));
    let thread = std::thread::Builder::new().name("stasis-events".to_owned()).spawn(move || {
        let _own = guard::own();
        // What happened while nobody was listening may have used up its event.
        if let Some(context) = weak.upgrade() {
            handle(&context, &device, Raised::default());
        }
        while !halt.load(Ordering::Acquire) {
            let Some(context) = weak.upgrade() else { return };
            if !watch_once(&context, &device, &halt) {
                return;
            }
        }
    })?;
    Ok(Watch { stop, thread, wake: Arc::clone(&context.wake) })
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

/// The events to sleep on, that of queue exceptions, and how long to sleep at most; `None` before there are any.
fn listening(context: &Context) -> Option<(DeviceEvents, Arc<EventLive>, Option<Duration>)> {
    let registry = context.registry.lock();
    let live =
        |key: Option<_>| key.and_then(|key| registry.events.get(key)).map(|event| Arc::clone(&event.live));
    let fixtures = &registry.fixtures;
    let (memory, hw) = (live(fixtures.memory)?, live(fixtures.hw_exception)?);
    let queue = live(fixtures.queue_exception)?;
    let id = |event: &EventLive| event.id.load(Ordering::Relaxed);
    let events = DeviceEvents {
        memory: id(&memory),
        hw_exception: id(&hw),
        queue_exception: id(&queue),
        wake: id(&context.wake),
    };
    let is_put_off = scratch::is_asked(&registry) || host_calls::is_put_off(&registry);
    let limit = is_put_off.then_some(PUT_OFF_POLL);
    Some((events, queue, limit))
}

/// Looks at the events without sleeping. The age of the queue exceptions stays what it was, so that the next sleep
/// returns for the same ones.
fn look(context: &Context, device: &Device) -> Option<Raised> {
    let (events, exception, _) = listening(context)?;
    let age = exception.age.load(Ordering::Relaxed);
    let data = device.sleep_on_exceptions(events, age, Some(Duration::ZERO)).ok()?;
    Some(Raised::read(&data))
}

/// Sleeps once and handles what came. `false` ends the thread.
fn watch_once(context: &Context, device: &Device, halt: &AtomicBool) -> bool {
    let Some((events, exception, limit)) = listening(context) else { return false };
    let age = exception.age.load(Ordering::Relaxed);
    match device.sleep_on_exceptions(events, age, limit) {
        Ok(data) => {
            if data[2].last_event_age() != 0 {
                exception.age.store(data[2].last_event_age(), Ordering::Relaxed);
            }
            if !halt.load(Ordering::Acquire) {
                handle(context, device, Raised::read(&data));
            }
            true
        }
        Err(_) if halt.load(Ordering::Acquire) => false,
        Err(error) => {
            lose(context, device, error);
            false
        }
    }
}

/// The device does not answer any more.
fn lose(context: &Context, device: &Device, error: DeviceError) {
    tracing::error!(target: "exceptions", %error, "the device is lost");
    context.gate.lose(Lost {
        what: "it does not answer; if it is softgpud, it was killed",
        source: Some(Arc::new(error)),
    });
    wake_everyone(context, device);
}

/// Handles what a sleep brought.
fn handle(context: &Context, device: &Device, mut raised: Raised) {
    if let Some(gpu) = raised.reset {
        fail_agent(context, device, gpu);
    }
    let mut found = collect(context);
    if raised.memory.is_some() && found.is_empty() {
        let deadline = Instant::now() + PAIR_GRACE;
        while found.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            found = collect(context);
        }
    }
    if raised.memory.is_none() && found.iter().any(|&(_, bits)| bits & memory_bits() != 0) {
        // The bits were there before the thread was, or were seen by a sleep that something else had ended.
        let deadline = Instant::now() + PAIR_GRACE;
        while raised.memory.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            let Some(late) = look(context, device) else { break };
            if let Some(gpu) = late.reset {
                fail_agent(context, device, gpu);
            }
            raised = Raised { memory: late.memory, reset: raised.reset.or(late.reset) };
        }
    }
    let mut registry = context.registry.lock();
    let agent = raised.memory.and_then(|memory| device.agent_of(GpuId(memory.gpu_id)));
    // The driver takes queues off before it tells of the fault, and is asked before the queue at fault is suspended.
    let off = agent.map_or_else(Vec::new, |agent| evicted(device, &registry, agent));
    if let (Some(memory), true) = (raised.memory, found.is_empty()) {
        found = suspects(device, &mut registry, GpuId(memory.gpu_id));
    }
    let cause = |bits| {
        let memory = raised.memory.filter(|_| bits & memory_bits() != 0).map(MemoryViolation::from);
        Cause { bits, memory, evicted: memory.is_some() && !off.is_empty(), ..Cause::default() }
    };
    let found: Vec<_> = found.into_iter().map(|(queue, bits)| (queue, cause(bits))).collect();
    let mut is_news = !found.is_empty() || raised.memory.is_some() || raised.reset.is_some();
    let mut guilty = None;
    for (queue, cause) in found {
        let fault = diagnose(device, &mut registry, queue, cause);
        guilty = guilty.or(fault.filter(|fault| fault.memory.is_some()));
    }
    let refused = host_calls::answer(&registry, &OUTPUT);
    for (queue, cause) in scratch::answer(context, device, &mut registry).into_iter().chain(refused) {
        is_news = true;
        diagnose(device, &mut registry, queue, cause);
    }
    if let (Some(agent), Some(memory)) = (agent, raised.memory.map(MemoryViolation::from)) {
        let name = device.node(agent).map_or("?", |node| node.info.target().name).to_owned();
        let lost = Arc::new(AgentLost { agent: name, memory: Some(memory), fault: guilty });
        context.lost_agents.note(agent, &lost);
        // Better told than waited for.
        if !off.is_empty() {
            abandon(device, &mut registry, agent, |key| off.contains(&key), &lost);
        }
    }
    for info in &context.agents {
        if let Some(lost) = context.lost_agents.lost(info.index()) {
            is_news |= abandon(device, &mut registry, info.index(), |_| true, &lost);
        }
    }
    drop(registry);
    if is_news {
        wake_everyone(context, device);
    }
}

/// Queues with exception bits, which are taken.
fn collect(context: &Context) -> Vec<(QueueKey, u64)> {
    let registry = context.registry.lock();
    let bits =
        |key| registry.signals.get(key).and_then(|s| s.live.as_ref()).map_or(0, |live| live.take_bits());
    let queues = registry.queues.iter().map(|(key, queue)| (key, bits(queue.state.exceptions)));
    queues.filter(|&(_, bits)| bits != 0).collect()
}

/// A reset takes all queues of a GPU with it.
fn fail_agent(context: &Context, device: &Device, gpu: GpuId) {
    let Some(agent) = device.agent_of(gpu) else { return };
    let mut registry = context.registry.lock();
    let queues: Vec<_> = on_agent(&registry, agent);
    for queue in queues {
        let bits = bit(ExceptionCode::PreemptionError);
        diagnose(device, &mut registry, queue, Cause { bits, ..Cause::default() });
    }
}

/// Raises every event that somebody sleeps on: they look at the gate and at their signal's fault.
pub(crate) fn wake_everyone(context: &Context, device: &Device) {
    let sleeping: Vec<u32> = {
        let registry = context.registry.lock();
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
