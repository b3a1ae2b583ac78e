// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where signals come from and go to: slots of shared pages, events shared by several signals.
//!
//! INVARIANT: a signal is forgotten, and its slot reused, only when it is settled.

use std::sync::Arc;

use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::device::Device;
use crate::context::error::AllocError;
use crate::context::memory::make::{bo_view, make_bo};
use crate::context::memory::mapped::Mapped;
use crate::context::memory::request::Request;
use crate::context::queue::fault::QueueFault;
use crate::context::queue::live::QueueLive;
use crate::context::registry::arena::PAGE;
use crate::context::registry::slots::PAGE_BYTES;
use crate::context::registry::state::{
    BoKey, BoRole, EventKey, EventKind, EventState, SignalKey, SignalState,
};
use crate::context::registry::{Event, Registry, Signal, Table};
use crate::context::signal::live::{SLOT_BYTES, SignalLive};
use crate::context::signal::wait::wake_sleepers;

/// Events made for signals before they are shared. Each costs an ioctl when it is made and at every restore; sharing
/// costs sleepers of other signals a look at their value. KFD has 4095.
const MAX_EVENTS: usize = 256;

/// Makes and registers a signal.
pub(crate) fn new_signal(
    context: &Context,
    pass: &Pass<'_>,
    initial: i64,
) -> Result<(SignalKey, Arc<SignalLive>), AllocError> {
    new_signal_on(context, pass, initial, None)
}

/// As [`new_signal`], raising this event if one is given.
pub(crate) fn new_signal_on(
    context: &Context,
    pass: &Pass<'_>,
    initial: i64,
    event: Option<EventKey>,
) -> Result<(SignalKey, Arc<SignalLive>), AllocError> {
    let mut registry = context.registry.lock();
    let device = Arc::clone(context.device_or_lost(pass)?);
    collect_retired(context, &mut registry);
    let (page, slot) = match registry.slots.take() {
        Some(place) => place,
        None => {
            let request = Request::shared(BoRole::Signals, PAGE_BYTES, context.agents.len());
            let page = make_bo(context, &mut registry, &device, request)?;
            registry.slots.add_page(page);
            registry.slots.take().ok_or(AllocError::Signals { live: registry.signals.len() })?
        }
    };
    let view = bo_view(&registry, page).map(|page| page.part(u64::from(slot) * SLOT_BYTES, SLOT_BYTES));
    let event = event.map_or_else(|| signal_event(&mut registry, &device), Ok);
    let (Some(view), Ok(event)) = (view, &event) else {
        registry.slots.give_back(page, slot);
        return Err(event.err().map_or(AllocError::Signals { live: registry.signals.len() }, Into::into));
    };
    let event = *event;
    let event_live = registry.events.get_mut(event).map(|event| {
        event.users += 1;
        Arc::clone(&event.live)
    });
    let live = Arc::new(SignalLive::create(view, event_live, context.event_page_va, initial));
    let state = SignalState { page, slot, event: Some(event) };
    let key = registry.signals.insert(Signal { state, live: Some(Arc::clone(&live)) });
    Ok((key, live))
}

/// Forgets a signal whose handles are gone, now or once it is settled. Whether its page now waits to be freed: that of a
/// shared signal does.
pub(crate) fn drop_signal(context: &Context, registry: &mut Registry, key: SignalKey) -> bool {
    let Some(signal) = registry.signals.get(key) else { return false };
    let page = signal.state.page;
    let is_shared = registry.bos.get(page).is_some_and(|page| page.state.role == BoRole::SharedSignal);
    let settled = match &signal.live {
        // What others do to it says nothing about our packets: its page waits for them.
        Some(_) if is_shared => true,
        Some(live) => live.is_settled() || live.fault().is_some(),
        None => true,
    };
    if !settled {
        registry.retired.push(key);
        return false;
    }
    if let Some(signal) = registry.signals.remove(key) {
        if is_shared {
            const ANY_QUEUE: u64 = u64::MAX;
            context.deferred.lock().push((page, ANY_QUEUE));
        }
        registry.slots.give_back(signal.state.page, signal.state.slot);
        let event = signal.state.event.and_then(|event| registry.events.get_mut(event));
        if let Some(event) = event {
            event.users = event.users.saturating_sub(1);
        }
    }
    is_shared
}

/// Makes and registers a signal on a page of its own, which other processes can have: it raises no event, since
/// those are each process's own.
pub(crate) fn new_shared_signal(
    context: &Context,
    pass: &Pass<'_>,
    initial: i64,
) -> Result<(SignalKey, Arc<SignalLive>), AllocError> {
    let mut registry = context.registry.lock();
    let device = Arc::clone(context.device_or_lost(pass)?);
    collect_retired(context, &mut registry);
    let request = Request::shared(BoRole::SharedSignal, PAGE, context.agents.len());
    let page = make_bo(context, &mut registry, &device, request)?;
    let make = |slot| SignalLive::create(slot, None, context.event_page_va, initial);
    add_shared_signal(context, &mut registry, page, make)
        .ok_or(AllocError::Signals { live: registry.signals.len() })
}

/// Registers the signal of a page that another process may have made.
pub(crate) fn add_shared_signal(
    _context: &Context,
    registry: &mut Registry,
    page: BoKey,
    live: impl FnOnce(Mapped) -> SignalLive,
) -> Option<(SignalKey, Arc<SignalLive>)> {
    let live = Arc::new(live(bo_view(registry, page)?.part(0, SLOT_BYTES)));
    let state = SignalState { page, slot: 0, event: None };
    let key = registry.signals.insert(Signal { state, live: Some(Arc::clone(&live)) });
    Some((key, live))
}

fn collect_retired(context: &Context, registry: &mut Registry) {
    for key in std::mem::take(&mut registry.retired) {
        drop_signal(context, registry, key);
    }
}

/// What every submission ends with: if the queue failed meanwhile, the event thread may have looked at the ring
/// before the packets were there, so their completion signals are broken here.
#[inline]
pub(crate) fn submitted<'s>(
    context: &Context,
    pass: &Pass<'_>,
    queue: &QueueLive,
    completions: impl IntoIterator<Item = &'s Arc<SignalLive>>,
) {
    if let Some(fault) = queue.fault() {
        completions.into_iter().for_each(|signal| break_completion(context, pass, fault, signal));
    }
}

/// Breaks the signals of these handles that are not settled and have no fault yet.
pub(crate) fn break_promises(signals: &Table<Signal>, handles: &[u64], fault: &Arc<QueueFault>) {
    for signal in signals.iter().filter_map(|(_, signal)| signal.live.as_ref()) {
        if handles.contains(&signal.handle()) && !signal.is_settled() && signal.fault().is_none() {
            signal.break_with(fault);
        }
    }
}

#[cold]
fn break_completion(context: &Context, pass: &Pass<'_>, fault: &Arc<QueueFault>, signal: &SignalLive) {
    signal.break_with(fault);
    // The sleepers look at the fault on waking; if they cannot be woken they find it within their longest
    // sleep.
    let _ = wake_sleepers(context, pass, signal);
}

/// The event for a new signal: one nobody uses, or a new one, or the least used.
fn signal_event(
    registry: &mut Registry,
    device: &Device,
) -> Result<EventKey, crate::context::error::DeviceError> {
    let fixtures = [registry.fixtures.wake, registry.fixtures.queue_exception];
    let mut pool: Vec<(u32, EventKey)> = registry
        .events
        .iter()
        .filter(|(key, event)| event.state.kind == EventKind::Signal && !fixtures.contains(&Some(*key)))
        .map(|(key, event)| (event.users, key))
        .collect();
    pool.sort_unstable();
    match pool.first() {
        Some(&(users, key)) if users == 0 || pool.len() >= MAX_EVENTS => return Ok(key),
        _ => {}
    }
    let mut event = Event::new(EventState { kind: EventKind::Signal, auto_reset: true });
    match (device.create_event(&mut event, None), pool.first()) {
        (Ok(()), _) => Ok(registry.events.insert(event)),
        // The driver has no more: share.
        (Err(_), Some(&(_, key))) => Ok(key),
        (Err(error), None) => Err(error),
    }
}
