// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a context: its agents, its device, its window of addresses and the objects that every context has once.
//!
//! INVARIANT: a failure leaves nothing open and nothing reserved.

use std::sync::{Arc, OnceLock};

use kfd::{Topology, Transport, forks};
use parking_lot::Mutex;
use stasis_protocol::gate::{Gate, GatedCell};

use super::Context;
use super::agent::info::AgentInfo;
use super::agent::select::{Selection, select};
use super::agent::spec;
use super::clocks::Clocks;
use super::device::Device;
use super::error::{AllocError, DeviceError, OpenError};
use super::events::start;
use super::layers::Layers;
use super::memory::arriving::Arriving;
use super::memory::guard::Guard;
use super::memory::host_writes::HostWrites;
use super::memory::request::Request;
use super::memory::window;
use super::queue::code_caches::CodeCaches;
use super::queue::lost_agent::LostAgents;
use super::registry::arena::Window;
use super::registry::state::{BoRole, EventKey, EventKind, EventState};
use super::registry::{Event, Registry};

/// Opens the driver behind `transport` for the agents that `list` selects.
///
/// # Errors
/// [`OpenError`].
pub fn open(transport: Arc<dyn Transport>, list: Option<&str>) -> Result<Arc<Context>, OpenError> {
    forks::notice();
    let transport_name = transport.name().to_owned();
    let topology = Topology::read(transport.sysfs())
        .map_err(|source| OpenError::Topology { transport: transport_name.clone(), source })?;
    let selection = select(&topology, list, &transport_name)?;
    let window = window::reserve_any()?;
    let made = with_window(transport, transport_name, selection, topology, window);
    if made.is_err() {
        window::release(window);
    }
    made
}

fn with_window(
    transport: Arc<dyn Transport>,
    transport_name: String,
    selection: Selection,
    topology: Topology,
    window: Window,
) -> Result<Arc<Context>, OpenError> {
    let Selection { agents, left_out } = selection;
    let gate = Arc::new(Gate::new());
    let device = Arc::new(Device::open(transport, &agents, None)?);
    let mut registry = Registry::new(window);
    make_fixtures(&mut registry, &device, agents.len())?;
    let fixture = |what| OpenError::Bringup(DeviceError::Absent { what });
    let page = registry.fixtures.event_page.and_then(|page| registry.bos.get(page));
    let event_page_va = page.ok_or_else(|| fixture("the event page"))?.state.va;
    let wake = registry.fixtures.wake.and_then(|wake| registry.events.get(wake));
    let wake = Arc::clone(&wake.ok_or_else(|| fixture("the wake event"))?.live);
    let pages = device.hdp_pages()?;
    let host_writes = HostWrites::new(&gate, pages);
    let clocks = Clocks::new(agents.len());
    let code_caches = CodeCaches::new(agents.len());
    let lost_agents = LostAgents::new(agents.len());
    let context = Arc::new(Context {
        device: GatedCell::new(&gate, Some(Arc::clone(&device))),
        gate,
        registry: Mutex::new(registry),
        agents,
        uuids: topology.gpus().map(|node| spec::uuid(node.properties.unique_id)).collect(),
        left_out,
        hosts: topology.nodes.into_iter().filter(|node| !node.is_gpu()).collect(),
        transport_name: Mutex::new(transport_name.into()),
        event_page_va,
        wake,
        deferred: Mutex::new(Vec::new()),
        host_writes,
        clocks,
        code_caches,
        lost_agents,
        arriving: Arriving::default(),
        guard: Guard::default(),
        submitter: OnceLock::new(),
        layers: Layers::default(),
        watch: Mutex::new(None),
    });
    *context.watch.lock() = Some(start(&context, Arc::clone(&device)).map_err(OpenError::Thread)?);
    Ok(context)
}

/// Whether `list` selects the agents that are open; `None` accepts what is open.
///
/// # Errors
/// [`OpenError::AlreadyOpen`], [`OpenError::Agents`].
pub fn check_same(context: &Context, list: Option<&str>) -> Result<(), OpenError> {
    let Some(list) = list else { return Ok(()) };
    let chosen = spec::select(list, &context.uuids)?;
    let open = context.agents.iter().map(|info| info.uuid());
    if chosen.iter().map(|&at| context.uuids[at].as_str()).eq(open) {
        return Ok(());
    }
    Err(OpenError::AlreadyOpen { open: uuids(&context.agents), wanted: list.to_owned() })
}

fn uuids(agents: &[Arc<AgentInfo>]) -> String {
    agents.iter().map(|info| info.uuid()).collect::<Vec<_>>().join(",")
}

/// The event page and the runtime's own events: the page with the first event, the wake event.
///
/// # Errors
/// [`OpenError::Fixture`], [`OpenError::Bringup`].
fn make_fixtures(registry: &mut Registry, device: &Device, agents: usize) -> Result<(), OpenError> {
    let request = Request::shared(BoRole::EventPage, kfd::sys::EVENT_PAGE_BYTES as u64, agents);
    let state = request.into_state();
    let fixture = |source: AllocError| OpenError::Fixture { what: "event page", source };
    let page = registry.add_bo(state).map_err(|error| fixture(error.into()))?;
    let bo = registry.bos.get_mut(page).ok_or(DeviceError::Absent { what: "the event page" })?;
    device.create_bo(bo).map_err(|error| fixture(error.into()))?;
    registry.fixtures.event_page = Some(page);
    let event = |registry: &mut Registry, kind, auto_reset, first: bool| -> Result<EventKey, DeviceError> {
        let mut event = Event::new(EventState { kind, auto_reset });
        let page = if first { registry.bos.get(page) } else { None };
        device.create_event(&mut event, page)?;
        Ok(registry.events.insert(event))
    };
    // All but the wake event are consumed by the event thread's wait: KFD can lower no other kind by hand.
    registry.fixtures.wake = Some(event(registry, EventKind::Signal, false, true)?);
    registry.fixtures.queue_exception = Some(event(registry, EventKind::Signal, true, false)?);
    registry.fixtures.memory = Some(event(registry, EventKind::Memory, true, false)?);
    registry.fixtures.hw_exception = Some(event(registry, EventKind::HwException, true, false)?);
    Ok(())
}
