// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the host by the kernels of a queue ([`crate::context::hostcall`]).
//!
//! A queue that runs a kernel which may call is given a buffer and a doorbell signal, which raises the event that queues ask for scratch
//! with: so the event thread answers, also while a lock drains the queue, whose kernels wait for it. Both live as long as the queue.
//!
//! INVARIANT: a call is heard and answered with the registry locked and its queue on the hardware. So memory that is saved has it whole,
//! or answered.

use std::sync::Arc;

use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{AllocError, DeviceError};
use crate::context::hostcall::Hostcall;
use crate::context::hostcall::output::{OUTPUT, Output, start_writing};
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
    if !OUTPUT.is_taken() {
        start_writing();
    }
    Ok(true)
}

/// Queues of the driver that may call, with whether they are suspended.
fn callers(registry: &Registry) -> impl Iterator<Item = (QueueKey, bool, &Hostcall)> {
    registry.queues.iter().filter_map(|(key, queue)| {
        let live = queue.live.as_ref().filter(|live| queue.created && live.fault().is_none())?;
        Some((key, queue.state.suspended, live.hostcall()?))
    })
}

/// Whether a suspended queue has called. Its event may be used up when it is on the hardware again.
pub fn is_put_off(registry: &Registry) -> bool {
    callers(registry).any(|(_, is_suspended, hostcall)| is_suspended && hostcall.is_called())
}

/// Answers the calls of all queues on the hardware; what kernels print is added to `output`. Returns the queues that cannot go on, and
/// why. A suspended queue's calls wait: a checkpoint may be writing down its memory, and a copy would hear them again, or never.
pub fn answer(registry: &Registry, output: &Output) -> Vec<(QueueKey, Cause)> {
    let on_hardware = callers(registry).filter(|&(_, is_suspended, _)| !is_suspended);
    let refused = on_hardware.filter_map(|(key, _, hostcall)| Some((key, hostcall.answer(output)?)));
    refused.map(|(key, service)| (key, Cause { service: Some(service), ..Cause::default() })).collect()
}
