// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the host by the kernels of a queue ([`crate::context::hostcall`]).
//!
//! A queue that runs a kernel which may call is given a buffer and a doorbell signal, which raises the event that queues ask for scratch
//! with: so the event thread answers, also while a lock drains the queue, whose kernels wait for it. Both live as long as the queue. A
//! call of a wave that is preempted is answered before the device is let go, or after the restore.

use std::sync::Arc;

use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{AllocError, DeviceError};
use crate::context::hostcall::output::Output;
use crate::context::hostcall::{Call, Hostcall};
use crate::context::memory::make::{bo_view, make_bo, unmake_bo};
use crate::context::memory::request::Request;
use crate::context::queue::fault::Cause;
use crate::context::queue::live::QueueLive;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoRole, QueueKey, SignalKey};
use crate::context::signal::make::{drop_signal, new_signal_on};

/// Sees to it that kernels of a queue can call the host.
///
/// # Errors
/// [`AllocError`]; the queue is as before.
#[cold]
pub fn provide(
    context: &Context,
    pass: &Pass<'_>,
    info: &AgentInfo,
    key: QueueKey,
    live: &QueueLive,
) -> Result<(), AllocError> {
    let device = Arc::clone(context.device_or_lost(pass)?);
    let event = context.registry.lock().fixtures.queue_exception;
    let (doorbell, signal) = new_signal_on(context, pass, 0, event)?;
    let mut registry = context.registry.lock();
    let made = match live.hostcall() {
        // Another thread was here meanwhile.
        Some(_) => Ok(false),
        None => make(context, &mut registry, &device, info, (key, live), (doorbell, signal.handle())),
    };
    if !matches!(made, Ok(true)) {
        drop_signal(context, &mut registry, doorbell);
    }
    made.map(drop)
}

fn make(
    context: &Context,
    registry: &mut Registry,
    device: &Device,
    info: &AgentInfo,
    (key, live): (QueueKey, &QueueLive),
    (doorbell, handle): (SignalKey, u64),
) -> Result<bool, AllocError> {
    let properties = &info.node().properties;
    let waves = u64::from(properties.simd_count) * u64::from(properties.max_waves_per_simd);
    let request = Request::queue_memory(BoRole::Hostcall, Hostcall::bytes(waves), info.index());
    let bo = make_bo(context, registry, device, request)?;
    let (Some(view), Some(queue)) = (bo_view(registry, bo), registry.queues.get_mut(key)) else {
        unmake_bo(registry, device, bo);
        return Err(DeviceError::Absent { what: "the queue" }.into());
    };
    queue.state.bos.hostcall = Some(bo);
    queue.state.hostcall_doorbell = Some(doorbell);
    live.set_hostcall(Hostcall::create(view, waves, handle));
    Ok(true)
}

/// Calls of a queue that were heard and are to be answered.
#[derive(Debug)]
pub struct Heard {
    queue: QueueKey,
    live: Arc<QueueLive>,
    calls: Vec<Call>,
}

/// Hears the calls of all queues. What kernels print is added to `output`, which is to be written before the calls are answered: a
/// kernel that has ended has its text out. Also returns the queues that cannot go on, and why.
pub fn hear(registry: &Registry, output: &Output) -> (Vec<Heard>, Vec<(QueueKey, Cause)>) {
    let (mut all, mut stuck) = (Vec::new(), Vec::new());
    for (key, queue) in registry.queues.iter() {
        let Some(live) = queue.live.as_ref().filter(|live| queue.created && live.fault().is_none()) else {
            continue;
        };
        let Some(hostcall) = live.hostcall() else { continue };
        let (calls, refused) = hostcall.hear(output);
        if !calls.is_empty() {
            all.push(Heard { queue: key, live: Arc::clone(live), calls });
        }
        if let Some(service) = refused {
            stuck.push((key, Cause { service: Some(service), ..Cause::default() }));
        }
    }
    (all, stuck)
}

/// Answers calls that were heard. Those of queues that are gone since are passed over.
pub fn answer(registry: &Registry, heard: Vec<Heard>) {
    for Heard { queue, live, calls } in heard {
        let is_there = registry.queues.get(queue).is_some_and(|queue| queue.created);
        if let Some(hostcall) = live.hostcall().filter(|_| is_there) {
            hostcall.answer(calls);
        }
    }
}
